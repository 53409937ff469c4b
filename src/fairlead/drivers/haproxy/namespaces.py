"""Interface to the places of HAProxy processes: network namespaces with their devices."""

from collections.abc import Sequence
from typing import Protocol

from fairlead.dataplane.haproxy import Process


class HostNamespace:
    """Implementation for a plain host, where processes run in the host's network namespace."""

    async def make(self, process: Process) -> Sequence[str]:
        raise AssertionError(f"{process} has a network namespace of its own")

    async def remove(self, network_id: str) -> None:
        pass


class Namespaces(Protocol):
    async def make(self, process: Process) -> Sequence[str]:
        """Create or update the namespace and the device of a process. Returns the command prefix that runs a program
        there. Raises DriverError."""

    async def remove(self, network_id: str) -> None:
        """Remove the namespace with all processes and devices in it; does nothing if it does not exist. Raises
        DriverError."""
