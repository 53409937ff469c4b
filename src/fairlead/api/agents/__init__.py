"""API of the node agents: push channel, slices, reports, counters and keys."""
