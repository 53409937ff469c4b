"""Listen addresses of declarative load balancers: an address of the network itself, or of its router's uplink.

An address on an uplink must be in one of the routes that lead to the uplink. It must not be in use by a load balancer,
a machine, or a subnet that is routed without NAT. Refusals do not disclose objects of other projects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TypeAlias

from fairlead.changes.addresses import UnavailableAddresses, choose_service_address, is_allocated_externally
from fairlead.changes.caller import ChangeContext
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.untranslated_prefixes import PrefixNotGranted, granted, is_translated
from fairlead.model.documents import allocations
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, IPNetwork, is_usable, overlaps, usable_range
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import (
    AllocationPool,
    FixedIP,
    Network,
    Port,
    PortUse,
    Router,
    Subnet,
    is_routed,
    subnet_with,
)
from fairlead.model.snapshot import Snapshot, has_working_gateway
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyAddress:
    """Any free address of this IP version."""

    version: int


Listen: TypeAlias = IPAddress | AnyAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUplinkForAddress(Refusal):
    """The network has no uplink, and the address is not in the network."""

    network: str
    """Name of the network, as in all refusals here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IpVersionMissing(Refusal):
    """The network has no subnet of this IP version."""

    network: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressNotInRoutes(Refusal):
    """No route of the uplink contains the address, or the caller may not choose addresses of the uplink."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoutes(Refusal):
    """The uplink has no route of this IP version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InRouterRanges(Refusal):
    """The address is in a range of the uplink that is reserved for routers."""

    address: IPAddress
    uplink: str
    pool: AllocationPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddressInUse(Refusal):
    """Another load balancer or forward of this network listens at the address."""

    address: IPAddress
    use: lb.SpecPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddressInUseOnUplink(Refusal):
    """The address is in use on the uplink."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddressNotUsable(Refusal):
    """The address is in use on the network itself, or no machine can have it.
    Its user is a machine, the gateway or another service."""

    address: IPAddress
    use: PortUse | None
    network: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeListenAddress(Refusal):
    """The routes have no free address."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultTargetAtGateway(Refusal):
    """The network's router has the address, so all other traffic to it cannot be forwarded to a default target."""

    address: IPAddress


@dataclass(frozen=True, slots=True)
class ListenPlace:
    """Network and address of a VIP."""

    network: Network
    fixed: FixedIP
    gateway: Port | None = None
    """Gateway port of the network's own router, if it has the address."""


def find_uplink(snapshot: Snapshot, network: Network) -> Network | None:
    """Return the external network of the network's router; None if there is none."""
    router = _find_gateway_router(snapshot, network)
    return snapshot.networks.get(router.gateway.network_id) if router is not None and router.gateway else None


def find_own_gateway(snapshot: Snapshot, network: Network, address: IPAddress) -> Port | None:
    """Return the gateway port with this address, if it belongs to the router that was created with the network. Load
    balancers of a network use that router whatever other routers join it."""
    router = _find_gateway_router(snapshot, network)
    if router is None or router.gateway is None or router.id != network.router_id:
        return None
    port = snapshot.ports.get(router.gateway.port_id)
    return port if port is not None and any(fixed.address == address for fixed in port.fixed_ips) else None


def find_listening_balancer(snapshot: Snapshot, network: Network, address: IPAddress) -> lb.LoadBalancer | None:
    """Return the network's declarative load balancer at this address of its router."""
    found = (snapshot.load_balancers[each] for each in sorted(snapshot.described_on.get(network.id, NO_IDS)))
    return next((each for each in found if each.vip.address == address), None)


def _find_gateway_router(snapshot: Snapshot, network: Network) -> Router | None:
    """Return the network's router with a gateway: the one created with it, otherwise the first one of its project."""
    ids = [network.router_id] if network.router_id else sorted(snapshot.network_routers.get(network.id, NO_IDS))
    routers = (snapshot.routers.get(each) for each in ids)
    return next(
        (each for each in routers if each is not None and each.gateway and each.project_id == network.project_id), None
    )


