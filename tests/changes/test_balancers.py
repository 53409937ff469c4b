"""Load balancers as every API front end creates them: with given ids, complete, and as replacements of stored ones."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.changes.access import NotFound
from fairlead.changes.balancer_checks import TooManyBuckets, TooManyParts, count_buckets
from fairlead.changes.balancers import (
    BalancerPending,
    HasParts,
    OfferImmutable,
    VipImmutable,
    delete_load_balancer,
    replace_load_balancer,
)
from fairlead.changes.catalog_selection import UnknownProvider
from fairlead.changes.ids import IdInUse
from fairlead.changes.listener_checks import ListenerPortInUse, WrongPoolProtocol
from fairlead.changes.lookup import NoSuch, NotTheirs
from fairlead.changes.members import update_member
from fairlead.changes.pool_checks import InvalidDestination, MemberExists
from fairlead.changes.refusal import Refused
from fairlead.changes.vips import VipNotSpecified, VipRequest, choose_vip
from fairlead.dataplane import ovn
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, Reject
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    ListenerProtocol,
    LoadBalancer,
    Member,
    MonitorType,
    PlainMonitor,
    PoolProtocol,
    SourceIpPersistence,
    Vip,
)
from fairlead.model.documents.network import Network, Port, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.pool_slot_tables import slots_of
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.sizes import BUCKETS, MAX_LISTENERS
from fairlead.model.documents.status import NEVER_APPLIED, AppliedState, ProvisioningStatus
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.api import compile_owner
from harness.changes.balancing import (
    ALL_APPLIED,
    ASKER,
    LATER,
    apply_work,
    balancer_request,
    listener,
    member,
    network_and_balancer,
    pool,
    refusal_of,
    stored,
    with_pool,
)
from harness.changes.world import GUEST, GUESTS, NETWORK, OWNERS, PORT, snapshot_with, subnet

THEIRS = Network(id="theirs", mtu=1442, subnets=(subnet("theirs-four", "10.7.0.0/24", **GUESTS),), **GUESTS)
PATH = L7Rule(id="r", type=L7RuleType.PATH, compare_type=L7Comparison.STARTS_WITH, value="/", **OWNERS)
MONITOR = PlainMonitor(id="m", type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, **OWNERS)


def test_whole_load_balancer_is_built_from_given_ids():
    made = stored(network_and_balancer())
    assert (made.id, made.vip.port_id, made.vip.subnet_id, made.owns_vip_port) == ("lb", "vip-lb", "four", True)
    assert [each.id for each in made.listeners] == ["front"]
    (app,) = made.pools
    assert [(each.id, each.ordinal) for each in app.members] == [("a", 0), ("b", 1)]
    assert set(slots_of(app, 4)) == {0, 1}


def test_vip_port_is_created_in_the_same_write_and_depends_on_its_network():
    changes = run_to_completion(balancer_request(snapshot_with(NETWORK)))
    assert [put.id for put in changes.puts] == ["vip-lb", "lb"]
    assert changes.reads == (Owner(Kind.NETWORK, "net"),)


def test_replacement_applies_the_given_listeners_pools_and_members():
    before = network_and_balancer()
    wanted = replace(
        stored(before),
        listeners=(listener("front", 8080, default_pool_id="app"), listener("dns", 53, protocol=ListenerProtocol.UDP)),
        pools=(pool("app", member("b", 12), member("c", 13)),),
    )
    made = stored(apply_work(before, replace_load_balancer(before, ASKER, wanted)))
    (app,) = made.pools
    assert [(each.id, each.ordinal) for each in app.members] == [("b", 1), ("c", 2)]
    assert made.updated_at == LATER


def test_replaced_pool_moves_slots_only_to_the_new_member():
    before = network_and_balancer()
    members = member("a", 11), member("b", 12), member("c", 13)
    wanted = replace(stored(before), pools=(pool("app", *members),))
    made = stored(apply_work(before, replace_load_balancer(before, ASKER, wanted)))
    table, old = slots_of(made.pools[0], 4), slots_of(stored(before).pools[0], 4)
    assert {2} < set(table)
    assert all(slot in (2, old[number % len(old)]) for number, slot in enumerate(table))


def test_identical_replacement_keeps_the_load_balancer():
    before = network_and_balancer()
    made = stored(apply_work(before, replace_load_balancer(before, ASKER, stored(before))))
    assert replace(made, updated_at=None) == stored(before)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"listeners": (listener("l", 80), listener("m", 80))},
            ListenerPortInUse(protocol=ListenerProtocol.TCP, port=80),
        ),
        ({"listeners": (listener("l", 80, default_pool_id="x"),)}, NoSuch(what=QuotaResource.POOL, id="x")),
        ({"listeners": (listener("l", 80), listener("l", 81))}, IdInUse(id="l")),
        ({"pools": (pool("p"), pool("p"))}, IdInUse(id="p")),
        (
            {"pools": (pool("p", member("a", 11), member("b", 11)),)},
            MemberExists(address=parse_address("10.0.0.11"), port=8080),
        ),
        (
            {"pools": (pool("p", member("a", 11, address=parse_address("169.254.169.254"))),)},
            InvalidDestination(address=parse_address("169.254.169.254")),
        ),
        (
            {
                "listeners": (listener("l", 80, default_pool_id="p"),),
                "pools": (pool("p", protocol=PoolProtocol.UDP),),
            },
            WrongPoolProtocol(listener=ListenerProtocol.TCP, pool=PoolProtocol.UDP),
        ),
        (
            {"listeners": tuple(listener(f"l{port}", port) for port in range(1, MAX_LISTENERS + 2))},
            TooManyParts(what=QuotaResource.LISTENER, most=MAX_LISTENERS),
        ),
        ({"provider": "else"}, UnknownProvider(name="else")),
        ({"project_id": "guest"}, NotTheirs(project_id="guest")),
    ],
)
def test_invalid_load_balancers_are_refused_with_the_reason(fields: dict[str, object], why: object):
    assert refusal_of(balancer_request, snapshot_with(NETWORK), **fields) == why


MOST_HASHED = BUCKETS // MAX_SLOTS
TOO_MANY_BUCKETS = TooManyBuckets(most=BUCKETS, each=MAX_SLOTS)


def hashed(ports: int, *members: Member, **fields: Any) -> dict[str, Any]:
    """A listener with so many ports and its pool, which selects by the client's address and port."""
    front = replace(listener("front", 1, default_pool_id="app"), ports=(PortRange(1, ports),))
    return {"listeners": (front,), "pools": (pool("app", *members, **fields),)}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"algorithm": Algorithm.SOURCE_IP},
        {"algorithm": Algorithm.ROUND_ROBIN, "persistence": SourceIpPersistence()},
    ],
)
def test_hashed_listener_ports_count_against_the_bucket_limit(fields: dict[str, Any]):
    two = (member("a", 11), member("b", 12))
    there = snapshot_with(NETWORK)
    assert (
        count_buckets(stored(apply_work(there, balancer_request(there, **hashed(MOST_HASHED, *two, **fields)))))
        == BUCKETS
    )
    assert refusal_of(balancer_request, there, **hashed(MOST_HASHED + 1, *two, **fields)) == TOO_MANY_BUCKETS
    for cheap in (
        hashed(MOST_HASHED + 1, two[0], **fields),
        hashed(MOST_HASHED + 1, *two, algorithm=Algorithm.ROUND_ROBIN),
    ):
        assert apply_work(there, balancer_request(there, **cheap)).load_balancers


