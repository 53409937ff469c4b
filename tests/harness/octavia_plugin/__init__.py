"""Shared code of the tests in tests/octavia_plugin."""
