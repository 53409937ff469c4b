"""Networks with a declarative spec: created, updated and deleted with all of their parts, or not at all."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from itertools import count
from typing import Any

import pytest

from fairlead.changes import declarative_uplinks
from fairlead.changes.access import NotAllowed
from fairlead.changes.addresses import NoFreeAddress
from fairlead.changes.caller import Asker
from fairlead.changes.declarative_networks import (
    ListenerLost,
    MadeInParts,
    NoUplink,
    TargetOutside,
    WhichUplink,
    create_whole,
    delete_whole,
    only_uplink,
    update_whole,
)
from fairlead.changes.declarative_uplinks import (
    MOST_ROUTES,
    AskedUplink,
    RouteAroundSubnet,
    TooManyUplinkRoutes,
    WireFamily,
    create_uplink,
    delete_uplink,
    describe_uplink,
    update_uplink,
)
from fairlead.changes.draft import Draft
from fairlead.changes.gateways import GatewayRequest, JoinedSubnetsOverlap, TooManyAttached, set_gateway
from fairlead.changes.network_specs import AskedNetwork, Family, RouterAddress, describe, router_of
from fairlead.changes.networks import NetworkInUse, SegmentTaken
from fairlead.changes.routers import InterfaceTarget, RouterInUse, add_interface
from fairlead.changes.subnets import SubnetInUse, delete_subnet
from fairlead.changes.untranslated_prefixes import NotGranted, NotInRoutes, RouteNeeded, UsedOutside
from fairlead.compilers import providers
from fairlead.compilers.ovn import compile_owner
from fairlead.model.documents.loadbalancer import Backend, Described, LoadBalancer, Use, Vip
from fairlead.model.documents.network import (
    AllocationPool,
    FixedIP,
    Ipv6Mode,
    Network,
    Port,
    PortUse,
    Route,
    Router,
    Subnet,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.trust import GrantedPrefix, Project
from fairlead.model.registry.affected import affected
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, at_once
from harness.api import NOON
from harness.changes.balancing import ARRIVED, ASKER, LATER, after
from harness.changes.world import ADMIN, OWNER, STRANGER, refusal, subnet

OPERATOR = Asker(identity=ADMIN, now=LATER, applied=lambda _: ARRIVED, providers=providers.DEFAULT)
OTHER = replace(ASKER, identity=STRANGER)


def ids(prefix: str) -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}-{next(numbers)}"


def at(text: str) -> RouterAddress:
    found = ip_interface(text)
    return RouterAddress(address=found.ip, cidr=found.network)


def family(text: str, **fields: Any) -> Family:
    return Family(version=at(text).address.version, router=at(text), **{"nat": True} | fields)


def wire(text: str, *ranges: str) -> WireFamily:
    ends = (each.split("-") for each in ranges)
    pools = tuple(AllocationPool(start=ip_address(start), end=ip_address(end)) for start, end in ends)
    return WireFamily(version=at(text).address.version, gateway=at(text), ranges=pools)


WIRES = (wire("203.0.113.1/24", "203.0.113.10-203.0.113.99"), wire("2001:db8::1/64", "2001:db8::10-2001:db8::ff"))
ROUTES = tuple(map(ip_network, ("198.51.100.0/24", "203.0.113.128/25", "2001:db8:1::/48")))
UPLINK = AskedUplink(name="UPLINK", mtu=1500, physical_network="phys", families=WIRES, routes=ROUTES)
FOUR, SIX = family("10.0.0.1/24"), family("fd42::1/64")
PLAIN = AskedNetwork(name="ovn0", mtu=1442, uplink_id="up", families=(FOUR, SIX))


def with_uplink(asked: AskedUplink = UPLINK) -> Snapshot:
    """Return a snapshot with an uplink whose routes are granted to every project."""
    snapshot = after(Snapshot(), create_uplink(Snapshot(), OPERATOR, "up", ids("u"), asked))
    prefixes = tuple(GrantedPrefix(uplink=asked.name, cidr=route) for route in asked.routes)
    return put(snapshot, *(Project(name=name, prefixes=prefixes) for name in ("owner", "other")))


def made(
    asked: AskedNetwork = PLAIN, snapshot: Snapshot | None = None, name: str = "net", by: Asker = ASKER
) -> Snapshot:
    there = with_uplink() if snapshot is None else snapshot
    return after(there, create_whole(there, by, name, ids(name), asked))


def changed(snapshot: Snapshot, asked: AskedNetwork, name: str = "net") -> Snapshot:
    return after(snapshot, update_whole(snapshot, ASKER, name, ids("new"), asked))


def refused(work: Steps[Changes]) -> Any:
    return refusal(at_once, work)


def put(snapshot: Snapshot, *documents: Any) -> Snapshot:
    return apply_changes(snapshot, Changes(puts=documents), snapshot.revision + 1)


def machine(address: str, subnet_id: str, network_id: str = "net") -> Port:
    fixed = FixedIP(subnet_id=subnet_id, address=ip_address(address))
    mac = "fa:16:3e:ff:00:01"
    return Port(
        id="vm", project_id="owner", created_at=NOON, network_id=network_id, mac_address=mac, fixed_ips=(fixed,)
    )


def balancer(snapshot: Snapshot, listen: str, backend: str, network_id: str = "net") -> tuple[LoadBalancer, Port]:
    """Return a load balancer with a declarative spec that listens on an address of the uplink."""
    address = ip_address(listen)
    subnet = next(each for each in snapshot.networks["up"].subnets if address in each.cidr)
    port = Port(
        id="vip",
        project_id="owner",
        created_at=NOON,
        network_id="up",
        mac_address="fa:16:3e:ff:00:02",
        fixed_ips=(FixedIP(subnet_id=subnet.id, address=address),),
        device_id="lb-lb",
        device_owner=PortUse.VIP.value,
    )
    described = Described(
        network_id=network_id,
        use=Use.LOAD_BALANCER,
        backends=(Backend(name="c1", address=ip_address(backend)),),
    )
    vip = Vip(address=address, port_id="vip", subnet_id=subnet.id, network_id="up")
    return LoadBalancer(
        id="lb", project_id="owner", created_at=NOON, provider="fairlead", vip=vip, described=described
    ), port


# Networks


def test_a_network_is_several_documents_of_one_write():
    snapshot = made()
    network, router = snapshot.networks["net"], snapshot.routers[snapshot.networks["net"].router_id or ""]
    assert [(subnet.cidr, subnet.gateway) for subnet in network.subnets] == [
        (at("10.0.0.1/24").cidr, at("10.0.0.1/24").address),
        (at("fd42::1/64").cidr, at("fd42::1/64").address),
    ]
    assert network.subnets[1].ipv6_address_mode is Ipv6Mode.DHCPV6_STATELESS
    joined = [snapshot.ports[each] for each in snapshot.router_interfaces[router.id]]
    assert {fixed.address for port in joined for fixed in port.fixed_ips} == {FOUR.router.address, SIX.router.address}
    assert router.gateway is not None
    assert (router.gateway.network_id, router.gateway.enable_snat, router.gateway.enable_snat_ipv6) == (
        "up",
        True,
        True,
    )
    outside = snapshot.ports[router.gateway.port_id].fixed_ips
    assert [fixed.address.version for fixed in outside] == [4, 6]
    assert {each.project_id for each in (network, router, *joined)} == {"owner"}


@pytest.mark.parametrize(
    "asked",
    [
        PLAIN,
        replace(PLAIN, families=(FOUR,)),
        replace(PLAIN, families=(replace(FOUR, dhcp=False), replace(SIX, nat=False, router=at("2001:db8:1::1/64")))),
        replace(PLAIN, families=(replace(SIX, stateful=True),)),
        replace(PLAIN, families=(replace(SIX, dhcp=False),)),
        replace(PLAIN, families=(family("fd42::1/48", dhcp=False),)),
        replace(PLAIN, families=()),
        replace(PLAIN, uplink_id=None, families=(replace(FOUR, nat=False),)),
        replace(PLAIN, uplink_id=None, families=()),
        replace(PLAIN, nameservers=(ip_address("9.9.9.9"), ip_address("2620:fe::fe")), config=(("user.a", "b"),)),
    ],
)
def test_what_is_made_is_described_as_it_was_asked_for(asked: AskedNetwork):
    snapshot = made(asked)
    assert describe(snapshot, snapshot.networks["net"]) == asked
    assert at_once(update_whole(snapshot, ASKER, "net", ids("new"), asked)) == Changes()
    for first in (PLAIN, replace(PLAIN, families=()), replace(PLAIN, uplink_id=None)):
        again = changed(made(first), asked)
        assert describe(again, again.networks["net"]) == asked
    gone = after(snapshot, delete_whole(snapshot, ASKER, "net"))
    before = with_uplink()
    assert (gone.networks, gone.routers, gone.ports) == (before.networks, before.routers, before.ports)


def test_a_network_without_an_uplink_and_without_addresses_has_no_router():
    snapshot = made(replace(PLAIN, uplink_id=None, families=()))
    assert snapshot.networks["net"].router_id is None
    assert not snapshot.routers


def test_any_subnet_is_free_where_the_uplink_is_and_stays_afterwards():
    anything = replace(PLAIN, families=(Family(version=4, nat=True), Family(version=6, nat=True)))
    snapshot = made(anything)
    four, six = describe(snapshot, snapshot.networks["net"]).families
    assert four.router.cidr.subnet_of(ip_network("10.0.0.0/8"))
    assert six.router.cidr.subnet_of(ip_network("fd42::/16"))
    assert (four.router.cidr.prefixlen, six.router.cidr.prefixlen) == (24, 64)
    assert at_once(update_whole(snapshot, ASKER, "net", ids("new"), anything)) == Changes()


def test_nothing_is_taken_that_somebody_has_meanwhile():
    snapshot = with_uplink()
    assert at_once(create_whole(snapshot, ASKER, "net", ids("n"), PLAIN)).rests_on_absence


def test_the_uplink_goes_without_saying_if_it_is_the_only_one():
    assert isinstance(refusal(only_uplink, Snapshot(), "x"), NoUplink)
    assert only_uplink(with_uplink(), "x").id == "up"
    second = Network(id="two", project_id="x", created_at=NOON, mtu=1500, external=True)
    assert isinstance(refusal(only_uplink, put(with_uplink(), second), "x"), WhichUplink)


def test_a_network_without_translation_is_in_the_uplinks_routes_and_nobody_elses():
    bare = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    snapshot = made(bare)
    assert snapshot.routers[snapshot.networks["net"].router_id or ""].gateway.enable_snat is False  # type: ignore[union-attr]
    for text in ("198.51.100.33/27", "198.51.100.1/26", "198.51.100.1/25"):
        again = replace(PLAIN, families=(family(text, nat=False),))
        why = refused(create_whole(snapshot, OTHER, "net2", ids("n"), again))
        assert why == UsedOutside(cidr=at(text).cidr, uplink_id="up")
    translated = replace(PLAIN, families=(family("198.51.100.1/26"),))
    assert made(translated, snapshot, "net2", OTHER).networks["net2"]
    elsewhere = replace(PLAIN, families=(family("192.0.2.1/24", nat=False),))
    cidr = ip_network("192.0.2.0/24")
    assert refused(create_whole(snapshot, OTHER, "net2", ids("n"), elsewhere)) == NotInRoutes(cidr=cidr, uplink_id="up")
    assert refused(update_whole(made(), ASKER, "net", ids("n"), elsewhere)) == NotInRoutes(cidr=cidr, uplink_id="up")


def test_through_a_router_that_does_not_translate_nothing_else_is_seen_outside():
    """Interfaces of a router without SNAT are limited to routes that a tenant could also use for a new network."""
    bare = made(replace(PLAIN, families=(family("198.51.100.1/26", nat=False),)))
    router = bare.routers[bare.networks["net"].router_id or ""]

    def joining(text: str, by: Asker = ASKER) -> Any:
        cidr = ip_network(text)
        subnet = Subnet(id="s2", project_id="owner", created_at=NOON, cidr=cidr, gateway=cidr[1], allocation_pools=())
        there = put(bare, Network(id="net2", project_id="owner", created_at=NOON, mtu=1442, subnets=(subnet,)))
        return add_interface(there, by.identity, router, InterfaceTarget(subnet_id="s2"), "p2", NOON)

    cidr = ip_network("192.0.2.0/24")
    assert refusal(joining, str(cidr)) == NotInRoutes(cidr=cidr, uplink_id="up")
    assert joining(str(cidr), OPERATOR)
    assert joining("198.51.100.128/26")
    assert joining("fd00:5::/64")


def test_a_tenant_has_of_an_uplinks_routes_what_an_administrator_granted():
    """Routes of an uplink are granted per project, because one project could otherwise take all of them."""
    snapshot = put(with_uplink(), Project(name="owner", prefixes=()))
    wanted = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    cidr = at("198.51.100.1/26").cidr
    why = refused(create_whole(snapshot, ASKER, "net", ids("n"), wanted))
    assert why == NotGranted(cidr=cidr, uplink=UPLINK.name, project_id="owner")
    assert made(wanted, snapshot, by=OPERATOR).networks["net"]
    part = Project(name="owner", prefixes=(GrantedPrefix(uplink=UPLINK.name, cidr=ip_network("198.51.100.0/25")),))
    assert made(wanted, put(snapshot, part)).networks["net"]


def test_who_joins_a_subnet_first_and_sets_the_gateway_later_shows_no_more_outside():
    """A gateway that is set after the interfaces is checked too, for IPv6, which a router translates only on
    request."""
    snapshot = put(made(replace(PLAIN, uplink_id=None)), Project(name="owner"))
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    cidr = next(route for route in UPLINK.routes if route.version == 6)
    inside = next(cidr.subnets(new_prefix=64))
    subnet = Subnet(id="s6", project_id="owner", created_at=NOON, cidr=inside, gateway=inside[1], allocation_pools=())
    there = put(snapshot, Network(id="net2", project_id="owner", created_at=NOON, mtu=1442, subnets=(subnet,)))
    joined = put(
        there, *add_interface(there, ASKER.identity, router, InterfaceTarget(subnet_id="s6"), "p6", NOON).changes.puts
    )
    request = GatewayRequest(network_id="up")
    why = refusal(set_gateway, joined, ASKER.identity, joined.routers[router.id], request, "gw", NOON)
    assert why == NotGranted(cidr=inside, uplink=UPLINK.name, project_id="owner")


def test_what_a_network_has_not_of_ipv4_is_translated():
    """Networks without IPv4 have SNAT enabled, because another API front end may add an IPv4 subnet to the router."""
    for families in ((), (SIX,)):
        (router,) = made(replace(PLAIN, families=families)).routers.values()
        assert router.gateway is not None
        assert router.gateway.enable_snat


def test_an_address_that_is_listened_on_outside_is_in_nobodys_subnet():
    snapshot = made()
    snapshot = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    bare = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    assert isinstance(refused(create_whole(snapshot, OTHER, "net2", ids("n"), bare)), UsedOutside)


def test_a_subnet_may_grow_and_shrink_around_what_is_in_it():
    snapshot = made()
    subnet = snapshot.networks["net"].subnets[0]
    snapshot = put(snapshot, machine("10.0.0.11", subnet.id))
    wide = changed(snapshot, replace(PLAIN, families=(family("10.0.1.1/22"), SIX)))
    assert wide.networks["net"].subnets[0].id == subnet.id
    assert wide.networks["net"].subnets[0].cidr == ip_network("10.0.0.0/22")
    for text in ("10.0.0.1/29", "10.9.0.1/24", "10.0.0.11/24"):
        other = replace(PLAIN, families=(family(text), SIX))
        assert refused(update_whole(snapshot, ASKER, "net", ids("n"), other)) == SubnetInUse(subnet_id=subnet.id)
    without = replace(PLAIN, families=(SIX,))
    assert refused(update_whole(snapshot, ASKER, "net", ids("n"), without)) == SubnetInUse(subnet_id=subnet.id)


def test_the_routers_address_keeps_its_mac_when_it_moves():
    snapshot = made()
    again = changed(snapshot, replace(PLAIN, families=(family("10.0.0.254/24"), SIX)))

    def macs(of: Snapshot) -> dict[str, str]:
        ports = (port for port in of.ports.values() if port.use is PortUse.ROUTER_INTERFACE)
        return {port.fixed_ips[0].subnet_id: port.mac_address for port in ports}

    assert macs(again) == macs(snapshot)
    assert (
        ("net", ip_address("10.0.0.254")) in again.addresses,
        ("net", ip_address("10.0.0.1")) in again.addresses,
    ) == (
        True,
        False,
    )


def test_a_subnet_stays_where_backends_are():
    snapshot = made()
    found, port = balancer(snapshot, "198.51.100.7", "10.0.0.11")
    snapshot = put(snapshot, found, port)
    other = replace(PLAIN, families=(family("10.9.0.1/24"), SIX))
    expected = TargetOutside(balancer=found, address=ip_address("10.0.0.11"))
    assert refused(update_whole(snapshot, ASKER, "net", ids("n"), other)) == expected
    assert changed(snapshot, replace(PLAIN, families=(family("10.0.0.1/16"), SIX)))
    isolated = replace(PLAIN, uplink_id=None)
    lost = ListenerLost(address=ip_address("198.51.100.7"))
    assert refused(update_whole(snapshot, ASKER, "net", ids("n"), isolated)) == lost


def test_a_network_goes_with_its_load_balancers_and_with_nothing_else():
    snapshot = made()
    whole = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    gone = after(whole, delete_whole(whole, ASKER, "net"))
    assert (dict(gone.load_balancers), dict(gone.routers), dict(gone.ports)) == ({}, {}, {})
    subnet = snapshot.networks["net"].subnets[0]
    used = put(snapshot, machine("10.0.0.11", subnet.id))
    assert refused(delete_whole(used, ASKER, "net")) == NetworkInUse(network_id="net")
    assert isinstance(refused(delete_whole(snapshot, OTHER, "net")), NotAllowed)


def test_routes_that_another_door_gave_the_router_do_not_keep_it():
    snapshot = made()
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    route = Route(destination=ip_network("172.16.0.0/16"), nexthop=ip_address("10.0.0.9"))
    routed = put(snapshot, replace(router, routes=(route,)))
    assert not after(routed, delete_whole(routed, ASKER, "net")).routers


def test_a_router_that_joins_another_network_too_stays():
    snapshot = made()
    subnet = Subnet(
        id="s2",
        project_id="owner",
        created_at=NOON,
        cidr=ip_network("10.2.0.0/24"),
        gateway=ip_address("10.2.0.1"),
        allocation_pools=(),
    )
    second = Network(id="net2", project_id="owner", created_at=NOON, mtu=1442, subnets=(subnet,))
    snapshot = put(snapshot, second)
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    target = InterfaceTarget(subnet_id="s2")
    joined = apply_changes(snapshot, add_interface(snapshot, OWNER, router, target, "p2", NOON).changes, 9)
    assert refused(delete_whole(joined, ASKER, "net")) == RouterInUse(router_id=router.id)
    # the other network shows the uplink, but does not change with it
    assert describe(joined, joined.networks["net2"]).uplink_id == "up"
    asked = replace(describe(joined, joined.networks["net2"]), description="mine", config=(("user.x", "y"),))
    assert changed(joined, asked, "net2").networks["net2"].description == "mine"
    moved = replace(asked, families=(family("10.3.0.1/24"),))
    assert refused(update_whole(joined, ASKER, "net2", ids("n"), moved)) == MadeInParts(network_id="net2")


def test_a_network_whose_router_another_door_took_away_gets_another():
    snapshot = made()
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    ports = [Owner(Kind.PORT, each) for each in snapshot.router_interfaces[router.id]]
    gateway = Owner(Kind.PORT, router.gateway.port_id if router.gateway else "")
    bare = apply_changes(snapshot, Changes(deletes=(Owner(Kind.ROUTER, router.id), *ports, gateway)), 9)
    assert describe(bare, bare.networks["net"]).uplink_id is None
    again = changed(bare, PLAIN)
    assert describe(again, again.networks["net"]) == PLAIN
    assert router_of(again, again.networks["net"]).id == again.networks["net"].router_id != router.id  # type: ignore[union-attr]


def test_the_router_is_called_as_the_network_is():
    again = changed(made(), replace(PLAIN, name="other"))
    assert {each.name for each in again.routers.values()} == {"other"}


def test_nobody_changes_what_is_anothers():
    snapshot = made()
    other = replace(PLAIN, description="mine")
    assert isinstance(refused(update_whole(snapshot, OTHER, "net", ids("n"), other)), NotAllowed)


# Uplinks


@pytest.mark.parametrize(
    "asked",
    [
        UPLINK,
        replace(UPLINK, tag=100, families=(), routes=()),
        replace(UPLINK, families=WIRES[:1], nameservers=(ip_address("203.0.113.2"),), config=(("user.a", "b"),)),
        replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64"))),
        replace(UPLINK, mtu=1400, description="to the world", routes=ROUTES[:1]),
    ],
)
def test_an_uplink_is_described_as_it_was_asked_for(asked: AskedUplink):
    snapshot = with_uplink(asked)
    assert describe_uplink(snapshot.networks["up"]) == asked
    assert at_once(update_uplink(snapshot, OPERATOR, "up", ids("n"), asked)) == Changes()
    before = with_uplink()
    again = after(before, update_uplink(before, OPERATOR, "up", ids("n"), asked))
    assert describe_uplink(again.networks["up"]) == asked
    assert not apply_changes(snapshot, delete_uplink(snapshot, OPERATOR, "up"), 9).networks


def test_a_route_that_is_on_no_wire_has_a_subnet_of_which_nothing_is_given_out():
    subnets = with_uplink().networks["up"].subnets
    assert [str(each.cidr) for each in subnets] == [
        "203.0.113.0/24",
        "2001:db8::/64",
        "198.51.100.0/24",
        "2001:db8:1::/48",
    ]
    assert [(each.gateway, each.allocation_pools) for each in subnets[2:]] == [(None, ()), (None, ())]


def test_routers_get_no_address_of_a_family_that_is_only_routed():
    asked = replace(UPLINK, families=WIRES[:1])
    snapshot = made(snapshot=with_uplink(asked))
    (router,) = snapshot.routers.values()
    assert [fixed.address.version for fixed in snapshot.ports[router.gateway.port_id].fixed_ips] == [4]  # type: ignore[union-attr]


def test_of_ipv6_without_ranges_routers_make_their_own_address():
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64")))))
    (router,) = snapshot.routers.values()
    port = snapshot.ports[router.gateway.port_id]  # type: ignore[union-attr]
    assert str(port.fixed_ips[1].address).startswith("2001:db8::f816:3eff:fe")


@pytest.mark.parametrize(("first", "later"), [(0, 1), (1, 0)], ids=["IPv6 later", "IPv4 later"])
@pytest.mark.parametrize("families", [(FOUR, SIX), ()], ids=["with subnets", "with none"])
def test_what_an_uplink_gets_later_the_networks_behind_it_have_as_those_that_come_then(
    first: int, later: int, families: tuple[Family, ...]
):
    before = made(replace(PLAIN, families=families), with_uplink(replace(UPLINK, families=(WIRES[first],), routes=())))
    changes = at_once(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK))
    after_it = apply_changes(before, changes, before.revision + 1)
    network = after_it.networks["net"]
    (port,) = (after_it.ports[each.gateway.port_id] for each in after_it.routers.values() if each.gateway)
    assert [fixed.address.version for fixed in port.fixed_ips] == [4, 6]
    had = before.ports[port.id].fixed_ips
    assert [fixed for fixed in port.fixed_ips if fixed in had] == list(had)
    assert all(any(fixed.address in each.gateway.cidr for each in WIRES) for fixed in port.fixed_ips)
    assert Owner(Kind.ROUTER, str(network.router_id)) in affected(before, after_it, changes.owners)
    there = replace(after_it, gateway_chassis=("gw1",))
    rows = map(str, compile_owner(there, Owner(Kind.ROUTER, str(network.router_id))).values())
    (row,) = (each for each in rows if each.startswith("Logical_Router_Port") and "gateway_mtu" in each)
    networks = row.split(" networks=")[1].split()[0].split(",")
    assert {str(ip_interface(each).ip) for each in networks} == {str(fixed.address) for fixed in port.fixed_ips}
    assert at_once(update_uplink(after_it, OPERATOR, "up", ids("w"), UPLINK)) == Changes()
    more = made(replace(PLAIN, name="ovn1"), after_it, "net2")
    assert len({fixed.address for each in more.routers.values() for fixed in _outside(more, each)}) == 4


def _outside(snapshot: Snapshot, router: Router) -> tuple[FixedIP, ...]:
    return () if router.gateway is None else snapshot.ports[router.gateway.port_id].fixed_ips


def test_an_uplink_without_an_address_for_each_network_behind_it_is_refused():
    before = with_uplink(replace(UPLINK, families=WIRES[:1], routes=()))
    for name in ("net", "net2"):
        before = made(replace(PLAIN, name=name), before, name)
    narrow = replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64", "2001:db8::10-2001:db8::10")))
    assert refused(update_uplink(before, OPERATOR, "up", ids("w"), narrow)) == NoFreeAddress(network_id="up")
    wide = replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64", "2001:db8::10-2001:db8::11")))
    assert len(after(before, update_uplink(before, OPERATOR, "up", ids("w"), wide)).routers) == 2
    inside = replace(UPLINK, families=(WIRES[0], wire("fd42::ff/64")))
    assert isinstance(refused(update_uplink(before, OPERATOR, "up", ids("w"), inside)), JoinedSubnetsOverlap)


def test_so_many_networks_get_an_address_at_once(monkeypatch: pytest.MonkeyPatch):
    before = with_uplink(replace(UPLINK, families=WIRES[:1], routes=()))
    for name in ("net", "net2"):
        before = made(replace(PLAIN, name=name), before, name)
    monkeypatch.setattr(declarative_uplinks, "MOST_ATTACHED", 1)
    assert refused(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK)) == TooManyAttached(most=1)
    monkeypatch.setattr(declarative_uplinks, "MOST_ATTACHED", 2)
    assert at_once(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK)).puts


def later(snapshot: Snapshot, cidr: str) -> Steps[Changes]:
    """Create a subnet of the uplink as Neutron's API does."""
    return declarative_uplinks.create_subnet(snapshot, ADMIN, "up", subnet(f"later {cidr}", cidr))


