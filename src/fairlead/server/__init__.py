"""What runs in one process, and in which order it starts and ends."""

from fairlead.server.process import serve

__all__ = ["serve"]