def test_maximum_listeners_with_two_vips_fit_the_bucket_limit():
    two = (member("a", 11), member("b", 12))
    fronts = tuple(listener(f"l{port}", port, default_pool_id="app") for port in range(1, MAX_LISTENERS + 1))
    four, more, six = (
        Vip(address=parse_address(each), port_id="p", subnet_id="s", network_id="net")
        for each in ("10.0.0.5", "10.0.0.6", "fd00::5")
    )
    wanted = LoadBalancer(
        id="lb",
        provider="fairlead",
        vip=four,
        additional_vips=(more,),
        listeners=fronts,
        pools=(pool("app", *two),),
        **OWNERS,
    )
    assert count_buckets(wanted) == BUCKETS
    assert count_buckets(replace(wanted, additional_vips=(six,))) == BUCKETS // 2, (
        "VIPs lead to no member of the other IP version"
    )
    proxied = replace(wanted, listeners=tuple(replace(each, proxy_port=1024) for each in fronts))
    assert count_buckets(proxied) == 0


def test_load_balancer_above_the_bucket_limit_is_kept_and_can_shrink():
    two = (member("a", 11), member("b", 12))
    parts = hashed(MOST_HASHED + 9, *two)
    there = snapshot_with(NETWORK)
    there = apply_work(there, balancer_request(there, **hashed(MOST_HASHED, *two)))
    large = replace(stored(there), listeners=parts["listeners"])
    there = apply_changes(there, Changes(puts=(large,)), there.revision + 1)
    fewer, more = (replace(large, listeners=hashed(MOST_HASHED + each)["listeners"]) for each in (8, 10))
    renamed = replace(large, listeners=(replace(large.listeners[0], name="x"),))
    third = with_pool(there, members=(*large.pools[0].members, member("c", 13)))
    for wanted in (fewer, renamed, third):
        assert count_buckets(stored(apply_work(there, replace_load_balancer(there, ASKER, wanted)))) == count_buckets(
            wanted
        )
    assert refusal_of(replace_load_balancer, there, ASKER, more) == TOO_MANY_BUCKETS
    gone = delete_load_balancer(there, ASKER, "lb", cascade=True)
    assert Owner(Kind.LOAD_BALANCER, "lb") in gone.deletes
    rows = compile_owner(there, Owner(Kind.LOAD_BALANCER, "lb")).values()
    (row,) = (row for row in rows if isinstance(row, ovn.LoadBalancer) and row.selection_fields)
    assert [len(each.backends) for each in row.services] == [MAX_SLOTS] * (MOST_HASHED + 9)