def choose_listen_address(
    snapshot: Snapshot, asker: ChangeContext, network: Network, wanted: Listen, seed: str
) -> Steps[ListenPlace]:
    """Return the network and address for a load balancer. Raises Refused."""
    if isinstance(wanted, AnyAddress):
        uplink = _uplink(snapshot, network)
        _check_family(network, wanted.version)
        routed = yield from _routed_subnets(snapshot, uplink, wanted.version)
        ranges = _listening_ranges(uplink, wanted.version, _granted_prefixes(snapshot, asker, network, uplink))
        return ListenPlace(uplink, (yield from _free(snapshot, uplink, wanted.version, seed, list(ranges), routed)))
    own = subnet_with(network, wanted)
    if own is not None:
        return ListenPlace(network, _check_internal_address(snapshot, network, own, wanted))
    uplink = _uplink(snapshot, network)
    subnet = _check_route(asker, uplink, wanted)
    grants = _granted_prefixes(snapshot, asker, network, uplink)
    if grants is not None and not any(wanted in prefix for prefix in grants):
        whole = ip_network(wanted)
        raise Refused(PrefixNotGranted(cidr=whole, uplink=uplink.name, project_id=network.project_id))
    gateway = find_own_gateway(snapshot, network, wanted)
    if gateway is not None:
        taken_by = find_listening_balancer(snapshot, network, wanted)
        if taken_by is not None:
            raise Refused(ListenAddressInUse(address=wanted, use=_describe_use(taken_by.described)))
        return ListenPlace(uplink, FixedIP(subnet_id=subnet.id, address=wanted), gateway)
    _check_unused_on_uplink(snapshot, network, uplink, subnet, wanted)
    routed = yield from _routed_subnets(snapshot, uplink, wanted.version)
    if any(wanted in cidr for cidr in routed):
        raise Refused(ListenAddressInUseOnUplink(address=wanted))
    _check_family(network, wanted.version)
    return ListenPlace(uplink, FixedIP(subnet_id=subnet.id, address=wanted))


def _granted_prefixes(
    snapshot: Snapshot, asker: ChangeContext, network: Network, uplink: Network
) -> list[IPNetwork] | None:
    """Return the prefixes where the caller may listen; None for all, if the caller is an administrator or the project
    has no granted prefix."""
    project = snapshot.projects.get(network.project_id)
    if asker.identity.is_admin or project is None or not project.prefixes:
        return None
    return granted(snapshot, network.project_id, uplink)


def _uplink(snapshot: Snapshot, network: Network) -> Network:
    uplink = find_uplink(snapshot, network)
    router = _find_gateway_router(snapshot, network)
    if uplink is None or router is None or not has_working_gateway(snapshot, router):
        raise Refused(NoUplinkForAddress(network=network.name))
    return uplink


def _check_family(network: Network, version: int) -> None:
    if all(subnet.cidr.version != version for subnet in network.subnets):
        raise Refused(IpVersionMissing(network=network.name, version=version))


def _check_internal_address(snapshot: Snapshot, network: Network, subnet: Subnet, address: IPAddress) -> FixedIP:
    """Check that the address of the network itself is free, and return it."""
    port = snapshot.ports.get(snapshot.addresses.get((network.id, address), ""))
    if port is not None and port.use is PortUse.VIP:
        balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port.id, ""))
        raise Refused(ListenAddressInUse(address=address, use=_describe_use(balancer.described if balancer else None)))
    if port is not None or address == subnet.gateway or not is_usable(address, subnet.cidr):
        raise Refused(ListenAddressNotUsable(address=address, use=port.use if port else None, network=network.name))
    return choose_service_address(snapshot, network.id, subnet, address, network.id)


def _describe_use(described: lb.DeclarativeSpec | None) -> lb.SpecPurpose:
    return described.use if described else lb.SpecPurpose.LOAD_BALANCER


def _check_route(asker: ChangeContext, uplink: Network, address: IPAddress) -> Subnet:
    """Return the uplink's subnet with the address. If the uplink has no configured routes, all its subnets count, but
    then only its owner may choose an address, as for floating IPs."""
    subnet = subnet_with(uplink, address)
    if uplink.routes:
        named = any(address in prefix for prefix in uplink.routes)
    else:
        named = asker.identity.may_change(uplink.project_id)
    if subnet is None or not named:
        raise Refused(AddressNotInRoutes(address=address))
    return subnet


