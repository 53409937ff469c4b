"""Addresses: what a subnet may give, what a caller may ask for, and which ones a port gets. Pure.

Addresses are chosen while the change is decided, from the snapshot that it is decided on; the store's claims
(`address/<network>/<address>`) then refuse the second of two servers that chose the same one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Network
from itertools import pairwise

from fairlead.api.network import errors
from fairlead.model.addresses import IPAddress, IPNetwork, is_usable, link_local, usable_range
from fairlead.model.network import AllocationPool, FixedIP, Ipv6Mode, Network, Subnet, find_subnet
from fairlead.model.snapshot import Snapshot
from fairlead.model.taken import free_address


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One of a request's fixed IPs: an address, a subnet to take one from, or both."""

    subnet_id: str | None = None
    address: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """The port that addresses are for."""

    port_id: str
    mac: str
    network: Network
    held: tuple[FixedIP, ...] = ()
    """What it has already."""


def default_gateway(cidr: IPNetwork) -> IPAddress | None:
    """The first address after the network's own, as in Neutron; none where there is no second address."""
    return cidr.network_address + 1 if cidr.num_addresses > 1 else None


def default_pools(cidr: IPNetwork, gateway: IPAddress | None) -> tuple[AllocationPool, ...]:
    """All usable addresses but the gateway."""
    first, last = usable_range(cidr)
    if gateway is None or not is_usable(gateway, cidr):
        return (AllocationPool(start=first, end=last),)
    pools = []
    if int(first) < int(gateway):
        pools.append(AllocationPool(start=first, end=gateway - 1))
    if int(gateway) < int(last):
        pools.append(AllocationPool(start=gateway + 1, end=last))
    return tuple(pools)


def check_pools(pools: tuple[AllocationPool, ...], cidr: IPNetwork) -> None:
    """Raises ApiError for a pool that is not one, is not inside the subnet, or overlaps another."""
    for pool in pools:
        if not pool.start.version == pool.end.version == cidr.version or int(pool.start) > int(pool.end):
            raise errors.bad_pool(show_pool(pool))
        if not (is_usable(pool.start, cidr) and is_usable(pool.end, cidr)):
            raise errors.pool_outside(show_pool(pool), cidr)
    for one, other in pairwise(sorted(pools, key=lambda pool: int(pool.start))):
        if int(other.start) <= int(one.end):
            raise errors.pools_overlap(show_pool(one), show_pool(other), cidr)


def check_gateway(pools: tuple[AllocationPool, ...], gateway: IPAddress | None) -> None:
    """A gateway is never given out. Raises ApiError."""
    for pool in pools:
        if gateway is not None and int(pool.start) <= int(gateway) <= int(pool.end):
            raise errors.gateway_in_pool(gateway, show_pool(pool))


def show_pool(pool: AllocationPool) -> str:
    return f"{pool.start}-{pool.end}"


def is_automatic(subnet: Subnet) -> bool:
    """Whether workloads make their own address of the prefix and their MAC (RFC 4862)."""
    return subnet.ipv6_address_mode in (Ipv6Mode.SLAAC, Ipv6Mode.DHCPV6_STATELESS)


def choose_fixed_ips(
    snapshot: Snapshot, interface: Interface, wanted: tuple[Wanted, ...] | None
) -> tuple[FixedIP, ...]:
    """The addresses that a port gets; None asks for one of each family that the network has. Raises ApiError.

    An address that is asked for by its subnet alone stays the one that the port has there, if it has one.
    """
    if wanted is None:
        return tuple(_first_free(snapshot, interface, version) for version in _versions(interface.network))
    if wanted and not interface.network.subnets:
        raise errors.invalid_input("IP allocation requires subnets for network")
    named = [None if want.address is None else _named(snapshot, interface, want) for want in wanted]
    spare = [fixed for fixed in interface.held if fixed not in named]
    chosen = [fixed for fixed in named if fixed is not None]
    answer = []
    for want, fixed in zip(wanted, named, strict=True):
        answer.append(fixed or _unnamed(snapshot, interface, want, spare, chosen))
    return tuple(answer)


def _unnamed(
    snapshot: Snapshot, interface: Interface, want: Wanted, spare: list[FixedIP], chosen: list[FixedIP]
) -> FixedIP:
    """One of the spare addresses, which is then no longer spare; or a free one, which is then chosen."""
    subnet = _wanted_subnet(interface.network, want)
    for fixed in spare:
        if fixed.subnet_id == subnet.id:
            spare.remove(fixed)
            return fixed
    address = _free_address(snapshot, interface, subnet, [fixed.address for fixed in chosen])
    if address is None:
        raise errors.no_more_addresses(interface.network.id)
    chosen.append(FixedIP(subnet_id=subnet.id, address=address))
    return chosen[-1]


def _versions(network: Network) -> list[int]:
    return sorted({subnet.cidr.version for subnet in network.subnets})


def _first_free(snapshot: Snapshot, interface: Interface, version: int) -> FixedIP:
    for subnet in interface.network.subnets:
        if subnet.cidr.version == version:
            address = _free_address(snapshot, interface, subnet, ())
            if address is not None:
                return FixedIP(subnet_id=subnet.id, address=address)
    raise errors.no_more_addresses(interface.network.id)


def _named(snapshot: Snapshot, interface: Interface, want: Wanted) -> FixedIP:
    """The address that the request names, if it may have it."""
    assert want.address is not None  # noqa: S101 - the caller's condition
    subnet = _wanted_subnet(interface.network, want)
    fixed = FixedIP(subnet_id=subnet.id, address=want.address)
    if fixed in interface.held:
        return fixed
    if is_automatic(subnet) and want.address != _automatic_address(subnet, interface.mac):
        raise errors.address_is_automatic(want.address, subnet.id)
    if snapshot.addresses.get((interface.network.id, want.address), interface.port_id) != interface.port_id:
        raise errors.address_taken(want.address, subnet.id)
    return fixed


def _wanted_subnet(network: Network, want: Wanted) -> Subnet:
    if want.subnet_id is None:
        assert want.address is not None  # noqa: S101 - a parser refuses an empty one
        for subnet in network.subnets:
            if is_usable(want.address, subnet.cidr):
                return subnet
        raise errors.address_outside_network(want.address)
    found = find_subnet(network, want.subnet_id)
    if found is None:
        text = (
            f"Failed to create port on network {network.id}, because fixed_ips included invalid subnet {want.subnet_id}"
        )
        raise errors.invalid_input(text)
    if want.address is not None and not is_usable(want.address, found.cidr):
        raise errors.address_outside_subnet(want.address)
    return found


def _free_address(
    snapshot: Snapshot, interface: Interface, subnet: Subnet, chosen: Iterable[IPAddress]
) -> IPAddress | None:
    """An address of the subnet that nobody has, the port itself included; None when there is none."""
    network_id, others = interface.network.id, {*chosen, subnet.gateway}
    if is_automatic(subnet):
        automatic = _automatic_address(subnet, interface.mac)
        return None if automatic in others or (network_id, automatic) in snapshot.addresses else automatic
    return free_address(snapshot.taken, network_id, subnet.allocation_pools, interface.port_id, others)


def _automatic_address(subnet: Subnet, mac: str) -> IPAddress:
    """Prefix and modified EUI-64 (RFC 4291, appendix A); such a subnet is always a /64."""
    assert isinstance(subnet.cidr, IPv6Network)  # noqa: S101 - only IPv6 subnets have an address mode
    return subnet.cidr.network_address + (int(link_local(mac)) & (2**64 - 1))
