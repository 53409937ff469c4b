"""Ports as ranges: those of a listener, and those of its members.

A range of ten thousand ports is one value. Callers that expand ranges have checked their size before
(`model/documents/sizes.py`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

FIRST_PORT, LAST_PORT = 1, 65_535
"""Valid port numbers; port 0 is reserved (RFC 6335, 6)."""


class PortRange(NamedTuple):
    """Range of ports; both ends are included."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"

    @property
    def is_valid(self) -> bool:
        return FIRST_PORT <= self.first <= self.last <= LAST_PORT


Ports: TypeAlias = tuple[PortRange, ...]
"""Ranges in the order of the request, never merged: `80,81,8080-8090` has three ranges."""
TargetPort: TypeAlias = int | Ports | None
"""Port of a member.

* A number is the port for all listener ports.
* Ranges have one port per listener port, by position.
* None is the same port as the listener's.
"""


PROXY_PORTS = PortRange(1024, 32_767)
"""Ports of proxies in their own namespaces, below Linux's ephemeral ports (ip(7), ip_local_port_range)."""
HOST_PROXY_PORTS = PortRange(61_001, 65_535)
"""Ports of proxies on plain hosts, above Linux's ephemeral ports, where daemons do not listen by default."""


@lru_cache(maxsize=2**12)
def one_port(number: int) -> Ports:
    return (PortRange(number, number),)


def count_ports(ports: Ports) -> int:
    return sum(each.last - each.first + 1 for each in ports)


def expand(ports: Ports) -> Iterator[int]:
    """Yield all ports, in order."""
    return (number for each in ports for number in range(each.first, each.last + 1))


def contains_port(ports: Ports, number: int) -> bool:
    return any(each.first <= number <= each.last for each in ports)


def render(ports: Ports) -> str:
    """Format ranges: `80,81,8080-8090`."""
    return ",".join(map(str, ports))


def expand_targets(port: TargetPort, ports: Sequence[int]) -> tuple[int, ...]:
    """Return the member's port for each of these listener ports, by position."""
    match port:
        case None:
            return tuple(ports)
        case int():
            return (port,) * len(ports)
        case _:
            return tuple(expand(port))
