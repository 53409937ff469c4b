"""Every limit of this door, and where it comes from. What has no limit is bounded by the size of a request body."""

LONGEST_NAME = 255
"""Characters of a name, a project id, a device id or a host (neutron-lib, db/constants.py, NAME_FIELD_SIZE)."""
LONGEST_DESCRIPTION = 255
"""Characters (neutron-lib, db/constants.py, DESCRIPTION_FIELD_SIZE)."""
LONGEST_DESCRIPTION_OF_LOCAL_IP = 1024
"""Characters (neutron-lib, db/constants.py, LONG_DESCRIPTION_FIELD_SIZE)."""
LONGEST_TAG = 255
"""Characters (neutron, extensions/tagging.py, MAX_TAG_LEN)."""
TAGS = 100
"""Of one resource. Ours: a tag is read with every document."""
ALLOCATION_POOLS = 64
"""Of one subnet. Ours."""
FIXED_IPS = 16
"""Of one port. Ours, and as many as the port of a load balancer's VIPs has; an OVN port names them in one column."""
DNS_NAMESERVERS = 5
"""Of one subnet (neutron.conf, max_dns_nameservers)."""
HOST_ROUTES = 20
"""Of one subnet (neutron.conf, max_subnet_host_routes)."""
LONGEST_DELAY = 3600
"""Seconds between two probes, and that one waits for an answer. Ours."""
BULK = 100
"""Resources in one request. Ours: they are decided one by one, but written in one transaction."""
EXTRA_ROUTES = 100
"""In one request. Ours; a router has fewer (`changes/routers.py`), and the sentence about that is Neutron's own."""
LEAST_MTU = 68
"""Bytes (RFC 791, "Fragmentation and Reassembly")."""
LARGEST_MTU = 65535
"""Bytes: the length field of an IPv4 header."""
LARGEST_VLAN = 4094
"""IEEE 802.1Q: 0 is no VLAN, and 4095 is reserved."""
