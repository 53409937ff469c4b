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
from fairlead.changes.caller import ChangeContext
from fairlead.changes.declarative_networks import (
    AmbiguousUplink,
    ListenAddressLost,
    NetworkNotDeclarative,
    NoUplink,
    TargetOutsideSubnets,
    create_network_from_spec,
    default_uplink,
    delete_declarative_network,
    update_network_from_spec,
)
from fairlead.changes.declarative_uplinks import (
    MAX_UPLINK_ROUTES,
    RouteAroundSubnet,
    TooManyUplinkRoutes,
    UplinkIpFamily,
    UplinkSpec,
    create_uplink,
    delete_uplink,
    describe_uplink,
    update_uplink,
)
from fairlead.changes.draft import Draft
from fairlead.changes.gateways import GatewayRequest, JoinedSubnetsOverlap, TooManyAttachedRouters, set_gateway
from fairlead.changes.network_specs import NetworkIpFamily, NetworkSpec, RouterAddress, describe, router_of
from fairlead.changes.networks import NetworkInUse, SegmentInUse
from fairlead.changes.routers import InterfaceTarget, RouterInUse, add_interface
from fairlead.changes.subnets import SubnetInUse, delete_subnet
from fairlead.changes.untranslated_prefixes import PrefixInUseOutside, PrefixNotGranted, PrefixNotInRoutes, RouteNeeded
from fairlead.compilers import providers
from fairlead.compilers.ovn import compile_owner
from fairlead.model.documents.loadbalancer import Backend, DeclarativeSpec, LoadBalancer, SpecPurpose, Vip
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
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion
from harness.api import NOON
from harness.changes.balancing import ALL_APPLIED, ASKER, LATER, apply_work
from harness.changes.world import ADMIN, OWNER, STRANGER, refusal, subnet

OPERATOR = ChangeContext(identity=ADMIN, now=LATER, applied=lambda _: ALL_APPLIED, providers=providers.DEFAULT)
OTHER = replace(ASKER, identity=STRANGER)


def ids(prefix: str) -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}-{next(numbers)}"


def at(text: str) -> RouterAddress:
    found = ip_interface(text)
    return RouterAddress(address=found.ip, cidr=found.network)


def family(text: str, **fields: Any) -> NetworkIpFamily:
    return NetworkIpFamily(version=at(text).address.version, router=at(text), **{"nat": True} | fields)


def wire(text: str, *ranges: str) -> UplinkIpFamily:
    ends = (each.split("-") for each in ranges)
    pools = tuple(AllocationPool(start=ip_address(start), end=ip_address(end)) for start, end in ends)
    return UplinkIpFamily(version=at(text).address.version, gateway=at(text), ranges=pools)


WIRES = (wire("203.0.113.1/24", "203.0.113.10-203.0.113.99"), wire("2001:db8::1/64", "2001:db8::10-2001:db8::ff"))
ROUTES = tuple(map(ip_network, ("198.51.100.0/24", "203.0.113.128/25", "2001:db8:1::/48")))
UPLINK = UplinkSpec(name="UPLINK", mtu=1500, physical_network="phys", families=WIRES, routes=ROUTES)
FOUR, SIX = family("10.0.0.1/24"), family("fd42::1/64")
PLAIN = NetworkSpec(name="ovn0", mtu=1442, uplink_id="up", families=(FOUR, SIX))


def with_uplink(asked: UplinkSpec = UPLINK) -> Snapshot:
    """Return a snapshot with an uplink whose routes are granted to every project."""
    snapshot = apply_work(Snapshot(), create_uplink(Snapshot(), OPERATOR, "up", ids("u"), asked))
    prefixes = tuple(GrantedPrefix(uplink=asked.name, cidr=route) for route in asked.routes)
    return put(snapshot, *(Project(name=name, prefixes=prefixes) for name in ("owner", "other")))


def made(
    asked: NetworkSpec = PLAIN, snapshot: Snapshot | None = None, name: str = "net", by: ChangeContext = ASKER
) -> Snapshot:
    there = with_uplink() if snapshot is None else snapshot
    return apply_work(there, create_network_from_spec(there, by, name, ids(name), asked))


