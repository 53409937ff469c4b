"""Size limits of load balancers, their parts and Local IPs, for all API front ends. Each is one document, written as a
whole.

Everything without a limit here is bounded by the size of a document. Limits are Fairlead's unless a source is given.
"""

from fairlead.model.documents.apportionment import MAX_SLOTS

MAX_LISTENERS = 200
MAX_POOLS = 200
MAX_MEMBERS = 1_000
"""Maximum members of one load balancer, in all its pools."""
MAX_PORTS = 1_000
"""Maximum ports of one load balancer, of all its listeners: each is an entry of its own in a switch."""
MAX_ENDPOINTS = 5_000
"""Maximum endpoints of one load balancer, members times ports that lead to them: they are one row."""
BUCKETS = 2 * MAX_LISTENERS * MAX_SLOTS
"""Maximum hash buckets of one load balancer, for pools that select by fields of a packet (`Pool.goes_by_fields`): a
table of `LARGEST` for each port at each VIP, all in one row. Every listener may have a port at two VIPs."""
MAX_BACKENDS = 256
"""Maximum backends of one declarative spec."""
MAX_ADDITIONAL_VIPS = 15
"""Maximum additional VIPs of one load balancer; all are addresses of one port."""
MAX_RAW_BYTES = 64
"""Maximum length of a listener's `raw` value, in bytes.
Its location is limited too, because a proxy buffers the bytes before it."""
MAX_RAW_OFFSET = 4_095
MAX_ALLOWED_CIDRS = 100
"""Maximum allowed CIDRs of one listener: they are in the match of one ACL, and each becomes a flow on every node."""
MAX_L7POLICIES = 100
"""Maximum L7 policies of one listener."""
MAX_L7RULES = 50
"""Maximum rules of one L7 policy (octavia, common/constants.py, MAX_L7RULES_PER_L7POLICY)."""
MAX_ASSOCIATIONS = 256
"""Maximum associations of one Local IP: they are in the match of one ACL."""
MAX_RETRIES = 10
MIN_DELAY_MS, MAX_DELAY_MS = 100, 999
"""Bounds of delays below one second, in milliseconds; Octavia supports whole seconds only."""
MIN_UDP_CONNECT_DELAY_SECONDS = 3
"""Minimum delay of UDP-CONNECT monitors in seconds (octavia,
common/config.py, udp_connect_min_interval_health_monitor)."""
MAX_WEIGHT = 256
"""Maximum weight of a member (Octavia API reference, "Create Member")."""
