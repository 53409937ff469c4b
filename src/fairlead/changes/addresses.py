"""Addresses: what a subnet may give, what may be asked for, and which ones a port gets: one allocator for every door.

An address is chosen while the change is decided, from the snapshot that it is decided on. The store's claims
(`address/<network>/<address>`) then refuse the second of two servers that chose the same one.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from itertools import pairwise

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model import addresses, taken
from fairlead.model.addresses import IPAddress, IPNetwork, is_usable, link_local, usable_range
from fairlead.model.network import AllocationPool, FixedIP, Ipv6Mode, Network, Subnet, find_subnet, is_routed
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAddress:
    """One of the addresses that a request asks for: this address, any one of this subnet, or both."""

    subnet_id: str | None = None
    address: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The port that addresses are for."""

    port_id: str
    mac: str
    network: Network
    held: tuple[FixedIP, ...] = ()
    """What it has already."""


# What is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNotValid(Refusal):
    """It ends before it begins, or is of the other IP version than its subnet."""

    pool: AllocationPool


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOutside(Refusal):
    pool: AllocationPool
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsOverlap(Refusal):
    one: AllocationPool
    other: AllocationPool
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayInPool(Refusal):
    gateway: IPAddress
    pool: AllocationPool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSubnetOnNetwork(Refusal):
    """The network has none that could give the address, or any address at all."""

    network_id: str
    address: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetOfOtherNetwork(Refusal):
    subnet_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOutsideNetwork(Refusal):
    address: IPAddress
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOutsideSubnet(Refusal):
    address: IPAddress
    subnet_id: str
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressTaken(Refusal):
    address: IPAddress
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressIsAutomatic(Refusal):
    """Workloads of this subnet make their own addresses (RFC 4862)."""

    address: IPAddress
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeAddress(Refusal):
    """None is left on the network; or on the one subnet that was asked for."""

    network_id: str
    subnet_id: str | None = None


# What a subnet may give


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
    """Each is one, is inside the subnet, and overlaps no other. Raises Refused."""
    for pool in pools:
        if not pool.start.version == pool.end.version == cidr.version or int(pool.start) > int(pool.end):
            raise Refused(PoolNotValid(pool=pool))
        if not (is_usable(pool.start, cidr) and is_usable(pool.end, cidr)):
            raise Refused(PoolOutside(pool=pool, cidr=cidr))
    for one, other in pairwise(sorted(pools, key=lambda pool: int(pool.start))):
        if int(other.start) <= int(one.end):
            raise Refused(PoolsOverlap(one=one, other=other, cidr=cidr))


def check_gateway(pools: tuple[AllocationPool, ...], gateway: IPAddress | None) -> None:
    """A gateway is never given out. Raises Refused."""
    for pool in pools:
        if gateway is not None and int(pool.start) <= int(gateway) <= int(pool.end):
            raise Refused(GatewayInPool(gateway=gateway, pool=pool))


def is_automatic(subnet: Subnet) -> bool:
    """Whether workloads make their own address of the prefix and their MAC (RFC 4862)."""
    return subnet.ipv6_address_mode in (Ipv6Mode.SLAAC, Ipv6Mode.DHCPV6_STATELESS)


def free_address(
    snapshot: Snapshot, network_id: str, subnet: Subnet, seed: str, but: Iterable[IPAddress] = ()
) -> IPAddress | None:
    """An address of the subnet's pools that nobody has, looked for from the place that the seed names; or None."""
    pools = subnet.allocation_pools
    not_these = NotFree(
        network=snapshot.networks.get(network_id), snapshot=snapshot, but=frozenset((*but, subnet.gateway))
    )
    return taken.free_address(snapshot.taken, network_id, pools, seed, not_these)


def is_given_elsewhere(snapshot: Snapshot, network: Network | None, address: IPAddress) -> bool:
    """Whether another program gave out this address of an external network. Which wires are the same is not compared:
    every program has its own names for them."""
    return network is not None and network.external and address in snapshot.given_elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFree(Container[IPAddress | None]):
    """Addresses that are not to be chosen, besides those of the network's ports."""

    snapshot: Snapshot
    network: Network | None
    but: frozenset[IPAddress | None] = frozenset()

    def __contains__(self, address: object) -> bool:
        if address in self.but:
            return True
        return isinstance(address, IPv4Address | IPv6Address) and is_given_elsewhere(
            self.snapshot, self.network, address
        )


def choose_mac(snapshot: Snapshot, seed: str) -> str:
    """One that no port of any network has, for a router may join any two."""
    return addresses.choose_mac(seed, lambda mac: mac in snapshot.macs)


# Of a workload's port, or a router's


def choose_fixed_ips(snapshot: Snapshot, holder: Holder, asked: tuple[AskedAddress, ...] | None) -> tuple[FixedIP, ...]:
    """The addresses that a port gets; None asks for one of each family that the network has. Raises Refused.

    An address that is asked for by its subnet alone stays the one that the port has there, if it has one.
    """
    if asked is None:
        return tuple(_first_free(snapshot, holder, version) for version in _versions(holder.network))
    if asked and not holder.network.subnets:
        raise Refused(NoSubnetOnNetwork(network_id=holder.network.id))
    named = [None if each.address is None else _named(snapshot, holder, each, each.address) for each in asked]
    spare = [fixed for fixed in holder.held if fixed not in named]
    chosen = [fixed for fixed in named if fixed is not None]
    answer = []
    for each, fixed in zip(asked, named, strict=True):
        answer.append(fixed or _unnamed(snapshot, holder, each, spare, chosen))
    return tuple(answer)