def changed(snapshot: Snapshot, asked: NetworkSpec, name: str = "net") -> Snapshot:
    return apply_work(snapshot, update_network_from_spec(snapshot, ASKER, name, ids("new"), asked))


def refused(work: Steps[Changes]) -> Any:
    return refusal(run_to_completion, work)


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
    described = DeclarativeSpec(
        network_id=network_id,
        use=SpecPurpose.LOAD_BALANCER,
        backends=(Backend(name="c1", address=ip_address(backend)),),
    )
    vip = Vip(address=address, port_id="vip", subnet_id=subnet.id, network_id="up")
    return LoadBalancer(
        id="lb", project_id="owner", created_at=NOON, provider="fairlead", vip=vip, described=described
    ), port


# Networks


def test_declarative_network_creates_network_router_and_ports_together():
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
def test_network_spec_is_read_back_as_written(asked: NetworkSpec):
    snapshot = made(asked)
    assert describe(snapshot, snapshot.networks["net"]) == asked
    assert run_to_completion(update_network_from_spec(snapshot, ASKER, "net", ids("new"), asked)) == Changes()
    for first in (PLAIN, replace(PLAIN, families=()), replace(PLAIN, uplink_id=None)):
        again = changed(made(first), asked)
        assert describe(again, again.networks["net"]) == asked
    gone = apply_work(snapshot, delete_declarative_network(snapshot, ASKER, "net"))
    before = with_uplink()
    assert (gone.networks, gone.routers, gone.ports) == (before.networks, before.routers, before.ports)


def test_isolated_network_without_addresses_has_no_router():
    snapshot = made(replace(PLAIN, uplink_id=None, families=()))
    assert snapshot.networks["net"].router_id is None
    assert not snapshot.routers


def test_automatic_subnets_are_allocated_once_and_kept():
    anything = replace(PLAIN, families=(NetworkIpFamily(version=4, nat=True), NetworkIpFamily(version=6, nat=True)))
    snapshot = made(anything)
    four, six = describe(snapshot, snapshot.networks["net"]).families
    assert four.router.cidr.subnet_of(ip_network("10.0.0.0/8"))
    assert six.router.cidr.subnet_of(ip_network("fd42::/16"))
    assert (four.router.cidr.prefixlen, six.router.cidr.prefixlen) == (24, 64)
    assert run_to_completion(update_network_from_spec(snapshot, ASKER, "net", ids("new"), anything)) == Changes()


def test_network_creation_conflicts_with_concurrent_allocations():
    snapshot = with_uplink()
    assert run_to_completion(create_network_from_spec(snapshot, ASKER, "net", ids("n"), PLAIN)).requires_unchanged_model


def test_only_uplink_is_the_default():
    assert isinstance(refusal(default_uplink, Snapshot(), "x"), NoUplink)
    assert default_uplink(with_uplink(), "x").id == "up"
    second = Network(id="two", project_id="x", created_at=NOON, mtu=1500, external=True)
    assert isinstance(refusal(default_uplink, put(with_uplink(), second), "x"), AmbiguousUplink)


def test_network_without_nat_must_lie_in_unused_routes_of_the_uplink():
    bare = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    snapshot = made(bare)
    assert snapshot.routers[snapshot.networks["net"].router_id or ""].gateway.enable_snat is False  # type: ignore[union-attr]
    for text in ("198.51.100.33/27", "198.51.100.1/26", "198.51.100.1/25"):
        again = replace(PLAIN, families=(family(text, nat=False),))
        why = refused(create_network_from_spec(snapshot, OTHER, "net2", ids("n"), again))
        assert why == PrefixInUseOutside(cidr=at(text).cidr, uplink_id="up")
    translated = replace(PLAIN, families=(family("198.51.100.1/26"),))
    assert made(translated, snapshot, "net2", OTHER).networks["net2"]
    elsewhere = replace(PLAIN, families=(family("192.0.2.1/24", nat=False),))
    cidr = ip_network("192.0.2.0/24")
    assert refused(create_network_from_spec(snapshot, OTHER, "net2", ids("n"), elsewhere)) == PrefixNotInRoutes(
        cidr=cidr, uplink_id="up"
    )
    assert refused(update_network_from_spec(made(), ASKER, "net", ids("n"), elsewhere)) == PrefixNotInRoutes(
        cidr=cidr, uplink_id="up"
    )


