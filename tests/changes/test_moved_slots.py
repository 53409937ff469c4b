"""Slots of announced VIPs: current and previous owners, slots moved by a change, and retention of the record."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fairlead.api.http.front_end import MAX_DOCUMENT_BYTES
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import (
    ListenerProtocol,
    LoadBalancer,
    Member,
    MovedSlots,
    PoolProtocol,
    Transport,
    Vip,
)
from fairlead.model.documents.previous_slot_owners import (
    MAX_MOVED_GROUPS,
    Transition,
    VipService,
    record_moved_slots,
    services_of,
)
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.draining import expire_removed_members, next_expiry
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.store.codec import encode
from harness.api import NOON
from harness.changes.balancing import listener, member, pool
from harness.changes.world import OWNERS
from harness.pools import with_members

HOUR = timedelta(hours=1)
VIPS = tuple(
    Vip(address=parse_address(text), port_id="vip", subnet_id=f"of-{text}", network_id="pool")
    for text in ("203.0.113.5", "2001:db8:5::5")
)


def machine(name: str, number: int, version: int, **fields: Any) -> Member:
    address = parse_address(f"10.0.0.{number}" if version == 4 else f"fd00::{number}")
    return member(f"{name}{version}", number, address=address, ordinal=number * 2 + version % 4 // 2, **fields)


def balancer(*members: Member, old: LoadBalancer | None = None, udp: bool = False) -> LoadBalancer:
    first = old.pools[0] if old else pool("app", protocol=PoolProtocol.UDP if udp else PoolProtocol.TCP)
    protocol = ListenerProtocol.UDP if udp else ListenerProtocol.TCP
    front = listener("front", 443, protocol=protocol, default_pool_id="app")
    fields = {"vip": VIPS[0], "additional_vips": VIPS[1:], "provider": "native"}
    return LoadBalancer(
        id="lb",
        listeners=(front,),
        pools=(with_members(first, members, MAX_SLOTS),),
        moved=old.moved if old else (),
        **fields,
        **OWNERS,
    )


def both(name: str, number: int, **fields: Any) -> tuple[Member, Member]:
    return machine(name, number, 4, **fields), machine(name, number, 6, **fields)


def many(*numbers: int, **fields: Any) -> tuple[Member, ...]:
    return tuple(each for number in numbers for each in both(f"m{number}-", number, **fields))


def later(old: LoadBalancer, new: LoadBalancer, hours: int = 0, down: frozenset[str] = frozenset()) -> LoadBalancer:
    when = Transition(now=NOON + hours * HOUR, expires_at=NOON + (hours + 1) * HOUR)
    return run_to_completion(record_moved_slots(old, new, down, when))


def leads(found: LoadBalancer, version: int = 4, down: frozenset[str] = frozenset()) -> VipService:
    return next(each for each in services_of(found, down) if each.vip.version == version)


def addresses(found: LoadBalancer, version: int) -> list[IPAddress]:
    return [address for address, _ in leads(found, version).slots]


@pytest.mark.parametrize("udp", [False, True])
def test_every_vip_and_port_has_a_separate_slot_table(udp: bool):
    found = list(services_of(balancer(*many(1, 2), udp=udp)))
    transport = Transport.UDP if udp else Transport.TCP
    assert [(each.vip, each.port, each.transport) for each in found] == [(vip.address, 443, transport) for vip in VIPS]
    assert [len(each.slots) for each in found] == [MAX_SLOTS, MAX_SLOTS]
    assert {address.version for address, _ in found[1].slots} == {6}


@pytest.mark.parametrize("version", [4, 6])
def test_slot_shares_follow_the_weights(version: int):
    ten = Counter(addresses(balancer(*many(*range(1, 11))), version))
    assert max(ten.values()) - min(ten.values()) <= 1
    heavy, light = Counter(addresses(balancer(*many(1, weight=3), *many(2)), version)).most_common()
    assert heavy[1] == 3 * light[1]


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(
    ("after", "moved"),
    [
        (many(1, 2, 3, 4, 5), "to"),
        (many(1, 2, 3), "from"),
        ((*many(1, 2, 3), *many(4, weight=0)), "from"),
        ((*many(1, 2, 3), *many(4, admin_state_up=False)), "from"),
        ((*many(1, 2, 3), *many(4, weight=3)), "to"),
    ],
    ids=["added", "removed", "drained", "disabled", "heavier"],
)
def test_moved_slot_records_its_previous_owner(after: tuple[Member, ...], moved: str, version: int):
    old = balancer(*many(1, 2, 3, 4))
    new = later(old, balancer(*after, old=old))
    was, now = addresses(old, version), addresses(new, version)
    differ = {slot: was[slot] for slot in range(MAX_SLOTS) if was[slot] != now[slot]}
    assert dict(leads(new, version).previous_owners) == differ
    ends = {str(now[slot] if moved == "to" else was[slot])[-1] for slot in differ}
    assert ends == {"5" if len(after) == 10 else "4"}, "no slot of a survivor moves"
    assert len(differ) <= MAX_SLOTS // 4 + 64 * (moved == "to"), "and no more than the share of the one that changed"


def test_only_the_latest_previous_owner_is_recorded():
    first = balancer(*many(1, 2))
    second = later(first, balancer(*many(1, 3), old=first))
    third = later(second, balancer(*many(1, 4), old=second))
    assert {str(each) for each in leads(third).previous_owners.values()} <= {"10.0.0.1", "10.0.0.3"}
    back = later(second, balancer(*many(1, 3), old=second))
    assert back.moved == second.moved, "what has not moved again is remembered as it was"


def test_record_of_moved_slots_expires():
    first = balancer(*many(1, 2))
    second = later(first, balancer(*many(1, 3), old=first))
    assert next_expiry(second) == NOON + HOUR
    there = apply_changes(Snapshot(), Changes(puts=(second,)), 1)
    assert "lb" in there.parting
    assert expire_removed_members(there, "lb", NOON) == Changes()
    (over,) = expire_removed_members(there, "lb", NOON + HOUR).puts
    assert over == replace(second, moved=())
    assert later(second, balancer(*many(1, 3), old=second), hours=2).moved == ()


def test_down_member_is_never_a_previous_slot_owner():
    """A dead host is never recorded as a previous owner, and receives no packets as one."""
    old = balancer(*many(1, 2))
    gone = frozenset({"m2-4", "m2-6"})
    assert later(old, balancer(*many(1), old=old), down=gone).moved == ()
    moved = later(old, balancer(*many(1), *many(2, weight=0), old=old))
    assert (bool(leads(moved).previous_owners), leads(moved, down=gone).previous_owners) == (True, {})
    assert {str(address) for address, _ in leads(old, down=gone).slots} == {"10.0.0.1"}
    everybody = frozenset({"m1-4", "m2-4"})
    assert leads(old, down=everybody).slots == ()


def test_listener_with_a_new_pool_records_slot_owners_of_the_previous_pool():
    old = balancer(*many(1))
    other = with_members(pool("other"), many(2), MAX_SLOTS)
    front = replace(old.listeners[0], default_pool_id="other")
    new = later(old, replace(old, pools=(*old.pools, other), listeners=(front,)))
    every = tuple(range(MAX_SLOTS))
    until = NOON + HOUR
    assert [(each.before, each.slots, each.until) for each in new.moved] == [
        (parse_address("10.0.0.1"), every, until),
        (parse_address("fd00::1"), every, until),
    ]
    assert later(new, replace(new, listeners=())).moved == ()
    one = MovedSlots(listener_id="front", before=parse_address("10.0.0.1"), slots=(0,), until=until)
    assert leads(replace(new, moved=(one,))).previous_owners == {0: one.before}


def test_slots_carry_member_ports_and_a_disabled_pool_has_no_slots():
    found = balancer(machine("a", 1, 4, port=81), machine("b", 2, 4, port=82), machine("c", 3, 4, backup=True))
    assert {(str(address), port) for address, port in leads(found).slots} == {("10.0.0.1", 81), ("10.0.0.2", 82)}
    assert list(services_of(replace(found, admin_state_up=False))) == []
    off = replace(found.pools[0], admin_state_up=False)
    assert leads(replace(found, pools=(off,))).slots == ()


def test_oldest_records_of_moved_slots_are_dropped_at_the_size_limit():
    """A load balancer with 100 listeners replaces its 100 members gradually: the oldest records of moved slots are
    dropped."""
    listeners = tuple(replace(balancer().listeners[0], id=f"l{number}") for number in range(100))
    found = replace(balancer(*many(*range(1, 41))), listeners=listeners)
    for number in range(3):
        first = number * 40 + 41
        new = replace(found, pools=(with_members(found.pools[0], many(*range(first, first + 40)), MAX_SLOTS),))
        found = later(found, new)
        assert len(found.moved) == MAX_MOVED_GROUPS
    assert len(encode(found)) < MAX_DOCUMENT_BYTES
