"""Size limits of load balancers, their parts and Local IPs, for all API front ends. Each is one document, written as a
whole.

Everything without a limit here is bounded by the size of a document. Limits are Fairlead's unless a source is given.
"""

from fairlead.model.documents.apportionment import LARGEST

LISTENERS = 200
POOLS = 200
MEMBERS = 1_000
"""Maximum members of one load balancer, in all its pools."""
PORTS = 1_000
"""Maximum ports of one load balancer, of all its listeners: each is an entry of its own in a switch."""
TARGETS = 5_000
"""Maximum endpoints of one load balancer, members times ports that lead to them: they are one row."""
BUCKETS = 2 * LISTENERS * LARGEST
"""Maximum hash buckets of one load balancer, for pools that select by fields of a packet (`Pool.goes_by_fields`): a
table of `LARGEST` for each port at each VIP, all in one row. Every listener may have a port at two VIPs."""
BACKENDS = 256
"""Maximum backends of one declarative spec."""
VIPS = 15
"""Maximum additional VIPs of one load balancer; all are addresses of one port."""
RAW_BYTES = 64
"""Maximum length of a listener's `raw` value, in bytes.
Its location is limited too, because a proxy buffers the bytes before it."""
LARGEST_RAW_LOCATION = 4_095
CIDRS = 100
"""Maximum allowed CIDRs of one listener: they are in the match of one ACL, and each becomes a flow on every node."""
POLICIES = 100
"""Maximum L7 policies of one listener."""
RULES = 50
"""Maximum rules of one L7 policy (octavia, common/constants.py, MAX_L7RULES_PER_L7POLICY)."""
ASSOCIATIONS = 256
"""Maximum associations of one Local IP: they are in the match of one ACL."""
MOST_RETRIES = 10
LEAST_DELAY_MS, LARGEST_DELAY_MS = 100, 999
"""Bounds of delays below one second, in milliseconds; Octavia supports whole seconds only."""
UDP_CONNECT_DELAY = 3
"""Minimum delay of UDP-CONNECT monitors in seconds (octavia,
common/config.py, udp_connect_min_interval_health_monitor)."""
LARGEST_WEIGHT = 256
"""Maximum weight of a member (Octavia API reference, "Create Member")."""
