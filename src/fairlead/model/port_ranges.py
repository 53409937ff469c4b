"""Ports of TCP and UDP as ranges: what a listener has, and where its members are.

A range of ten thousand ports is one value; whoever expands ranges has bounded them before (`model/sizes.py`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

FIRST, LAST = 1, 65_535
"""Port 0 is nobody's (RFC 6335, 6)."""


class PortRange(NamedTuple):
    """Both ends belong to it."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def is_valid(self) -> bool:
        return FIRST <= self.first <= self.last <= LAST


Ports: TypeAlias = tuple[PortRange, ...]
"""In the order in which they were given, and never merged: `80,81,8080-8090` is three ranges."""
TargetPort: TypeAlias = int | Ports | None
"""Where a member takes connections: one port for all that clients connect to; as many ports as those, each for the one
at its place; or None, the port that the client connected to."""


PROXY_PORTS = PortRange(1024, 32_767)
"""Of proxies in namespaces of their own: below those from which Linux connects (ip(7), ip_local_port_range)."""
HOST_PROXY_PORTS = PortRange(61_001, 65_535)
"""Of those beside all that a plain host runs: above them, where no daemon listens unless it is told to."""


@lru_cache(maxsize=2**12)
def one_port(number: int) -> Ports:
    return (PortRange(number, number),)


def count(ports: Ports) -> int:
    return sum(each.last - each.first + 1 for each in ports)


def expand(ports: Ports) -> Iterator[int]:
    """All of them, in order."""
    return (number for each in ports for number in range(each.first, each.last + 1))


def holds(ports: Ports, number: int) -> bool:
    return any(each.first <= number <= each.last for each in ports)


def render(ports: Ports) -> str:
    """`80,81,8080-8090`."""
    return ",".join(map(str, ports))


def targets(port: TargetPort, ports: Sequence[int]) -> tuple[int, ...]:
    """Where the member takes what clients send to these ports, each at its place."""
    match port:
        case None:
            return tuple(ports)
        case int():
            return (port,) * len(ports)
        case _:
            return tuple(expand(port))
