"""Locality: each table near a client has the guarantees of the whole table, and updates affect only its owners."""

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.ovn.compiler import compile_in_steps
from fairlead.compilers.ovn.locality import MAX_CHASSIS_BACKENDS
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import Pool
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.pool_slot_tables import slots_for_tiers, slots_of
from fairlead.model.queries.locality_tiers import TiersByChassis, find_tiers_by_chassis
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import CHASSIS, PLUGGED, with_facts
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model
from harness.slots import keys, make_member, make_pool
from harness.step_counter import longest_between_yields
from harness.step_limits import MAX_STEPS

WEIGHTS = st.lists(st.integers(1, 10), min_size=1, max_size=12)
WEB, API = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")


def near_keys(pool: Pool, near: Sequence[frozenset[int]], down: frozenset[int]) -> tuple[int, ...]:
    """Return the member of each hash value, given the near members by tier, nearest first, and the members that are
    down."""
    gone = frozenset(member.id for member in pool.members if member.ordinal in down)
    tiers = [[member for member in pool.members if member.ordinal in some] for some in near]
    return keys(slots_for_tiers(pool, 4, tiers, gone, slots_of(pool, 4, gone)))


@given(WEIGHTS, st.randoms(use_true_random=False))
def test_failure_recovery_or_move_of_a_member_moves_only_its_own_slots(weights: list[int], random: Random):
    """Failures, recoveries and moves change only the member's own slots, per place, while the place has a living member
    before and after, or neither time."""
    pool = make_pool(*(make_member(number, weight) for number, weight in enumerate(weights)))
    ordinals = [member.ordinal for member in pool.members]
    near, down = frozenset[int](), frozenset[int]()
    for _ in range(20):
        who = random.choice(ordinals)
        new = (near ^ {who}, down) if random.random() < 0.5 else (near, down ^ {who})
        before, after = near_keys(pool, [near], down), near_keys(pool, [new[0]], new[1])
        if bool(near - down) == bool(new[0] - new[1]):
            moved = {pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]}
            assert all(who in pair for pair in moved)
        near, down = new
        led_to = set(near_keys(pool, [near], down))
        assert led_to <= (near - down or set(ordinals) - down)


@given(WEIGHTS, st.randoms(use_true_random=False))
def test_tiers_serve_in_order_and_ordinary_members_before_backups(weights: list[int], random: Random):
    """Tiers serve in order: chassis, zone, everywhere; then the backups likewise. In each tier a failure or recovery
    moves only the necessary slots."""
    pool = make_pool(*(make_member(number, weight, backup=number % 3 == 0) for number, weight in enumerate(weights)))
    everybody = frozenset(member.ordinal for member in pool.members)
    backups = frozenset(member.ordinal for member in pool.members if member.backup)
    here, zone = (frozenset(each for each in everybody if random.random() < chance) for chance in (0.3, 0.6))
    order = [tier & sort for sort in (everybody - backups, backups) for tier in (here, here | zone, everybody)]

    def serving(down: frozenset[int]) -> tuple[int, frozenset[int]]:
        """Return the serving tier and its living members."""
        found = (place for place, tier in enumerate(order) if tier - down)
        place = next(found, len(order))
        return place, (order[place] - down if place < len(order) else frozenset())

    down = frozenset[int]()
    for _ in range(20):
        who = random.choice(sorted(everybody))
        new = down ^ {who}
        before, after = (near_keys(pool, [here, here | zone], each) for each in (down, new))
        assert set(after) <= serving(new)[1]
        assert bool(after) == bool(serving(new)[1])
        if serving(down)[0] == serving(new)[0]:
            assert all(who in pair for pair in zip(before, after, strict=False) if pair[0] != pair[1])
        down = new


def test_two_local_members_of_twenty_share_slots_evenly_within_chance():
    pool = make_pool(*(make_member(number) for number in range(20)))
    pairs = ((one, two) for one in range(20) for two in range(one))
    shares = [near_keys(pool, [frozenset(pair)], frozenset()).count(pair[0]) for pair in pairs]
    assert max(abs(share - MAX_SLOTS / 2) for share in shares) < 32  # four standard deviations


MODEL = """\
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
port vm2 net1 10.0.0.12
port theirs net1 10.0.0.13 of=other
web vip=10.0.0.10 on=net1 tcp:80{near}=a/10.0.0.11:80,c/10.0.0.13:80
api vip=10.0.0.20 on=net1 tcp:80=a/10.0.0.11:80,b/10.0.0.12:80
"""


