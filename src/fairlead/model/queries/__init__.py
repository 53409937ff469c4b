"""Values derived from a snapshot for one purpose each, such as probes, placements and proxies."""
