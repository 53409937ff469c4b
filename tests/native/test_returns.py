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
from fairlead.node.returned_members import ReturnedMembers
from harness.case import read_case
from harness.fixed_slice import FixedSlice

WEB = Owner(Kind.LOAD_BALANCER, "web")
STORY = read_case(Path(__file__).parent / "monitored.txt", (NATIVE,))
UP, DOWN = (next(each for each in STORY.states if each.name == name).snapshot() for name in ("up", "down"))
FIRST, LAST = "web-a", "web-d"
"""Members that are down, one behind each host."""


@dataclass
class ManualClock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class MarkedOwners(list[Owner]):
    def __call__(self, owners: Iterable[Owner]) -> None:
        self.extend(owners)


@pytest.fixture
def given(tmp_path: Path) -> FixedSlice:
    return FixedSlice("h1", tmp_path / "slice", slice_of(DOWN, "h1"))


def test_recovered_member_is_tracked_until_the_drain_timeout_or_a_new_failure(given: FixedSlice):
    time, heard = ManualClock(), MarkedOwners()
    returns = ReturnedMembers(given, time)
    returns.subscribe(heard)
    assert returns.returned == Map()
    given.replace(slice_of(UP, "h1"), WEB)
    assert returns.returned == Map({"web": frozenset({FIRST, LAST})})
    time.now += 10
    one = replace(given.current, down=Map({"web": frozenset({LAST})}))
    given.replace(one, WEB)
    assert returns.returned == Map({"web": frozenset({FIRST})})
    given.replace(slice_of(UP, "h1"), WEB)
    time.now = given.current.parting_seconds
    returns.expire()
    assert (returns.returned, heard) == (Map({"web": frozenset({LAST})}), [WEB])
    time.now += 10
    returns.expire()
    assert (returns.returned, heard) == (Map(), [WEB, WEB])


def test_members_of_a_deleted_load_balancer_are_not_tracked(given: FixedSlice):
    returns = ReturnedMembers(given, ManualClock())
    given.replace(slice_of(UP, "h1"), WEB)
    given.replace(replace(given.current, load_balancers=Map()), WEB)
    assert returns.returned == Map()
    given.replace(slice_of(UP, "h1"), Owner(Kind.HOST, "h2"))
    assert returns.returned == Map(), "nobody said that anything was another"


def rows(known: Snapshot, host: str) -> dict[str, Service]:
    its = NATIVE.compile(slice_of(known, host), WEB).values()
    return {str(row.vip): row for row in its if isinstance(row, Service)}


def test_only_the_host_of_a_recovered_member_queries_the_substitutes(given: FixedSlice):
    """Substitutes are the members that have its slots in the table during its outage."""
    before, after = {}, {}
    for host in ("h1", "h2"):
        given.replace(slice_of(DOWN, host), WEB)
        returns = ReturnedMembers(given, ManualClock())
        given.replace(slice_of(UP, host), WEB)
        view = returns.with_returned(given.current)
        assert returns.with_returned(given.current) is view
        its = NATIVE.compile(view, WEB).values()
        after[host] = {str(row.vip): row for row in its if isinstance(row, Service)}
        before[host] = rows(UP, host)
    four, six = "203.0.113.5", "2001:db8:5::5"
    mine = {
        slot for slot, place in enumerate(after["h1"][four].slots) if str(after["h1"][four].targets[place]) != "host 2"
    }
    assert dict(after["h1"][four].previous_owners) == dict.fromkeys(mine, 2)
    assert after["h2"][four] == before["h2"][four]
    assert after["h1"][six] == before["h1"][six]
    assert len(after["h2"][six].previous_owners) == 128
    assert replace(after["h1"][four], previous_owners=()) == before["h1"][four]
