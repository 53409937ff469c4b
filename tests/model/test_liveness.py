"""Liveness: a chassis that lags behind the others is dead, but none is when most of them lag."""

from dataclasses import replace

import pytest

from fairlead.model.documents.health import Health
from fairlead.model.queries.liveness import Heartbeat, explain_unavailability, find_dead

PATIENCE = 45.0
LIVING = [Heartbeat(name=f"node{number}", nb_cfg=9, confirmed_at=1000.0) for number in range(3)]
LATE = Heartbeat(name="late", nb_cfg=5, confirmed_at=900.0)


def dead(*heartbeats: Heartbeat, now: float = 0.0) -> set[str]:
    return set(find_dead(heartbeats, now, PATIENCE))


def test_chassis_lagging_behind_the_others_is_dead():
    assert dead(*LIVING, LATE) == {"late"}


@pytest.mark.parametrize(
    "alive",
    [
        replace(LATE, confirmed_at=1000.0 - PATIENCE),
        replace(LATE, nb_cfg=9),
        replace(LATE, seen_at=-PATIENCE),
    ],
    ids=["not for long", "its clock is wrong, and its count is not", "its clock is wrong, and it was seen"],
)
def test_chassis_late_only_briefly_or_only_by_its_clock_is_not_dead(alive: Heartbeat):
    assert dead(*LIVING, alive) == set()


def test_chassis_last_seen_long_ago_is_dead():
    assert dead(*LIVING, replace(LATE, seen_at=0.0), now=PATIENCE + 1) == {"late"}


@pytest.mark.parametrize(("late", "believed"), [(1, True), (3, True), (4, False), (30, False)])
def test_no_chassis_is_marked_dead_when_most_chassis_lag(late: int, believed: bool):
    heartbeats = [replace(LATE, name=f"late{number}") for number in range(late)]
    assert dead(*LIVING, *heartbeats) == ({heartbeat.name for heartbeat in heartbeats} if believed else set())


def test_one_of_two_chassis_may_be_dead_but_a_single_one_is_not():
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
def test_port_unavailability_is_explained_as_unplugged_or_stranded(works: bool, alive: bool, why: Health | None):
    assert explain_unavailability(works=works, alive=alive) is why
