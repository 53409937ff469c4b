"""Shared code of the tests in tests/ha."""
