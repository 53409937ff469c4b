"""Liveness: a chassis that lags behind the others is dead, but none is when most of them lag."""

from dataclasses import replace

import pytest

from fairlead.model.documents.health import Health
from fairlead.model.queries.liveness import Heartbeat, find_dead, why_silent

PATIENCE = 45.0
LIVING = [Heartbeat(name=f"node{number}", count=9, confirmed=1000.0) for number in range(3)]
LATE = Heartbeat(name="late", count=5, confirmed=900.0)


def dead(*heartbeats: Heartbeat, now: float = 0.0) -> set[str]:
    return set(find_dead(heartbeats, now, PATIENCE))


def test_who_lags_behind_the_others_is_dead():
    assert dead(*LIVING, LATE) == {"late"}


@pytest.mark.parametrize(
    "alive",
    [
        replace(LATE, confirmed=1000.0 - PATIENCE),
        replace(LATE, count=9),
        replace(LATE, seen=-PATIENCE),
    ],
    ids=["not for long", "its clock is wrong, and its count is not", "its clock is wrong, and it was seen"],
)
def test_who_is_late_is_not_dead(alive: Heartbeat):
    assert dead(*LIVING, alive) == set()


def test_who_was_seen_long_ago_is_dead():
    assert dead(*LIVING, replace(LATE, seen=0.0), now=PATIENCE + 1) == {"late"}


@pytest.mark.parametrize(("late", "believed"), [(1, True), (3, True), (4, False), (30, False)])
def test_nothing_is_believed_when_most_lag(late: int, believed: bool):
    heartbeats = [replace(LATE, name=f"late{number}") for number in range(late)]
    assert dead(*LIVING, *heartbeats) == ({heartbeat.name for heartbeat in heartbeats} if believed else set())


def test_of_two_one_may_be_dead_and_alone_nobody_is():
    assert dead(LIVING[0], LATE) == {"late"}
    assert dead(LATE) == set()
    assert dead() == set()


@pytest.mark.parametrize(
    ("works", "alive", "why"),
    [
        (True, True, None),
        (True, False, Health.STRANDED),
        (False, True, Health.UNPLUGGED),
        (False, False, Health.UNPLUGGED),
    ],
)
def test_why_nothing_at_a_port_answers(works: bool, alive: bool, why: Health | None):
    assert why_silent(works=works, alive=alive) is why
