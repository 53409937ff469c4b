"""Shared code of the tests in tests/siege."""
