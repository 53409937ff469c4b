"""OVN Northbound database: replica, rows of Fairlead, and drift."""
