"""Listen addresses of load balancers with a declarative spec."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from fairlead.changes import listen_addresses as listening
from fairlead.changes.balancer_specs import create_described, delete_described, described_on, find_described
from fairlead.changes.caller import Asker
from fairlead.changes.listen_addresses import AnyAddress
from fairlead.changes.refusal import Refusal
from fairlead.changes.untranslated_prefixes import NotGranted
from fairlead.model.documents.loadbalancer import Use
from fairlead.model.documents.network import ExternalGateway, Network, Port, PortUse, Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.trust import GrantedPrefix, Project
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import GIVEN_ELSEWHERE, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot, held_vips
from harness.changes.balancing import ASKER, after
from harness.changes.described_world import (
    ADMINS,
    GATEWAY,
    OWN,
    RANGE,
    ROUTER,
    UPLINK,
    WORLD,
    asked,
    balancer,
    described,
    refused,
)
from harness.changes.world import ADMIN, fixed, having, subnet


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
def test_an_address_of_the_routes_or_of_the_network_itself(listen: str, network: str):
    vip = balancer(described(WORLD, asked(), listen)).vip
    assert (str(vip.address), vip.network_id) == (listen, network)


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        ("203.0.113.1", listening.NotInRoutes(address=ip_address("203.0.113.1"))),
        ("192.0.2.15", listening.InRanges(address=ip_address("192.0.2.15"), uplink="UPLINK", pool=RANGE)),
        ("192.0.2.1", listening.ListenOverlaps(address=ip_address("192.0.2.1"))),
        ("192.0.2.255", listening.ListenOverlaps(address=ip_address("192.0.2.255"))),
        ("10.0.0.11", listening.ListenInUse(address=ip_address("10.0.0.11"), use=PortUse.MACHINE, network="ovn0")),
        (
            "10.0.0.1",
            listening.ListenInUse(address=ip_address("10.0.0.1"), use=PortUse.ROUTER_INTERFACE, network="ovn0"),
        ),
        ("10.0.0.255", listening.ListenInUse(address=ip_address("10.0.0.255"), use=None, network="ovn0")),
    ],
)
def test_an_address_that_is_not_for_the_taking(listen: str, why: Refusal):
    assert refused(WORLD, asked(), listen) == why


@pytest.mark.parametrize("listen", ["192.0.2.10", "2001:db8:1::a"])
@pytest.mark.parametrize("use", list(Use))
def test_the_address_of_the_networks_own_router(listen: str, use: Use):
    """The address is LXD's `volatile.network.ipv4.address`. The gateway's port keeps it, and one load balancer or
    forward listens on it."""
    address, gateway = (
        ip_address(listen),
        replace(GATEWAY, fixed_ips=(*GATEWAY.fixed_ips, fixed("route6", "2001:db8:1::a"))),
    )
    world = with_(gateway)
    after_it = described(world, asked(use=use), listen)
    made = balancer(after_it)
    assert (made.vip.address, made.router_id) == (address, "router")
    assert after_it.ports[made.vip.port_id].fixed_ips == ()
    assert after_it.ports["gateway"] is gateway
    assert find_described(after_it, after_it.networks["net"], address, use).id == made.id
    for other in Use:
        assert refused(after_it, asked(use=other), listen) == listening.ListenTaken(address=address, use=use)
    assert described_on(after_it, after_it.networks["net"], use) == [made]
    assert held_vips(after_it, made) == made.vips
    lost = apply_changes(after_it, Changes(puts=(replace(gateway, fixed_ips=()),)), 9)
    assert held_vips(lost, made) == ()
    gone = delete_described(after_it, ASKER, made.id)
    assert set(gone.deletes) == {owner_of(made), Owner(Kind.PORT, made.vip.port_id)}
    assert gone.puts == ()


def test_the_address_of_another_router_or_of_a_whole_target_is_not_for_the_taking():
    other = replace(ROUTER, id="second", gateway=ExternalGateway(network_id="uplink", port_id="gateway2"))
    port = replace(GATEWAY, id="gateway2", device_id="second", fixed_ips=(fixed("wire", "192.0.2.11"),))
    world = with_(other, port)
    assert refused(world, asked(), "192.0.2.11") == listening.ListenOverlaps(address=ip_address("192.0.2.11"))
    whole = asked(use=Use.FORWARD, default_target=ip_address("10.0.0.11"))
    address = ip_address("192.0.2.10")
    assert refused(WORLD, whole, "192.0.2.10") == listening.WholeGateway(address=address)


def test_one_network_at_a_time_has_an_address():
    once = described(WORLD, asked())
    assert refused(once, asked()) == listening.ListenTaken(address=ip_address("192.0.2.100"), use=Use.LOAD_BALANCER)
    inside = described(WORLD, asked(), "10.0.0.100")
    assert refused(inside, asked(), "10.0.0.100") == listening.ListenTaken(
        address=ip_address("10.0.0.100"), use=Use.LOAD_BALANCER
    )
    second = replace(OWN, id="second", name="second", router_id="router")
    elsewhere = apply_changes(once, Changes(puts=(second,)), 3)
    why = refused(elsewhere, asked(network_id="second"))
    assert why == listening.ListenOverlaps(address=ip_address("192.0.2.100"))


def test_a_subnet_that_is_routed_without_translation_has_its_addresses_for_itself():
    assert refused(other_network(snat=False), asked()) == listening.ListenOverlaps(address=ip_address("192.0.2.100"))
    assert balancer(described(other_network(snat=True), asked()))


def test_a_free_address_of_the_routes_is_chosen():
    four, six = (balancer(described(WORLD, asked(), AnyAddress(version=version))).vip.address for version in (4, 6))
    assert any(four in prefix for prefix in UPLINK.routes if prefix.version == 4)
    assert not RANGE.start <= four <= RANGE.end  # type: ignore[operator]
    assert six in ip_network("2001:db8:1::/64")


def test_when_all_addresses_of_the_routes_are_taken():
    little = replace(UPLINK, routes=(ip_network("198.51.100.0/30"),))
    snapshot = with_(little)
    for name in ("one", "two"):
        snapshot = after(
            snapshot, create_described(snapshot, ASKER, name, lambda n=name: f"{n}-id", asked(), AnyAddress(version=4))
        )
    assert refused(snapshot, asked(), AnyAddress(version=4)) == listening.NoFreeListen(version=4)
    assert refused(snapshot, asked(), AnyAddress(version=6)) == listening.NoRoutes(version=6)


@pytest.mark.parametrize(("cidr", "told"), [("2001:db8:1::/48", True), ("2001:db8:1::/65", False)])
def test_what_is_routed_is_not_looked_through_for_a_free_address(cidr: str, told: bool):
    """Routed prefixes are skipped in the search for a free address, because they are too large to try one by one."""
    there = with_prefix(other_network(snat=False), cidr)
    six = AnyAddress(version=6)
    if told:
        assert refused(there, asked(), six) == listening.NoFreeListen(version=6)
    else:
        found = balancer(described(there, asked(), six)).vip.address
        assert found in ip_network("2001:db8:1::/64")
        assert found not in ip_network(cidr)


def with_prefix(snapshot: Snapshot, cidr: str) -> Snapshot:
    """Replace the subnet of the other network."""
    net = replace(snapshot.networks["their"], subnets=(subnet("t", cidr),))
    joined = replace(snapshot.ports["joined"], fixed_ips=(fixed("t", str(ip_network(cidr)[1])),))
    return apply_changes(snapshot, Changes(puts=(net, joined)), 3)


@pytest.mark.parametrize("listen", ["192.0.2.100", "198.51.100.1", "2001:db8:1::5"])
def test_an_address_that_another_program_gave_out_is_taken(listen: str):
    address = ip_address(listen)
    assert balancer(described(with_(), asked(), listen))
    snapshot = with_facts(with_(), GIVEN_ELSEWHERE, {address: True})
    assert refused(snapshot, asked(), listen) == listening.ListenOverlaps(address=address)
    free = balancer(described(snapshot, asked(), AnyAddress(version=address.version))).vip.address
    beside = with_facts(snapshot, GIVEN_ELSEWHERE, {free: True})
    again = balancer(described(beside, asked(), AnyAddress(version=address.version))).vip.address
    assert again not in (free, address)


def test_on_an_uplink_without_routes_only_its_owner_names_an_address():
    plain = with_(replace(UPLINK, routes=(), subnets=UPLINK.subnets[:1]))
    assert refused(plain, asked(), "192.0.2.15") == listening.NotInRoutes(address=ip_address("192.0.2.15"))
    operator = Asker(identity=ADMIN, now=ASKER.now, applied=ASKER.applied, providers=ASKER.providers)
    assert balancer(described(plain, asked(), "192.0.2.15", operator))
    chosen = balancer(described(plain, asked(), AnyAddress(version=4))).vip.address
    assert RANGE.start <= chosen <= RANGE.end  # type: ignore[operator]


def test_where_an_administrator_has_granted_prefixes_a_tenant_listens_in_these():
    little = GrantedPrefix(uplink="UPLINK", cidr=ip_network("198.51.100.0/30"))
    snapshot = with_(Project(name="owner", prefixes=(little,)))
    cidr = ip_network("192.0.2.100/32")
    assert refused(snapshot, asked()) == NotGranted(cidr=cidr, uplink="UPLINK", project_id="owner")
    assert balancer(described(snapshot, asked(), "198.51.100.1"))
    assert balancer(described(snapshot, asked(), AnyAddress(version=4))).vip.address in little.cidr
    assert refused(snapshot, asked(), AnyAddress(version=6)) == listening.NoRoutes(version=6)
    operator = Asker(identity=ADMIN, now=ASKER.now, applied=ASKER.applied, providers=ASKER.providers)
    assert balancer(described(snapshot, asked(), "192.0.2.100", operator))


def test_a_network_without_an_uplink_or_without_the_family():
    alone = having(replace(OWN, router_id=None), UPLINK)
    assert refused(alone, asked()) == listening.Isolated(network="ovn0")
    only_six = with_(replace(OWN, subnets=OWN.subnets[1:]))
    assert refused(only_six, asked()) == listening.FamilyMissing(network="ovn0", version=4)
    closed = with_(replace(ROUTER, gateway=None))
    assert refused(closed, asked(), AnyAddress(version=6)) == listening.Isolated(network="ovn0")