@pytest.mark.parametrize("cidrs", [("203.0.113.0/24", "2001:db8::/64"), ("2001:db8::/64", "203.0.113.0/24")])
def test_a_gateway_without_an_address_gets_one_of_each_subnet_that_comes_later(cidrs: tuple[str, str]):
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(), routes=ROUTES[:1])))
    (router,) = snapshot.routers.values()
    assert _outside(snapshot, router) == ()
    for number, cidr in enumerate(cidrs, 1):
        changes = at_once(later(snapshot, cidr))
        assert Owner(Kind.ROUTER, router.id) in changes.reads
        snapshot = apply_changes(snapshot, changes, snapshot.revision + 1)
        assert {fixed.subnet_id for fixed in _outside(snapshot, router)} == {f"later {each}" for each in cidrs[:number]}
    assert len(at_once(later(snapshot, "192.0.2.0/24")).puts) == 1


def test_a_gateway_without_an_address_of_nobodys_network_gets_one_too():
    """It belongs to no declarative network, so it gets addresses only while it has none."""
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(), routes=())))
    (router,) = snapshot.routers.values()
    snapshot = put(snapshot, replace(snapshot.networks["net"], router_id=None))
    snapshot = after(snapshot, later(snapshot, "203.0.113.0/24"))
    assert [fixed.address.version for fixed in _outside(snapshot, router)] == [4]
    snapshot = after(snapshot, later(snapshot, "2001:db8::/64"))
    assert [fixed.address.version for fixed in _outside(snapshot, router)] == [4]


