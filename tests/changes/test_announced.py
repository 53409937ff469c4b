"""Announced networks: an operator declares the addresses that hosts announce and for whom; only VIPs use them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.catalog_selection import VipNeedsAnnouncing, VipNotAnnounced
from fairlead.changes.local_ips import NewLocalIP, create_local_ip
from fairlead.changes.members import delete_member
from fairlead.changes.networks import (
    AnnouncedExternal,
    AnnouncedForVips,
    AnnouncedWithSegment,
    SegmentRequest,
    create_network,
    delete_network,
    update_network,
)
from fairlead.changes.ports import NewPort, create_port
from fairlead.changes.routers import InterfaceTarget, RouterChange, add_interface, create_router
from fairlead.changes.subnets import AnnouncedElsewhere, create_subnet, delete_subnet, update_subnet
from fairlead.changes.vips import AddressChoiceNotAllowed
from fairlead.compilers.ovn.compiler import compile_owner
from fairlead.dataplane.rows import NO_ROWS
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.hosts import Host, HostPrefix
from fairlead.model.documents.network import Network, Router, SegmentType, Subnet
from fairlead.model.documents.owner import VipNetwork
from fairlead.model.registry.changeset import apply_changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON
from harness.changes.announced import BARE, FOUR, NAMES, POOL, SIX, balancer
from harness.changes.balancing import ASKER, listener, member, pool
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, OWNERS, STRANGER, refusal, snapshot_with, subnet

DECLARED = SegmentRequest(announced=True)
HOST = Host(
    name="host",
    number=1,
    addresses=(parse_address("192.0.2.21"),),
    prefixes=(HostPrefix(cidr=parse_network("10.0.0.0/24")),),
)
"""Host that routes the members."""


def test_only_an_administrator_creates_an_announced_network():
    assert create_network(Snapshot(), ADMIN, BARE, DECLARED).puts == (replace(BARE, announced=True),)
    why = NotAllowed(verb=Verb.CREATE, what=Network, fields=frozenset({"segment"}))
    assert refusal(create_network, Snapshot(), OWNER, BARE, DECLARED) == why


@pytest.mark.parametrize(
    ("network", "asked", "why"),
    [
        (BARE, replace(DECLARED, physical_network="phys"), AnnouncedWithSegment()),
        (BARE, replace(DECLARED, tag=7), AnnouncedWithSegment()),
        (BARE, replace(DECLARED, type=SegmentType.FLAT), AnnouncedWithSegment()),
        (replace(BARE, external=True), DECLARED, AnnouncedExternal()),
    ],
)
def test_announced_network_with_a_segment_or_external_flag_is_refused(
    network: Network, asked: SegmentRequest, why: object
):
    assert refusal(create_network, Snapshot(), ADMIN, network, asked) == why
    outside = replace(POOL, external=True)
    assert refusal(update_network, snapshot_with(POOL), ADMIN, POOL, outside, frozenset(), NOON) == AnnouncedExternal()


def test_tenants_cannot_change_announced_subnets():
    """Tenants cannot change announced subnets, including the project that the network is for."""
    there, more = snapshot_with(POOL), subnet("more", "198.51.100.0/24")
    said = {"verb": Verb.CREATE, "what": Subnet}
    assert refusal(create_subnet, there, OWNER, "pool", more) == NotAllowed(**said)
    assert refusal(update_subnet, there, OWNER, FOUR, replace(FOUR, name="x"), NOON).verb == Verb.UPDATE
    assert refusal(delete_subnet, there, OWNER, FOUR) == NotAllowed(verb=Verb.DELETE, what=Subnet)
    assert refusal(delete_network, there, OWNER, POOL) == NotAllowed(verb=Verb.DELETE, what=Network)
    assert create_subnet(there, ADMIN, "pool", more).puts == (replace(POOL, subnets=(FOUR, SIX, more)),)
    assert delete_network(there, ADMIN, POOL).deletes == (owner_of(POOL),)


@pytest.mark.parametrize("cidr", ["203.0.113.0/24", "203.0.113.128/25", "203.0.0.0/16", "2001:db8:5::/80"])
def test_announced_networks_must_not_overlap(cidr: str):
    other = replace(POOL, id="other", subnets=())
    asked = subnet("s", cidr)
    why = AnnouncedElsewhere(cidr=asked.cidr, network_id="pool")
    assert refusal(create_subnet, snapshot_with(POOL, other), ADMIN, "other", asked) == why
    plain = replace(other, announced=False)
    assert create_subnet(snapshot_with(POOL, plain), ADMIN, "other", asked).puts, "what is not announced meets nobody"
    apart = create_subnet(snapshot_with(POOL, other), ADMIN, "other", subnet("s", "198.51.100.0/24"))
    assert apart.requires_unchanged_model, "another one may be declared at the same time"


def test_announced_addresses_are_usable_only_as_vips():
    there, why = snapshot_with(POOL, Router(id="gate", **OWNERS)), AnnouncedForVips(network_id="pool")
    new = NewPort(id="p", network_id="pool", **OWNERS)
    asker = replace(ASKER, identity=ADMIN)
    assert refusal(create_port, there, ADMIN, new) == why
    target = InterfaceTarget(subnet_id="four")
    assert refusal(add_interface, there, ADMIN, there.routers["gate"], target, "new", NOON) == why
    local = NewLocalIP(id="l", network_id="pool", new_port_id="n", **OWNERS)
    assert refusal(create_local_ip, there, asker.identity, local) == why
    assert create_router(there, ADMIN, RouterChange(router=Router(id="r", **OWNERS))).puts


@pytest.mark.parametrize("where", [{}, {"network_id": None, "subnet_id": "six"}])
def test_vip_needs_an_announced_network_exactly_if_its_provider_announces(where: dict[str, Any]):
    there = snapshot_with(POOL, NETWORK)
    assert run_to_completion(balancer(there, OWNER, "hosts", **where)).puts
    needs = VipNeedsAnnouncing(network_id="pool", provider="switch")
    assert refusal(lambda: run_to_completion(balancer(there, OWNER, "switch", **where))) == needs
    elsewhere = {"network_id": "net", "subnet_id": None}
    why = VipNotAnnounced(network_id="net", provider="hosts")
    assert refusal(lambda: run_to_completion(balancer(there, OWNER, "hosts", **elsewhere))) == why


def test_vips_use_announced_networks_of_the_project_or_shared_networks():
    """Networks of the project and shared ones are usable; on the latter, only their owner and administrators choose
    addresses."""
    why = NotFound(what=Network, id="pool")
    assert refusal(lambda: run_to_completion(balancer(snapshot_with(POOL), STRANGER, "hosts"))) == why
    shared, address = snapshot_with(replace(POOL, shared=True)), parse_address("203.0.113.9")
    assert run_to_completion(balancer(shared, GUEST, "hosts")).puts
    assert (
        refusal(lambda: run_to_completion(balancer(shared, GUEST, "hosts", address=address)))
        == AddressChoiceNotAllowed()
    )
    assert run_to_completion(balancer(shared, OWNER, "hosts", address=address)).puts


def test_member_change_records_previous_slot_owners_for_announced_vips():
    """A change of members records previous slot owners, for announced VIPs only; tables have the maximum size."""
    there, asker = snapshot_with(POOL, NETWORK, HOST), replace(ASKER, providers=NAMES)
    there = replace(there, parting_seconds=60)
    parts = {
        "pools": (pool("app", member("a", 11), member("b", 12), member("c", 13)),),
        "listeners": (listener("front", 443, default_pool_id="app"),),
    }
    for provider, where in (("hosts", "pool"), ("switch", "net")):
        made = apply_changes(there, run_to_completion(balancer(there, OWNER, provider, network_id=where, **parts)), 2)
        (table,) = made.load_balancers["lb"].pools[0].tables
        changed = apply_changes(made, run_to_completion(delete_member(made, asker, "app", "c")), 3).load_balancers["lb"]
        if provider == "switch":
            assert (len(table.ranks[0]) < MAX_SLOTS, changed.moved) == (True, ())
            continue
        assert len(table.ranks[0]) == MAX_SLOTS
        (moved,) = changed.moved
        assert (str(moved.before), moved.until) == ("10.0.0.13", asker.now + timedelta(seconds=60))
        assert len(moved.slots) == table.ranks[0].count(2)


def test_announced_networks_compile_to_no_ovn_rows():
    there = snapshot_with(POOL)
    there = apply_changes(there, run_to_completion(balancer(there, OWNER, "hosts")), 2)
    assert compile_owner(there, owner_of(POOL)) == NO_ROWS
    assert compile_owner(there, VipNetwork("pool").owner) == NO_ROWS
    assert compile_owner(there, owner_of(there.ports["vip"])) == NO_ROWS
