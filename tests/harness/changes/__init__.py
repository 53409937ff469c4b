"""Shared code of the tests in tests/changes."""
