"""Limits of this door, and where they come from. How large a load balancer may be is in `model/sizes.py`.

What has no limit is bounded by the size of a document or a body.
"""

from fairlead.model import sizes

TAGS = 100
"""Of one resource. Ours: a tag is read with every document."""
REFERENCES = 100
"""Ours: to certificates, from one listener; security groups of one load balancer."""
IN_ALL = {"members": sizes.MEMBERS, "l7policies": 1_000, "rules": 2_000, "allowed_cidrs": 4_000}
"""Of these one request may make so many, in all lists that it has. Ours: they are decoded one by one."""
LONGEST_TEXT = 255
"""Characters of a name, a description or a tag (octavia, common/constants.py and api/v2/types)."""
LONGEST_METADATA = 4096
"""Characters of a profile's flavor_data or availability_zone_data (octavia, api/v2/types)."""
LONGEST_PROVIDER = 64
LONGEST_CIPHERS = 2048
LONGEST_WORD = 32
"""Characters (octavia, db/models.py): of a provider, TLS ciphers, the name of a protocol or version."""
LONGEST_TIMEOUT = 2_073_600_000
"""Milliseconds, 24 days (octavia, common/constants.py, MAX_TIMEOUT)."""
LARGEST_NUMBER = 2**31 - 1
"""Of connections and of seconds: a column of Octavia's database."""