def snapshot_of(model: str) -> Snapshot:
    documents, _ = parse_model(model, {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


def node(name: str, *ports: str, host: str = "", zones: Iterable[str] = ()) -> Chassis:
    return Chassis(name=name, host=host, zones=frozenset(zones), ports=Map(dict.fromkeys(ports, True)))


def test_chassis_zone_and_port_changes_affect_load_balancers_with_locality():
    old = snapshot_of(MODEL)
    new = with_facts(old, CHASSIS, {"c1": node("c1", "vm1")})
    assert list(CHASSIS.affected_owners(old, new, {"c1": None})) == [WEB], "one joined"
    assert list(CHASSIS.affected_owners(new, new, {"c1": None})) == [], "a port more, or whether it lives"
    assert list(CHASSIS.affected_owners(new, old, {"c1": None})) == [WEB], "one left"
    moved = with_facts(new, CHASSIS, {"c1": node("c1", "vm1", zones=["az1"])})
    assert list(CHASSIS.affected_owners(new, moved, {"c1": None})) == [WEB], "one is in another zone"
    assert list(CHASSIS.affected_owners(moved, moved, {"c1": None})) == [], "in the same as before"
    for port, owners in (("vm1", [WEB]), ("vm2", []), ("nobody's", [])):
        assert list(PLUGGED.affected_owners(new, new, {port: None})) == owners


def test_member_is_on_the_chassis_that_has_its_port():
    """A member is on the chassis with its port, even if two chassis report one hostname. Ports of other projects are on
    none."""
    snapshot = with_facts(snapshot_of(MODEL), CHASSIS, {name: node(name, host="node") for name in ("c1", "c2")})
    snapshot = with_facts(snapshot, CHASSIS, {"c2": node("c2", "vm1", "theirs", host="node")})
    snapshot = with_facts(snapshot, PLUGGED, {"vm1": "node", "theirs": "node"})
    found = find_tiers_by_chassis(snapshot, snapshot.load_balancers["web"])
    assert told(found) == {"c2": [["web-a"]]}


def told(near: TiersByChassis) -> dict[str, list[list[str]]]:
    return {
        name: [[member.id for member in tier] for tiers in pools.values() for tier in tiers]
        for name, pools in near.items()
    }


@pytest.mark.parametrize(("option", "own"), [("near", [["web-a"]]), ("near=zone", [])])
def test_chassis_use_the_members_of_their_own_zones(option: str, own: list[list[str]]):
    """A chassis in two zones has the members of both. A chassis without a zone has none."""
    model = MODEL.replace("{near}", f"{{{option}}}").replace("10.0.0.13:80", "10.0.0.12:80")
    zones = {"c1": "a", "c2": "b", "c3": "ab", "c4": "a", "c5": "", "c6": "c"}
    ports = {"c1": ["vm1"], "c2": ["vm2"]}
    nodes = {name: node(name, *ports.get(name, []), zones=zones[name]) for name in zones}
    snapshot = with_facts(snapshot_of(model), CHASSIS, nodes)
    snapshot = with_facts(snapshot, PLUGGED, {port: name for name, (port,) in ports.items()})
    found = find_tiers_by_chassis(snapshot, snapshot.load_balancers["web"])
    both = [["web-a", "web-c"]]
    second = [["web-c"]] if own else []
    assert told(found) == {
        "c1": [*own, ["web-a"]],
        "c2": [*second, ["web-c"]],
        "c3": both,
        "c4": [["web-a"]],
    }


def test_chassis_tables_over_the_backend_limit_are_rejected():
    """The maximum number of tables of the largest size is accepted; one more port is refused, whatever is observed."""

    def compile_ports(number: int) -> list[ChassisVariable]:
        members = ",".join(f"m{each}/10.0.0.{each}" for each in range(11, 14))
        model = f"network net1 10.0.0.0/24\nbig vip=10.0.0.10 on=net1 for=net1 tcp:1-{number}{{near}}={members}"
        snapshot = with_facts(snapshot_of(model), CHASSIS, {"c1": node("c1")})
        rows = compile_owner(snapshot, Owner(Kind.LOAD_BALANCER, "big")).values()
        return [row for row in rows if isinstance(row, ChassisVariable)]

    most = MAX_CHASSIS_BACKENDS // MAX_SLOTS
    assert len(compile_ports(most)) == most + 1
    with pytest.raises(Unsupported, match="maximum is 2048"):
        compile_ports(most + 1)


def test_compilation_yields_after_each_chassis_row():
    """Compilation yields after each row and builds rows lazily: the longest step is that of one table."""
    hosts = {f"vm{number}": f"10.0.{number // 200}.{number % 200 + 10}" for number in range(MAX_SLOTS)}
    ports = "".join(f"port {port} net1 {address}\n" for port, address in hosts.items())
    members = ",".join(f"{port}/{address}:80" for port, address in hosts.items())
    model = f"network net1 10.0.0.0/16\n{ports}web vip=10.0.250.10 on=net1 tcp:80{{near}}={members}\n"
    nodes = {f"c{number}": node(f"c{number}", *[*hosts][number::128]) for number in range(128)}
    snapshot = with_facts(snapshot_of(model), CHASSIS, nodes)
    plugged = {port: name for name, each in nodes.items() for port in each.ports}
    snapshot = with_facts(snapshot, PLUGGED, plugged)
    rows = dict[Any, Any]()

    def work() -> Iterator[None]:
        rows.update((yield from compile_in_steps(snapshot, WEB)))

    rests, longest = longest_between_yields(work())
    assert len(rests) == len(rows) > 2 * len(nodes)
    assert longest < MAX_STEPS["reconciler"]
