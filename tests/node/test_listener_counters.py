"""Counters that an agent adds up."""

from dataclasses import replace

import pytest

from fairlead.agent_protocol.messages import MOST_LISTENERS
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.counter_samples import Count, Reading
from fairlead.node.listener_counters import Tally
from harness.counting import DNS, WEB, counted, take


@pytest.mark.parametrize(
    ("readings", "sum_"),
    [
        ([counted(5), counted(5), counted(8)], 8),
        ([counted(5), counted(3, cookie=2), counted(4, cookie=2)], 9),
        ([counted(5), counted(7, cookie=2)], 12),
        ([counted(5), counted(7, created=9.0)], 12),
        ([counted(5), counted(7, created=0.2)], 7),
        ([counted(5), counted(7, created=-3.0, slack=3.1), counted(9), counted(9, created=2.0)], 18),
        ([counted(5, created=-3.0, slack=3.1), counted(7, created=8.0, slack=4.0)], 12),
        ([counted(5), counted(2)], 7),
        ([counted(0), counted(0, cookie=2)], None),
    ],
    ids=[
        "grows",
        "made anew",
        "made anew and larger",
        "same rule, later",
        "looked at slowly",
        "by a busy switch",
        "both",
        "shrinks",
        "nothing",
    ],
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


def test_the_switch_counts_for_proxies_only_whom_it_turned_away():
    tally, count = Tally(), Count(value=3, cookie=1, created=0.0)
    reading = Reading(counts={"connections": count, "errors": count, "bytes_in": count, "bytes_out": count}, active=2)
    tally.take({WEB: reading}, {WEB: "web"}, {"web"})
    assert tally.sums == {"web": Figures(errors=3)}


def figures(value: int, active: int = 0) -> Figures:
    return Figures(connections=value, errors=1, bytes_in=10 * value, bytes_out=20 * value, active=active)


def test_each_process_of_a_proxy_counts_from_nothing_and_no_look_counts_twice():
    tally = Tally()
    for process, value in [("1.1", 5), ("1.1", 5), ("1.1", 8), ("2.9", 2), ("1.1", 9), ("1.1", 8), ("1.1", 9)]:
        tally.take_process(process, {"web": figures(value)})
    assert tally.sums["web"] == Figures(connections=11, errors=2, bytes_in=110, bytes_out=220)


def test_what_processes_have_open_is_told_while_they_live():
    tally = Tally()
    tally.take_process("1.1", {"web": figures(5, active=2), "idle": Figures()})
    tally.take_process("2.9", {"web": figures(1, active=1)})
    assert tally.told["web"].active == 3
    assert "idle" not in tally.told
    tally.forget_processes(["1.1"])
    assert tally.told["web"] == replace(tally.sums["web"], active=1)
    assert tally.sums["web"].connections == 6


def test_no_more_listeners_are_counted_than_a_server_hears_of():
    tally = Tally()
    tally.take_process("1.1", {str(each): figures(1) for each in range(MOST_LISTENERS + 5)})
    tally.take_process("1.1", {str(each): figures(2) for each in range(MOST_LISTENERS + 5)})
    assert len(tally.told) == MOST_LISTENERS
    assert tally.told["0"].connections == 2
