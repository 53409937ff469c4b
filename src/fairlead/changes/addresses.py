"""IPAM: the addresses of a subnet, the addresses that a request may specify, and the allocator for all API front ends.

A change is decided on one snapshot, and selects addresses from it. If two servers select the same address, the store's
claim (`address/<network>/<address>`) rejects the second one.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from itertools import pairwise

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import addresses, allocations
from fairlead.model.documents.addresses import IPAddress, IPNetwork, derive_link_local, is_usable, usable_range
from fairlead.model.documents.network import AllocationPool, FixedIP, Ipv6Mode, Network, Subnet, find_subnet, is_routed
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressRequest:
    """Address in a request: this address, any address of this subnet, or this address on this subnet."""

    subnet_id: str | None = None
    address: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressHolder:
    """Port that gets addresses."""

    port_id: str
    mac: str
    network: Network
    current_addresses: tuple[FixedIP, ...] = ()
    """Addresses that the port already has."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNotValid(Refusal):
    """The pool ends before it starts, or has another IP version than its subnet."""

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
    """The network has no subnet for the address, or no subnet at all."""

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
class AddressInUse(Refusal):
    address: IPAddress
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressIsAutomatic(Refusal):
    """Workloads on the subnet derive their own addresses (RFC 4862)."""

    address: IPAddress
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeAddress(Refusal):
    """The network, or the requested subnet, has no free address."""

    network_id: str
    subnet_id: str | None = None


# Addresses of a subnet


def default_gateway(cidr: IPNetwork) -> IPAddress | None:
    """Return the first address after the network address, as Neutron does; None if there is no second address."""
    return cidr.network_address + 1 if cidr.num_addresses > 1 else None


def default_pools(cidr: IPNetwork, gateway: IPAddress | None) -> tuple[AllocationPool, ...]:
    """Return pools of all usable addresses except the gateway."""
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
    """Check that pools are valid, inside the subnet and disjoint. Raises Refused."""
    for pool in pools:
        if not pool.start.version == pool.end.version == cidr.version or int(pool.start) > int(pool.end):
            raise Refused(PoolNotValid(pool=pool))
        if not (is_usable(pool.start, cidr) and is_usable(pool.end, cidr)):
            raise Refused(PoolOutside(pool=pool, cidr=cidr))
    for one, other in pairwise(sorted(pools, key=lambda pool: int(pool.start))):
        if int(other.start) <= int(one.end):
            raise Refused(PoolsOverlap(one=one, other=other, cidr=cidr))


def check_gateway(pools: tuple[AllocationPool, ...], gateway: IPAddress | None) -> None:
    """Check that no pool contains the gateway. Raises Refused."""
    for pool in pools:
        if gateway is not None and int(pool.start) <= int(gateway) <= int(pool.end):
            raise Refused(GatewayInPool(gateway=gateway, pool=pool))


def is_automatic(subnet: Subnet) -> bool:
    """Return whether workloads derive their address from the prefix and their MAC (RFC 4862)."""
    return subnet.ipv6_address_mode in (Ipv6Mode.SLAAC, Ipv6Mode.DHCPV6_STATELESS)


def free_address(
    snapshot: Snapshot, network_id: str, subnet: Subnet, seed: str, but: Iterable[IPAddress] = ()
) -> IPAddress | None:
    """Return a free address of the subnet's pools, searched from a position derived from the seed;
    None if there is none."""
    pools = subnet.allocation_pools
    not_these = UnavailableAddresses(
        network=snapshot.networks.get(network_id), snapshot=snapshot, excluded=frozenset((*but, subnet.gateway))
    )
    return allocations.find_free_address(snapshot.taken, network_id, pools, seed, not_these)


def is_allocated_externally(snapshot: Snapshot, network: Network | None, address: IPAddress) -> bool:
    """Return whether another program has allocated this address of an external network. Physical networks are not
    compared, because every program has its own names for them."""
    return network is not None and network.external and address in snapshot.given_elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableAddresses(Container[IPAddress | None]):
    """Addresses that must not be selected, in addition to those of the network's ports."""

    snapshot: Snapshot
    network: Network | None
    excluded: frozenset[IPAddress | None] = frozenset()

    def __contains__(self, address: object) -> bool:
        if address in self.excluded:
            return True
        return isinstance(address, IPv4Address | IPv6Address) and is_allocated_externally(
            self.snapshot, self.network, address
        )


def choose_mac(snapshot: Snapshot, seed: str) -> str:
    """Return a MAC that no port of any network has, because a router may join any two networks."""
    return addresses.choose_mac(seed, lambda mac: mac in snapshot.macs)


# Addresses of workload and router ports


def choose_fixed_ips(
    snapshot: Snapshot, holder: AddressHolder, asked: tuple[AddressRequest, ...] | None
) -> tuple[FixedIP, ...]:
    """Return the addresses of a port; None requests one per IP version of the network. Raises Refused.

    A request for any address of a subnet keeps the port's address there, if it has one.
    """
    if asked is None:
        return tuple(_first_free(snapshot, holder, version) for version in _versions(holder.network))
    if asked and not holder.network.subnets:
        raise Refused(NoSubnetOnNetwork(network_id=holder.network.id))
    named = [
        None if each.address is None else _choose_requested(snapshot, holder, each, each.address) for each in asked
    ]
    spare = [fixed for fixed in holder.current_addresses if fixed not in named]
    chosen = [fixed for fixed in named if fixed is not None]
    answer = []
    for each, fixed in zip(asked, named, strict=True):
        answer.append(fixed or _choose_any(snapshot, holder, each, spare, chosen))
    return tuple(answer)


