"""Storing the counters of an unresponsive node does not block the event loop, whatever their number."""

import asyncio
import functools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from immutables import Map

from fairlead.agent_protocol.messages import MAX_LISTENERS
from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.documents.unresponsive_nodes import (
    MAX_STORED_ENDPOINTS,
    MAX_STORED_LISTENERS,
    MAX_STORED_TOTAL,
    UnresponsiveNode,
)
from fairlead.model.snapshot import Snapshot
from fairlead.server.unresponsive_nodes import UnresponsiveNodes
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.step_counter import step

SEEN, SEEN_BY_OTHERS = 20_000, 80_000
SINCE = datetime(2026, 1, 1, 12, tzinfo=UTC)
LISTENERS = [f"{number:036}" for number in range(MAX_LISTENERS)]


@functools.cache
def endpoint(number: int) -> Endpoint:
    text = f"{number:036}"
    return Endpoint(text, ip_address((10 << 24) + number), 80, Transport.TCP, text, text)


def snapshot() -> Snapshot:
    up, down = (ProbeResult(health=each, chassis="one", since=SINCE) for each in (Health.ONLINE, Health.ERROR))
    seen = {endpoint(number): down if number % 3 == 0 else up for number in range(SEEN)}
    others = {endpoint(SEEN + number): replace(up, chassis="two") for number in range(SEEN_BY_OTHERS)}
    return replace(
        Snapshot(),
        sightings=Map({**others, **seen}),
        watched=Map({each.address: frozenset({"web"}) for each in seen}),
        listener_owner=Map(dict.fromkeys(LISTENERS, "web")),
    )


class Clock:
    """Clock that counts seconds from the start of the test."""

    now = 0.0

    def wall(self) -> datetime:
        return SINCE + timedelta(seconds=self.now)


@pytest.fixture(scope="module")
def largest() -> Snapshot:
    return snapshot()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counts(clock: Clock) -> NodeCounts:
    """Report the maximum number of listeners twice: the node lost its file in between and counts from 0 again."""
    counts = NodeCounts(lambda: clock.now, clock.wall)
    for told in (100, 5):
        figures = {name: TrafficCounters(connections=told + at % 50) for at, name in enumerate(LISTENERS)}
        counts.record("one", figures, 10, lambda _: 1e6)
    return counts


async def test_storing_the_largest_unresponsive_node_takes_short_steps(
    tmp_path: Path, largest: Snapshot, counts: NodeCounts, clock: Clock
):
    """Storing the largest unresponsive node, with all listeners and many endpoints, takes short steps
    (`harness.step_limits`)."""
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda *_: None)
    model.snapshot = largest
    clock.now = 60.0
    agents = await asyncio.to_thread(NodeAgents, model, lambda _: ())  # as during the start of a server
    await UnresponsiveNodes(model, counts, agents, lambda: True, lambda: SINCE).check()
    await store.close()
    node = model.snapshot.unresponsive_nodes["one"]
    assert (len(node.counted), len(node.told), len(node.seen)) == (
        MAX_STORED_LISTENERS,
        MAX_STORED_LISTENERS,
        MAX_STORED_ENDPOINTS,
    )
    assert min(each.connections for _, each in node.counted) == 143, "those with most connections"
    assert [name for name, _ in node.counted] == sorted(name for name, _ in node.counted)
    assert [each for each, _ in node.seen] == sorted((endpoint(at) for at in range(0, SEEN, 3)), key=str)[
        :MAX_STORED_ENDPOINTS
    ]


def test_stored_counters_are_loaded_before_the_first_request():
    """A server loads all stored counters before its first request, because that takes longer than a request may
    wait."""
    figures = TrafficCounters(connections=3)
    names = [LISTENERS[at : at + MAX_STORED_LISTENERS] for at in range(0, 10_000, MAX_STORED_LISTENERS)]
    nodes = [
        UnresponsiveNode(
            name=f"node{at}", since=SINCE, counted=tuple((name, figures) for name in names[at % len(names)])
        )
        for at in range(MAX_STORED_TOTAL // MAX_STORED_LISTENERS)
    ]
    stored = {each.name: each for each in nodes}
    began = step()
    counts = NodeCounts(stored=lambda: stored)
    taken = step()
    assert counts.total(LISTENERS[:1]) == TrafficCounters(connections=30)
    answered = step()
    assert taken - began > MAX_STORED_TOTAL
    assert answered - taken < 200