def test_an_id_that_another_load_balancer_has_is_refused():
    before = network_and_balancer()
    assert refusal_of(balancer_request, before) == IdInUse(id="lb")
    assert refusal_of(balancer_request, before, "other", listeners=(listener("front", 80),)) == IdInUse(id="front")
    assert refusal_of(balancer_request, before, "other", pools=(pool("app"),)) == IdInUse(id="app")


def test_replacement_keeps_draining_members_and_the_creation_time():
    first = network_and_balancer()
    second = apply_work(first, replace_load_balancer(first, ASKER, with_pool(first, members=(member("a", 11),))))
    anew = replace(stored(second), parted=(), created_at=LATER, owns_vip_port=False)
    made = stored(apply_work(second, replace_load_balancer(second, ASKER, anew)))
    assert [str(each.address) for each in made.parted] == ["10.0.0.12"]
    assert (made.created_at, made.owns_vip_port) == (stored(first).created_at, True)


def test_part_of_another_project_is_refused():
    guests = NotTheirs(project_id="guest")
    other = member("c", 13, project_id="guest")
    assert refusal_of(balancer_request, snapshot_with(NETWORK), pools=(pool("p", project_id="guest"),)) == guests
    assert (
        refusal_of(balancer_request, snapshot_with(NETWORK), listeners=(listener("l", 80, project_id="guest"),))
        == guests
    )
    assert refusal_of(balancer_request, snapshot_with(NETWORK), pools=(pool("p", other),)) == guests
    before = network_and_balancer()
    assert refusal_of(replace_load_balancer, before, ASKER, replace(stored(before), project_id="guest")) == guests


@pytest.mark.parametrize("field", ["listeners", "pools"])
def test_stored_part_cannot_move_to_another_project(field: str):
    before = network_and_balancer()
    (part,) = getattr(stored(before), field)
    wanted = replace(stored(before), **{field: (replace(part, project_id="guest"),)})
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == NotTheirs(project_id="guest")


def test_nested_part_of_another_project_is_refused():
    guests = NotTheirs(project_id="guest")
    before = network_and_balancer()
    theirs = replace(stored(before).pools[0].members[0], project_id="guest")
    assert refusal_of(update_member, before, ASKER, "app", theirs) == guests
    no = L7Policy(id="no", action=Reject(), **GUESTS)
    assert (
        refusal_of(balancer_request, snapshot_with(NETWORK), listeners=(listener("l", 80, l7policies=(no,)),)) == guests
    )
    mine = replace(no, rules=(replace(PATH, project_id="guest"),), project_id="owner")
    assert (
        refusal_of(balancer_request, snapshot_with(NETWORK), listeners=(listener("l", 80, l7policies=(mine,)),))
        == guests
    )
    probing = replace(MONITOR, project_id="guest")
    assert refusal_of(balancer_request, snapshot_with(NETWORK), pools=(pool("p", health_monitor=probing),)) == guests


def test_stored_member_cannot_move_to_a_subnet_hidden_from_the_caller():
    before = apply_changes(network_and_balancer(), Changes(puts=(THEIRS,)), 9)
    moved = replace(stored(before).pools[0].members[0], subnet_id="theirs-four")
    assert refusal_of(update_member, before, ASKER, "app", moved) == NotFound(what=Subnet, id="theirs-four")
    wanted = with_pool(before, members=(moved,))
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == NotFound(what=Subnet, id="theirs-four")
    own = replace(moved, subnet_id="four")
    made = stored(apply_work(before, update_member(before, ASKER, "app", own)))
    assert made.pools[0].members[0].subnet_id == "four"