def with_missing(snapshot: Snapshot, holder: AddressHolder) -> tuple[FixedIP, ...]:
    """Return the port's addresses, with one added for each IP version that the network has and the port lacks.
    Raises Refused."""
    had = {fixed.address.version for fixed in holder.current_addresses}
    more = [_first_free(snapshot, holder, version) for version in _versions(holder.network) if version not in had]
    return (
        tuple(sorted((*holder.current_addresses, *more), key=lambda fixed: fixed.address.version))
        if more
        else holder.current_addresses
    )


def _choose_any(
    snapshot: Snapshot, holder: AddressHolder, asked: AddressRequest, spare: list[FixedIP], chosen: list[FixedIP]
) -> FixedIP:
    """Return one of the spare addresses and remove it from them, or return a free one and add it to `chosen`."""
    subnet = _find_requested_subnet(holder.network, asked)
    for fixed in spare:
        if fixed.subnet_id == subnet.id:
            spare.remove(fixed)
            return fixed
    address = _find_free(snapshot, holder, subnet, [fixed.address for fixed in chosen])
    if address is None:
        raise Refused(NoFreeAddress(network_id=holder.network.id))
    chosen.append(FixedIP(subnet_id=subnet.id, address=address))
    return chosen[-1]


def _versions(network: Network) -> list[int]:
    return sorted({subnet.cidr.version for subnet in network.subnets if not is_routed(network, subnet)})


def _first_free(snapshot: Snapshot, holder: AddressHolder, version: int) -> FixedIP:
    for subnet in holder.network.subnets:
        if subnet.cidr.version == version:
            address = _find_free(snapshot, holder, subnet, ())
            if address is not None:
                return FixedIP(subnet_id=subnet.id, address=address)
    raise Refused(NoFreeAddress(network_id=holder.network.id))


def _choose_requested(snapshot: Snapshot, holder: AddressHolder, asked: AddressRequest, address: IPAddress) -> FixedIP:
    """Return the address in the request if the port may have it. Raises Refused."""
    subnet = _find_requested_subnet(holder.network, asked)
    fixed = FixedIP(subnet_id=subnet.id, address=address)
    if fixed in holder.current_addresses:
        return fixed
    if is_automatic(subnet) and address != _automatic_address(subnet, holder.mac):
        raise Refused(AddressIsAutomatic(address=address, subnet_id=subnet.id))
    taken_here = snapshot.addresses.get((holder.network.id, address), holder.port_id) != holder.port_id
    if taken_here or is_allocated_externally(snapshot, holder.network, address):
        raise Refused(AddressInUse(address=address, subnet_id=subnet.id))
    return fixed


def _find_requested_subnet(network: Network, asked: AddressRequest) -> Subnet:
    if asked.subnet_id is None:
        assert asked.address is not None  # noqa: S101 - requests have at least one of both
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


def _find_free(
    snapshot: Snapshot, holder: AddressHolder, subnet: Subnet, chosen: Iterable[IPAddress]
) -> IPAddress | None:
    """Return a free address of the subnet, not even used by the port itself; None if there is none."""
    network_id = holder.network.id
    if is_automatic(subnet):
        automatic = _automatic_address(subnet, holder.mac)
        occupied = automatic in {*chosen, subnet.gateway} or (network_id, automatic) in snapshot.addresses
        return None if occupied else automatic
    return free_address(snapshot, network_id, subnet, holder.port_id, chosen)


def _automatic_address(subnet: Subnet, mac: str) -> IPAddress:
    """Return the prefix with the modified EUI-64 (RFC 4291, appendix A); such a subnet is always a /64."""
    assert isinstance(subnet.cidr, IPv6Network)  # noqa: S101 - only IPv6 subnets have an address mode
    return subnet.cidr.network_address + (int(derive_link_local(mac)) & (2**64 - 1))


# Addresses of services: VIPs and sources of probes


def choose_subnet(snapshot: Snapshot, network: Network, address: IPAddress | None) -> Subnet:
    """Return the subnet that contains the address, otherwise the first one with a free address. IPv4 is preferred, as
    in Octavia. Raises Refused."""
    subnets = sorted(network.subnets, key=lambda subnet: subnet.cidr.version)
    fitting = [subnet for subnet in subnets if address is None or address in subnet.cidr]
    if not fitting:
        raise Refused(NoSubnetOnNetwork(network_id=network.id, address=address))
    return next((each for each in fitting if free_address(snapshot, network.id, each, network.id)), fitting[0])


def choose_service_address(
    snapshot: Snapshot, network_id: str, subnet: Subnet, wanted: IPAddress | None, seed: str
) -> FixedIP:
    """Return the requested address, or a free one. Raises Refused.

    No machine derives this address from its MAC, so it always comes from the pools, and is never the gateway.
    """
    if wanted is None:
        free = free_address(snapshot, network_id, subnet, seed)
        if free is None:
            raise Refused(NoFreeAddress(network_id=network_id, subnet_id=subnet.id))
        return FixedIP(subnet_id=subnet.id, address=free)
    _check_inside(wanted, subnet)
    elsewhere = is_allocated_externally(snapshot, snapshot.networks.get(network_id), wanted)
    if elsewhere or (network_id, wanted) in snapshot.addresses or wanted == subnet.gateway:
        raise Refused(AddressInUse(address=wanted, subnet_id=subnet.id))
    return FixedIP(subnet_id=subnet.id, address=wanted)
