"""Probers and health of members behind plain hosts, in the model of a story."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.delegated_probing import derive_endpoint_health, probes_here
from fairlead.model.queries.probe_devices import subnets_without_delegate_port
from fairlead.model.queries.probes import enabled_monitor, endpoints, find_endpoint, subnets_without_probe_source
from fairlead.model.registry.facts import PROBE_RESULTS, derive, with_facts
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.probing import ProbeReconciler
from harness.case import read_case
from harness.fixed_slice import FixedSlice
from harness.ports import free_port
from harness.waiting import eventually_equal

WEB = Owner(Kind.LOAD_BALANCER, "web")
MONITOR = "web-tcp-80-monitor"


def snapshot() -> Snapshot:
    return read_case(Path(__file__).parent / "monitored.txt").states[0].snapshot()


def at(text: str) -> Endpoint:
    return Endpoint("", parse_address(text), 8080, Transport.TCP, "pool", MONITOR)


def test_each_host_probes_only_members_in_its_prefixes():
    known = snapshot()
    found = set(endpoints(known, known.load_balancers["web"]))
    assert found == {at(each) for each in ("10.1.0.11", "10.2.0.11", "fd00:1::11", "fd00:2::11")}
    for name, own in (("h1", {"10.1.0.11", "fd00:1::11"}), ("h2", {"10.2.0.11", "fd00:2::11"})):
        for view in (known, slice_of(known, name)):
            assert {each for each in found if probes_here(view, name, each)} == {at(each) for each in own}


def test_unprobed_member_serves_and_a_member_with_a_failed_probe_is_down():
    known = snapshot()
    assert derive_endpoint_health(known, at("10.1.0.11")) is Health.UNPROBED
    seen = ProbeResult(health=Health.ERROR, chassis="h1", since=datetime.now(UTC))
    told = derive(with_facts(known, PROBE_RESULTS, {at("10.1.0.11"): seen}), [WEB])
    assert told.down["web"] == frozenset({"web-a"})


def test_member_outside_the_projects_host_prefixes_has_no_endpoint():
    known = snapshot()
    balancer = known.load_balancers["web"]
    [pool] = balancer.pools
    monitor = enabled_monitor(balancer, pool)
    assert monitor is not None
    away = replace(pool.members[0], address=parse_address("10.9.0.1"))
    assert find_endpoint(known, balancer, monitor, away, 8080) is Health.GONE
    host = replace(known.hosts["h1"], prefixes=tuple(replace(p, project_id="city") for p in known.hosts["h1"].prefixes))
    theirs = replace(known, hosts=known.hosts.set("h1", host))
    assert find_endpoint(theirs, balancer, monitor, pool.members[0], 8080) is Health.GONE


def test_no_member_is_probed_when_agents_do_not_probe():
    known = replace(snapshot(), agents_probe=False)
    assert not list(endpoints(known, known.load_balancers["web"]))


def test_announced_network_needs_no_probe_source_address():
    known = snapshot()
    balancer = known.load_balancers["web"]
    assert not subnets_without_probe_source(known, balancer)
    assert not subnets_without_delegate_port(known, balancer)


LOOPBACK = """# Both members are on this machine, and nobody listens at the second one.

-- one model --
network pool announced 203.0.113.0/24
host h1 1 10.20.0.21 127.0.0.0/8 ::1/128
web vip=203.0.113.5 on=pool provider=native tcp:80{{monitor=TCP+delay=1}}=a/127.0.0.1:{},c/[::1]:{}
plugged h1
agents probe
"""


class Told:
    def __init__(self) -> None:
        self.seen: dict[Endpoint, ProbeResult] = {}

    def observe(self, news: Mapping[Endpoint, ProbeResult | None]) -> None:
        self.seen |= {endpoint: each for endpoint, each in news.items() if each is not None}

    def retain_only(self, endpoints: object) -> None: ...

    def mark_stale(self) -> None: ...


@pytest.mark.thorough
async def test_host_probes_members_without_a_probe_device(tmp_path: Path):
    await _ask(tmp_path)


async def _ask(folder: Path) -> None:
    ports, told = {4: free_port(), 6: free_port()}, Told()
    story = folder / "loopback.txt"
    story.write_text(LOOPBACK.format(ports[4], ports[6]))
    [state] = read_case(story, (NATIVE,)).states
    given = FixedSlice("h1", folder / "slice", state.snapshot())
    given.synced.set()
    probing = ProbeReconciler(given, told)
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ports[4])
    running = asyncio.ensure_future(probing.run())
    try:
        async with listening:
            await eventually_equal(lambda: {each.health for each in told.seen.values()}, {Health.ONLINE, Health.ERROR})
        health = {str(endpoint.address): each.health for endpoint, each in told.seen.items()}
        assert health == {"127.0.0.1": Health.ONLINE, "::1": Health.ERROR}
    finally:
        running.cancel()
        await asyncio.wait([running])
