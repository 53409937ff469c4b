"""Listen addresses of load balancers with a declarative spec."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from fairlead.changes import listen_addresses as listening
from fairlead.changes.balancer_specs import create_from_spec, delete_declarative, find_declarative, list_declarative
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listen_addresses import AnyAddress
from fairlead.changes.refusal import Refusal
from fairlead.changes.untranslated_prefixes import PrefixNotGranted
from fairlead.model.documents.loadbalancer import SpecPurpose
from fairlead.model.documents.network import ExternalGateway, Network, Port, PortUse, Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.trust import GrantedPrefix, Project
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import EXTERNAL_ALLOCATIONS, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot, find_owned_vips
from harness.changes.balancing import ASKER, apply_work
from harness.changes.declared_balancers import (
    ADMINS,
    GATEWAY,
    RANGE,
    ROUTER,
    TENANT_NETWORK,
    UPLINK,
    WORLD,
    balancer,
    declaration_error,
    declare_balancer,
    port_requests,
)
from harness.changes.world import ADMIN, fixed, snapshot_with, subnet


def with_(*documents: Aggregate) -> Snapshot:
    return apply_changes(WORLD, Changes(puts=documents), 2)


def other_network(snat: bool) -> Snapshot:
    """Return a snapshot with a network on another router of the uplink."""
    net = Network(id="their", name="their", mtu=1442, subnets=(subnet("t", "192.0.2.96/28"),), **ADMINS)
    gateway = ExternalGateway(network_id="uplink", port_id="gateway", enable_snat=snat)
    joined = Port(
        id="joined",
        network_id="their",
        mac_address="fa:16:3e:00:00:21",
        fixed_ips=(fixed("t", "192.0.2.97"),),
        device_id="their-router",
        device_owner=PortUse.ROUTER_INTERFACE.value,
        **ADMINS,
    )
    return with_(net, Router(id="their-router", gateway=gateway, **ADMINS), joined)


@pytest.mark.parametrize(
    ("listen", "network"),
    [
        ("192.0.2.100", "uplink"),
        ("198.51.100.0", "uplink"),
        ("198.51.100.1", "uplink"),
        ("198.51.100.3", "uplink"),
        ("2001:db8:1::5", "uplink"),
        ("10.0.0.100", "net"),
        ("fd00::100", "net"),
    ],
)
def test_listen_address_may_be_in_the_uplink_routes_or_the_network(listen: str, network: str):
    vip = balancer(declare_balancer(WORLD, port_requests(), listen)).vip
    assert (str(vip.address), vip.network_id) == (listen, network)


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("203.0.113.1", listening.AddressNotInRoutes(address=ip_address("203.0.113.1"))),
        ("192.0.2.15", listening.InRouterRanges(address=ip_address("192.0.2.15"), uplink="UPLINK", pool=RANGE)),
        ("192.0.2.1", listening.ListenAddressInUseOnUplink(address=ip_address("192.0.2.1"))),
        ("192.0.2.255", listening.ListenAddressInUseOnUplink(address=ip_address("192.0.2.255"))),
        (
            "10.0.0.11",
            listening.ListenAddressNotUsable(address=ip_address("10.0.0.11"), use=PortUse.MACHINE, network="ovn0"),
        ),
        (
            "10.0.0.1",
            listening.ListenAddressNotUsable(
                address=ip_address("10.0.0.1"), use=PortUse.ROUTER_INTERFACE, network="ovn0"
            ),
        ),
        ("10.0.0.255", listening.ListenAddressNotUsable(address=ip_address("10.0.0.255"), use=None, network="ovn0")),
    ],
)
def test_unusable_listen_addresses_are_refused(listen: str, why: Refusal):
    assert declaration_error(WORLD, port_requests(), listen) == why


@pytest.mark.parametrize("listen", ["192.0.2.10", "2001:db8:1::a"])
@pytest.mark.parametrize("use", list(SpecPurpose))
def test_one_load_balancer_or_forward_may_listen_on_the_router_address(listen: str, use: SpecPurpose):
    """The address is LXD's `volatile.network.ipv4.address`. The gateway's port keeps it, and one load balancer or
    forward listens on it."""
    address, gateway = (
        ip_address(listen),
        replace(GATEWAY, fixed_ips=(*GATEWAY.fixed_ips, fixed("route6", "2001:db8:1::a"))),
    )
    world = with_(gateway)
    after_it = declare_balancer(world, port_requests(use=use), listen)
    made = balancer(after_it)
    assert (made.vip.address, made.router_id) == (address, "router")
    assert after_it.ports[made.vip.port_id].fixed_ips == ()
    assert after_it.ports["gateway"] is gateway
    assert find_declarative(after_it, after_it.networks["net"], address, use).id == made.id
    for other in SpecPurpose:
        assert declaration_error(after_it, port_requests(use=other), listen) == listening.ListenAddressInUse(
            address=address, use=use
        )
    assert list_declarative(after_it, after_it.networks["net"], use) == [made]
    assert find_owned_vips(after_it, made) == made.vips
    lost = apply_changes(after_it, Changes(puts=(replace(gateway, fixed_ips=()),)), 9)
    assert find_owned_vips(lost, made) == ()
    gone = delete_declarative(after_it, ASKER, made.id)
    assert set(gone.deletes) == {owner_of(made), Owner(Kind.PORT, made.vip.port_id)}
    assert gone.puts == ()


def test_address_of_another_router_and_whole_gateway_forwards_are_refused():
    other = replace(ROUTER, id="second", gateway=ExternalGateway(network_id="uplink", port_id="gateway2"))
    port = replace(GATEWAY, id="gateway2", device_id="second", fixed_ips=(fixed("wire", "192.0.2.11"),))
    world = with_(other, port)
    assert declaration_error(world, port_requests(), "192.0.2.11") == listening.ListenAddressInUseOnUplink(
        address=ip_address("192.0.2.11")
    )
    whole = port_requests(use=SpecPurpose.FORWARD, default_target=ip_address("10.0.0.11"))
    address = ip_address("192.0.2.10")
    assert declaration_error(WORLD, whole, "192.0.2.10") == listening.DefaultTargetAtGateway(address=address)


def test_listen_address_in_use_is_refused():
    once = declare_balancer(WORLD, port_requests())
    assert declaration_error(once, port_requests()) == listening.ListenAddressInUse(
        address=ip_address("192.0.2.100"), use=SpecPurpose.LOAD_BALANCER
    )
    inside = declare_balancer(WORLD, port_requests(), "10.0.0.100")
    assert declaration_error(inside, port_requests(), "10.0.0.100") == listening.ListenAddressInUse(
        address=ip_address("10.0.0.100"), use=SpecPurpose.LOAD_BALANCER
    )
    second = replace(TENANT_NETWORK, id="second", name="second", router_id="router")
    elsewhere = apply_changes(once, Changes(puts=(second,)), 3)
    why = declaration_error(elsewhere, port_requests(network_id="second"))
    assert why == listening.ListenAddressInUseOnUplink(address=ip_address("192.0.2.100"))


def test_listen_address_inside_a_subnet_routed_without_nat_is_refused():
    assert declaration_error(other_network(snat=False), port_requests()) == listening.ListenAddressInUseOnUplink(
        address=ip_address("192.0.2.100")
    )
    assert balancer(declare_balancer(other_network(snat=True), port_requests()))


def test_a_free_address_of_the_routes_is_chosen():
    four, six = (
        balancer(declare_balancer(WORLD, port_requests(), AnyAddress(version=version))).vip.address
        for version in (4, 6)
    )
    assert any(four in prefix for prefix in UPLINK.routes if prefix.version == 4)
    assert not RANGE.start <= four <= RANGE.end  # type: ignore[operator]
    assert six in ip_network("2001:db8:1::/64")


def test_allocation_fails_when_all_route_addresses_are_taken():
    little = replace(UPLINK, routes=(ip_network("198.51.100.0/30"),))
    snapshot = with_(little)
    for name in ("one", "two"):
        snapshot = apply_work(
            snapshot,
            create_from_spec(snapshot, ASKER, name, lambda n=name: f"{n}-id", port_requests(), AnyAddress(version=4)),
        )
    assert declaration_error(snapshot, port_requests(), AnyAddress(version=4)) == listening.NoFreeListenAddress(
        version=4
    )
    assert declaration_error(snapshot, port_requests(), AnyAddress(version=6)) == listening.NoRoutes(version=6)


@pytest.mark.parametrize(("cidr", "told"), [("2001:db8:1::/48", True), ("2001:db8:1::/65", False)])
def test_routed_prefixes_are_skipped_in_the_search_for_a_free_address(cidr: str, told: bool):
    """Routed prefixes are skipped in the search for a free address, because they are too large to try one by one."""
    there = with_prefix(other_network(snat=False), cidr)
    six = AnyAddress(version=6)
    if told:
        assert declaration_error(there, port_requests(), six) == listening.NoFreeListenAddress(version=6)
    else:
        found = balancer(declare_balancer(there, port_requests(), six)).vip.address
        assert found in ip_network("2001:db8:1::/64")
        assert found not in ip_network(cidr)


def with_prefix(snapshot: Snapshot, cidr: str) -> Snapshot:
    """Replace the subnet of the other network."""
    net = replace(snapshot.networks["their"], subnets=(subnet("t", cidr),))
    joined = replace(snapshot.ports["joined"], fixed_ips=(fixed("t", str(ip_network(cidr)[1])),))
    return apply_changes(snapshot, Changes(puts=(net, joined)), 3)


@pytest.mark.parametrize("listen", ["192.0.2.100", "198.51.100.1", "2001:db8:1::5"])
def test_address_allocated_by_another_program_is_refused_and_skipped(listen: str):
    address = ip_address(listen)
    assert balancer(declare_balancer(with_(), port_requests(), listen))
    snapshot = with_facts(with_(), EXTERNAL_ALLOCATIONS, {address: True})
    assert declaration_error(snapshot, port_requests(), listen) == listening.ListenAddressInUseOnUplink(address=address)
    free = balancer(declare_balancer(snapshot, port_requests(), AnyAddress(version=address.version))).vip.address
    beside = with_facts(snapshot, EXTERNAL_ALLOCATIONS, {free: True})
    again = balancer(declare_balancer(beside, port_requests(), AnyAddress(version=address.version))).vip.address
    assert again not in (free, address)


def test_on_an_uplink_without_routes_only_its_owner_names_an_address():
    plain = with_(replace(UPLINK, routes=(), subnets=UPLINK.subnets[:1]))
    assert declaration_error(plain, port_requests(), "192.0.2.15") == listening.AddressNotInRoutes(
        address=ip_address("192.0.2.15")
    )
    operator = ChangeContext(identity=ADMIN, now=ASKER.now, applied=ASKER.applied, providers=ASKER.providers)
    assert balancer(declare_balancer(plain, port_requests(), "192.0.2.15", operator))
    chosen = balancer(declare_balancer(plain, port_requests(), AnyAddress(version=4))).vip.address
    assert RANGE.start <= chosen <= RANGE.end  # type: ignore[operator]


def test_tenant_listens_only_in_granted_prefixes():
    little = GrantedPrefix(uplink="UPLINK", cidr=ip_network("198.51.100.0/30"))
    snapshot = with_(Project(name="owner", prefixes=(little,)))
    cidr = ip_network("192.0.2.100/32")
    assert declaration_error(snapshot, port_requests()) == PrefixNotGranted(
        cidr=cidr, uplink="UPLINK", project_id="owner"
    )
    assert balancer(declare_balancer(snapshot, port_requests(), "198.51.100.1"))
    assert balancer(declare_balancer(snapshot, port_requests(), AnyAddress(version=4))).vip.address in little.cidr
    assert declaration_error(snapshot, port_requests(), AnyAddress(version=6)) == listening.NoRoutes(version=6)
    operator = ChangeContext(identity=ADMIN, now=ASKER.now, applied=ASKER.applied, providers=ASKER.providers)
    assert balancer(declare_balancer(snapshot, port_requests(), "192.0.2.100", operator))


def test_network_without_an_uplink_or_the_address_family_is_refused():
    alone = snapshot_with(replace(TENANT_NETWORK, router_id=None), UPLINK)
    assert declaration_error(alone, port_requests()) == listening.NoUplinkForAddress(network="ovn0")
    only_six = with_(replace(TENANT_NETWORK, subnets=TENANT_NETWORK.subnets[1:]))
    assert declaration_error(only_six, port_requests()) == listening.IpVersionMissing(network="ovn0", version=4)
    closed = with_(replace(ROUTER, gateway=None))
    assert declaration_error(closed, port_requests(), AnyAddress(version=6)) == listening.NoUplinkForAddress(
        network="ovn0"
    )
