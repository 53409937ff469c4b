"""Plain Linux hosts that serve announced VIPs by themselves, as an operator declares them.

A host has a number by which others call it, an address at which packets for its members are led to it, and the prefixes
of the machines that are behind it. An address is behind one host at most. A prefix may be one project's: nobody else
has members there.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import TypeAlias

from fairlead.model.addresses import IPAddress, IPNetwork

MOST_HOSTS = 1_000
"""Each has a rule of every other one, which the kernel goes through one by one."""
MOST_PREFIXES = 64
"""Of one host."""
MOST_OWN = 256
"""Addresses among those behind it that a host says are its own: the first ones."""
LARGEST_NUMBER = 4_095
PrefixKey: TypeAlias = tuple[int, int, int]
"""IP version, length, and the network's own address."""
BITS = {4: 32, 6: 128}
Block: TypeAlias = tuple[int, int]
"""IP version, and the leading bits of all addresses in it: those of a /24, or of a /64."""
BLOCK_LENGTH = {4: 24, 6: 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrefix:
    cidr: IPNetwork
    project_id: str | None = None
    """Whose members may be there; None is everybody's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Its name is that of its chassis: what its agent calls itself."""

    name: str
    number: int
    """From 1 to 4095: no other host has it."""
    addresses: tuple[IPAddress, ...]
    """One of each IP version at most, to which tunnels of other hosts lead. Sorted."""
    prefixes: tuple[HostPrefix, ...]
    """Sorted by address."""
    draining: bool = False
    """Whether members behind it are to get nothing new, as long as others serve. What was begun stays with them."""
    returning_until: datetime | None = None
    """After it was drained: as long as this is written here, what others got meanwhile stays with these."""


def way_to(own: Host, other: Host) -> IPAddress | None:
    """The address of the other host to which its packets go: of an IP version that both have, the fourth where they may
    choose, whose headers are short."""
    versions = {address.version for address in own.addresses}
    found = (each for each in sorted(other.addresses, key=lambda each: each.version) if each.version in versions)
    return next(found, None)


def is_returned(host: Host, now: datetime) -> bool:
    """Whether what others got while it was drained need not be remembered any more."""
    return host.returning_until is not None and host.returning_until <= now


def prefix_key(cidr: IPNetwork) -> PrefixKey:
    return cidr.version, cidr.prefixlen, int(cidr.network_address)


def prefix_of(key: PrefixKey) -> IPNetwork:
    """The inverse of `prefix_key`."""
    version, length, first = key
    return IPv4Network((first, length)) if version == 4 else IPv6Network((first, length))


def address_key(address: IPAddress) -> PrefixKey:
    """Of the prefix that has this address alone."""
    return address.version, address.max_prefixlen, int(address)


def holding(known: Container[PrefixKey], lengths: Iterable[tuple[int, int]], key: PrefixKey) -> PrefixKey | None:
    """The known prefix that has all addresses of this one; `lengths` are those that known ones have, with their IP
    versions. It looks once for each length."""
    version, length, first = key
    for other, shorter in lengths:
        if other == version and shorter <= length:
            spare = BITS[version] - shorter
            found = version, shorter, first >> spare << spare
            if found in known:
                return found
    return None


def block_of(address: IPAddress) -> Block:
    return address.version, int(address) >> (BITS[address.version] - BLOCK_LENGTH[address.version])


def sort_key(prefix: HostPrefix) -> tuple[int, int]:
    """By address."""
    return prefix.cidr.version, int(prefix.cidr.network_address)
