"""Reachability of a member from the VIP: only a certain lack of a path makes it unreachable."""

from dataclasses import replace

import pytest

from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.network import Route
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.probes import derive_health, why_down
from fairlead.model.queries.reachability import is_unreachable
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model
from harness.probes import observe

NETWORKS = """
network net1 10.0.0.0/24
network net2 10.1.0.0/24
network net3 10.2.0.0/24
port vm2 net2 10.1.0.11
probes net2 10.1.0.2
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.1.0.11:80
"""
JOINED = NETWORKS + "router r1 net1=10.0.0.1 net2=10.1.0.1"
OUTSIDE = "network public 203.0.113.0/24 external=physnet1"
A = Endpoint("vm2", parse_address("10.1.0.11"), 80, Transport.TCP)
WEB = Owner(Kind.LOAD_BALANCER, "web")


def snapshot_of(model: str) -> Snapshot:
    """Return a snapshot with the member on the subnet of its address."""
    documents, _ = parse_model(model.strip(), {})
    web = documents[WEB]
    subnet = documents[Owner(Kind.NETWORK, "net2")].subnets[0].id
    pools = tuple(
        replace(pool, members=tuple(replace(member, subnet_id=subnet) for member in pool.members)) for pool in web.pools
    )
    documents[WEB] = replace(web, pools=pools)
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


@pytest.mark.parametrize(
    ("model", "unreachable"),
    [
        (NETWORKS, True),
        (JOINED, False),
        (NETWORKS + "router r1 net1=10.0.0.1 net3=10.2.0.1\nrouter r2 net3=10.2.0.2 net2=10.1.0.1", False),
        (NETWORKS + "router r1 net1=10.0.0.1 net3=10.2.0.1\nrouter r2 net2=10.1.0.1", True),
        (NETWORKS + "port appliance net1 10.0.0.1", False),
    ],
    ids=["no router", "one router", "two routers", "two routers apart", "the gateway is a machine"],
)
def test_router_path_decides_if_a_network_is_reachable(model: str, unreachable: bool):
    assert is_unreachable(snapshot_of(model), "net1", "net2") is unreachable


def test_network_is_not_unreachable_if_a_tenant_route_may_lead_there():
    snapshot = snapshot_of(NETWORKS + "router r1 net1=10.0.0.1 net3=10.2.0.1")
    assert is_unreachable(snapshot, "net1", "net2")
    route = Route(destination=parse_network("10.1.0.0/24"), nexthop=parse_address("10.2.0.9"))
    routed = replace(snapshot.routers["r1"], routes=(route,))
    assert not is_unreachable(apply_changes(snapshot, Changes(puts=(routed,)), 2), "net1", "net2")


def test_member_without_a_path_is_down_until_a_path_exists():
    joined = snapshot_of(JOINED)
    seen, _ = observe(joined, {A: Health.ONLINE})
    assert (dict(seen.down), dict(seen.online)) == ({}, {"web": {"web-a"}})
    port = next(port for port in joined.ports.values() if port.network_id == "net2" and port.device_id == "r1")
    left = apply_changes(seen, Changes(deletes=(Owner(Kind.PORT, port.id),)), 2)
    assert WEB in find_affected_owners(seen, left, [Owner(Kind.PORT, port.id)])
    left = derive_health(left, [WEB])
    assert (dict(left.down), dict(left.online)) == ({"web": {"web-a"}}, {})
    assert why_down(left, left.load_balancers["web"]) == {"web-a": Health.UNREACHABLE}
    back = apply_changes(left, Changes(puts=(port,)), 3)
    assert WEB in find_affected_owners(left, back, [Owner(Kind.PORT, port.id)])
    assert dict(derive_health(back, [WEB]).online) == {"web": {"web-a"}}


def test_load_balancer_without_monitors_tracks_no_crossed_networks():
    own = snapshot_of(JOINED)
    web = own.load_balancers["web"]
    pools = tuple(replace(pool, health_monitor=None) for pool in web.pools)
    assert dict(own.crossing)
    assert dict(apply_changes(own, Changes(puts=(replace(web, pools=pools),)), 2).crossing) == {}


def test_port_at_a_gateway_address_counts_as_a_path():
    """A machine at a gateway's address is a path: its creation, deletion and naming by a subnet affect every load
    balancer that needs it."""
    apart = snapshot_of(NETWORKS)
    machine = snapshot_of(NETWORKS + "port appliance net1 10.0.0.1").ports["appliance"]
    made = apply_changes(apart, Changes(puts=(machine,)), 2)
    assert WEB in find_affected_owners(apart, made, [Owner(Kind.PORT, machine.id)])
    assert WEB in find_affected_owners(made, apart, [Owner(Kind.PORT, machine.id)])
    network = made.networks["net1"]
    elsewhere = tuple(replace(subnet, gateway=parse_address("10.0.0.254")) for subnet in network.subnets)
    moved = apply_changes(made, Changes(puts=(replace(network, subnets=elsewhere),)), 3)
    assert is_unreachable(moved, "net1", "net2")
    assert WEB in find_affected_owners(made, moved, [Owner(Kind.NETWORK, "net1")])


def test_router_route_change_affects_load_balancers_and_a_rename_does_not():
    joined = snapshot_of(JOINED)
    router = joined.routers["r1"]
    route = Route(destination=parse_network("10.9.0.0/24"), nexthop=parse_address("10.1.0.9"))
    routed = apply_changes(joined, Changes(puts=(replace(router, routes=(route,)),)), 2)
    renamed = apply_changes(joined, Changes(puts=(replace(router, name="other"),)), 2)
    assert WEB in find_affected_owners(joined, routed, [Owner(Kind.ROUTER, "r1")])
    assert WEB not in find_affected_owners(joined, renamed, [Owner(Kind.ROUTER, "r1")])
