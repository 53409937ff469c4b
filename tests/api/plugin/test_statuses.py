"""Plug-in API: statuses of all objects given to it, and those that may have changed since the last report."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.api import plugin
from fairlead.api.plugin.feed import MAX_IDS_PER_RESPONSE, MAX_LONG_POLLS, StatusFeed
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.unmanaged_probe_ports import PROBE_DEVICE_PREFIX
from fairlead.model.registry.facts import HEALTH, UNMANAGED
from fairlead.model.registry.kinds import owner_of
from harness.api import InProcessServer, play
from harness.front_ends.plugin_world import (
    LB,
    LISTENER,
    MONITOR,
    ONE,
    OTHER,
    POOL,
    WHOLE,
    machine,
    neutron_document,
    play_plugin,
    vip_port,
)
from harness.octavia import NET, network


def owner(name: object) -> Owner:
    return Owner(Kind.LOAD_BALANCER, str(name))


def test_status_response_covers_every_part_with_octavia_statuses(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        told = (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]
        assert (told["id"], told["provisioning_status"], told["operating_status"]) == (LB, "ACTIVE", "ONLINE")
        stands = {
            each["id"]: (each["provisioning_status"], each["operating_status"])
            for kind in ("listeners", "pools", "members", "healthmonitors")
            for each in told[kind]
        }
        assert stands == {
            LISTENER: ("ACTIVE", "ONLINE"),
            POOL: ("ACTIVE", "ONLINE"),
            MONITOR: ("ACTIVE", "ONLINE"),
            ONE: ("ACTIVE", "OFFLINE"),  # not yet probed
        }
        assert (await place.call("GET", f"/statuses/{OTHER}")).status_code == 404

    play_plugin(tmp_path, story)


def test_statuses_are_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.api.plugin.statuses.MAX_PER_PAGE", 1)

    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        given = {**WHOLE, "id": OTHER, "vip_port_id": None, "vip_address": None, "listeners": [], "pools": []}
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": given})
        first = await place.call_ok("GET", "/statuses")
        assert ([each["id"] for each in first["loadbalancers"]], first["next"]) == ([LB], LB)
        second = await place.call_ok("GET", f"/statuses?after={LB}")
        assert ([each["id"] for each in second["loadbalancers"]], second["next"]) == ([OTHER], None)

    play_plugin(tmp_path, story)


def test_change_is_reported_when_written_and_when_applied(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        cursor = (await place.call_ok("GET", "/news"))["cursor"]
        assert (await place.call_ok("GET", f"/news?since={cursor}")) == {
            "cursor": cursor,
            "changed": [],
            "whole": False,
        }
        waiting = asyncio.create_task(place.call("GET", f"/news?since={cursor}&wait=10"))
        await asyncio.sleep(0)
        await place.call("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        written = (await waiting).json()
        assert (written["changed"], written["whole"]) == ([LB], False)
        await place.reconcile()
        applied = await place.call_ok("GET", f"/news?since={written['cursor']}")
        assert applied["changed"] == [LB]
        quiet = await place.call_ok("GET", f"/news?since={applied['cursor']}")
        assert quiet["changed"] == []
        for strange in ("other:1", "", applied["cursor"] + "0" * 30, f"{cursor.rpartition(':')[0]}:99"):
            assert (await place.call_ok("GET", f"/news?since={strange}"))["whole"] is True

    play_plugin(tmp_path, story)


def test_statistics_are_returned_per_listener(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert (await place.call_ok("GET", f"/statistics?id={LB}"))["listeners"] == []
        counted = TrafficCounters(connections=3, bytes_in=100, active=1)
        for _ in place.node_counts.reporting("node", {LISTENER: counted}, 60, lambda _: 3600):
            pass
        (told,) = (await place.call_ok("GET", f"/statistics?id={LB}&id={OTHER}&id={LB}"))["listeners"]
        assert (told["id"], told["total_connections"], told["bytes_in"], told["active_connections"]) == (
            LISTENER,
            3,
            100,
            1,
        )

    play_plugin(tmp_path, story)


async def test_outdated_cursor_requires_a_full_status_resync():
    feed = StatusFeed("f", known=3)
    start = (await feed.changes_after("", 0)).cursor
    feed.record(map(owner, "abc"))
    told = await feed.changes_after(start, 0)
    assert (told.ids, told.is_resync_needed) == (("a", "b", "c"), False)
    feed.record([owner("a"), Owner(Kind.NETWORK, "n")])
    assert (await feed.changes_after(told.cursor, 0)).ids == ("a",)
    assert (await feed.changes_after(start, 0)).ids == ("b", "c", "a")
    feed.record([owner("d")])
    assert (await feed.changes_after(start, 0)).is_resync_needed
    assert (await feed.changes_after(told.cursor, 0)).ids == ("a", "d")


async def test_changes_above_the_response_limit_come_in_the_next_response():
    feed = StatusFeed("f")
    start = (await feed.changes_after("", 0)).cursor
    feed.record(map(owner, range(MAX_IDS_PER_RESPONSE + 1)))
    first = await feed.changes_after(start, 0)
    second = await feed.changes_after(first.cursor, 0)
    assert [len(first.ids), first.ids[0], second.ids] == [MAX_IDS_PER_RESPONSE, "0", (str(MAX_IDS_PER_RESPONSE),)]


async def test_number_of_waiting_status_polls_is_limited():
    feed = StatusFeed("f")
    start = (await feed.changes_after("", 0)).cursor
    waiting = [asyncio.create_task(feed.changes_after(start, 30)) for _ in range(MAX_LONG_POLLS)]
    await asyncio.sleep(0)
    assert (await feed.changes_after(start, 30)).ids == ()
    feed.record([owner("a")])
    assert {(await each).ids for each in waiting} == {("a",)}
    assert (await feed.changes_after((await waiting[0]).cursor, 0)).ids == ()


def test_member_health_change_is_reported_without_row_changes(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        await place.reconcile()
        endpoint = Endpoint(machine(11).id, parse_address("10.0.0.11"), 8080, Transport.TCP)
        for health in (Health.ONLINE, Health.ERROR, Health.ONLINE):
            cursor = (await place.call_ok("GET", "/news"))["cursor"]
            for _ in place.model.observe(HEALTH, {endpoint: health}):
                pass
            assert (await place.call_ok("GET", f"/news?since={cursor}"))["changed"] == [LB]
            told = (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]
            assert [each["operating_status"] for each in told["members"]] == [health.name]

    play_plugin(tmp_path, story)


def test_load_balancer_lists_networks_that_need_a_probe_port(tmp_path: Path):
    four = machine(2).fixed_ips[0]
    probes = replace(
        machine(2), project_id="demo", device_owner=PortUse.PROBE.value, device_id=f"{PROBE_DEVICE_PREFIX}{NET}"
    )
    probes = replace(probes, id="0", fixed_ips=(replace(four, address=parse_address("10.0.0.2")),))

    async def story(place: InProcessServer) -> None:
        def see(*documents: Network | Port) -> None:
            for _ in place.model.observe(UNMANAGED, {owner_of(each): neutron_document(each) for each in documents}):
                pass

        async def told() -> object:
            return (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]["probed_networks"]

        see(network(), vip_port(), machine(11))
        assert (await place.call_ok("GET", f"/probed-networks/{NET}")) == {"network": {"is_probed": False, "cidrs": []}}
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert await told() == [{"id": NET, "cidrs": ["10.0.0.0/24"], "is_ready": False}]
        needed = {"network": {"is_probed": True, "cidrs": ["10.0.0.0/24"]}}
        assert await place.call_ok("GET", f"/probed-networks/{NET}") == needed
        cursor = (await place.call_ok("GET", "/news"))["cursor"]
        see(probes)
        assert (await place.call_ok("GET", f"/news?since={cursor}"))["changed"] == [LB], (
            "who has waited for it hears of it"
        )
        assert await told() == [{"id": NET, "cidrs": ["10.0.0.0/24"], "is_ready": True}]
        assert (await place.call("DELETE", f"/healthmonitors/{MONITOR}")).status_code == 204
        assert await told() == []
        assert (await place.call_ok("GET", f"/probed-networks/{NET}")) == {"network": {"is_probed": False, "cidrs": []}}

    play(plugin.make_front_end, tmp_path, story, "/plugin")
