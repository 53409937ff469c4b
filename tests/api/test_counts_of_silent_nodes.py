"""Counters of an unresponsive node on several servers: all servers continue from what one of them stored."""

from datetime import UTC, datetime, timedelta

from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.documents.unresponsive_nodes import UnresponsiveNode
from fairlead.runtime.steps import run_to_completion


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def age(_: str) -> float:
    return 3600.0


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_servers_continue_from_stored_counters_of_an_unresponsive_node():
    """Servers continue from stored counters: one received all reports, one missed the last, one started later. The node
    had lost its file."""
    clock, stored = Clock(), dict[str, UnresponsiveNode]()
    there, missed, late = (
        NodeCounts(clock, lambda: NOON + timedelta(seconds=clock.now), lambda: dict(stored)) for _ in range(3)
    )
    for told in (100, 40, 50):
        there.record("node1", {"web": TrafficCounters(connections=told, active=1)}, 10, age)
        if told != 50:
            missed.record("node1", {"web": TrafficCounters(connections=told)}, 10, age)
        clock.now += 10
    assert there.unresponsive() == {}
    clock.now += 20
    assert there.unresponsive() == {"node1": 0}
    node = run_to_completion(there.stored_report("node1"))
    assert node == UnresponsiveNode(
        name="node1",
        since=NOON + timedelta(seconds=120),
        counted=(("web", TrafficCounters(connections=110)),),
        told=(("web", TrafficCounters(connections=50)),),
    )
    stored["node1"] = node
    servers = (there, missed, late)
    assert [each.total(["web"]) for each in servers] == [TrafficCounters(connections=110)] * 3
    assert [(each.unresponsive(), each.is_responsive("node1")) for each in servers[1:]] == [({}, False)] * 2
    for each in servers:
        each.record("node1", {"web": TrafficCounters(connections=55)}, 10, age)
    assert [each.total(["web"]) for each in servers] == [TrafficCounters(connections=115)] * 3
    assert late.is_responsive("node1")