def test_a_subnet_that_has_no_address_for_gateways_without_one_is_refused(monkeypatch: pytest.MonkeyPatch):
    snapshot = with_uplink(replace(UPLINK, families=(), routes=()))
    for name in ("net", "net2"):
        snapshot = made(replace(PLAIN, name=name), snapshot, name)
    assert refused(later(snapshot, "203.0.113.0/30")) == NoFreeAddress(network_id="up")
    assert isinstance(refused(later(snapshot, "10.0.0.0/16")), JoinedSubnetsOverlap)
    monkeypatch.setattr(declarative_uplinks, "MOST_ATTACHED", 1)
    assert refused(later(snapshot, "203.0.113.0/24")) == TooManyAttached(most=1)
    monkeypatch.setattr(declarative_uplinks, "MOST_ATTACHED", 2)
    changes = at_once(later(snapshot, "203.0.113.0/24"))
    assert (len(changes.puts), changes.rests_on_absence) == (3, True)


def test_a_gateway_without_an_address_gets_one_when_it_is_set_again():
    """Such gateways may be stored on networks that have had a subnet since."""
    snapshot = made(snapshot=with_uplink())
    (router,) = snapshot.routers.values()
    port = snapshot.ports[router.gateway.port_id]  # type: ignore[union-attr]
    bare = put(snapshot, replace(port, fixed_ips=()))
    again = GatewayRequest(network_id="up", enable_snat_ipv6=True)
    changes = set_gateway(bare, OPERATOR.identity, router, again, "new", NOON)
    assert [[each.address.version for each in put.fixed_ips] for put in changes.puts if isinstance(put, Port)] == [
        [4, 6]
    ]
    wide = replace(snapshot.networks["up"], subnets=(subnet("ten", "10.0.0.0/8"),), routes=())
    why = refusal(set_gateway, put(bare, wide), OPERATOR.identity, router, again, "new", NOON)
    assert isinstance(why, JoinedSubnetsOverlap)


