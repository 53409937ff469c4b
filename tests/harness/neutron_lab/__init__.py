"""Shared code of the tests in tests/neutron_lab."""