def test_tenant_cannot_join_an_unrouted_subnet_to_a_router_without_snat():
    """Interfaces of a router without SNAT are limited to routes that a tenant could also use for a new network."""
    bare = made(replace(PLAIN, families=(family("198.51.100.1/26", nat=False),)))
    router = bare.routers[bare.networks["net"].router_id or ""]

    def joining(text: str, by: ChangeContext = ASKER) -> Any:
        cidr = ip_network(text)
        subnet = Subnet(id="s2", project_id="owner", created_at=NOON, cidr=cidr, gateway=cidr[1], allocation_pools=())
        there = put(bare, Network(id="net2", project_id="owner", created_at=NOON, mtu=1442, subnets=(subnet,)))
        return add_interface(there, by.identity, router, InterfaceTarget(subnet_id="s2"), "p2", NOON)

    cidr = ip_network("192.0.2.0/24")
    assert refusal(joining, str(cidr)) == PrefixNotInRoutes(cidr=cidr, uplink_id="up")
    assert joining(str(cidr), OPERATOR)
    assert joining("198.51.100.128/26")
    assert joining("fd00:5::/64")


def test_tenant_uses_only_uplink_routes_granted_to_its_project():
    """Routes of an uplink are granted per project, because one project could otherwise take all of them."""
    snapshot = put(with_uplink(), Project(name="owner", prefixes=()))
    wanted = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    cidr = at("198.51.100.1/26").cidr
    why = refused(create_network_from_spec(snapshot, ASKER, "net", ids("n"), wanted))
    assert why == PrefixNotGranted(cidr=cidr, uplink=UPLINK.name, project_id="owner")
    assert made(wanted, snapshot, by=OPERATOR).networks["net"]
    part = Project(name="owner", prefixes=(GrantedPrefix(uplink=UPLINK.name, cidr=ip_network("198.51.100.0/25")),))
    assert made(wanted, put(snapshot, part)).networks["net"]


def test_gateway_set_after_interfaces_is_checked_against_granted_routes():
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
    assert why == PrefixNotGranted(cidr=inside, uplink=UPLINK.name, project_id="owner")


def test_network_without_ipv4_has_snat_enabled():
    """Networks without IPv4 have SNAT enabled, because another API front end may add an IPv4 subnet to the router."""
    for families in ((), (SIX,)):
        (router,) = made(replace(PLAIN, families=families)).routers.values()
        assert router.gateway is not None
        assert router.gateway.enable_snat


def test_subnet_containing_a_listen_address_of_the_uplink_is_refused():
    snapshot = made()
    snapshot = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    bare = replace(PLAIN, families=(family("198.51.100.1/26", nat=False),))
    assert isinstance(refused(create_network_from_spec(snapshot, OTHER, "net2", ids("n"), bare)), PrefixInUseOutside)


def test_subnet_can_be_resized_only_around_its_allocated_addresses():
    snapshot = made()
    subnet = snapshot.networks["net"].subnets[0]
    snapshot = put(snapshot, machine("10.0.0.11", subnet.id))
    wide = changed(snapshot, replace(PLAIN, families=(family("10.0.1.1/22"), SIX)))
    assert wide.networks["net"].subnets[0].id == subnet.id
    assert wide.networks["net"].subnets[0].cidr == ip_network("10.0.0.0/22")
    for text in ("10.0.0.1/29", "10.9.0.1/24", "10.0.0.11/24"):
        other = replace(PLAIN, families=(family(text), SIX))
        assert refused(update_network_from_spec(snapshot, ASKER, "net", ids("n"), other)) == SubnetInUse(
            subnet_id=subnet.id
        )
    without = replace(PLAIN, families=(SIX,))
    assert refused(update_network_from_spec(snapshot, ASKER, "net", ids("n"), without)) == SubnetInUse(
        subnet_id=subnet.id
    )


def test_moved_router_address_keeps_its_mac():
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