def test_only_operators_make_and_change_uplinks():
    snapshot = with_uplink()
    assert isinstance(refused(create_uplink(snapshot, ASKER, "u2", ids("u"), UPLINK)), NotAllowed)
    other = replace(UPLINK, description="mine")
    theirs = replace(ASKER, identity=replace(OWNER, project_id="admin"))
    assert isinstance(refused(update_uplink(snapshot, theirs, "up", ids("u"), other)), NotAllowed)
    assert isinstance(refusal(delete_uplink, snapshot, theirs, "up"), NotAllowed)


def test_a_wire_is_one_uplinks():
    why = refused(create_uplink(with_uplink(), OPERATOR, "u2", ids("u"), UPLINK))
    assert isinstance(why, SegmentTaken)
    assert with_uplink(replace(UPLINK, tag=7)).networks


def test_a_route_stays_while_something_is_reached_by_it():
    snapshot = made()
    network = snapshot.networks["net"]
    for listen, left in (("198.51.100.7", ROUTES[1:]), ("203.0.113.200", ROUTES[:1])):
        used = put(snapshot, *balancer(snapshot, listen, "10.0.0.11"))
        why = refused(update_uplink(used, OPERATOR, "up", ids("u"), replace(UPLINK, routes=left)))
        assert why == RouteNeeded(needed=ip_address(listen), network=network)
    bare = made(replace(PLAIN, families=(family("198.51.100.1/26", nat=False),)))
    why = refused(update_uplink(bare, OPERATOR, "up", ids("u"), replace(UPLINK, routes=ROUTES[1:])))
    assert why == RouteNeeded(needed=ip_network("198.51.100.0/26"), network=bare.networks["net"])


