"""What an agent adds up."""

import pytest

from fairlead.drivers.ovn.counters import Count, Reading, Readings
from fairlead.model.addresses import parse_address
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import CountedService, Datapath, Figures, Zone
from fairlead.node.counting import Tally

WEB = CountedService(place=Datapath(1), transport=Transport.TCP, address=parse_address("10.0.0.10"), port=80)
DNS = CountedService(place=Zone("vm1"), transport=Transport.UDP, address=parse_address("fd00::10"), port=53)


def counted(value: int, *, cookie: int = 1, created: float = 0.0, active: int = 0) -> Reading:
    return Reading(counts={"connections": Count(value=value, cookie=cookie, created=created)}, active=active)


def take(tally: Tally, *readings: Readings, listener: str | None = "web") -> Figures | None:
    for each in readings:
        tally.take(each, dict.fromkeys(tally.grown(each), listener))
    return tally.sums.get("web")


@pytest.mark.parametrize(
    ("readings", "sum_"),
    [
        ([counted(5), counted(5), counted(8)], 8),
        ([counted(5), counted(3, cookie=2), counted(4, cookie=2)], 9),
        ([counted(5), counted(7, cookie=2)], 12),
        ([counted(5), counted(7, created=9.0)], 12),
        ([counted(5), counted(7, created=0.2)], 7),
        ([counted(5), counted(2)], 7),
        ([counted(0), counted(0, cookie=2)], None),
    ],
    ids=["grows", "made anew", "made anew and larger", "same rule, later", "looked at slowly", "shrinks", "nothing"],
)
def test_what_a_flow_counts_is_added_once(readings: list[Reading], sum_: int | None):
    found = take(Tally(), *({WEB: reading} for reading in readings))
    assert found == (None if sum_ is None else Figures(connections=sum_))


def test_a_flow_that_goes_and_comes_back_counts_from_nothing():
    assert take(Tally(), {WEB: counted(5)}, {}, {WEB: counted(5)}) == Figures(connections=10)


def test_what_is_nobodys_is_dropped():
    tally = Tally()
    take(tally, {WEB: counted(5)}, listener=None)
    assert take(tally, {WEB: counted(6)}) == Figures(connections=1)


def test_open_connections_are_those_of_the_last_look():
    tally = Tally()
    assert take(tally, {WEB: counted(2, active=2), DNS: Reading(active=3)}) == Figures(connections=2, active=5)
    assert take(tally, {WEB: counted(2, active=1)}) == Figures(connections=2, active=1)
    assert take(tally, {WEB: counted(2)}) == Figures(connections=2)


def test_only_what_has_grown_or_is_open_is_asked_about():
    tally = Tally()
    take(tally, {WEB: counted(5)})
    assert tally.grown({WEB: counted(5), DNS: counted(0)}) == []
    assert tally.grown({WEB: counted(6), DNS: Reading(active=1)}) == [WEB, DNS]
