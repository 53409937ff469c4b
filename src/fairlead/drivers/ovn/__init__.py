"""OVN: the driver of the Northbound database, and what the Southbound one and the switch of a node tell."""