def test_subnet_with_backends_cannot_move_or_lose_its_uplink():
    snapshot = made()
    found, port = balancer(snapshot, "198.51.100.7", "10.0.0.11")
    snapshot = put(snapshot, found, port)
    other = replace(PLAIN, families=(family("10.9.0.1/24"), SIX))
    expected = TargetOutsideSubnets(balancer=found, address=ip_address("10.0.0.11"))
    assert refused(update_network_from_spec(snapshot, ASKER, "net", ids("n"), other)) == expected
    assert changed(snapshot, replace(PLAIN, families=(family("10.0.0.1/16"), SIX)))
    isolated = replace(PLAIN, uplink_id=None)
    lost = ListenAddressLost(address=ip_address("198.51.100.7"))
    assert refused(update_network_from_spec(snapshot, ASKER, "net", ids("n"), isolated)) == lost


def test_network_is_deleted_with_its_load_balancers_but_not_with_ports():
    snapshot = made()
    whole = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    gone = apply_work(whole, delete_declarative_network(whole, ASKER, "net"))
    assert (dict(gone.load_balancers), dict(gone.routers), dict(gone.ports)) == ({}, {}, {})
    subnet = snapshot.networks["net"].subnets[0]
    used = put(snapshot, machine("10.0.0.11", subnet.id))
    assert refused(delete_declarative_network(used, ASKER, "net")) == NetworkInUse(network_id="net")
    assert isinstance(refused(delete_declarative_network(snapshot, OTHER, "net")), NotAllowed)


def test_router_routes_do_not_block_network_deletion():
    snapshot = made()
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    route = Route(destination=ip_network("172.16.0.0/16"), nexthop=ip_address("10.0.0.9"))
    routed = put(snapshot, replace(router, routes=(route,)))
    assert not apply_work(routed, delete_declarative_network(routed, ASKER, "net")).routers


def test_router_joined_to_a_second_network_blocks_network_deletion():
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
    assert refused(delete_declarative_network(joined, ASKER, "net")) == RouterInUse(router_id=router.id)
    # the other network shows the uplink, but does not change with it
    assert describe(joined, joined.networks["net2"]).uplink_id == "up"
    asked = replace(describe(joined, joined.networks["net2"]), description="mine", config=(("user.x", "y"),))
    assert changed(joined, asked, "net2").networks["net2"].description == "mine"
    moved = replace(asked, families=(family("10.3.0.1/24"),))
    assert refused(update_network_from_spec(joined, ASKER, "net2", ids("n"), moved)) == NetworkNotDeclarative(
        network_id="net2"
    )


def test_network_gets_a_new_router_after_its_router_was_deleted():
    snapshot = made()
    router = snapshot.routers[snapshot.networks["net"].router_id or ""]
    ports = [Owner(Kind.PORT, each) for each in snapshot.router_interfaces[router.id]]
    gateway = Owner(Kind.PORT, router.gateway.port_id if router.gateway else "")
    bare = apply_changes(snapshot, Changes(deletes=(Owner(Kind.ROUTER, router.id), *ports, gateway)), 9)
    assert describe(bare, bare.networks["net"]).uplink_id is None
    again = changed(bare, PLAIN)
    assert describe(again, again.networks["net"]) == PLAIN
    assert router_of(again, again.networks["net"]).id == again.networks["net"].router_id != router.id  # type: ignore[union-attr]


def test_router_is_renamed_with_its_network():
    again = changed(made(), replace(PLAIN, name="other"))
    assert {each.name for each in again.routers.values()} == {"other"}


def test_network_of_another_project_cannot_be_updated():
    snapshot = made()
    other = replace(PLAIN, description="mine")
    assert isinstance(refused(update_network_from_spec(snapshot, OTHER, "net", ids("n"), other)), NotAllowed)


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
def test_uplink_spec_is_read_back_as_written(asked: UplinkSpec):
    snapshot = with_uplink(asked)
    assert describe_uplink(snapshot.networks["up"]) == asked
    assert run_to_completion(update_uplink(snapshot, OPERATOR, "up", ids("n"), asked)) == Changes()
    before = with_uplink()
    again = apply_work(before, update_uplink(before, OPERATOR, "up", ids("n"), asked))
    assert describe_uplink(again.networks["up"]) == asked
    assert not apply_changes(snapshot, delete_uplink(snapshot, OPERATOR, "up"), 9).networks


def test_route_outside_the_uplink_subnets_becomes_a_subnet_without_pools():
    subnets = with_uplink().networks["up"].subnets
    assert [str(each.cidr) for each in subnets] == [
        "203.0.113.0/24",
        "2001:db8::/64",
        "198.51.100.0/24",
        "2001:db8:1::/48",
    ]
    assert [(each.gateway, each.allocation_pools) for each in subnets[2:]] == [(None, ()), (None, ())]