def _check_unused_on_uplink(
    snapshot: Snapshot, network: Network, uplink: Network, subnet: Subnet, address: IPAddress
) -> None:
    port_id = snapshot.addresses.get((uplink.id, address))
    balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port_id or "", ""))
    if balancer is not None and balancer.described is not None and balancer.described.network_id == network.id:
        raise Refused(ListenAddressInUse(address=address, use=_describe_use(balancer.described)))
    if is_allocated_externally(snapshot, uplink, address):
        raise Refused(ListenAddressInUseOnUplink(address=address))
    on_wire = not is_routed(uplink, subnet)  # a routed prefix is on no link, so it has no broadcast address
    if port_id is not None or address == subnet.gateway or (on_wire and not is_usable(address, subnet.cidr)):
        raise Refused(ListenAddressInUseOnUplink(address=address))
    if uplink.routes:
        for pool in subnet.allocation_pools:
            if int(pool.start) <= int(address) <= int(pool.end):
                raise Refused(InRouterRanges(address=address, uplink=uplink.name, pool=pool))


def _routed_subnets(snapshot: Snapshot, uplink: Network, version: int) -> Steps[tuple[IPNetwork, ...]]:
    """Return the subnets behind routers on the uplink that are visible there without NAT."""
    prefixes = [prefix for prefix in (*uplink.routes, *_cidrs(uplink)) if prefix.version == version]
    found = list[IPNetwork]()
    for router_id in snapshot.network_gateways.get(uplink.id, NO_IDS):
        router = snapshot.routers[router_id]
        for port_id in snapshot.router_interfaces.get(router_id, NO_IDS):
            for subnet in snapshot.networks[snapshot.ports[port_id].network_id].subnets:
                seen = not is_translated(router, subnet.cidr.version)
                if seen and any(overlaps(subnet.cidr, prefix) for prefix in prefixes):
                    found.append(subnet.cidr)
        yield
    return tuple(found)


def _cidrs(network: Network) -> Iterator[IPNetwork]:
    return (subnet.cidr for subnet in network.subnets)


def _free(
    snapshot: Snapshot,
    uplink: Network,
    version: int,
    seed: str,
    ranges: list[tuple[Subnet, AllocationPool]],
    routed: tuple[IPNetwork, ...],
) -> Steps[FixedIP]:
    """Return a free address. Routed subnets are excluded as ranges, because an IPv6 range cannot be enumerated."""
    if not ranges:
        raise Refused(NoRoutes(version=version))
    prefixes = tuple(AllocationPool(start=cidr[0], end=cidr[-1]) for cidr in routed)
    for subnet, pool in ranges:
        left = _subtract_pools((pool.start, pool.end), prefixes)
        not_these = UnavailableAddresses(snapshot=snapshot, network=uplink, excluded=frozenset({subnet.gateway}))
        free = allocations.find_free_address(snapshot.taken, uplink.id, left, seed, not_these)
        if free is not None:
            return FixedIP(subnet_id=subnet.id, address=free)
        yield
    raise Refused(NoFreeListenAddress(version=version))


def _listening_ranges(
    uplink: Network, version: int, grants: list[IPNetwork] | None
) -> Iterator[tuple[Subnet, AllocationPool]]:
    """Yield the ranges for listen addresses. These are the routes, or granted prefixes of them, without the ranges for
    routers; or the allocation pools if the uplink has no routes."""
    for subnet in (each for each in uplink.subnets if each.cidr.version == version):
        if not uplink.routes:
            yield from ((subnet, pool) for pool in subnet.allocation_pools)
            continue
        for prefix in uplink.routes if grants is None else grants:
            if prefix.version == version and prefix.overlaps(subnet.cidr):
                longer = max(prefix, subnet.cidr, key=lambda cidr: cidr.prefixlen)
                yield from ((subnet, pool) for pool in _subtract_pools(usable_range(longer), subnet.allocation_pools))


def _subtract_pools(whole: tuple[IPAddress, IPAddress], pools: tuple[AllocationPool, ...]) -> Iterator[AllocationPool]:
    start, end = whole
    for pool in sorted(pools, key=lambda each: int(each.start)):
        if int(pool.end) < int(start) or int(pool.start) > int(end):
            continue
        if int(pool.start) > int(start):
            yield AllocationPool(start=start, end=pool.start - 1)
        if int(pool.end) >= int(end):
            return
        start = pool.end + 1
    yield AllocationPool(start=start, end=end)
