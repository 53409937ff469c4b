"""Open vSwitch of a node: ports, counters, connection tracking and announcements."""
