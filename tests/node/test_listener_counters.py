"""Counters that an agent adds up."""

from dataclasses import replace

import pytest

from fairlead.agent_protocol.messages import MAX_LISTENERS
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSample, CounterValue
from fairlead.node.listener_counters import CounterSums
from harness.counter_samples import DNS, WEB, add_to_tally, counted_sample


@pytest.mark.parametrize(
    ("readings", "sum_"),
    [
        ([counted_sample(5), counted_sample(5), counted_sample(8)], 8),
        ([counted_sample(5), counted_sample(3, cookie=2), counted_sample(4, cookie=2)], 9),
        ([counted_sample(5), counted_sample(7, cookie=2)], 12),
        ([counted_sample(5), counted_sample(7, created=9.0)], 12),
        ([counted_sample(5), counted_sample(7, created=0.2)], 7),
        (
            [
                counted_sample(5),
                counted_sample(7, created=-3.0, slack=3.1),
                counted_sample(9),
                counted_sample(9, created=2.0),
            ],
            18,
        ),
        ([counted_sample(5, created=-3.0, slack=3.1), counted_sample(7, created=8.0, slack=4.0)], 12),
        ([counted_sample(5), counted_sample(2)], 7),
        ([counted_sample(0), counted_sample(0, cookie=2)], None),
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
def test_counts_of_a_flow_are_added_once(readings: list[CounterSample], sum_: int | None):
    found = add_to_tally(CounterSums(), *({WEB: reading} for reading in readings))
    assert found == (None if sum_ is None else TrafficCounters(connections=sum_))


def test_removed_and_recreated_flow_counts_from_zero():
    assert add_to_tally(CounterSums(), {WEB: counted_sample(5)}, {}, {WEB: counted_sample(5)}) == TrafficCounters(
        connections=10
    )


def test_counts_without_a_listener_are_dropped():
    tally = CounterSums()
    add_to_tally(tally, {WEB: counted_sample(5)}, listener=None)
    assert add_to_tally(tally, {WEB: counted_sample(6)}) == TrafficCounters(connections=1)


def test_active_connections_come_from_the_last_reading():
    tally = CounterSums()
    assert add_to_tally(tally, {WEB: counted_sample(2, active=2), DNS: CounterSample(active=3)}) == TrafficCounters(
        connections=2, active=5
    )
    assert add_to_tally(tally, {WEB: counted_sample(2, active=1)}) == TrafficCounters(connections=2, active=1)
    assert add_to_tally(tally, {WEB: counted_sample(2)}) == TrafficCounters(connections=2)


def test_only_grown_or_active_counters_are_looked_up():
    tally = CounterSums()
    add_to_tally(tally, {WEB: counted_sample(5)})
    assert tally.changed_services({WEB: counted_sample(5), DNS: counted_sample(0)}) == []
    assert tally.changed_services({WEB: counted_sample(6), DNS: CounterSample(active=1)}) == [WEB, DNS]


def test_switch_counts_only_errors_of_proxied_listeners():
    tally, count = CounterSums(), CounterValue(value=3, cookie=1, created=0.0)
    reading = CounterSample(
        counts={"connections": count, "errors": count, "bytes_in": count, "bytes_out": count}, active=2
    )
    tally.add({WEB: reading}, {WEB: "web"}, {"web"})
    assert tally.sums == {"web": TrafficCounters(errors=3)}


def figures(value: int, active: int = 0) -> TrafficCounters:
    return TrafficCounters(connections=value, errors=1, bytes_in=10 * value, bytes_out=20 * value, active=active)


def test_each_proxy_process_counts_from_zero_and_no_reading_counts_twice():
    tally = CounterSums()
    for process, value in [("1.1", 5), ("1.1", 5), ("1.1", 8), ("2.9", 2), ("1.1", 9), ("1.1", 8), ("1.1", 9)]:
        tally.add_process(process, {"web": figures(value)})
    assert tally.sums["web"] == TrafficCounters(connections=11, errors=2, bytes_in=110, bytes_out=220)


def test_active_connections_of_a_proxy_process_count_until_the_process_ends():
    tally = CounterSums()
    tally.add_process("1.1", {"web": figures(5, active=2), "idle": TrafficCounters()})
    tally.add_process("2.9", {"web": figures(1, active=1)})
    assert tally.reported_sums["web"].active == 3
    assert "idle" not in tally.reported_sums
    tally.forget_processes(["1.1"])
    assert tally.reported_sums["web"] == replace(tally.sums["web"], active=1)
    assert tally.sums["web"].connections == 6


def test_number_of_counted_listeners_is_limited():
    tally = CounterSums()
    tally.add_process("1.1", {str(each): figures(1) for each in range(MAX_LISTENERS + 5)})
    tally.add_process("1.1", {str(each): figures(2) for each in range(MAX_LISTENERS + 5)})
    assert len(tally.reported_sums) == MAX_LISTENERS
    assert tally.reported_sums["0"].connections == 2
