"""Listen addresses of declarative load balancers: an address of the network itself, or of its router's uplink.

An address on an uplink must be in one of the routes that lead to the uplink. It must not be in use by a load balancer,
a machine, or a subnet that is routed without NAT. Refusals do not disclose objects of other projects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TypeAlias

from fairlead.changes.addresses import NotFree, choose_service_address, is_given_elsewhere
from fairlead.changes.caller import Asker
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.untranslated_prefixes import NotGranted, granted, is_translated
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
from fairlead.model.snapshot import Snapshot, leads_out
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class AnyAddress:
    """Any free address of this IP version."""

    version: int


Listen: TypeAlias = IPAddress | AnyAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated(Refusal):
    """The network has no uplink, and the address is not in the network."""

    network: str
    """Name of the network, as in all refusals here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyMissing(Refusal):
    """The network has no subnet of this IP version."""

    network: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInRoutes(Refusal):
    """No route of the uplink contains the address, or the caller may not choose addresses of the uplink."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoutes(Refusal):
    """The uplink has no route of this IP version."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InRanges(Refusal):
    """The address is in a range of the uplink that is reserved for routers."""

    address: IPAddress
    uplink: str
    pool: AllocationPool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenTaken(Refusal):
    """Another load balancer or forward of this network listens at the address."""

    address: IPAddress
    use: lb.Use


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOverlaps(Refusal):
    """The address is in use on the uplink."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenInUse(Refusal):
    """The address is in use on the network itself, or no machine can have it.
    Its user is a machine, the gateway or another service."""

    address: IPAddress
    use: PortUse | None
    network: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoFreeListen(Refusal):
    """The routes have no free address."""

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeGateway(Refusal):
    """The network's router has the address, so all other traffic to it cannot be forwarded to a default target."""

    address: IPAddress


@dataclass(frozen=True, slots=True)
class Place:
    """Network and address of a VIP."""

    network: Network
    fixed: FixedIP
    gateway: Port | None = None
    """Gateway port of the network's own router, if it has the address."""


def find_uplink(snapshot: Snapshot, network: Network) -> Network | None:
    """Return the external network of the network's router; None if there is none."""
    router = _router_outside(snapshot, network)
    return snapshot.networks.get(router.gateway.network_id) if router is not None and router.gateway else None


def own_gateway(snapshot: Snapshot, network: Network, address: IPAddress) -> Port | None:
    """Return the gateway port with this address, if it belongs to the router that was created with the network. Load
    balancers of a network use that router whatever other routers join it."""
    router = _router_outside(snapshot, network)
    if router is None or router.gateway is None or router.id != network.router_id:
        return None
    port = snapshot.ports.get(router.gateway.port_id)
    return port if port is not None and any(fixed.address == address for fixed in port.fixed_ips) else None


def listening_at(snapshot: Snapshot, network: Network, address: IPAddress) -> lb.LoadBalancer | None:
    """Return the network's declarative load balancer at this address of its router."""
    found = (snapshot.load_balancers[each] for each in sorted(snapshot.described_on.get(network.id, NO_IDS)))
    return next((each for each in found if each.vip.address == address), None)


def _router_outside(snapshot: Snapshot, network: Network) -> Router | None:
    """Return the network's router with a gateway: the one created with it, otherwise the first one of its project."""
    ids = [network.router_id] if network.router_id else sorted(snapshot.network_routers.get(network.id, NO_IDS))
    routers = (snapshot.routers.get(each) for each in ids)
    return next(
        (each for each in routers if each is not None and each.gateway and each.project_id == network.project_id), None
    )


def choose_listen(snapshot: Snapshot, asker: Asker, network: Network, wanted: Listen, seed: str) -> Steps[Place]:
    """Return the network and address for a load balancer. Raises Refused."""
    if isinstance(wanted, AnyAddress):
        uplink = _uplink(snapshot, network)
        _check_family(network, wanted.version)
        routed = yield from _routed_subnets(snapshot, uplink, wanted.version)
        ranges = _listening_ranges(uplink, wanted.version, _grants(snapshot, asker, network, uplink))
        return Place(uplink, (yield from _free(snapshot, uplink, wanted.version, seed, list(ranges), routed)))
    own = subnet_with(network, wanted)
    if own is not None:
        return Place(network, _inside(snapshot, network, own, wanted))
    uplink = _uplink(snapshot, network)
    subnet = _check_route(asker, uplink, wanted)
    grants = _grants(snapshot, asker, network, uplink)
    if grants is not None and not any(wanted in prefix for prefix in grants):
        whole = ip_network(wanted)
        raise Refused(NotGranted(cidr=whole, uplink=uplink.name, project_id=network.project_id))
    gateway = own_gateway(snapshot, network, wanted)
    if gateway is not None:
        taken_by = listening_at(snapshot, network, wanted)
        if taken_by is not None:
            raise Refused(ListenTaken(address=wanted, use=_use(taken_by.described)))
        return Place(uplink, FixedIP(subnet_id=subnet.id, address=wanted), gateway)
    _check_alone(snapshot, network, uplink, subnet, wanted)
    routed = yield from _routed_subnets(snapshot, uplink, wanted.version)
    if any(wanted in cidr for cidr in routed):
        raise Refused(ListenOverlaps(address=wanted))
    _check_family(network, wanted.version)
    return Place(uplink, FixedIP(subnet_id=subnet.id, address=wanted))


