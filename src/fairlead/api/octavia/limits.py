"""Limits of the Octavia API front end with their sources. Limits of load balancers are in `model/documents/sizes.py`.

Everything else is limited by the size of a body or document.
"""

from fairlead.model.documents import sizes

TAGS = 100
"""Maximum tags of a resource; Fairlead's own, because tags are read with every document."""
REFERENCES = 100
"""Maximum certificate references of a listener, and security groups of a load balancer; Fairlead's own."""
MAX_PER_REQUEST = {"members": sizes.MAX_MEMBERS, "l7policies": 1_000, "rules": 2_000, "allowed_cidrs": 4_000}
"""Maximum items in all lists of one request; Fairlead's own, because each item is decoded separately."""
MAX_TEXT_LENGTH = 255
"""Maximum characters of a name, description or tag (octavia, common/constants.py and api/v2/types)."""
MAX_METADATA_LENGTH = 4096
"""Maximum characters of a profile's flavor_data or availability_zone_data (octavia, api/v2/types)."""
MAX_PROVIDER_LENGTH = 64
MAX_CIPHERS_LENGTH = 2048
MAX_WORD_LENGTH = 32
"""Maximum characters (octavia, db/models.py) of a provider, of TLS ciphers, and of a protocol or version name."""
MAX_TIMEOUT_MS = 2_073_600_000
"""Maximum timeout in milliseconds, 24 days (octavia, common/constants.py, MAX_TIMEOUT)."""
MAX_NUMBER = 2**31 - 1
"""Maximum number of connections or seconds: an integer column in Octavia's database."""
