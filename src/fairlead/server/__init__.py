"""Server process: its parts, and the order of their start and shutdown."""

from fairlead.server.process import serve

__all__ = ["serve"]
