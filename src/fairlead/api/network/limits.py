"""Limits of the Neutron API front end with their sources. Everything else is limited by the size of a body."""

MAX_NAME_LENGTH = 255
"""Maximum characters of a name, project id, device id or host (neutron-lib, db/constants.py, NAME_FIELD_SIZE)."""
MAX_DESCRIPTION_LENGTH = 255
"""Maximum characters (neutron-lib, db/constants.py, DESCRIPTION_FIELD_SIZE)."""
MAX_LOCAL_IP_DESCRIPTION_LENGTH = 1024
"""Maximum characters (neutron-lib, db/constants.py, LONG_DESCRIPTION_FIELD_SIZE)."""
MAX_TAG_LENGTH = 255
"""Maximum characters (neutron, extensions/tagging.py, MAX_TAG_LEN)."""
TAGS = 100
"""Maximum tags of a resource; Fairlead's own, because tags are read with every document."""
ALLOCATION_POOLS = 64
"""Maximum allocation pools of a subnet; Fairlead's own."""
FIXED_IPS = 16
"""Maximum fixed IPs of a port; Fairlead's own, equal to the maximum VIPs of a load balancer. OVN stores them in one
column."""
DNS_NAMESERVERS = 5
"""Maximum name servers of a subnet (neutron.conf, max_dns_nameservers)."""
HOST_ROUTES = 20
"""Maximum host routes of a subnet (neutron.conf, max_subnet_host_routes)."""
MAX_DELAY_SECONDS = 3600
"""Maximum interval and timeout of probes, in seconds; Fairlead's own."""
BULK = 100
"""Maximum resources in one request; Fairlead's own. They are decided one by one, and written in one transaction."""
EXTRA_ROUTES = 100
"""Maximum routes in one request; Fairlead's own. The limit of a router is lower (`changes/routers.py`) and has
Neutron's error text."""
MIN_MTU = 68
"""Minimum MTU in bytes (RFC 791, "Fragmentation and Reassembly")."""
MAX_MTU = 65535
"""Maximum MTU in bytes: the length field of an IPv4 header."""
MAX_VLAN = 4094
"""Maximum VLAN id (IEEE 802.1Q): 0 means untagged, and 4095 is reserved."""
