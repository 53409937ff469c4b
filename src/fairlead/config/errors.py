"""Errors of the configuration. No other module is imported, so commands start quickly."""


class BadConfiguration(Exception):
    """Invalid configuration. The message has the source, the option, the value and the expected form."""