def test_a_route_may_grow_and_shrink_around_what_is_reached_by_it():
    snapshot = made()
    used = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    before = used.ports["vip"].fixed_ips[0].subnet_id
    for text in ("198.51.100.0/23", "198.51.100.0/28"):
        asked = replace(UPLINK, routes=(ip_network(text), *ROUTES[1:]))
        again = after(used, update_uplink(used, OPERATOR, "up", ids("u"), asked))
        (subnet,) = (each for each in again.networks["up"].subnets if each.id == before)
        assert subnet.cidr == ip_network(text)
    narrow = replace(UPLINK, routes=(ip_network("198.51.100.128/25"), *ROUTES[1:]))
    assert isinstance(refused(update_uplink(used, OPERATOR, "up", ids("u"), narrow)), RouteNeeded)


def test_an_uplink_stays_where_routers_are():
    snapshot = made()
    assert refusal(delete_uplink, snapshot, OPERATOR, "up") == NetworkInUse(network_id="up")
    other = replace(UPLINK, families=(wire("192.0.2.1/24", "192.0.2.10-192.0.2.99"), WIRES[1]), routes=())
    assert isinstance(refused(update_uplink(snapshot, OPERATOR, "up", ids("u"), other)), SubnetInUse)
    more = replace(UPLINK, families=(wire("203.0.113.1/24", "203.0.113.50-203.0.113.60"), WIRES[1]))
    assert after(snapshot, update_uplink(snapshot, OPERATOR, "up", ids("u"), more))


