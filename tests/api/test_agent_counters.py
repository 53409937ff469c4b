"""What agents count of their own work: reported, kept while they are heard, and shown in the metrics of the server."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.agent_protocol.messages import MAX_COUNTER, MAX_UNKNOWN_ATTRIBUTES
from fairlead.agent_protocol.reports import REPORT, AgentReport, read_report, render_report
from fairlead.api.agents.liveness import NodeAgents
from fairlead.api.agents.metrics import render_agent_counters
from fairlead.api.app import make_app
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.api.http.front_end import Services
from fairlead.api.octavia import make_front_end
from fairlead.drivers.haproxy import HAProxy, HostNamespace
from fairlead.model.documents.agent import MAX_MISSED_HEARTBEATS, Agent
from fairlead.model.documents.agent_counters import (
    AGENT_COUNTERS,
    DISCARDED_STARVED,
    FLUSHED_MEMBERS,
    OWNERS_LEFT_OUT,
    STARVED,
    Counts,
)
from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node import prober
from fairlead.node.conntrack_flush import ConntrackFlusher
from fairlead.node.host_conntrack_flush import HostConntrackFlusher
from fairlead.node.prober_thread import ProberThread
from fairlead.node.reports import Reports
from fairlead.reconciler.dataplanes import DataplaneState
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON, dataplanes_with, in_process_server
from harness.in_memory_slice import InMemorySlice
from harness.step_counter import step

NO_SWITCH: Any = None
NO_DRIVER: Any = None
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


async def nobody(_: object) -> Any:
    return None


def nothing(dataplane: str, owner: Owner, error: str | None) -> None:
    """Is not called."""


def report(counted: Counts, name: str = "one") -> AgentReport:
    agent = Agent(name=name, since=SINCE, heartbeat=5.0)
    return AgentReport(agent=agent, probe_results={}, is_complete=True, counted=counted)


def body_of(counted: Counts) -> dict[str, Any]:
    return dict(render_report(report(counted))[2])


def heard(body: Mapping[str, object]) -> Counts:
    return read_report("one", REPORT(body)).counted


@pytest.mark.parametrize("counted", [{}, {FLUSHED_MEMBERS: 3}, dict.fromkeys(AGENT_COUNTERS, 7)], ids=len)
def test_agent_counters_survive_a_report_round_trip(counted: Counts):
    assert heard(body_of(counted)) == counted


async def test_agent_report_collects_the_counters_of_all_components(tmp_path: Path):
    """Each counter is one part's."""
    flushing, host = (
        ConntrackFlusher(InMemorySlice(Snapshot()), NO_SWITCH, nobody, nothing),
        HostConntrackFlusher(InMemorySlice(Snapshot()), NO_DRIVER),
    )
    proxies = HAProxy(tmp_path, HostNamespace(), lambda *_: None)
    thread = ProberThread("one", None, lambda _: None)
    await thread.start()
    try:
        reports = Reports(lambda: report({}).agent, tuple, 0)
        reports.add_counters(flushing.counts, proxies.counts, thread.counts)
        assert reports._build_report({}, whole=True).counted == dict.fromkeys(AGENT_COUNTERS, 0)
        flushing._flushed[FLUSHED_MEMBERS] += 2
        thread._prober.discarded[prober.STARVED_REASON] += 1
        counted = reports._build_report({}, whole=False).counted
        assert (counted[FLUSHED_MEMBERS], counted[DISCARDED_STARVED]) == (2, 1)
        assert host.counts().keys() < counted.keys()
    finally:
        thread.stop()
        await proxies.close()


def test_counters_of_older_and_newer_agents_are_accepted():
    """One of before says nothing of it, and what one of tomorrow counts is left out."""
    assert "counted" not in body_of({})
    body = body_of({STARVED: 1})
    body["counted"]["of-tomorrow"] = 4
    assert heard(body) == {STARVED: 1}
    assert heard(body_of({STARVED: 2 * MAX_COUNTER})) == {STARVED: MAX_COUNTER}
    assert len({each.name for each in AGENT_COUNTERS}) == len(AGENT_COUNTERS)


