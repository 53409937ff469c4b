"""Checks of a plain host's addresses and prefixes.

At most one host routes an address, and such an address is neither a VIP nor a tunnel endpoint of another host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress, IPNetwork, is_destination, overlaps
from fairlead.model.documents.hosts import Host, address_key, find_containing_prefix, prefix_key, prefix_of
from fairlead.model.documents.network import Subnet
from fairlead.model.queries.placement import find_routing_host
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

PREFIXES_PER_STEP = 1_000
"""Number of prefixes of other hosts to check between two yields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHostAddress(Refusal):
    """The host has no address, so other hosts have no tunnel to it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateHostAddressVersion(Refusal):
    """The host has several addresses of this IP version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHostDestination(Refusal):
    """The address or network is not a valid destination of packets."""

    what: IPAddress | IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddressInUse(Refusal):
    """Another host has the address."""

    address: IPAddress
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostAddressInOtherPrefix(Refusal):
    """The address of a host is in a prefix of another host, `behind`."""

    address: IPAddress
    behind: str
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCommonIpVersion(Refusal):
    """The two hosts have no IP version in common, so no tunnel between them is possible."""

    name: str
    other: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingPrefix(Refusal):
    """The prefix overlaps another prefix of the same host."""

    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInUse(Refusal):
    """The prefix overlaps a prefix of another host."""

    cidr: IPNetwork
    other: IPNetwork
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverlapsAnnounced(Refusal):
    """The address or prefix of a host overlaps an announced subnet."""

    what: IPAddress | IPNetwork
    cidr: IPNetwork
    network_id: str


def check_prefixes(snapshot: Snapshot, host: Host) -> Steps[None]:
    """Check the prefixes of a host. Raises Refused."""
    own = {prefix_key(prefix.cidr) for prefix in host.prefixes}
    lengths = {key[:2] for key in own}
    for prefix in host.prefixes:
        _check_prefix(snapshot, host.name, prefix.cidr)
    yield
    # Prefixes are sorted by address, so one that contains others contains the next one.
    for one, following in pairwise(host.prefixes):
        if overlaps(one.cidr, following.cidr):
            raise Refused(OverlappingPrefix(cidr=following.cidr))
    for number, (key, name) in enumerate(snapshot.host_prefixes.items()):
        found = find_containing_prefix(own, lengths, key) if name != host.name else None
        if found is not None:
            raise Refused(PrefixInUse(cidr=prefix_of(found), other=prefix_of(key), host=name))
        if number % PREFIXES_PER_STEP == 0:
            yield
    for other in snapshot.hosts.values():
        for address in other.addresses if other.name != host.name else ():
            found = find_containing_prefix(own, lengths, address_key(address))
            if found is not None:
                raise Refused(HostAddressInOtherPrefix(address=address, behind=host.name, cidr=prefix_of(found)))


def _check_prefix(snapshot: Snapshot, name: str, cidr: IPNetwork) -> None:
    """Check a prefix against larger prefixes of other hosts, and against announced subnets."""
    if not (is_destination(cidr[0]) and is_destination(cidr[-1])):
        raise Refused(InvalidHostDestination(what=cidr))
    found = find_containing_prefix(snapshot.host_prefixes, snapshot.host_prefix_lengths, prefix_key(cidr))
    if found is not None and snapshot.host_prefixes[found] != name:
        raise Refused(PrefixInUse(cidr=cidr, other=prefix_of(found), host=snapshot.host_prefixes[found]))
    for network_id, subnet in _announced(snapshot):
        if overlaps(cidr, subnet.cidr):
            raise Refused(HostOverlapsAnnounced(what=cidr, cidr=subnet.cidr, network_id=network_id))


def check_addresses(snapshot: Snapshot, host: Host) -> Steps[None]:
    """Check the addresses of a host. Raises Refused."""
    versions = [address.version for address in host.addresses]
    if not versions:
        raise Refused(NoHostAddress(name=host.name))
    if len(set(versions)) < len(versions):
        raise Refused(DuplicateHostAddressVersion(version=max(versions, key=versions.count)))
    for address in host.addresses:
        _check_address(snapshot, host.name, address)
    yield
    for other in snapshot.hosts.values():
        if other.name == host.name:
            continue
        for address in set(other.addresses) & set(host.addresses):
            raise Refused(HostAddressInUse(address=address, host=other.name))
        if not {address.version for address in other.addresses} & set(versions):
            raise Refused(NoCommonIpVersion(name=host.name, other=other.name))


def _check_address(snapshot: Snapshot, name: str, address: IPAddress) -> None:
    if not is_destination(address):
        raise Refused(InvalidHostDestination(what=address))
    found = find_routing_host(snapshot, address)
    if found is not None and found[0].name != name:
        raise Refused(HostAddressInOtherPrefix(address=address, behind=found[0].name, cidr=found[1].cidr))
    for network_id, subnet in _announced(snapshot):
        if address in subnet.cidr:
            raise Refused(HostOverlapsAnnounced(what=address, cidr=subnet.cidr, network_id=network_id))


def _announced(snapshot: Snapshot) -> Iterator[tuple[str, Subnet]]:
    """Yield the subnets of announced networks; there are few, because operators declare them."""
    for network_id in snapshot.announced:
        for subnet in snapshot.networks[network_id].subnets:
            yield network_id, subnet
