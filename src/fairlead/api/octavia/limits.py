"""Every limit of this door, and where it comes from. What has none is bounded by the size of a document or a body."""

LISTENERS = 200
POOLS = 200
MEMBERS = 1_000
"""Of one load balancer, in all of its pools together. These three are ours: it is one document, written whole."""
VIPS = 15
"""Of one load balancer, beside its first. Ours; all are addresses of one port."""
TAGS = 100
"""Of one resource. Ours: a tag is read with every document."""
CIDRS = 100
"""Of one listener. Ours: they are in the match of one ACL, and each becomes a flow on every node."""
REFERENCES = 100
"""Ours: to certificates, from one listener; security groups of one load balancer."""
POLICIES = 100
"""Of one listener. Ours."""
RULES = 50
"""Of one L7 policy (octavia, common/constants.py, MAX_L7RULES_PER_L7POLICY)."""
IN_ALL = {"members": MEMBERS, "l7policies": 1_000, "rules": 2_000, "allowed_cidrs": 4_000}
"""Of these one request may make so many, in all lists that it has. Ours: they are decoded one by one."""
MOST_RETRIES = 10
UDP_CONNECT_DELAY = 3
"""Seconds: the least of a monitor of this type (octavia, common/config.py, udp_connect_min_interval_health_monitor)."""
LONGEST_TEXT = 255
"""Characters of a name, a description or a tag (octavia, common/constants.py and api/v2/types)."""
LONGEST_METADATA = 4096
"""Characters of a profile's flavor_data or availability_zone_data (octavia, api/v2/types)."""
LONGEST_PROJECT = 36
LONGEST_PROVIDER = 64
LONGEST_CIPHERS = 2048
LONGEST_WORD = 32
"""Characters (octavia, db/models.py): of a project's id, a provider, TLS ciphers, the name of a protocol or version."""
LARGEST_WEIGHT = 256
"""Octavia API reference, "Create Member"."""
LONGEST_TIMEOUT = 2_073_600_000
"""Milliseconds, 24 days (octavia, common/constants.py, MAX_TIMEOUT)."""
LARGEST_NUMBER = 2**31 - 1
"""Of connections and of seconds: a column of Octavia's database."""
