"""OVN Southbound database: chassis, port bindings and monitor results."""
