"""Counters of an unresponsive node on several servers: all servers continue from what one of them stored."""

from datetime import UTC, datetime, timedelta

from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.documents.unresponsive_nodes import SilentNode
from fairlead.runtime.steps import at_once


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def age(_: str) -> float:
    return 3600.0


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_server_goes_on_from_what_is_stored_of_a_silent_node():
    """Servers continue from stored counters: one received all reports, one missed the last, one started later. The node
    had lost its file."""
    clock, stored = Clock(), dict[str, SilentNode]()
    there, missed, late = (
        NodeCounts(clock, lambda: NOON + timedelta(seconds=clock.now), lambda: dict(stored)) for _ in range(3)
    )
    for told in (100, 40, 50):
        there.report("node1", {"web": Figures(connections=told, active=1)}, 10, age)
        if told != 50:
            missed.report("node1", {"web": Figures(connections=told)}, 10, age)
        clock.now += 10
    assert there.silent() == {}
    clock.now += 20
    assert there.silent() == {"node1": 0}
    node = at_once(there.last_words("node1"))
    assert node == SilentNode(
        name="node1",
        since=NOON + timedelta(seconds=120),
        counted=(("web", Figures(connections=110)),),
        told=(("web", Figures(connections=50)),),
    )
    stored["node1"] = node
    servers = (there, missed, late)
    assert [each.total(["web"]) for each in servers] == [Figures(connections=110)] * 3
    assert [(each.silent(), each.is_heard("node1")) for each in servers[1:]] == [({}, False)] * 2
    for each in servers:
        each.report("node1", {"web": Figures(connections=55)}, 10, age)
    assert [each.total(["web"]) for each in servers] == [Figures(connections=115)] * 3
    assert late.is_heard("node1")
