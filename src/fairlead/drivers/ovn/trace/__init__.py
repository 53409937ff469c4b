"""ovn-trace, read as steps."""
