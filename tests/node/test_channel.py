"""An agent at the channel of real servers: it receives its slice, works without them, and reconnects."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from immutables import Map

from fairlead.api.agents.liveness import FIRST_REPORT_TIMEOUT
from fairlead.drivers.interface import Unreachable
from fairlead.http.server_client import ServerError
from fairlead.model.documents.health import Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.probes import endpoints
from fairlead.model.registry.facts import AGENTS_PROBE, CHASSIS, PLUGGED, PROBE_RESULTS
from fairlead.model.registry.slices import slice_of
from fairlead.node import reports as reports_module
from fairlead.node.channel import HEARTBEAT_TIMEOUT, NodeSlice, SliceReceiver
from fairlead.node.connection import Connection, Remote
from fairlead.node.reports import Reports
from harness.agents import AgentServer, running, serving
from harness.api import NOON
from harness.probe_results import AGENT, DOCUMENTS, DOWN, ONE, TWO, UP, WEB
from harness.probes import FIRST, SECOND
from harness.waiting import eventually

pytestmark = pytest.mark.virtual_clock


async def furnish(server: AgentServer) -> None:
    await server.put(*DOCUMENTS)
    server.observe(CHASSIS, {"one": ONE, "two": TWO})
    server.observe(PLUGGED, {"vm1": "one", "vm2": "two"})


def remote(*servers: AgentServer) -> Callable[[], list[Remote]]:
    return lambda: [Remote(url=server.url) for server in servers]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[AgentServer]:
    async with serving(tmp_path / "server") as server:
        await furnish(server)
        yield server


def same(slice_: NodeSlice, server: AgentServer) -> bool:
    wanted = slice_of(server.model.snapshot, slice_.name)
    return slice_.snapshot.generations == wanted.generations and slice_.snapshot.down == wanted.down


async def test_agent_receives_its_slice_and_later_changes(server: AgentServer, tmp_path: Path):
    slice_, concerned = NodeSlice("one", tmp_path / "slice"), []
    slice_.subscribe(concerned.append)
    async with running(SliceReceiver(slice_, remote(server)).run):
        await eventually(lambda: same(slice_, server))
        assert Owner(Kind.LOAD_BALANCER, "web") in concerned[0]
        concerned.clear()
        await server.put(replace(WEB, name="other"))
        await eventually(lambda: slice_.snapshot.load_balancers["web"].name == "other")
        assert concerned == [(Owner(Kind.LOAD_BALANCER, "web"),)]


async def test_reconnected_agent_receives_only_missed_changes(server: AgentServer, tmp_path: Path):
    slice_, lists = NodeSlice("one", tmp_path / "slice"), []
    whole = server.services.nodes.channel.full_slice
    server.services.nodes.channel.full_slice = lambda name: lists.append(name) or whole(name)  # type: ignore[method-assign]
    async with running(SliceReceiver(slice_, remote(server)).run):
        await eventually(lambda: same(slice_, server))
        await server.close_connections()
        await server.put(replace(WEB, name="meanwhile"))
        await eventually(lambda: same(slice_, server))
    assert lists == ["one"]
    async with running(SliceReceiver(NodeSlice("one", tmp_path / "slice"), remote(server)).run):
        await eventually(lambda: len(lists) == 2)  # without its file it requests the full slice


async def test_agent_without_a_server_uses_its_stored_slice(server: AgentServer, tmp_path: Path):
    slice_ = NodeSlice("one", tmp_path / "slice")
    async with running(SliceReceiver(slice_, remote(server)).run):
        await eventually(lambda: same(slice_, server))
    await slice_.write()
    await slice_.write()

    left = NodeSlice("one", tmp_path / "slice")
    assert left.ready.is_set()
    assert set(left.snapshot.load_balancers) == {"web", "api"}
    assert set(left.snapshot.chassis["one"].ports) == {"vm1"}
    assert (tmp_path / "slice").stat().st_mode & 0o777 == 0o600


def test_unreadable_slice_file_is_discarded(tmp_path: Path):
    (tmp_path / "slice").write_text('{"put": "loadbalancer/web", "document": {}}\nnonsense\n')
    left = NodeSlice("one", tmp_path / "slice")
    assert (left.cursor, left.ready.is_set(), dict(left.snapshot.load_balancers)) == ("", False, {})


async def test_agent_switches_to_another_server_when_its_server_stops(server: AgentServer, tmp_path: Path):
    async with serving(tmp_path / "other") as other:
        await furnish(other)
        await other.put(replace(WEB, name="of the other"))
        slice_ = NodeSlice("one", tmp_path / "slice")
        async with running(SliceReceiver(slice_, remote(server, other)).run):
            await eventually(lambda: same(slice_, server))
            server.acceptor.close()
            server.acceptor._listener.close()
            await server.close_connections()
            await eventually(lambda: same(slice_, other))
            assert slice_.snapshot.load_balancers["web"].name == "of the other"


async def test_server_accepts_probe_results_only_of_ports_on_the_agents_node(server: AgentServer, tmp_path: Path):
    reports = Reports(lambda: AGENT, remote(server), 1)
    reports.observe({FIRST: DOWN, SECOND: DOWN})
    async with running(reports.run):
        await eventually(lambda: FIRST in server.model.snapshot.sightings)
        seen = server.model.snapshot
        assert dict(seen.sightings) == {FIRST: replace(DOWN, chassis="one")}  # the second is on another chassis
        assert dict(seen.down) == {"web": {"web-a"}, "api": {"api-c"}}
        assert seen.agents["one"] == replace(AGENT, has_full_report=True)
        reports.observe({FIRST: UP})
        await eventually(lambda: not server.model.snapshot.down)
        reports.observe({FIRST: None})
        await eventually(lambda: not server.model.snapshot.sightings)


async def test_restarted_server_receives_all_probe_results(server: AgentServer, tmp_path: Path):
    reports = Reports(lambda: AGENT, remote(server), 1)
    reports.observe({FIRST: DOWN})
    async with running(reports.run):
        await eventually(lambda: FIRST in server.model.snapshot.sightings)
        await server.services.nodes.agents.forget("one")
        assert not server.model.snapshot.sightings
        server.services.nodes.channel.epoch = "another"
        await eventually(lambda: FIRST in server.model.snapshot.sightings)


async def test_apply_failure_is_reported_and_cleared(server: AgentServer, tmp_path: Path):
    reports = Reports(lambda: AGENT, remote(server), 1)
    owner = Owner(Kind.LOAD_BALANCER, "web")
    async with running(reports.run):
        reports.set_apply_error("haproxy", owner, "no such file")
        await eventually(lambda: bool(getattr(server.model.snapshot.agents.get("one"), "apply_failures", ())))
        (told,) = server.model.snapshot.agents["one"].apply_failures
        assert (told.dataplane, told.owner, told.error) == ("haproxy", "loadbalancer/web", "no such file")
        reports.set_apply_error("haproxy", owner, None)
        await eventually(lambda: not server.model.snapshot.agents["one"].apply_failures)


async def test_probe_result_is_resent_after_its_port_is_bound_to_the_node(server: AgentServer, tmp_path: Path):
    quick = replace(AGENT, heartbeat=0.2)
    reports = Reports(lambda: quick, remote(server), 1)
    reports.observe({SECOND: DOWN})
    async with running(reports.run):
        await eventually(lambda: "one" in server.model.snapshot.agents)
        assert not server.model.snapshot.sightings
        server.observe(CHASSIS, {"one": replace(ONE, ports=Map({"vm1": True, "vm2": True})), "two": None})
        await eventually(lambda: SECOND in server.model.snapshot.sightings)


async def test_unresponsive_agent_is_replaced_by_delegated_probing(server: AgentServer, tmp_path: Path):
    one, two = (replace(AGENT, name=name, heartbeat=0.2) for name in ("one", "two"))
    slice_ = NodeSlice("two", tmp_path / "slice")
    first, second = (Reports(lambda who=who: who, remote(server), 1) for who in (one, two))
    first.observe({FIRST: UP})
    async with running(second.run, SliceReceiver(slice_, remote(server)).run):
        async with running(first.run):
            await eventually(lambda: len(server.model.snapshot.agents) == 2 and same(slice_, server))
        await eventually(lambda: not server.model.snapshot.agents["one"].is_responsive)
        assert not server.model.snapshot.down  # the last probe result remains valid
        await eventually(lambda: slice_.snapshot.covered.get("vm1") == "two")
        second.observe({FIRST: DOWN})
        await eventually(lambda: "web" in server.model.snapshot.down)
        async with running(first.run):
            await eventually(lambda: server.model.snapshot.agents["one"].is_responsive)
            first.observe({FIRST: UP})
            await eventually(lambda: not server.model.snapshot.down and not slice_.snapshot.covered)


async def test_request_succeeds_after_the_kept_connection_was_closed(server: AgentServer, tmp_path: Path):
    connection = Connection(Remote(url=server.url), 5.0)
    assert "doors" in await connection.request("GET", "/")
    await server.close_connections()
    assert "doors" in await connection.request("GET", "/")
    with pytest.raises(ServerError, match="status 404") as error:
        await connection.request("GET", "/nothing")
    assert error.value.status == 404
    connection.close()


async def test_agent_disconnects_from_a_server_that_sends_nothing(tmp_path: Path):
    over = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        writer.close()
        over.set()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(ServerError, match=f"timed out after {HEARTBEAT_TIMEOUT:g} s"):
        await SliceReceiver(NodeSlice("one", tmp_path / "slice"), list).receive(Remote(url=url))
    assert loop.time() - began == pytest.approx(HEARTBEAT_TIMEOUT)
    await over.wait()
    silent.close()
    await silent.wait_closed()


async def test_starting_server_sends_no_slice_before_reading_the_node_state(server: AgentServer, tmp_path: Path):
    """An agent with an empty slice would forget its probe results, and members that are down would get traffic."""
    known: list[bool] = []

    def check_told() -> None:
        if not known:
            raise Unreachable("it has not been read yet")

    slice_ = NodeSlice("one", tmp_path / "slice")
    async with running(SliceReceiver(slice_, remote(server)).run):
        await eventually(lambda: same(slice_, server))
    assert "vm1" in slice_.snapshot.chassis["one"].ports
    told = server.model.snapshot
    async with serving(tmp_path / "again", check_synced=check_told) as later:
        await later.put(*DOCUMENTS)
        with pytest.raises(ServerError, match="has not been read yet"):
            await SliceReceiver(slice_, remote(later)).receive(remote(later)()[0])
        assert slice_.snapshot.chassis == Map({"one": ONE})
        assert slice_.snapshot.load_balancers == told.load_balancers
        later.observe(CHASSIS, {"one": ONE, "two": TWO})
        known.append(True)
        await later.put(replace(WEB, name="new"))
        async with running(SliceReceiver(slice_, remote(later)).run):
            await eventually(lambda: slice_.snapshot.load_balancers["web"].name == "new")
        assert "vm1" in slice_.snapshot.chassis["one"].ports


async def test_suspended_agent_reports_its_stale_results_to_a_restarted_server(server: AgentServer, tmp_path: Path):
    """The server stops waiting after the first reports, and then members that are down would get traffic."""

    reports = Reports(lambda: AGENT, remote(server), 1)
    reports.observe({FIRST: DOWN})
    reports.mark_stale()
    async with running(reports.run):
        await eventually(lambda: FIRST in server.model.snapshot.sightings)
        assert server.model.snapshot.down["web"] == {"web-a"}
        server.observe(PROBE_RESULTS, {FIRST: replace(UP, chassis="two", since=NOON + timedelta(minutes=1))})
        server.services.nodes.channel.epoch = "another"
        reports.set_apply_error("haproxy", Owner(Kind.LOAD_BALANCER, "web"), "something to tell")
        await eventually(lambda: bool(server.model.snapshot.agents["one"].apply_failures))
        assert not server.model.snapshot.down  # probed again since
        reports.observe({FIRST: replace(DOWN, since=datetime.now(UTC))})
        await eventually(lambda: "web" in server.model.snapshot.down)


async def test_unprobed_endpoint_keeps_its_last_health(server: AgentServer, tmp_path: Path):
    reports = Reports(lambda: AGENT, remote(server), 1)
    reports.observe({FIRST: DOWN})
    reports.observe({FIRST: replace(UP, health=Health.UNPROBED, error="its device is new")})
    async with running(reports.run):
        await eventually(lambda: FIRST in server.model.snapshot.sightings)
        seen = server.model.snapshot.sightings[FIRST]
        assert (seen.health, seen.since, seen.error) == (Health.ERROR, NOON, "its device is new")


async def test_starting_server_marks_an_agent_complete_after_its_full_report(
    server: AgentServer, monkeypatch: pytest.MonkeyPatch
):
    """A server has the full state of an agent only after all parts of a full report.

    The first report may only have the changes since the previous server, and a full report may need several messages.
    """
    monkeypatch.setattr(reports_module, "MAX_PROBE_RESULTS", 1)
    server.observe(CHASSIS, {"one": replace(ONE, ports=Map({"vm1": True, "vm2": True})), "two": None})
    connection, reports = Connection(remote(server)()[0], 5.0), Reports(lambda: AGENT, remote(server), 1)
    reports.observe({FIRST: DOWN, SECOND: DOWN})
    found: list[tuple[int, bool]] = []

    async def tell() -> bool:
        more = await reports.send_report(connection, reports._servers[0])
        found.append((len(server.model.snapshot.sightings), server.model.snapshot.agents["one"].has_full_report))
        return more

    reports._servers[0].is_full, reports._servers[0].epoch = False, "of before"
    reports._servers[0].pending.clear()
    while await tell():
        pass
    assert found == [(0, False), (1, False), (2, True)]
    connection.close()


async def test_probe_results_of_an_unbound_port_are_kept_while_members_are_monitored(
    server: AgentServer, tmp_path: Path
):
    """OVN may briefly unbind a port; a machine that is stopped serves no traffic."""

    server.observe(AGENTS_PROBE, True)
    probed = [
        each
        for each in endpoints(server.model.snapshot, server.model.snapshot.load_balancers["web"])
        if each.port_id == "vm1"
    ]
    quick = replace(AGENT, heartbeat=0.2)
    reports = Reports(lambda: quick, remote(server), 1)
    reports.observe(dict.fromkeys(probed, DOWN))
    async with running(reports.run):
        await eventually(lambda: len(server.model.snapshot.sightings) == len(probed))
        server.observe(CHASSIS, {"one": replace(ONE, ports=Map())})
        reports.observe(dict.fromkeys(probed))
        await eventually(lambda: not server.services.nodes.agents.reported_endpoints("one"))
        assert server.model.snapshot.down["web"] == {"web-a", "web-six"}
        server.observe(CHASSIS, {"one": ONE})
        reports.observe({probed[0]: UP})
        await eventually(lambda: server.model.snapshot.down["web"] == {"web-six"})
        reports.observe({probed[0]: None})
        await server.put(deletes=(Owner(Kind.LOAD_BALANCER, "web"),))
        await eventually(lambda: not server.model.snapshot.sightings)


@pytest.mark.parametrize("knows", ["nothing yet", "what it saw meanwhile", "what it saw in another life"])
async def test_delegated_probe_result_holds_until_the_node_has_a_newer_result(
    server: AgentServer, tmp_path: Path, knows: str
):
    server.observe(AGENTS_PROBE, True)
    web = server.model.snapshot.load_balancers["web"]
    probed = next(each for each in endpoints(server.model.snapshot, web) if each.port_id == "vm1")
    one, two = (replace(AGENT, name=name, heartbeat=0.2) for name in ("one", "two"))
    slice_ = NodeSlice("two", tmp_path / "slice")
    first, second = (Reports(lambda who=who: who, remote(server), 1) for who in (one, two))
    if knows == "what it saw in another life":
        again = replace(one, since=NOON + timedelta(hours=2))
        first = Reports(lambda: again, remote(server), 1)
    first.observe({probed: UP})
    async with running(second.run, SliceReceiver(slice_, remote(server)).run):
        async with running(first.run):
            await eventually(lambda: probed in server.model.snapshot.sightings)
        await eventually(lambda: slice_.snapshot.covered.get("vm1") == "two")
        assert dict(server.model.snapshot.covering) == {probed.network_id: "two"}
        second.observe({probed: replace(UP, health=Health.UNPROBED, error="not yet")})
        await eventually(lambda: server.model.snapshot.sightings[probed].error == "not yet")
        assert server.model.snapshot.sightings[probed].health is Health.ONLINE
        second.observe({probed: replace(DOWN, since=NOON + timedelta(hours=1))})
        await eventually(lambda: "web" in server.model.snapshot.down)
        if knows == "nothing yet":
            first.mark_stale()
        async with running(first.run):
            await eventually(lambda: not slice_.snapshot.covered)
            assert not server.model.snapshot.covering
            second.observe({probed: None})
            if knows != "what it saw meanwhile":
                await eventually(lambda: server.model.snapshot.sightings[probed].chassis == "one")
                assert "web" in server.model.snapshot.down
                first.observe({probed: replace(UP, since=NOON + timedelta(hours=3))})
            await eventually(lambda: not server.model.snapshot.down)
            await server.put(replace(web, pools=()))
            first.observe({probed: None})
            await eventually(lambda: probed not in server.model.snapshot.sightings)


async def test_delegated_probing_of_agentless_nodes_starts_after_a_grace_period(server: AgentServer, tmp_path: Path):
    server.observe(AGENTS_PROBE, True)
    slice_ = NodeSlice("two", tmp_path / "slice")
    second = Reports(lambda: replace(AGENT, name="two", heartbeat=0.2), remote(server), 1)
    async with running(second.run, SliceReceiver(slice_, remote(server)).run):
        await eventually(lambda: "two" in server.model.snapshot.agents and same(slice_, server))
        await asyncio.sleep(FIRST_REPORT_TIMEOUT - asyncio.get_running_loop().time() - 1.0)
        assert not server.model.snapshot.covered
        await eventually(lambda: slice_.snapshot.covered.get("vm1") == "two")
