"""Declarative spec of external networks (uplinks): a physical network, a subnet per IP version, and the routes to it.

A route is a prefix that is routed to the external network from outside, and can be used behind it. A route outside the
subnets on the link has a subnet of its own, so that its addresses can be allocated, each once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fairlead.changes import access, networks, subnets
from fairlead.changes.access import Verb
from fairlead.changes.caller import ChangeContext
from fairlead.changes.draft import Draft, NetworkDraft, NewId
from fairlead.changes.gateways import MAX_ATTACHED_ROUTERS, TooManyAttachedRouters, add_missing_addresses
from fairlead.changes.identity import Identity
from fairlead.changes.network_specs import VERSIONS, RouterAddress
from fairlead.changes.networks import SegmentRequest, ports_on
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.untranslated_prefixes import RouteNeeded, check_routes_not_needed
from fairlead.model.documents.addresses import IPAddress, IPNetwork, is_inside, overlaps
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import AllocationPool, Ipv6Mode, Network, SegmentType, Subnet, is_routed
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot, has_working_gateway
from fairlead.runtime.steps import Steps

MAX_UPLINK_ROUTES = 64
"""Maximum routes of one external network, because each may have a subnet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkIpFamily:
    """Part of an uplink with one IP version."""

    version: int
    gateway: RouterAddress
    """Address of the upstream gateway on the physical network."""
    ranges: tuple[AllocationPool, ...] = ()
    """Ranges for addresses of routers. Without ranges, routers derive IPv6 addresses (RFC 4862)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkSpec:
    name: str
    description: str = ""
    mtu: int
    physical_network: str
    tag: int | None = None
    families: tuple[UplinkIpFamily, ...] = ()
    routes: tuple[IPNetwork, ...] = ()
    nameservers: tuple[IPAddress, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Options as given in the request, sorted by name."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyUplinkRoutes(Refusal):
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAroundSubnet(Refusal):
    """The route contains the subnet on the link, and more."""

    route: IPNetwork
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkNotDeclarative(Refusal):
    """The external network has several subnets of one IP version on the link, so it cannot be changed by a spec."""

    network_id: str


# Reads


def describe_uplink(network: Network) -> UplinkSpec:
    """Return the spec of an external network, however it was created."""
    segment = network.segment
    wires = [subnet for version in VERSIONS if (subnet := link_subnet(network, version)) is not None]
    nameservers = dict.fromkeys(server for subnet in wires for server in subnet.dns_nameservers)
    return UplinkSpec(
        name=network.name,
        description=network.description,
        mtu=network.mtu,
        physical_network="" if segment is None else segment.physical_network,
        tag=None if segment is None else segment.id,
        families=tuple(_family(subnet, subnet.gateway) for subnet in wires if subnet.gateway is not None),
        routes=network.routes,
        nameservers=tuple(nameservers),
        config=network.config,
    )


def _family(subnet: Subnet, gateway: IPAddress) -> UplinkIpFamily:
    address = RouterAddress(address=gateway, cidr=subnet.cidr)
    return UplinkIpFamily(version=gateway.version, gateway=address, ranges=subnet.allocation_pools)


def link_subnet(network: Network, version: int) -> Subnet | None:
    """Return the first subnet on the link with this IP version; None if there is none."""
    return next((each for each in link_subnets(network) if each.cidr.version == version), None)


def link_subnets(network: Network) -> Iterator[Subnet]:
    return (each for each in network.subnets if not is_routed(network, each))


# Requests


def create_uplink(
    snapshot: Snapshot, asker: ChangeContext, network_id: str, new_id: NewId, asked: UplinkSpec
) -> Steps[Changes]:
    """Create an external network from a spec. Raises Refused."""
    draft = NetworkDraft(snapshot, asker, network_id, new_id)
    network = Network(
        id=network_id,
        project_id=asker.identity.project_id,
        name=asked.name,
        description=asked.description,
        created_at=asker.now,
        mtu=asked.mtu,
        external=True,
        config=asked.config,
    )
    draft.add(networks.create_network(snapshot, asker.identity, network, _segment(asked)))
    yield from _apply_spec(draft, asked)
    draft.require_unchanged_model()  # the name must be unique
    return draft.changes()


def update_uplink(
    snapshot: Snapshot, asker: ChangeContext, network_id: str, new_id: NewId, asked: UplinkSpec
) -> Steps[Changes]:
    """Update an external network from a spec. Raises Refused."""
    draft = NetworkDraft(snapshot, asker, network_id, new_id)
    old = draft.network
    said = {name: getattr(asked, name) for name in ("name", "description", "mtu", "config")}
    new = networks.with_segment(snapshot, replace(old, **said), _segment(asked))
    draft.add(networks.update_network(snapshot, asker.identity, old, new, frozenset({"external"}), asker.now))
    yield
    was = describe_uplink(old)
    if any(getattr(asked, name) != getattr(was, name) for name in ("families", "routes", "nameservers")):
        yield from _apply_spec(draft, asked)
        yield from _add_router_addresses(draft, network_id, draft.now)
    return draft.changes()


def create_subnet(snapshot: Snapshot, asker: Identity, network_id: str, subnet: Subnet) -> Steps[Changes]:
    """Create a subnet. On an external network, gateways without an address of its IP version get one in the same write.
    Raises Refused."""
    draft = Draft(snapshot)
    draft.add(subnets.create_subnet(snapshot, asker, network_id, subnet))
    yield from _add_router_addresses(draft, network_id, subnet.created_at)
    return draft.changes()


def delete_uplink(snapshot: Snapshot, asker: ChangeContext, network_id: str) -> Changes:
    """Delete an external network without ports. Raises Refused."""
    access.check_fields(asker.identity.is_admin, Verb.DELETE, Network, {"external"})
    return networks.delete_network(snapshot, asker.identity, snapshot.networks[network_id])


# Implementation


def _segment(asked: UplinkSpec) -> SegmentRequest:
    kind = SegmentType.FLAT if asked.tag is None else SegmentType.VLAN
    if not asked.physical_network:
        return SegmentRequest()
    return SegmentRequest(type=kind, physical_network=asked.physical_network, tag=asked.tag)


def _apply_spec(draft: NetworkDraft, asked: UplinkSpec) -> Steps[None]:
    """Create, change and delete subnets of the external network as in the spec. Raises Refused."""
    old = draft.network
    if any(sum(each.cidr.version == version for each in link_subnets(old)) > 1 for version in VERSIONS):
        raise Refused(UplinkNotDeclarative(network_id=old.id))
    _check_routes(asked)
    yield from check_routes_not_needed(draft.snapshot, old, asked.routes)
    draft.put(replace(old, subnets=tuple(link_subnets(old))))
    for version in VERSIONS:
        family = next((each for each in asked.families if each.version == version), None)
        _update_link_subnet(draft, version, family, asked.nameservers)
    yield from _update_route_subnets(draft, old, asked.routes)


def _check_routes(asked: UplinkSpec) -> None:
    """Check the number of routes, and that none contains a subnet on the link. Raises Refused."""
    if len(asked.routes) > MAX_UPLINK_ROUTES:
        raise Refused(TooManyUplinkRoutes(most=MAX_UPLINK_ROUTES))
    for route in asked.routes:
        for family in asked.families:
            cidr = family.gateway.cidr
            if route != cidr and is_inside(cidr, route):
                raise Refused(RouteAroundSubnet(route=route, cidr=cidr))


def _update_link_subnet(
    draft: NetworkDraft,
    version: int,
    family: UplinkIpFamily | None,
    nameservers: tuple[IPAddress, ...],
) -> None:
    network = draft.network
    old = link_subnet(network, version)
    if family is None:
        if old is not None and old.gateway is not None:
            draft.add(subnets.delete_subnet(draft.snapshot, draft.identity, old))
        return
    cidr, gateway = family.gateway.cidr, family.gateway.address
    automatic = version == 6 and not family.ranges and cidr.prefixlen == 64
    fields: dict[str, Any] = {
        "cidr": cidr,
        "gateway": gateway,
        "allocation_pools": family.ranges,
        "dns_nameservers": tuple(each for each in nameservers if each.version == version),
        "enable_dhcp": automatic,
        "ipv6_address_mode": Ipv6Mode.SLAAC if automatic else None,
        "ipv6_ra_mode": None,
    }
    if old is None:
        new = Subnet(id=draft.new_id(), project_id=network.project_id, created_at=draft.now, **fields)
        draft.add(subnets.create_subnet(draft.snapshot, draft.identity, network.id, new))
    elif (old.cidr, old.gateway) == (cidr, gateway):
        draft.add(subnets.update_subnet(draft.snapshot, draft.identity, old, replace(old, **fields), draft.now))
    else:
        draft.add(subnets.move_subnet(draft.snapshot, draft.identity, old, replace(old, **fields), draft.now))


def _add_router_addresses(draft: Draft, network_id: str, now: datetime) -> Steps[None]:
    """Give gateways on the external network an address of each IP version that they lack, as new gateways get:

    * gateways without any address, because their routers lead nowhere;
    * gateways of declarative networks, because without an address they receive no traffic of that version.

    Raises Refused.
    """
    gateways = draft.snapshot.network_gateways.get(network_id, NO_IDS)
    attached = 0
    for router_id in sorted(gateways):
        yield
        router = draft.snapshot.routers[router_id]
        if has_working_gateway(draft.snapshot, router) and router_id not in draft.snapshot.declared_routers:
            continue
        given = add_missing_addresses(draft.snapshot, router, now)
        attached += len(given.puts)
        if attached > MAX_ATTACHED_ROUTERS:
            raise Refused(TooManyAttachedRouters(most=MAX_ATTACHED_ROUTERS))
        if given.puts:
            draft.add(given)
    if attached:
        draft.require_unchanged_model()  # depends on free addresses and on the set of such routers


def _update_route_subnets(draft: NetworkDraft, old: Network, routes: tuple[IPNetwork, ...]) -> Steps[None]:
    """Update the subnets of routes. A route that has grown or shrunk keeps its subnet,
    because addresses of it may be allocated. Raises Refused."""
    network = draft.network
    had = {subnet.id: subnet for subnet in old.subnets if is_routed(old, subnet)}
    held = {fixed.subnet_id for port in ports_on(draft.snapshot, old) for fixed in port.fixed_ips}
    left = sorted(had.values(), key=lambda subnet: subnet.id not in held)
    made = dict[str, Subnet]()
    for cidr in _drop_nested_routes(routes, [subnet.cidr for subnet in network.subnets]):
        same = next((each for each in left if overlaps(each.cidr, cidr)), None)
        if same is None:
            same = _route_subnet(draft, cidr)
        else:
            left.remove(same)
        made[same.id] = replace(same, cidr=cidr)
    draft.put(replace(network, subnets=(*network.subnets, *made.values()), routes=routes))
    for port in ports_on(draft.snapshot, old):
        yield
        for fixed in port.fixed_ips:
            if fixed.subnet_id in had and (
                fixed.subnet_id not in made or fixed.address not in made[fixed.subnet_id].cidr
            ):
                raise Refused(RouteNeeded(needed=fixed.address, network=old))


def _drop_nested_routes(routes: Iterable[IPNetwork], wires: list[IPNetwork]) -> list[IPNetwork]:
    """Return the routes that are neither in another route nor in a subnet on the link."""
    found: list[IPNetwork] = []
    for route in sorted(set(routes), key=lambda each: (each.version, each.prefixlen, int(each.network_address))):
        if not any(is_inside(route, other) for other in (*found, *wires)):
            found.append(route)
    return found


def _route_subnet(draft: NetworkDraft, cidr: IPNetwork) -> Subnet:
    return Subnet(
        id=draft.new_id(),
        project_id=draft.network.project_id,
        created_at=draft.now,
        cidr=cidr,
        gateway=None,
        allocation_pools=(),
        enable_dhcp=False,
    )