@pytest.mark.parametrize(
    ("field", "value"), [("provider", "ovn"), ("flavor_id", "gold"), ("availability_zone", "east")]
)
def test_provider_flavor_and_zone_of_a_load_balancer_cannot_change(field: str, value: str):
    before = network_and_balancer()
    wanted = replace(stored(before), **{field: value})
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == OfferImmutable(balancer_id="lb", field=field)


def test_replacement_of_an_empty_pool_reuses_no_member_ordinal():
    first = network_and_balancer()
    second = apply_work(first, replace_load_balancer(first, ASKER, with_pool(first, members=())))
    third = apply_work(second, replace_load_balancer(second, ASKER, replace(stored(second), pools=(pool("app"),))))
    assert stored(third).pools[0].next_ordinal == 2
    anew = replace(stored(third), pools=(pool("app", member("c", 13)),))
    (app,) = stored(apply_work(third, replace_load_balancer(third, ASKER, anew))).pools
    assert [(each.id, each.ordinal) for each in app.members] == [("c", 2)]
    higher = with_pool(third, next_ordinal=9)
    assert stored(apply_work(third, replace_load_balancer(third, ASKER, higher))).pools[0].next_ordinal == 2


def test_member_moved_to_the_address_of_another_member_is_refused():
    before = network_and_balancer()
    wanted = with_pool(before, members=(member("a", 11), member("b", 11)))
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == MemberExists(
        address=parse_address("10.0.0.11"), port=8080
    )


def test_vip_of_a_load_balancer_cannot_change():
    before = network_and_balancer()
    moved = replace(stored(before), vip=replace(stored(before).vip, address=parse_address("10.0.0.77")))
    assert refusal_of(replace_load_balancer, before, ASKER, moved) == VipImmutable(balancer_id="lb")


def test_replacement_by_another_project_is_refused():
    before = network_and_balancer()
    asker = replace(ASKER, identity=GUEST)
    assert refusal_of(replace_load_balancer, before, asker, stored(before)) == NotTheirs(project_id="owner")


@pytest.mark.parametrize(
    ("applied", "waits"),
    [
        (NEVER_APPLIED, True),
        (ALL_APPLIED, False),
        (AppliedState(error="no"), False),
        (AppliedState(stalled=True), False),
    ],
)
def test_replacement_waits_while_the_load_balancer_is_pending(applied: AppliedState, waits: bool):
    before = network_and_balancer()
    asker = replace(ASKER, applied=lambda _: applied)

    def ask() -> object:
        try:
            return run_to_completion(replace_load_balancer(before, asker, stored(before)))
        except Refused as refused:
            return refused.why

    expected = BalancerPending(
        owner=Owner(Kind.LOAD_BALANCER, "lb"),
        generation=before.generations[Owner(Kind.LOAD_BALANCER, "lb")],
        what=QuotaResource.LOAD_BALANCER,
        id="lb",
        status=ProvisioningStatus.PENDING_CREATE,
    )
    assert (ask() == expected) == waits


def test_delete_requires_cascade_for_parts_and_removes_the_vip_port():
    before = network_and_balancer()
    with pytest.raises(Refused) as refused:
        delete_load_balancer(before, ASKER, "lb", cascade=False)
    assert refused.value.why == HasParts(balancer_id="lb")
    gone = delete_load_balancer(before, ASKER, "lb", cascade=True)
    assert set(gone.deletes) == {Owner(Kind.LOAD_BALANCER, "lb"), Owner(Kind.PORT, "vip-lb")}


def asked(**fields: object) -> VipRequest:
    return VipRequest(**{"balancer_id": "lb", "project_id": "owner", "new_port_id": "vip"} | fields)


def test_given_port_becomes_the_vip_port():
    own = replace(PORT, project_id="owner")
    vip = choose_vip(snapshot_with(NETWORK, own), ASKER, asked(port_id="port"))
    assert (vip.is_new, vip.port.device_id, str(vip.vips[0].address)) == (False, "lb-lb", "10.0.0.7")


@pytest.mark.parametrize(
    ("snapshot", "wanted", "why"),
    [
        (snapshot_with(NETWORK), asked(), VipNotSpecified()),
        (snapshot_with(NETWORK, PORT), asked(port_id="port"), NotFound(what=Port, id="port")),
    ],
)
def test_invalid_vips_are_refused(snapshot: Snapshot, wanted: VipRequest, why: object):
    with pytest.raises(Refused) as refused:
        choose_vip(snapshot, ASKER, wanted)
    assert refused.value.why == why