def with_missing(snapshot: Snapshot, holder: Holder) -> tuple[FixedIP, ...]:
    """What the port has, and one more of each family that the network has and the port has not. Raises Refused."""
    had = {fixed.address.version for fixed in holder.held}
    more = [_first_free(snapshot, holder, version) for version in _versions(holder.network) if version not in had]
    return tuple(sorted((*holder.held, *more), key=lambda fixed: fixed.address.version)) if more else holder.held


def _unnamed(
    snapshot: Snapshot, holder: Holder, asked: AskedAddress, spare: list[FixedIP], chosen: list[FixedIP]
) -> FixedIP:
    """One of the spare addresses, which is then no longer spare; or a free one, which is then chosen."""
    subnet = _asked_subnet(holder.network, asked)
    for fixed in spare:
        if fixed.subnet_id == subnet.id:
            spare.remove(fixed)
            return fixed
    address = _free_for(snapshot, holder, subnet, [fixed.address for fixed in chosen])
    if address is None:
        raise Refused(NoFreeAddress(network_id=holder.network.id))
    chosen.append(FixedIP(subnet_id=subnet.id, address=address))
    return chosen[-1]


def _versions(network: Network) -> list[int]:
    return sorted({subnet.cidr.version for subnet in network.subnets if not is_routed(network, subnet)})


def _first_free(snapshot: Snapshot, holder: Holder, version: int) -> FixedIP:
    for subnet in holder.network.subnets:
        if subnet.cidr.version == version:
            address = _free_for(snapshot, holder, subnet, ())
            if address is not None:
                return FixedIP(subnet_id=subnet.id, address=address)
    raise Refused(NoFreeAddress(network_id=holder.network.id))


def _named(snapshot: Snapshot, holder: Holder, asked: AskedAddress, address: IPAddress) -> FixedIP:
    """The address that the request names, if the port may have it."""
    subnet = _asked_subnet(holder.network, asked)
    fixed = FixedIP(subnet_id=subnet.id, address=address)
    if fixed in holder.held:
        return fixed
    if is_automatic(subnet) and address != _automatic_address(subnet, holder.mac):
        raise Refused(AddressIsAutomatic(address=address, subnet_id=subnet.id))
    taken_here = snapshot.addresses.get((holder.network.id, address), holder.port_id) != holder.port_id
    if taken_here or is_given_elsewhere(snapshot, holder.network, address):
        raise Refused(AddressTaken(address=address, subnet_id=subnet.id))
    return fixed


def _asked_subnet(network: Network, asked: AskedAddress) -> Subnet:
    if asked.subnet_id is None:
        assert asked.address is not None  # noqa: S101 - who asks names one or the other
        for subnet in network.subnets:
            if is_usable(asked.address, subnet.cidr):
                return subnet
        raise Refused(AddressOutsideNetwork(address=asked.address, network_id=network.id))
    found = find_subnet(network, asked.subnet_id)
    if found is None:
        raise Refused(SubnetOfOtherNetwork(subnet_id=asked.subnet_id, network_id=network.id))
    if asked.address is not None:
        _check_inside(asked.address, found)
    return found


def _check_inside(address: IPAddress, subnet: Subnet) -> None:
    if not is_usable(address, subnet.cidr):
        raise Refused(AddressOutsideSubnet(address=address, subnet_id=subnet.id, cidr=subnet.cidr))


def _free_for(snapshot: Snapshot, holder: Holder, subnet: Subnet, chosen: Iterable[IPAddress]) -> IPAddress | None:
    """An address of the subnet that nobody has, the port itself included; None when there is none."""
    network_id = holder.network.id
    if is_automatic(subnet):
        automatic = _automatic_address(subnet, holder.mac)
        occupied = automatic in {*chosen, subnet.gateway} or (network_id, automatic) in snapshot.addresses
        return None if occupied else automatic
    return free_address(snapshot, network_id, subnet, holder.port_id, chosen)


def _automatic_address(subnet: Subnet, mac: str) -> IPAddress:
    """Prefix and modified EUI-64 (RFC 4291, appendix A); such a subnet is always a /64."""
    assert isinstance(subnet.cidr, IPv6Network)  # noqa: S101 - only IPv6 subnets have an address mode
    return subnet.cidr.network_address + (int(link_local(mac)) & (2**64 - 1))


# Of a service: a VIP, or what members are probed from


def choose_subnet(snapshot: Snapshot, network: Network, address: IPAddress | None) -> Subnet:
    """The one that contains the address; else the first that has a free one, IPv4 before IPv6, as Octavia does.

    Raises Refused.
    """
    subnets = sorted(network.subnets, key=lambda subnet: subnet.cidr.version)
    fitting = [subnet for subnet in subnets if address is None or address in subnet.cidr]
    if not fitting:
        raise Refused(NoSubnetOnNetwork(network_id=network.id, address=address))
    return next((each for each in fitting if free_address(snapshot, network.id, each, network.id)), fitting[0])


def choose_service_address(
    snapshot: Snapshot, network_id: str, subnet: Subnet, wanted: IPAddress | None, seed: str
) -> FixedIP:
    """The address that is wanted, or a free one. Raises Refused.

    No machine makes this address of its MAC, so it is always one of the pools; and it is never the gateway's.
    """
    if wanted is None:
        free = free_address(snapshot, network_id, subnet, seed)
        if free is None:
            raise Refused(NoFreeAddress(network_id=network_id, subnet_id=subnet.id))
        return FixedIP(subnet_id=subnet.id, address=free)
    _check_inside(wanted, subnet)
    elsewhere = is_given_elsewhere(snapshot, snapshot.networks.get(network_id), wanted)
    if elsewhere or (network_id, wanted) in snapshot.addresses or wanted == subnet.gateway:
        raise Refused(AddressTaken(address=wanted, subnet_id=subnet.id))
    return FixedIP(subnet_id=subnet.id, address=wanted)
