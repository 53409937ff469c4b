"""Shared code of the tests in tests/lab."""
