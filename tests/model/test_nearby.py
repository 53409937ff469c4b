"""Members near the client: each place keeps the promises of the whole table; news wake just those whom they concern."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.ovn.locality import MOST_BACKENDS
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.model.chassis import Chassis
from fairlead.model.facts import CHASSIS, PLUGGED, with_facts
from fairlead.model.loadbalancer import Pool
from fairlead.model.nearby import members_near
from fairlead.model.owner import Kind, Owner
from fairlead.model.pool_slots import slots_near, slots_of
from fairlead.model.shares import LARGEST
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes, apply_changes
from harness.story import parse_model
from model.test_slots import keys, make_member, make_pool

WEIGHTS = st.lists(st.integers(1, 10), min_size=1, max_size=12)
WEB, API = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")


def near_keys(pool: Pool, near: frozenset[int], down: frozenset[int]) -> tuple[int, ...]:
    """Whom each hash value leads to, where these members are near and those are down."""
    gone = frozenset(member.id for member in pool.members if member.ordinal in down)
    members = [member for member in pool.members if member.ordinal in near]
    return keys(slots_near(pool, 4, members, gone, slots_of(pool, 4, gone)))


@given(WEIGHTS, st.randoms(use_true_random=False))
def test_deaths_returns_and_moves_in_any_order_move_only_what_the_one_had_or_gets(weights: list[int], random: Random):
    """In one place; as long as the place has a living member before and after, or neither time."""
    pool = make_pool(*(make_member(number, weight) for number, weight in enumerate(weights)))
    ordinals = [member.ordinal for member in pool.members]
    near, down = frozenset[int](), frozenset[int]()
    for _ in range(20):
        who = random.choice(ordinals)
        new = (near ^ {who}, down) if random.random() < 0.5 else (near, down ^ {who})
        before, after = near_keys(pool, near, down), near_keys(pool, *new)
        if bool(near - down) == bool(new[0] - new[1]):
            moved = {pair for pair in zip(before, after, strict=False) if pair[0] != pair[1]}
            assert all(who in pair for pair in moved)
        near, down = new
        led_to = set(near_keys(pool, near, down))
        assert led_to <= (near - down or set(ordinals) - down)


def test_two_of_twenty_are_even_as_chance_makes_it():
    pool = make_pool(*(make_member(number) for number in range(20)))
    shares = [near_keys(pool, frozenset({one, two}), frozenset()).count(one) for one in range(20) for two in range(one)]
    assert max(abs(share - LARGEST / 2) for share in shares) < 32  # four times the deviation of chance


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


def node(name: str, *ports: str, host: str = "") -> Chassis:
    return Chassis(name=name, host=host, ports=Map(dict.fromkeys(ports, True)))


def test_who_is_concerned_by_ports_and_chassis():
    old = snapshot_of(MODEL)
    new = with_facts(old, CHASSIS, {"c1": node("c1", "vm1")})
    assert list(CHASSIS.concerns(old, new, {"c1": None})) == [WEB], "one joined"
    assert list(CHASSIS.concerns(new, new, {"c1": None})) == [], "a port more, or whether it lives"
    assert list(CHASSIS.concerns(new, old, {"c1": None})) == [WEB], "one left"
    for port, owners in (("vm1", [WEB]), ("vm2", []), ("nobody's", [])):
        assert list(PLUGGED.concerns(new, new, {port: None})) == owners


def test_a_member_is_on_the_chassis_that_has_its_port():
    """Of two chassis that say the same host name, on the one that has it. A port of another project is nowhere."""
    snapshot = with_facts(snapshot_of(MODEL), CHASSIS, {name: node(name, host="node") for name in ("c1", "c2")})
    snapshot = with_facts(snapshot, CHASSIS, {"c2": node("c2", "vm1", "theirs", host="node")})
    snapshot = with_facts(snapshot, PLUGGED, {"vm1": "node", "theirs": "node"})
    found = members_near(snapshot, snapshot.load_balancers["web"])
    assert {name: [member.id for each in pools.values() for member in each] for name, pools in found.items()} == {
        "c2": ["web-a"]
    }


def test_the_most_that_chassis_may_have():
    """Just so many tables of the largest size; one port more is refused, whatever is observed."""

    def compile_ports(number: int) -> list[ChassisVariable]:
        members = ",".join(f"m{each}/10.0.0.{each}" for each in range(11, 14))
        model = f"network net1 10.0.0.0/24\nbig vip=10.0.0.10 on=net1 for=net1 tcp:1-{number}{{near}}={members}"
        snapshot = with_facts(snapshot_of(model), CHASSIS, {"c1": node("c1")})
        rows = compile_owner(snapshot, Owner(Kind.LOAD_BALANCER, "big")).values()
        return [row for row in rows if isinstance(row, ChassisVariable)]

    most = MOST_BACKENDS // LARGEST
    assert len(compile_ports(most)) == most + 1
    with pytest.raises(Unsupported, match="of 2048"):
        compile_ports(most + 1)
