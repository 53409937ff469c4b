"""nftables of a plain host: ruleset, set elements, counters and connection tracking."""
