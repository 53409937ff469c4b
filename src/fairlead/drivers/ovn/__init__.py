"""OVN: driver of the Northbound database, readers of the Southbound database, and access to a node's Open vSwitch."""
