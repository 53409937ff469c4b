"""Fairlead: a natively distributed load balancer for OVN, Open vSwitch and plain Linux hosts."""

__version__ = "0.1.0"