@pytest.mark.parametrize(
    "counted",
    [
        {"starved": -1},
        {"starved": "often"},
        {"starved": 2**63},
        dict.fromkeys(map(str, range(MAX_UNKNOWN_ATTRIBUTES + 8)), 1),
        [],
        1,
    ],
    ids=["negative", "text", "too large", "too many", "list", "number"],
)
def test_invalid_agent_counters_are_rejected(counted: object):
    with pytest.raises(ValueError, match=r"Value should|unknown attributes|counted"):
        REPORT({**body_of({}), "counted": counted})


def test_metric_families_have_one_type_line_and_quoted_labels():
    text = run_to_completion(
        render_agent_counters(
            {'a"\n': {FLUSHED_MEMBERS: 3, STARVED: 1}, "b": {DISCARDED_STARVED: 2, OWNERS_LEFT_OUT: 0}, "old": {}}
        )
    )
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples == [
        'fairlead_agent_conntrack_flushes_total{node="a\\"\\n",reason="member"} 3',
        'fairlead_agent_haproxy_owners_left_out{node="b"} 0',
        'fairlead_agent_probes_discarded_total{node="b",reason="starved"} 2',
        'fairlead_agent_starved{node="a\\"\\n"} 1',
    ]
    typed = [line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")]
    assert [kind for name, kind in typed] == ["counter" if name.endswith("_total") else "gauge" for name, _ in typed]
    assert len({name for name, _ in typed}) == len(typed)


def test_counters_of_a_thousand_nodes_are_rendered_in_short_steps():
    counted = {f"node{number}": dict.fromkeys(AGENT_COUNTERS, number) for number in range(1000)}
    steps, longest, before = render_agent_counters(counted), 0, step()
    for _ in steps:
        longest, before = max(longest, step() - before), step()
    assert longest < 2_000


async def test_counters_of_an_unresponsive_agent_are_dropped(tmp_path: Path):
    now = 0.0
    async with in_process_server(make_front_end, tmp_path, "") as place:
        agents = NodeAgents(place.model, lambda _: (), lambda: now)
        await agents.take_report(report({STARVED: 1}))
        assert agents.counted() == {"one": {STARVED: 1}}
        await agents.take_report(report({STARVED: 0}))
        assert agents.counted() == {"one": {STARVED: 0}}
        assert agents.counted_by("two") == {}
        now += 5.0 * MAX_MISSED_HEARTBEATS + 1
        await agents.find_stale()
        assert agents.counted() == {}


async def test_agent_counters_appear_in_metrics_and_operator_api(tmp_path: Path):
    async with in_process_server(make_front_end, tmp_path, "") as place:
        services = Services(
            model=place.model,
            applied=place.reconciler.applied,
            now=lambda: NOON,
            new_id=lambda: "1",
            mtu=1442,
            external_mtu=1500,
            resync_owner=place.reconciler.read_again,
            wait_for_outcome=place.wait_applied,
        )
        app = make_app(
            services,
            dataplanes_with(place.reconciler, DataplaneState(connected=True, is_leader=True)),
            authenticate_as_admin,
        )
        await services.nodes.agents.take_report(report({STARVED: 1, DISCARDED_STARVED: 12}))
        await services.nodes.agents.take_report(report({}, "of-before"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app.all), base_url="http://door") as client:
            text = (await client.get("/metrics")).text
            rows = (await client.get("/operator/chassis")).json()["chassis"]
    assert 'fairlead_agent_probes_discarded_total{node="one",reason="starved"} 12\n' in text
    assert 'fairlead_agent_starved{node="one"} 1\n' in text
    assert "of-before" not in text
    assert {row["name"]: row["agent"]["starved"] for row in rows} == {"one": True, "of-before": False}