def test_routers_get_no_uplink_address_of_a_family_with_routes_only():
    asked = replace(UPLINK, families=WIRES[:1])
    snapshot = made(snapshot=with_uplink(asked))
    (router,) = snapshot.routers.values()
    assert [fixed.address.version for fixed in snapshot.ports[router.gateway.port_id].fixed_ips] == [4]  # type: ignore[union-attr]


def test_router_on_an_ipv6_uplink_without_ranges_gets_an_eui64_address():
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64")))))
    (router,) = snapshot.routers.values()
    port = snapshot.ports[router.gateway.port_id]  # type: ignore[union-attr]
    assert str(port.fixed_ips[1].address).startswith("2001:db8::f816:3eff:fe")


@pytest.mark.parametrize(("first", "later"), [(0, 1), (1, 0)], ids=["IPv6 later", "IPv4 later"])
@pytest.mark.parametrize("families", [(FOUR, SIX), ()], ids=["with subnets", "with none"])
def test_family_added_to_an_uplink_gives_existing_routers_an_address(
    first: int, later: int, families: tuple[NetworkIpFamily, ...]
):
    before = made(replace(PLAIN, families=families), with_uplink(replace(UPLINK, families=(WIRES[first],), routes=())))
    changes = run_to_completion(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK))
    after_it = apply_changes(before, changes, before.revision + 1)
    network = after_it.networks["net"]
    (port,) = (after_it.ports[each.gateway.port_id] for each in after_it.routers.values() if each.gateway)
    assert [fixed.address.version for fixed in port.fixed_ips] == [4, 6]
    had = before.ports[port.id].fixed_ips
    assert [fixed for fixed in port.fixed_ips if fixed in had] == list(had)
    assert all(any(fixed.address in each.gateway.cidr for each in WIRES) for fixed in port.fixed_ips)
    assert Owner(Kind.ROUTER, str(network.router_id)) in find_affected_owners(before, after_it, changes.owners)
    there = replace(after_it, gateway_chassis=("gw1",))
    rows = map(str, compile_owner(there, Owner(Kind.ROUTER, str(network.router_id))).values())
    (row,) = (each for each in rows if each.startswith("Logical_Router_Port") and "gateway_mtu" in each)
    networks = row.split(" networks=")[1].split()[0].split(",")
    assert {str(ip_interface(each).ip) for each in networks} == {str(fixed.address) for fixed in port.fixed_ips}
    assert run_to_completion(update_uplink(after_it, OPERATOR, "up", ids("w"), UPLINK)) == Changes()
    more = made(replace(PLAIN, name="ovn1"), after_it, "net2")
    assert len({fixed.address for each in more.routers.values() for fixed in _outside(more, each)}) == 4


def _outside(snapshot: Snapshot, router: Router) -> tuple[FixedIP, ...]:
    return () if router.gateway is None else snapshot.ports[router.gateway.port_id].fixed_ips


def test_uplink_update_without_an_address_for_every_router_is_refused():
    before = with_uplink(replace(UPLINK, families=WIRES[:1], routes=()))
    for name in ("net", "net2"):
        before = made(replace(PLAIN, name=name), before, name)
    narrow = replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64", "2001:db8::10-2001:db8::10")))
    assert refused(update_uplink(before, OPERATOR, "up", ids("w"), narrow)) == NoFreeAddress(network_id="up")
    wide = replace(UPLINK, families=(WIRES[0], wire("2001:db8::1/64", "2001:db8::10-2001:db8::11")))
    assert len(apply_work(before, update_uplink(before, OPERATOR, "up", ids("w"), wide)).routers) == 2
    inside = replace(UPLINK, families=(WIRES[0], wire("fd42::ff/64")))
    assert isinstance(refused(update_uplink(before, OPERATOR, "up", ids("w"), inside)), JoinedSubnetsOverlap)


