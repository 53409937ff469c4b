"""Routers, gateways and floating IPs: valid connections per project, and references that block their removal."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.addresses import AddressRequest
from fairlead.changes.floatingips import (
    Destination,
    DestinationInUse,
    FixedAddressWithoutPort,
    NoRouterToExternalNetwork,
    PortNotInProject,
    create_floating_ip,
    delete_floating_ip,
    update_floating_ip,
)
from fairlead.changes.gateways import (
    AddressIsNextHop,
    GatewayNeededByFloatingIP,
    GatewayRequest,
    JoinedSubnetsOverlap,
    NetworkNotExternal,
    SubnetAlreadyAttached,
)
from fairlead.changes.routers import (
    InterfaceNeededByFloatingIP,
    InterfaceTarget,
    NexthopNotConnected,
    NoSuchInterface,
    RouterChange,
    RouterInUse,
    SubnetOfOtherProject,
    add_interface,
    add_routes,
    create_router,
    delete_router,
    remove_interface,
    update_router,
)
from fairlead.model.documents.network import Network, Port, PortUse, Route, Router
from fairlead.model.registry.changeset import Changes, apply_changes
from harness.api import NOON
from harness.changes.routers import FOUR, INSIDE, OUTSIDE, ROUTER, floating, routed_snapshot, routed_with_floating_ip
from harness.changes.world import (
    ADMIN,
    GUESTS,
    NETWORK,
    OWNER,
    OWNERS,
    PORT,
    STRANGER,
    fixed,
    refusal,
    snapshot_with,
    subnet,
)

NOWHERE = GatewayRequest()


def test_gateway_port_of_a_router_belongs_to_no_project():
    gateway = routed_snapshot().ports["gateway"]
    assert (gateway.project_id, gateway.use, gateway.device_id) == ("", PortUse.ROUTER_GATEWAY, "router")
    assert routed_snapshot().ports["interface"].fixed_ips == (fixed("four", "10.0.0.1"),)


def test_only_an_administrator_disables_snat_and_next_hop_address_is_refused():
    asked = GatewayRequest(network_id="out", enable_snat=False)
    change = RouterChange(router=ROUTER, gateway=asked, gateway_port_id="gateway")
    why = NotAllowed(verb=Verb.CREATE, what=Router, fields=frozenset({"enable_snat"}))
    assert refusal(create_router, snapshot_with(OUTSIDE), OWNER, change) == why
    admins = replace(change, router=replace(ROUTER, project_id="admin"))
    assert create_router(snapshot_with(OUTSIDE), ADMIN, admins).puts[0].gateway.enable_snat is False
    hop = ip_address("203.0.113.1")
    taken = replace(admins, gateway=GatewayRequest(network_id="out", fixed_ips=(AddressRequest(address=hop),)))
    assert refusal(create_router, snapshot_with(OUTSIDE), ADMIN, taken) == AddressIsNextHop(address=hop)


def test_gateway_on_an_internal_network_is_refused():
    change = RouterChange(router=ROUTER, gateway=GatewayRequest(network_id="net"), gateway_port_id="gateway")
    assert refusal(create_router, snapshot_with(INSIDE), OWNER, change) == NetworkNotExternal(
        network_id="net", what=Router
    )


def test_interface_on_a_joined_or_overlapping_subnet_is_refused():
    snapshot, router = routed_snapshot(), routed_snapshot().routers["router"]
    assert refusal(add_interface, snapshot, OWNER, router, FOUR, "again", NOON) == SubnetAlreadyAttached(
        router_id="router", subnet_id="four"
    )
    same = subnet("same", "10.0.0.0/25")
    other = snapshot_with(
        *snapshot.networks.values(),
        *snapshot.ports.values(),
        router,
        Network(id="other", mtu=1442, subnets=(same,), **OWNERS),
    )
    target = InterfaceTarget(subnet_id="same")
    assert refusal(add_interface, other, OWNER, router, target, "again", NOON) == JoinedSubnetsOverlap(
        cidr=same.cidr, subnet_id="same", other_cidr=ip_network("10.0.0.0/24"), other_id="four"
    )


def test_subnet_of_another_project_cannot_be_joined_to_a_router():
    snapshot = snapshot_with(INSIDE)
    theirs = replace(ROUTER, project_id="other")
    assert refusal(add_interface, snapshot, STRANGER, theirs, FOUR, "i", NOON).id == "four"
    shared = snapshot_with(NETWORK)
    why = SubnetOfOtherProject(subnet_id="four")
    assert refusal(add_interface, shared, STRANGER, theirs, FOUR, "i", NOON) == why


def test_route_next_hop_must_be_on_a_joined_subnet():
    far = Route(destination=ip_network("20.0.0.0/8"), nexthop=ip_address("10.0.0.9"))
    lost = replace(far, nexthop=ip_address("10.9.0.9"))
    snapshot, router = routed_snapshot(), routed_snapshot().routers["router"]
    assert add_routes(snapshot, OWNER, router, (far,), NOON).puts[0].routes == (far,)
    assert refusal(add_routes, snapshot, OWNER, router, (lost,), NOON) == NexthopNotConnected(
        route=lost, routes=(lost,)
    )


def test_floating_ip_in_use_keeps_its_router_gateway_and_interface():
    snapshot, router = routed_with_floating_ip(), routed_with_floating_ip().routers["router"]
    assert snapshot.floating_ips["f"].router_id == "router"
    assert snapshot.ports["f-port"].project_id == ""
    without = RouterChange(router=router, gateway=NOWHERE)
    assert refusal(update_router, snapshot, OWNER, router, without, NOON) == GatewayNeededByFloatingIP(
        router_id="router", network_id="out"
    )
    needed = InterfaceNeededByFloatingIP(router_id="router", subnet_id="four")
    assert refusal(remove_interface, snapshot, OWNER, router, FOUR, NOON) == needed
    assert refusal(delete_router, snapshot, OWNER, router) == RouterInUse(router_id="router")
    freed = update_floating_ip(
        snapshot, OWNER, snapshot.floating_ips["f"], snapshot.floating_ips["f"], Destination(), NOON
    )
    snapshot = apply_changes(snapshot, freed, 5)
    assert update_router(snapshot, OWNER, router, without, NOON).puts[0].gateway is None
    gone = delete_floating_ip(snapshot, OWNER, snapshot.floating_ips["f"])
    assert {owner.id for owner in gone.deletes} == {"f", "f-port"}


def test_floating_ip_needs_a_gateway_with_an_address():
    """A route of the external network may give the address, but the router has no port outside then."""
    snapshot = routed_snapshot()
    route = subnet("routed", "198.51.100.0/24", gateway=None, allocation_pools=())
    there = replace(OUTSIDE, subnets=(route,), routes=(route.cidr,))
    bare = apply_changes(snapshot, Changes(puts=(there, replace(snapshot.ports["gateway"], fixed_ips=()))), 4)
    to_port = floating("f", address=route.cidr[9], destination=Destination(port_id="port"))
    why = NoRouterToExternalNetwork(network_id="out", subnet_id="four", port_id="port")
    assert refusal(create_floating_ip, bare, ADMIN, to_port) == why
    free = create_floating_ip(bare, ADMIN, floating("f", address=route.cidr[9]))
    bare = apply_changes(bare, free, 5)
    made = bare.floating_ips["f"]
    assert refusal(update_floating_ip, bare, OWNER, made, made, to_port.destination, NOON) == why
    given = apply_changes(
        bare, Changes(puts=(snapshot.ports["gateway"], replace(OUTSIDE, subnets=(*OUTSIDE.subnets, route)))), 6
    )
    led_to = update_floating_ip(given, OWNER, made, made, to_port.destination, NOON)
    assert led_to.puts[0].router_id == "router"


def test_invalid_floating_ip_destinations_are_refused():
    snapshot = routed_with_floating_ip()
    to_port = Destination(port_id="port")
    second = refusal(create_floating_ip, snapshot, OWNER, floating("g", destination=to_port))
    assert isinstance(second, DestinationInUse)
    lost = Destination(fixed_address=ip_address("10.0.0.7"))
    assert refusal(create_floating_ip, snapshot, OWNER, floating("g", destination=lost)) == FixedAddressWithoutPort(
        address=lost.fixed_address
    )
    guests = replace(PORT, id="guests", mac_address="fa:16:3e:00:00:03", fixed_ips=(fixed("four", "10.0.0.8"),))
    shared = snapshot_with(OUTSIDE, NETWORK, guests)
    theirs = floating("g", destination=Destination(port_id="guests"))
    assert refusal(create_floating_ip, shared, OWNER, theirs) == PortNotInProject(port_id="guests")
    own = replace(theirs, **GUESTS)
    no_way = NoRouterToExternalNetwork(network_id="out", subnet_id="four", port_id="guests")
    assert refusal(create_floating_ip, shared, ADMIN, own) == no_way


def test_interface_can_be_added_and_removed_by_port():
    snapshot, router = routed_snapshot(), routed_snapshot().routers["router"]
    assert refusal(remove_interface, snapshot, OWNER, router, InterfaceTarget(port_id="port"), NOON) == NoSuchInterface(
        router_id="router", port_id="port"
    )
    gone = remove_interface(snapshot, OWNER, router, InterfaceTarget(port_id="interface"), NOON)
    assert ([owner.id for owner in gone.changes.deletes], gone.subnet_ids) == (["interface"], ("four",))
    named = Port(
        id="spare", network_id="net", mac_address="fa:16:3e:00:00:04", fixed_ips=(fixed("four", "10.0.0.9"),), **OWNERS
    )
    with_spare = snapshot_with(INSIDE, named, ROUTER)
    by_port = add_interface(with_spare, OWNER, ROUTER, InterfaceTarget(port_id="spare"), "unused", NOON)
    assert (by_port.port.id, by_port.port.use) == ("spare", PortUse.ROUTER_INTERFACE)
    theirs = replace(ROUTER, project_id="other")
    hidden = refusal(add_interface, with_spare, STRANGER, theirs, InterfaceTarget(port_id="spare"), "unused", NOON)
    assert hidden == NotFound(what=Port, id="spare")
