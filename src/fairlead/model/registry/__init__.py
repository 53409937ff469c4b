"""Declarations of document kinds, their dependents, facts, and the slice that a node receives."""