def test_number_of_routers_addressed_by_one_uplink_update_is_limited(monkeypatch: pytest.MonkeyPatch):
    before = with_uplink(replace(UPLINK, families=WIRES[:1], routes=()))
    for name in ("net", "net2"):
        before = made(replace(PLAIN, name=name), before, name)
    monkeypatch.setattr(declarative_uplinks, "MAX_ATTACHED_ROUTERS", 1)
    assert refused(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK)) == TooManyAttachedRouters(most=1)
    monkeypatch.setattr(declarative_uplinks, "MAX_ATTACHED_ROUTERS", 2)
    assert run_to_completion(update_uplink(before, OPERATOR, "up", ids("w"), UPLINK)).puts


def later(snapshot: Snapshot, cidr: str) -> Steps[Changes]:
    """Create a subnet of the uplink as Neutron's API does."""
    return declarative_uplinks.create_subnet(snapshot, ADMIN, "up", subnet(f"later {cidr}", cidr))


@pytest.mark.parametrize("cidrs", [("203.0.113.0/24", "2001:db8::/64"), ("2001:db8::/64", "203.0.113.0/24")])
def test_gateway_without_address_gets_one_per_family_from_later_subnets(cidrs: tuple[str, str]):
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(), routes=ROUTES[:1])))
    (router,) = snapshot.routers.values()
    assert _outside(snapshot, router) == ()
    for number, cidr in enumerate(cidrs, 1):
        changes = run_to_completion(later(snapshot, cidr))
        assert Owner(Kind.ROUTER, router.id) in changes.reads
        snapshot = apply_changes(snapshot, changes, snapshot.revision + 1)
        assert {fixed.subnet_id for fixed in _outside(snapshot, router)} == {f"later {each}" for each in cidrs[:number]}
    assert len(run_to_completion(later(snapshot, "192.0.2.0/24")).puts) == 1


def test_gateway_of_a_plain_router_gets_one_address_from_a_later_subnet():
    """It belongs to no declarative network, so it gets addresses only while it has none."""
    snapshot = made(snapshot=with_uplink(replace(UPLINK, families=(), routes=())))
    (router,) = snapshot.routers.values()
    snapshot = put(snapshot, replace(snapshot.networks["net"], router_id=None))
    snapshot = apply_work(snapshot, later(snapshot, "203.0.113.0/24"))
    assert [fixed.address.version for fixed in _outside(snapshot, router)] == [4]
    snapshot = apply_work(snapshot, later(snapshot, "2001:db8::/64"))
    assert [fixed.address.version for fixed in _outside(snapshot, router)] == [4]


def test_uplink_subnet_costs_no_step_for_networks_without_a_gateway_there():
    """The work of one change is independent of the networks of others."""
    few = made(snapshot=with_uplink(replace(UPLINK, families=(), routes=())))
    many = put(
        few, *(replace(few.networks["net"], id=f"other{each}", router_id=None, subnets=()) for each in range(50))
    )
    steps = [sum(1 for _ in later(snapshot, "203.0.113.0/24")) for snapshot in (few, many)]
    assert steps[0] == steps[1] > 0


def test_uplink_subnet_without_addresses_for_all_gateways_is_refused(monkeypatch: pytest.MonkeyPatch):
    snapshot = with_uplink(replace(UPLINK, families=(), routes=()))
    for name in ("net", "net2"):
        snapshot = made(replace(PLAIN, name=name), snapshot, name)
    assert refused(later(snapshot, "203.0.113.0/30")) == NoFreeAddress(network_id="up")
    assert isinstance(refused(later(snapshot, "10.0.0.0/16")), JoinedSubnetsOverlap)
    monkeypatch.setattr(declarative_uplinks, "MAX_ATTACHED_ROUTERS", 1)
    assert refused(later(snapshot, "203.0.113.0/24")) == TooManyAttachedRouters(most=1)
    monkeypatch.setattr(declarative_uplinks, "MAX_ATTACHED_ROUTERS", 2)
    changes = run_to_completion(later(snapshot, "203.0.113.0/24"))
    assert (len(changes.puts), changes.requires_unchanged_model) == (3, True)


def test_gateway_without_address_gets_one_when_set_again():
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


def test_only_operators_create_update_and_delete_uplinks():
    snapshot = with_uplink()
    assert isinstance(refused(create_uplink(snapshot, ASKER, "u2", ids("u"), UPLINK)), NotAllowed)
    other = replace(UPLINK, description="mine")
    theirs = replace(ASKER, identity=replace(OWNER, project_id="admin"))
    assert isinstance(refused(update_uplink(snapshot, theirs, "up", ids("u"), other)), NotAllowed)
    assert isinstance(refusal(delete_uplink, snapshot, theirs, "up"), NotAllowed)


