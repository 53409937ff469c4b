"""How large a load balancer and its parts may be, and a Local IP, whichever door they come through. Each is one
document, written whole.

What has no limit here is bounded by the size of a document.
"""

LISTENERS = 200
POOLS = 200
MEMBERS = 1_000
"""Of one load balancer, in all of its pools together. These three are ours."""
PORTS = 1_000
"""Of one load balancer, those of all its listeners. Ours: each is an entry of its own in a switch."""
TARGETS = 5_000
"""Of one load balancer: its members, each as often as there are ports that lead to it. Ours: they are one row."""
BACKENDS = 256
"""Of one description. Ours."""
VIPS = 15
"""Of one load balancer, beside its first. Ours; all are addresses of one port."""
RAW_BYTES = 64
"""Of a listener's `raw`. Ours, and so is how far into a stream they may be: a proxy keeps what comes before them."""
LARGEST_RAW_LOCATION = 4_095
CIDRS = 100
"""Of one listener. Ours: they are in the match of one ACL, and each becomes a flow on every node."""
POLICIES = 100
"""Of one listener. Ours."""
RULES = 50
"""Of one L7 policy (octavia, common/constants.py, MAX_L7RULES_PER_L7POLICY)."""
ASSOCIATIONS = 256
"""Of one Local IP. Ours: they are in the match of one ACL."""
MOST_RETRIES = 10
LEAST_DELAY_MS, LARGEST_DELAY_MS = 100, 999
"""Milliseconds, of a delay that is shorter than a second. Ours; Octavia has whole seconds only."""
UDP_CONNECT_DELAY = 3
"""Seconds: the least of a monitor of this type (octavia, common/config.py, udp_connect_min_interval_health_monitor)."""
LARGEST_WEIGHT = 256
"""Octavia API reference, "Create Member"."""
