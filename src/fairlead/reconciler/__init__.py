"""Reconciler: compiles dirty owners, compares their rows with those last applied, and applies the difference."""
