"""Takeover from another provider: no load balancer loses its service without an explicit request."""

import pytest

from fairlead.changes.provider_migration import ClientsWouldLoseService, check_clients
from fairlead.model.queries.domain import AttachedObjects
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import EMPTY_SNAPSHOT, parse_model
from harness.changes.world import refusal

NOBODY = frozenset[str]()
CONNECTED = """
network public external shared wire=physnet 203.0.113.0/24
network n1 10.1.0.0/24 fd00:1::/64 project=p
network n2 10.2.0.0/24 fd00:2::/64 project=p
network n3 10.3.0.0/24 fd00:3::/64 project=p
network theirs 10.4.0.0/24 fd00:4::/64 project=q
network hall 10.5.0.0/24 fd00:5::/64 shared project=q
router r n1=10.1.0.1,fd00:1::1 n2=10.2.0.1,fd00:2::1 project=p
router all n1=10.1.0.2,fd00:1::2 theirs=10.4.0.1,fd00:4::1 project=admin
"""
WEB = "web vip=10.1.0.10,fd00:1::10 on=n1 tcp:80=a/10.1.0.11:80,b/[fd00:2::11]:80 udp:53=c/10.3.0.11:53 project=p"


def snapshot(balancer: str) -> Snapshot:
    documents, _ = parse_model(f"{CONNECTED}{balancer}".strip(), {})
    return apply_changes(EMPTY_SNAPSHOT, Changes(puts=tuple(documents.values())), 1)


def places(*names: str) -> AttachedObjects:
    routers = {name for name in names if name in ("r", "all")}
    return AttachedObjects(networks=frozenset({*names} - routers), routers=frozenset(routers))


@pytest.mark.parametrize("served", [places(), places("n1"), places("n1", "n2", "r")])
def test_migration_is_accepted_when_every_served_network_stays_connected(served: AttachedObjects):
    world = snapshot(WEB)
    check_clients(world, world.load_balancers["web"], served, NOBODY)


def test_migration_is_refused_for_an_unconnected_network_of_members():
    world = snapshot(WEB)
    left = refusal(check_clients, world, world.load_balancers["web"], places("n1", "n2", "n3", "r"), NOBODY)
    assert left == ClientsWouldLoseService(networks=("n3",), routers=())


def test_clients_of_other_projects_block_migration_unless_given_up():
    world, served = snapshot(WEB), places("n1", "n2", "theirs", "r", "all")
    web = world.load_balancers["web"]
    left = refusal(check_clients, world, web, served, NOBODY)
    assert left == ClientsWouldLoseService(networks=("theirs",), routers=("all",))
    assert refusal(check_clients, world, web, served, {"all"}) == ClientsWouldLoseService(
        networks=("theirs",), routers=()
    )
    check_clients(world, web, served, frozenset({"all", "theirs"}))


def test_clients_on_a_shared_network_keep_access_only_to_members_there():
    vip = "web vip=10.5.0.10,fd00:5::10 on=hall tcp:80=a/10.5.0.11:80"
    world = snapshot(f"{vip} project=p")
    check_clients(world, world.load_balancers["web"], places("hall"), NOBODY)
    world = snapshot(f"{vip},b/[fd00:1::11]:80 project=p")
    left = refusal(check_clients, world, world.load_balancers["web"], places("hall"), NOBODY)
    assert left == ClientsWouldLoseService(networks=("hall",), routers=())