def test_physical_segment_belongs_to_one_uplink():
    why = refused(create_uplink(with_uplink(), OPERATOR, "u2", ids("u"), UPLINK))
    assert isinstance(why, SegmentInUse)
    assert with_uplink(replace(UPLINK, tag=7)).networks


def test_route_in_use_cannot_be_removed_from_the_uplink():
    snapshot = made()
    network = snapshot.networks["net"]
    for listen, left in (("198.51.100.7", ROUTES[1:]), ("203.0.113.200", ROUTES[:1])):
        used = put(snapshot, *balancer(snapshot, listen, "10.0.0.11"))
        why = refused(update_uplink(used, OPERATOR, "up", ids("u"), replace(UPLINK, routes=left)))
        assert why == RouteNeeded(needed=ip_address(listen), network=network)
    bare = made(replace(PLAIN, families=(family("198.51.100.1/26", nat=False),)))
    why = refused(update_uplink(bare, OPERATOR, "up", ids("u"), replace(UPLINK, routes=ROUTES[1:])))
    assert why == RouteNeeded(needed=ip_network("198.51.100.0/26"), network=bare.networks["net"])


def test_route_in_use_can_be_resized_around_its_used_addresses():
    snapshot = made()
    used = put(snapshot, *balancer(snapshot, "198.51.100.7", "10.0.0.11"))
    before = used.ports["vip"].fixed_ips[0].subnet_id
    for text in ("198.51.100.0/23", "198.51.100.0/28"):
        asked = replace(UPLINK, routes=(ip_network(text), *ROUTES[1:]))
        again = apply_work(used, update_uplink(used, OPERATOR, "up", ids("u"), asked))
        (subnet,) = (each for each in again.networks["up"].subnets if each.id == before)
        assert subnet.cidr == ip_network(text)
    narrow = replace(UPLINK, routes=(ip_network("198.51.100.128/25"), *ROUTES[1:]))
    assert isinstance(refused(update_uplink(used, OPERATOR, "up", ids("u"), narrow)), RouteNeeded)


def test_uplink_with_routers_cannot_be_deleted_or_change_its_subnet():
    snapshot = made()
    assert refusal(delete_uplink, snapshot, OPERATOR, "up") == NetworkInUse(network_id="up")
    other = replace(UPLINK, families=(wire("192.0.2.1/24", "192.0.2.10-192.0.2.99"), WIRES[1]), routes=())
    assert isinstance(refused(update_uplink(snapshot, OPERATOR, "up", ids("u"), other)), SubnetInUse)
    more = replace(UPLINK, families=(wire("203.0.113.1/24", "203.0.113.50-203.0.113.60"), WIRES[1]))
    assert apply_work(snapshot, update_uplink(snapshot, OPERATOR, "up", ids("u"), more))


def test_uplink_routes_are_limited_and_must_not_contain_an_uplink_subnet():
    around = replace(UPLINK, routes=(ip_network("203.0.112.0/23"),))
    why = refused(create_uplink(Snapshot(), OPERATOR, "up", ids("u"), around))
    assert why == RouteAroundSubnet(route=around.routes[0], cidr=ip_network("203.0.113.0/24"))
    many = tuple(ip_network("198.18.0.0/16").subnets(new_prefix=24))[: MAX_UPLINK_ROUTES + 1]
    assert with_uplink(replace(UPLINK, routes=many[:-1])).networks
    why = refused(create_uplink(Snapshot(), OPERATOR, "up", ids("u"), replace(UPLINK, routes=many)))
    assert why == TooManyUplinkRoutes(most=MAX_UPLINK_ROUTES)


def test_deletion_of_a_route_subnet_removes_the_route():
    snapshot = with_uplink()
    network = snapshot.networks["up"]
    left = apply_changes(snapshot, delete_subnet(snapshot, ADMIN, network.subnets[2]), 9).networks["up"]
    assert left.routes == ROUTES[1:]


# Atomic writes


def test_draft_writes_only_the_final_differences():
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
