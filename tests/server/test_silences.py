"""That nobody waits while a server keeps what a silent node had told, however much that is."""

import asyncio
import functools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from immutables import Map

from fairlead.api.agent_messages import MOST_LISTENERS
from fairlead.api.loop_lag import LONG
from fairlead.api.node_agents import NodeAgents
from fairlead.api.node_counts import NodeCounts
from fairlead.model.figures import Figures
from fairlead.model.health import Endpoint, Health
from fairlead.model.loadbalancer import Transport
from fairlead.model.sighting import Sighting
from fairlead.model.silence import MOST_COUNTED, MOST_KEPT, MOST_SEEN, SilentNode
from fairlead.model.snapshot import Snapshot
from fairlead.server.silences import Silences
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.hold import as_in_a_server, held

SEEN, SEEN_BY_OTHERS = 20_000, 80_000
SINCE = datetime(2026, 1, 1, 12, tzinfo=UTC)
LISTENERS = [f"{number:036}" for number in range(MOST_LISTENERS)]


@functools.cache
def endpoint(number: int) -> Endpoint:
    text = f"{number:036}"
    return Endpoint(text, ip_address((10 << 24) + number), 80, Transport.TCP, text, text)


def snapshot() -> Snapshot:
    up, down = (Sighting(health=each, chassis="one", since=SINCE) for each in (Health.ONLINE, Health.ERROR))
    seen = {endpoint(number): down if number % 3 == 0 else up for number in range(SEEN)}
    others = {endpoint(SEEN + number): replace(up, chassis="two") for number in range(SEEN_BY_OTHERS)}
    return replace(
        Snapshot(),
        sightings=Map({**others, **seen}),
        watched=Map({each.address: frozenset({"web"}) for each in seen}),
        listener_owner=Map(dict.fromkeys(LISTENERS, "web")),
    )


async def test_the_largest_node_that_falls_silent_keeps_nobody_waiting(tmp_path: Path):
    """All that an agent may report of listeners, each of which it has begun anew to count, and of many endpoints."""
    now = 0.0

    def heard() -> NodeCounts:
        counts = NodeCounts(lambda: now, lambda: SINCE + timedelta(seconds=now))
        for told in (100, 5):  # it has lost its file between
            figures = {name: Figures(connections=told + at % 50) for at, name in enumerate(LISTENERS)}
            counts.report("one", figures, 10, lambda _: 1e6)
        return counts

    async def run() -> tuple[float, SilentNode]:
        nonlocal now
        store = await SqliteStore.open(tmp_path / "s.db")
        model = await Model.load(store, lambda *_: None)
        model.snapshot = snapshot()
        counts = heard()
        now = 60.0
        silences = Silences(model, counts, NodeAgents(model, lambda _: ()), lambda: True, lambda: SINCE)
        with as_in_a_server(), held() as hold:
            await silences.look()
        await store.close()
        return hold.longest, model.snapshot.silent_nodes["one"]

    longest, node = await run()
    assert (len(node.counted), len(node.told), len(node.seen)) == (MOST_COUNTED, MOST_COUNTED, MOST_SEEN)
    assert min(each.connections for _, each in node.counted) == 143, "those with most connections"
    assert [name for name, _ in node.counted] == sorted(name for name, _ in node.counted)
    assert [each for each, _ in node.seen] == sorted((endpoint(at) for at in range(0, SEEN, 3)), key=str)[:MOST_SEEN]
    assert longest < LONG


async def test_who_begins_has_taken_all_that_is_kept_before_anybody_asks():
    """Taking all of it takes longer than anybody may wait."""
    figures = Figures(connections=3)
    names = [LISTENERS[at : at + MOST_COUNTED] for at in range(0, 10_000, MOST_COUNTED)]
    nodes = [
        SilentNode(name=f"node{at}", since=SINCE, counted=tuple((name, figures) for name in names[at % len(names)]))
        for at in range(MOST_KEPT // MOST_COUNTED)
    ]

    async def run() -> None:
        counts = NodeCounts(stored=lambda: stored)
        with as_in_a_server(), held() as hold:
            assert await asyncio.create_task(total(counts)) == Figures(connections=30)
        assert hold.longest < LONG

    async def total(counts: NodeCounts) -> Figures | None:
        return counts.total(LISTENERS[:1])

    stored = {each.name: each for each in nodes}
    await run()
