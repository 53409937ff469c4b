"""Plain Linux hosts that serve announced VIPs, as declared by an operator.

A host has a number that identifies it to its peers, tunnel addresses for packets to its members, and the prefixes that
it routes. At most one host routes an address. A prefix can be reserved for the members of one project.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress, IPNetwork

MAX_HOSTS = 1_000
"""Maximum hosts. Each host has one routing rule per peer, which the kernel evaluates in order."""
MAX_PREFIXES = 64
"""Maximum prefixes of one host."""
MAX_OWN_ADDRESSES = 256
"""Maximum own addresses inside its prefixes that a host reports; the first ones."""
MAX_HOST_NUMBER = 4_095
PrefixKey: TypeAlias = tuple[int, int, int]
"""IP version, prefix length and network address."""
ADDRESS_BITS = {4: 32, 6: 128}
Block: TypeAlias = tuple[int, int]
"""IP version and leading bits of a block of addresses: a /24 for IPv4, a /64 for IPv6."""
BLOCK_LENGTH = {4: 24, 6: 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPrefix:
    cidr: IPNetwork
    project_id: str | None = None
    """Project that may have members in the prefix; None for all projects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Declared host. Its name is the name of its agent's chassis."""

    name: str
    number: int
    """Unique number, 1 to 4095."""
    addresses: tuple[IPAddress, ...]
    """Tunnel endpoints, at most one per IP version. Sorted."""
    prefixes: tuple[HostPrefix, ...]
    """Prefixes that the host routes, sorted by address."""
    draining: bool = False
    """Whether members behind the host get no new connections while other members serve. Existing connections stay."""
    returning_until: datetime | None = None
    """End of the return period after a drain.
    Until then, connections that other hosts accepted during the drain stay there."""


def find_tunnel_endpoint(own: Host, other: Host) -> IPAddress | None:
    """Return the tunnel endpoint of the other host for packets of `own`; None if there is none. The two hosts must have
    the IP version in common; IPv4 is preferred for its shorter header."""
    versions = {address.version for address in own.addresses}
    found = (each for each in sorted(other.addresses, key=lambda each: each.version) if each.version in versions)
    return next(found, None)


def is_return_over(host: Host, now: datetime) -> bool:
    """Return whether the return period after a drain is over."""
    return host.returning_until is not None and host.returning_until <= now


def prefix_key(cidr: IPNetwork) -> PrefixKey:
    return cidr.version, cidr.prefixlen, int(cidr.network_address)


def prefix_of(key: PrefixKey) -> IPNetwork:
    """Return the network of a key; the inverse of `prefix_key`."""
    version, length, first = key
    return IPv4Network((first, length)) if version == 4 else IPv6Network((first, length))


def address_key(address: IPAddress) -> PrefixKey:
    """Return the key of the prefix with this address only."""
    return address.version, address.max_prefixlen, int(address)


def find_containing_prefix(
    known: Container[PrefixKey], lengths: Iterable[tuple[int, int]], key: PrefixKey
) -> PrefixKey | None:
    """Return the known prefix that contains the prefix `key`; None if there is none. `lengths` has the IP versions and
    prefix lengths of all known prefixes; each length costs one lookup."""
    version, length, first = key
    for other, shorter in lengths:
        if other == version and shorter <= length:
            spare = ADDRESS_BITS[version] - shorter
            found = version, shorter, first >> spare << spare
            if found in known:
                return found
    return None


def block_of(address: IPAddress) -> Block:
    return address.version, int(address) >> (ADDRESS_BITS[address.version] - BLOCK_LENGTH[address.version])


def sort_key(prefix: HostPrefix) -> tuple[int, int]:
    """Return a sort key by address."""
    return prefix.cidr.version, int(prefix.cidr.network_address)
