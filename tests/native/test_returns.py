"""Recovered members: flows that other members received during the outage stay there for a while."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from immutables import Map

from fairlead.compilers.native import NATIVE
from fairlead.dataplane.native import Service
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.returned_members import Returns
from harness.given import Given
from harness.story import read_story

WEB = Owner(Kind.LOAD_BALANCER, "web")
STORY = read_story(Path(__file__).parent / "monitored.txt", (NATIVE,))
UP, DOWN = (next(each for each in STORY.states if each.name == name).snapshot() for name in ("up", "down"))
FIRST, LAST = "web-a", "web-d"
"""Members that are down, one behind each host."""


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Heard(list[Owner]):
    def __call__(self, owners: Iterable[Owner]) -> None:
        self.extend(owners)


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given("h1", tmp_path / "slice", slice_of(DOWN, "h1"))


def test_who_is_up_again_is_remembered_until_its_time_is_over_or_it_is_down_again(given: Given):
    time, heard = Time(), Heard()
    returns = Returns(given, time)
    returns.follow(heard)
    assert returns.known == Map()
    given.become(slice_of(UP, "h1"), WEB)
    assert returns.known == Map({"web": frozenset({FIRST, LAST})})
    time.now += 10
    one = replace(given.now, down=Map({"web": frozenset({LAST})}))
    given.become(one, WEB)
    assert returns.known == Map({"web": frozenset({FIRST})})
    given.become(slice_of(UP, "h1"), WEB)
    time.now = given.now.parting_seconds
    returns.forget()
    assert (returns.known, heard) == (Map({"web": frozenset({LAST})}), [WEB])
    time.now += 10
    returns.forget()
    assert (returns.known, heard) == (Map(), [WEB, WEB])


def test_of_who_is_gone_nothing_is_remembered(given: Given):
    returns = Returns(given, Time())
    given.become(slice_of(UP, "h1"), WEB)
    given.become(replace(given.now, load_balancers=Map()), WEB)
    assert returns.known == Map()
    given.become(slice_of(UP, "h1"), Owner(Kind.HOST, "h2"))
    assert returns.known == Map(), "nobody said that anything was another"


def rows(known: Snapshot, host: str) -> dict[str, Service]:
    its = NATIVE.compile(slice_of(known, host), WEB).values()
    return {str(row.vip): row for row in its if isinstance(row, Service)}


def test_its_host_asks_those_who_stood_in_and_nobody_else_asks(given: Given):
    """Substitutes are the members that have its slots in the table during its outage."""
    before, after = {}, {}
    for host in ("h1", "h2"):
        given.become(slice_of(DOWN, host), WEB)
        returns = Returns(given, Time())
        given.become(slice_of(UP, host), WEB)
        view = returns.seen_in(given.now)
        assert returns.seen_in(given.now) is view
        its = NATIVE.compile(view, WEB).values()
        after[host] = {str(row.vip): row for row in its if isinstance(row, Service)}
        before[host] = rows(UP, host)
    four, six = "203.0.113.5", "2001:db8:5::5"
    mine = {
        slot for slot, place in enumerate(after["h1"][four].slots) if str(after["h1"][four].targets[place]) != "host 2"
    }
    assert dict(after["h1"][four].before) == dict.fromkeys(mine, 2)
    assert after["h2"][four] == before["h2"][four]
    assert after["h1"][six] == before["h1"][six]
    assert len(after["h2"][six].before) == 128
    assert replace(after["h1"][four], before=()) == before["h1"][four]
