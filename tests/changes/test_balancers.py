"""Load balancers as every API front end creates them: with given ids, complete, and as replacements of stored ones."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.changes.access import NotFound
from fairlead.changes.balancer_checks import TooMany, TooManyBuckets, count_buckets
from fairlead.changes.balancers import (
    HasParts,
    OfferStays,
    VipStays,
    WholeOnItsWay,
    delete_load_balancer,
    replace_load_balancer,
)
from fairlead.changes.catalog_selection import UnknownProvider
from fairlead.changes.ids import IdTaken
from fairlead.changes.listener_checks import PortInUse, WrongPoolProtocol
from fairlead.changes.lookup import NoSuch, NotTheirs
from fairlead.changes.members import update_member
from fairlead.changes.pool_checks import MemberExists, NoDestination
from fairlead.changes.refusal import Refused
from fairlead.changes.vips import AskedVip, NoVip, choose_vip
from fairlead.dataplane import ovn
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.apportionment import LARGEST
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
from fairlead.model.documents.quota import Counted
from fairlead.model.documents.sizes import BUCKETS, LISTENERS
from fairlead.model.documents.status import NEVER_APPLIED, Applied, ProvisioningStatus
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
from harness.api import compile_owner
from harness.changes.balancing import (
    ARRIVED,
    ASKER,
    LATER,
    after,
    built,
    listener,
    member,
    pool,
    refusal_of,
    stored,
    whole,
    with_pool,
)
from harness.changes.world import GUEST, GUESTS, NETWORK, OWNERS, PORT, having, subnet

THEIRS = Network(id="theirs", mtu=1442, subnets=(subnet("theirs-four", "10.7.0.0/24", **GUESTS),), **GUESTS)
PATH = L7Rule(id="r", type=L7RuleType.PATH, compare_type=L7Comparison.STARTS_WITH, value="/", **OWNERS)
MONITOR = PlainMonitor(id="m", type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, **OWNERS)


def test_a_door_that_gives_ids_builds_a_whole_load_balancer():
    made = stored(whole())
    assert (made.id, made.vip.port_id, made.vip.subnet_id, made.owns_vip_port) == ("lb", "vip-lb", "four", True)
    assert [each.id for each in made.listeners] == ["front"]
    (app,) = made.pools
    assert [(each.id, each.ordinal) for each in app.members] == [("a", 0), ("b", 1)]
    assert set(slots_of(app, 4)) == {0, 1}


def test_the_vips_port_and_its_network_are_of_the_same_write():
    changes = at_once(built(having(NETWORK)))
    assert [put.id for put in changes.puts] == ["vip-lb", "lb"]
    assert changes.reads == (Owner(Kind.NETWORK, "net"),)


def test_a_whole_load_balancer_takes_the_place_of_the_stored_one():
    before = whole()
    wanted = replace(
        stored(before),
        listeners=(listener("front", 8080, default_pool_id="app"), listener("dns", 53, protocol=ListenerProtocol.UDP)),
        pools=(pool("app", member("b", 12), member("c", 13)),),
    )
    made = stored(after(before, replace_load_balancer(before, ASKER, wanted)))
    (app,) = made.pools
    assert [(each.id, each.ordinal) for each in app.members] == [("b", 1), ("c", 2)]
    assert made.updated_at == LATER


def test_who_builds_a_pool_anew_moves_no_client_but_to_the_new_member():
    before = whole()
    members = member("a", 11), member("b", 12), member("c", 13)
    wanted = replace(stored(before), pools=(pool("app", *members),))
    made = stored(after(before, replace_load_balancer(before, ASKER, wanted)))
    table, old = slots_of(made.pools[0], 4), slots_of(stored(before).pools[0], 4)
    assert {2} < set(table)
    assert all(slot in (2, old[number % len(old)]) for number, slot in enumerate(table))


def test_what_is_wanted_as_it_is_stays_as_it_is():
    before = whole()
    made = stored(after(before, replace_load_balancer(before, ASKER, stored(before))))
    assert replace(made, updated_at=None) == stored(before)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"listeners": (listener("l", 80), listener("m", 80))}, PortInUse(protocol=ListenerProtocol.TCP, port=80)),
        ({"listeners": (listener("l", 80, default_pool_id="x"),)}, NoSuch(what=Counted.POOL, id="x")),
        ({"listeners": (listener("l", 80), listener("l", 81))}, IdTaken(id="l")),
        ({"pools": (pool("p"), pool("p"))}, IdTaken(id="p")),
        (
            {"pools": (pool("p", member("a", 11), member("b", 11)),)},
            MemberExists(address=parse_address("10.0.0.11"), port=8080),
        ),
        (
            {"pools": (pool("p", member("a", 11, address=parse_address("169.254.169.254"))),)},
            NoDestination(address=parse_address("169.254.169.254")),
        ),
        (
            {
                "listeners": (listener("l", 80, default_pool_id="p"),),
                "pools": (pool("p", protocol=PoolProtocol.UDP),),
            },
            WrongPoolProtocol(listener=ListenerProtocol.TCP, pool=PoolProtocol.UDP),
        ),
        (
            {"listeners": tuple(listener(f"l{port}", port) for port in range(1, LISTENERS + 2))},
            TooMany(what=Counted.LISTENER, most=LISTENERS),
        ),
        ({"provider": "else"}, UnknownProvider(name="else")),
        ({"project_id": "guest"}, NotTheirs(project_id="guest")),
    ],
)
def test_what_no_load_balancer_can_be_is_refused_with_a_value(fields: dict[str, object], why: object):
    assert refusal_of(built, having(NETWORK), **fields) == why


MOST_HASHED = BUCKETS // LARGEST
TOO_MANY_BUCKETS = TooManyBuckets(most=BUCKETS, each=LARGEST)


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
def test_each_port_of_a_pool_that_goes_by_fields_has_its_price(fields: dict[str, Any]):
    two = (member("a", 11), member("b", 12))
    there = having(NETWORK)
    assert count_buckets(stored(after(there, built(there, **hashed(MOST_HASHED, *two, **fields))))) == BUCKETS
    assert refusal_of(built, there, **hashed(MOST_HASHED + 1, *two, **fields)) == TOO_MANY_BUCKETS
    for cheap in (
        hashed(MOST_HASHED + 1, two[0], **fields),
        hashed(MOST_HASHED + 1, *two, algorithm=Algorithm.ROUND_ROBIN),
    ):
        assert after(there, built(there, **cheap)).load_balancers


def test_every_listener_may_have_a_hashed_port_at_two_vips():
    two = (member("a", 11), member("b", 12))
    fronts = tuple(listener(f"l{port}", port, default_pool_id="app") for port in range(1, LISTENERS + 1))
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


def test_what_has_more_buckets_already_is_kept_and_may_become_less():
    two = (member("a", 11), member("b", 12))
    parts = hashed(MOST_HASHED + 9, *two)
    there = having(NETWORK)
    there = after(there, built(there, **hashed(MOST_HASHED, *two)))
    large = replace(stored(there), listeners=parts["listeners"])
    there = apply_changes(there, Changes(puts=(large,)), there.revision + 1)
    fewer, more = (replace(large, listeners=hashed(MOST_HASHED + each)["listeners"]) for each in (8, 10))
    renamed = replace(large, listeners=(replace(large.listeners[0], name="x"),))
    third = with_pool(there, members=(*large.pools[0].members, member("c", 13)))
    for wanted in (fewer, renamed, third):
        assert count_buckets(stored(after(there, replace_load_balancer(there, ASKER, wanted)))) == count_buckets(wanted)
    assert refusal_of(replace_load_balancer, there, ASKER, more) == TOO_MANY_BUCKETS
    gone = delete_load_balancer(there, ASKER, "lb", cascade=True)
    assert Owner(Kind.LOAD_BALANCER, "lb") in gone.deletes
    rows = compile_owner(there, Owner(Kind.LOAD_BALANCER, "lb")).values()
    (row,) = (row for row in rows if isinstance(row, ovn.LoadBalancer) and row.selection_fields)
    assert [len(each.backends) for each in row.services] == [LARGEST] * (MOST_HASHED + 9)


def test_an_id_that_another_load_balancer_has_is_refused():
    before = whole()
    assert refusal_of(built, before) == IdTaken(id="lb")
    assert refusal_of(built, before, "other", listeners=(listener("front", 80),)) == IdTaken(id="front")
    assert refusal_of(built, before, "other", pools=(pool("app"),)) == IdTaken(id="app")


def test_what_was_removed_is_remembered_whoever_builds_it_anew():
    first = whole()
    second = after(first, replace_load_balancer(first, ASKER, with_pool(first, members=(member("a", 11),))))
    anew = replace(stored(second), parted=(), created_at=LATER, owns_vip_port=False)
    made = stored(after(second, replace_load_balancer(second, ASKER, anew)))
    assert [str(each.address) for each in made.parted] == ["10.0.0.12"]
    assert (made.created_at, made.owns_vip_port) == (stored(first).created_at, True)


def test_every_part_is_of_the_load_balancers_project():
    guests = NotTheirs(project_id="guest")
    other = member("c", 13, project_id="guest")
    assert refusal_of(built, having(NETWORK), pools=(pool("p", project_id="guest"),)) == guests
    assert refusal_of(built, having(NETWORK), listeners=(listener("l", 80, project_id="guest"),)) == guests
    assert refusal_of(built, having(NETWORK), pools=(pool("p", other),)) == guests
    before = whole()
    assert refusal_of(replace_load_balancer, before, ASKER, replace(stored(before), project_id="guest")) == guests


@pytest.mark.parametrize("field", ["listeners", "pools"])
def test_a_part_with_a_stored_id_stays_of_the_load_balancers_project(field: str):
    before = whole()
    (part,) = getattr(stored(before), field)
    wanted = replace(stored(before), **{field: (replace(part, project_id="guest"),)})
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == NotTheirs(project_id="guest")


def test_the_parts_of_parts_are_of_its_project_too():
    guests = NotTheirs(project_id="guest")
    before = whole()
    theirs = replace(stored(before).pools[0].members[0], project_id="guest")
    assert refusal_of(update_member, before, ASKER, "app", theirs) == guests
    no = L7Policy(id="no", action=Reject(), **GUESTS)
    assert refusal_of(built, having(NETWORK), listeners=(listener("l", 80, l7policies=(no,)),)) == guests
    mine = replace(no, rules=(replace(PATH, project_id="guest"),), project_id="owner")
    assert refusal_of(built, having(NETWORK), listeners=(listener("l", 80, l7policies=(mine,)),)) == guests
    probing = replace(MONITOR, project_id="guest")
    assert refusal_of(built, having(NETWORK), pools=(pool("p", health_monitor=probing),)) == guests


def test_a_stored_member_does_not_move_to_a_subnet_that_the_asker_may_not_use():
    before = apply_changes(whole(), Changes(puts=(THEIRS,)), 9)
    moved = replace(stored(before).pools[0].members[0], subnet_id="theirs-four")
    assert refusal_of(update_member, before, ASKER, "app", moved) == NotFound(what=Subnet, id="theirs-four")
    wanted = with_pool(before, members=(moved,))
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == NotFound(what=Subnet, id="theirs-four")
    own = replace(moved, subnet_id="four")
    made = stored(after(before, update_member(before, ASKER, "app", own)))
    assert made.pools[0].members[0].subnet_id == "four"


@pytest.mark.parametrize(
    ("field", "value"), [("provider", "ovn"), ("flavor_id", "gold"), ("availability_zone", "east")]
)
def test_a_load_balancer_keeps_what_an_operator_offered_it(field: str, value: str):
    before = whole()
    wanted = replace(stored(before), **{field: value})
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == OfferStays(balancer_id="lb", field=field)


def test_who_builds_an_empty_pool_anew_gives_no_number_twice():
    first = whole()
    second = after(first, replace_load_balancer(first, ASKER, with_pool(first, members=())))
    third = after(second, replace_load_balancer(second, ASKER, replace(stored(second), pools=(pool("app"),))))
    assert stored(third).pools[0].next_ordinal == 2
    anew = replace(stored(third), pools=(pool("app", member("c", 13)),))
    (app,) = stored(after(third, replace_load_balancer(third, ASKER, anew))).pools
    assert [(each.id, each.ordinal) for each in app.members] == [("c", 2)]
    higher = with_pool(third, next_ordinal=9)
    assert stored(after(third, replace_load_balancer(third, ASKER, higher))).pools[0].next_ordinal == 2


def test_a_member_that_moves_to_anothers_place_is_one_too_many():
    before = whole()
    wanted = with_pool(before, members=(member("a", 11), member("b", 11)))
    assert refusal_of(replace_load_balancer, before, ASKER, wanted) == MemberExists(
        address=parse_address("10.0.0.11"), port=8080
    )


def test_a_load_balancer_keeps_its_vip():
    before = whole()
    moved = replace(stored(before), vip=replace(stored(before).vip, address=parse_address("10.0.0.77")))
    assert refusal_of(replace_load_balancer, before, ASKER, moved) == VipStays(balancer_id="lb")


def test_who_may_not_change_it_is_told_so_and_who_may_not_see_it_too():
    before = whole()
    asker = replace(ASKER, identity=GUEST)
    assert refusal_of(replace_load_balancer, before, asker, stored(before)) == NotTheirs(project_id="owner")


@pytest.mark.parametrize(
    ("applied", "waits"),
    [(NEVER_APPLIED, True), (ARRIVED, False), (Applied(error="no"), False), (Applied(stalled=True), False)],
)
def test_what_is_on_its_way_is_waited_for(applied: Applied, waits: bool):
    before = whole()
    asker = replace(ASKER, applied=lambda _: applied)

    def ask() -> object:
        try:
            return at_once(replace_load_balancer(before, asker, stored(before)))
        except Refused as refused:
            return refused.why

    expected = WholeOnItsWay(
        owner=Owner(Kind.LOAD_BALANCER, "lb"),
        generation=before.generations[Owner(Kind.LOAD_BALANCER, "lb")],
        what=Counted.LOAD_BALANCER,
        id="lb",
        status=ProvisioningStatus.PENDING_CREATE,
    )
    assert (ask() == expected) == waits


def test_it_goes_with_its_parts_only_if_that_is_asked_for_and_its_port_goes_with_it():
    before = whole()
    with pytest.raises(Refused) as refused:
        delete_load_balancer(before, ASKER, "lb", cascade=False)
    assert refused.value.why == HasParts(balancer_id="lb")
    gone = delete_load_balancer(before, ASKER, "lb", cascade=True)
    assert set(gone.deletes) == {Owner(Kind.LOAD_BALANCER, "lb"), Owner(Kind.PORT, "vip-lb")}


def asked(**fields: object) -> AskedVip:
    return AskedVip(**{"balancer_id": "lb", "project_id": "owner", "new_port_id": "vip"} | fields)


def test_a_given_port_becomes_the_vips_and_is_not_made():
    own = replace(PORT, project_id="owner")
    vip = choose_vip(having(NETWORK, own), ASKER, asked(port_id="port"))
    assert (vip.is_new, vip.port.device_id, str(vip.vips[0].address)) == (False, "lb-lb", "10.0.0.7")


@pytest.mark.parametrize(
    ("snapshot", "wanted", "why"),
    [
        (having(NETWORK), asked(), NoVip()),
        (having(NETWORK, PORT), asked(port_id="port"), NotFound(what=Port, id="port")),
    ],
)
def test_a_vip_that_cannot_be_is_refused(snapshot: Snapshot, wanted: AskedVip, why: object):
    with pytest.raises(Refused) as refused:
        choose_vip(snapshot, ASKER, wanted)
    assert refused.value.why == why