def _grants(snapshot: Snapshot, asker: Asker, network: Network, uplink: Network) -> list[IPNetwork] | None:
    """Return the prefixes where the caller may listen; None for all, if the caller is an administrator or the project
    has no granted prefix."""
    project = snapshot.projects.get(network.project_id)
    if asker.identity.is_admin or project is None or not project.prefixes:
        return None
    return granted(snapshot, network.project_id, uplink)


def _uplink(snapshot: Snapshot, network: Network) -> Network:
    uplink = find_uplink(snapshot, network)
    router = _router_outside(snapshot, network)
    if uplink is None or router is None or not leads_out(snapshot, router):
        raise Refused(Isolated(network=network.name))
    return uplink


def _check_family(network: Network, version: int) -> None:
    if all(subnet.cidr.version != version for subnet in network.subnets):
        raise Refused(FamilyMissing(network=network.name, version=version))


def _inside(snapshot: Snapshot, network: Network, subnet: Subnet, address: IPAddress) -> FixedIP:
    """Check that the address of the network itself is free, and return it."""
    port = snapshot.ports.get(snapshot.addresses.get((network.id, address), ""))
    if port is not None and port.use is PortUse.VIP:
        balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port.id, ""))
        raise Refused(ListenTaken(address=address, use=_use(balancer.described if balancer else None)))
    if port is not None or address == subnet.gateway or not is_usable(address, subnet.cidr):
        raise Refused(ListenInUse(address=address, use=port.use if port else None, network=network.name))
    return choose_service_address(snapshot, network.id, subnet, address, network.id)


def _use(described: lb.Described | None) -> lb.Use:
    return described.use if described else lb.Use.LOAD_BALANCER


def _check_route(asker: Asker, uplink: Network, address: IPAddress) -> Subnet:
    """Return the uplink's subnet with the address. If the uplink has no configured routes, all its subnets count, but
    then only its owner may choose an address, as for floating IPs."""
    subnet = subnet_with(uplink, address)
    if uplink.routes:
        named = any(address in prefix for prefix in uplink.routes)
    else:
        named = asker.identity.may_change(uplink.project_id)
    if subnet is None or not named:
        raise Refused(NotInRoutes(address=address))
    return subnet


def _check_alone(snapshot: Snapshot, network: Network, uplink: Network, subnet: Subnet, address: IPAddress) -> None:
    port_id = snapshot.addresses.get((uplink.id, address))
    balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port_id or "", ""))
    if balancer is not None and balancer.described is not None and balancer.described.network_id == network.id:
        raise Refused(ListenTaken(address=address, use=_use(balancer.described)))
    if is_given_elsewhere(snapshot, uplink, address):
        raise Refused(ListenOverlaps(address=address))
    on_wire = not is_routed(uplink, subnet)  # a routed prefix is on no link, so it has no broadcast address
    if port_id is not None or address == subnet.gateway or (on_wire and not is_usable(address, subnet.cidr)):
        raise Refused(ListenOverlaps(address=address))
    if uplink.routes:
        for pool in subnet.allocation_pools:
            if int(pool.start) <= int(address) <= int(pool.end):
                raise Refused(InRanges(address=address, uplink=uplink.name, pool=pool))


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
        left = _without((pool.start, pool.end), prefixes)
        not_these = NotFree(snapshot=snapshot, network=uplink, but=frozenset({subnet.gateway}))
        free = allocations.free_address(snapshot.taken, uplink.id, left, seed, not_these)
        if free is not None:
            return FixedIP(subnet_id=subnet.id, address=free)
        yield
    raise Refused(NoFreeListen(version=version))


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
                yield from ((subnet, pool) for pool in _without(usable_range(longer), subnet.allocation_pools))


def _without(whole: tuple[IPAddress, IPAddress], pools: tuple[AllocationPool, ...]) -> Iterator[AllocationPool]:
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
