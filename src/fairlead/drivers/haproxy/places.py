"""Where processes run: what a driver of HAProxy asks of whoever makes namespaces and devices."""

from collections.abc import Sequence
from typing import Protocol

from fairlead.dataplane.haproxy import Process


class Nowhere:
    """On a plain host, where processes run in no place of their own."""

    async def make(self, process: Process) -> Sequence[str]:
        raise AssertionError(f"a place for {process}")

    async def remove(self, network_id: str) -> None:
        pass


class Places(Protocol):
    async def make(self, process: Process) -> Sequence[str]:
        """The namespace with the device that the process wants, whatever was there before. Answers the words that stand
        before those of a command which is to run there. Raises DriverError."""

    async def remove(self, network_id: str) -> None:
        """With whatever is in it; nothing if it is not there. Raises DriverError."""