def test_routes_are_bounded_and_inside_or_outside_the_wire():
    around = replace(UPLINK, routes=(ip_network("203.0.112.0/23"),))
    why = refused(create_uplink(Snapshot(), OPERATOR, "up", ids("u"), around))
    assert why == RouteAroundSubnet(route=around.routes[0], cidr=ip_network("203.0.113.0/24"))
    many = tuple(ip_network("198.18.0.0/16").subnets(new_prefix=24))[: MOST_ROUTES + 1]
    assert with_uplink(replace(UPLINK, routes=many[:-1])).networks
    why = refused(create_uplink(Snapshot(), OPERATOR, "up", ids("u"), replace(UPLINK, routes=many)))
    assert why == TooManyUplinkRoutes(most=MOST_ROUTES)


def test_who_deletes_a_routes_subnet_in_another_door_takes_the_route_away():
    snapshot = with_uplink()
    network = snapshot.networks["up"]
    left = apply_changes(snapshot, delete_subnet(snapshot, ADMIN, network.subnets[2]), 9).networks["up"]
    assert left.routes == ROUTES[1:]


# Atomic writes


def test_a_draft_writes_what_is_different_in_the_end_and_nothing_else():
    snapshot = made()
    port = machine("10.0.0.11", snapshot.networks["net"].subnets[0].id)
    draft = Draft(snapshot)
    draft.put(port)
    draft.add(Changes(deletes=(Owner(Kind.PORT, "vm"),)))
    draft.put(replace(snapshot.networks["net"], name="a"))
    draft.put(snapshot.networks["net"])
    assert draft.changes() == Changes()
    draft.add(Changes(deletes=(Owner(Kind.NETWORK, "up"),), reads=(Owner(Kind.NETWORK, "net"),)))
    draft.put(port)
    assert draft.changes() == Changes(
        puts=(port,), deletes=(Owner(Kind.NETWORK, "up"),), reads=(Owner(Kind.NETWORK, "net"),)
    )
