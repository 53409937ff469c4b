"""Rows of each dataplane: frozen values with a canonical text, and the one diff."""
