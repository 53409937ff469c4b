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
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.queries.delegated_probing import known_of, probes_here
from fairlead.model.queries.probe_devices import coverless_subnets
from fairlead.model.queries.probes import endpoints, find_endpoint, sourceless_subnets, working_monitor
from fairlead.model.registry.facts import SIGHTINGS, derive, with_facts
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.probing import Probing
from harness.given import Given
from harness.ports import free_port
from harness.story import read_story
from harness.waiting import eventually_equal

WEB = Owner(Kind.LOAD_BALANCER, "web")
MONITOR = "web-tcp-80-monitor"


def snapshot() -> Snapshot:
    return read_story(Path(__file__).parent / "monitored.txt").states[0].snapshot()


def at(text: str) -> Endpoint:
    return Endpoint("", parse_address(text), 8080, Transport.TCP, "pool", MONITOR)


def test_each_host_probes_who_is_behind_it_and_nobody_else_does():
    known = snapshot()
    found = set(endpoints(known, known.load_balancers["web"]))
    assert found == {at(each) for each in ("10.1.0.11", "10.2.0.11", "fd00:1::11", "fd00:2::11")}
    for name, own in (("h1", {"10.1.0.11", "fd00:1::11"}), ("h2", {"10.2.0.11", "fd00:2::11"})):
        for view in (known, slice_of(known, name)):
            assert {each for each in found if probes_here(view, name, each)} == {at(each) for each in own}


def test_a_member_of_which_nobody_has_said_anything_serves_and_one_that_is_seen_down_does_not():
    known = snapshot()
    assert known_of(known, at("10.1.0.11")) is Health.UNPROBED
    seen = Sighting(health=Health.ERROR, chassis="h1", since=datetime.now(UTC))
    told = derive(with_facts(known, SIGHTINGS, {at("10.1.0.11"): seen}), [WEB])
    assert told.down["web"] == frozenset({"web-a"})


def test_behind_no_host_or_another_projects_a_member_is_nowhere():
    known = snapshot()
    balancer = known.load_balancers["web"]
    [pool] = balancer.pools
    monitor = working_monitor(balancer, pool)
    assert monitor is not None
    away = replace(pool.members[0], address=parse_address("10.9.0.1"))
    assert find_endpoint(known, balancer, monitor, away, 8080) is Health.GONE
    host = replace(known.hosts["h1"], prefixes=tuple(replace(p, project_id="city") for p in known.hosts["h1"].prefixes))
    theirs = replace(known, hosts=known.hosts.set("h1", host))
    assert find_endpoint(theirs, balancer, monitor, pool.members[0], 8080) is Health.GONE


def test_without_agents_nobody_asks_them():
    known = replace(snapshot(), agents_probe=False)
    assert not list(endpoints(known, known.load_balancers["web"]))


def test_an_announced_network_gives_no_address_to_probe_from():
    known = snapshot()
    balancer = known.load_balancers["web"]
    assert not sourceless_subnets(known, balancer)
    assert not coverless_subnets(known, balancer)


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
        self.seen: dict[Endpoint, Sighting] = {}

    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None:
        self.seen |= {endpoint: each for endpoint, each in news.items() if each is not None}

    def probes_only(self, endpoints: object) -> None: ...

    def doubt(self) -> None: ...


@pytest.mark.thorough
async def test_a_host_asks_members_as_it_reaches_them_without_a_device(tmp_path: Path):
    await _ask(tmp_path)


async def _ask(folder: Path) -> None:
    ports, told = {4: free_port(), 6: free_port()}, Told()
    story = folder / "loopback.txt"
    story.write_text(LOOPBACK.format(ports[4], ports[6]))
    [state] = read_story(story, (NATIVE,)).states
    given = Given("h1", folder / "slice", state.snapshot())
    given.heard.set()
    probing = Probing(given, told)
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
