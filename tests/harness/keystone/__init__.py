"""Shared code of the tests in tests/keystone."""
