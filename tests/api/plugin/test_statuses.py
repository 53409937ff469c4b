"""Plug-in API: statuses of all objects given to it, and those that may have changed since the last report."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.api import plugin
from fairlead.api.plugin.feed import MOST_TOLD, MOST_WAITING, StatusFeed
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.unmanaged_probe_ports import DEVICE
from fairlead.model.registry.facts import FOREIGN, HEALTH
from fairlead.model.registry.kinds import owner_of
from harness.api import Inside, play
from harness.front_ends.plugin_world import (
    LB,
    LISTENER,
    MONITOR,
    ONE,
    OTHER,
    POOL,
    WHOLE,
    machine,
    neutrons,
    play_plugin,
    vip_port,
)
from harness.octavia import NET, network


def owner(name: object) -> Owner:
    return Owner(Kind.LOAD_BALANCER, str(name))


def test_every_part_stands_as_octavias_door_would_say(tmp_path: Path):
    async def story(place: Inside) -> None:
        await place.good("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        told = (await place.good("GET", f"/statuses/{LB}"))["loadbalancer"]
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


def test_all_are_listed_page_by_page_and_those_of_other_doors_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.api.plugin.statuses.MOST_SHOWN", 1)

    async def story(place: Inside) -> None:
        await place.good("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        given = {**WHOLE, "id": OTHER, "vip_port_id": None, "vip_address": None, "listeners": [], "pools": []}
        await place.good("POST", "/loadbalancers", {"loadbalancer": given})
        first = await place.good("GET", "/statuses")
        assert ([each["id"] for each in first["loadbalancers"]], first["next"]) == ([LB], LB)
        second = await place.good("GET", f"/statuses?after={LB}")
        assert ([each["id"] for each in second["loadbalancers"]], second["next"]) == ([OTHER], None)

    play_plugin(tmp_path, story)


def test_news_comes_when_it_is_written_and_when_it_is_applied(tmp_path: Path):
    async def story(place: Inside) -> None:
        cursor = (await place.good("GET", "/news"))["cursor"]
        assert (await place.good("GET", f"/news?since={cursor}")) == {"cursor": cursor, "changed": [], "whole": False}
        waiting = asyncio.create_task(place.call("GET", f"/news?since={cursor}&wait=10"))
        await asyncio.sleep(0)
        await place.call("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        written = (await waiting).json()
        assert (written["changed"], written["whole"]) == ([LB], False)
        await place.rest()
        applied = await place.good("GET", f"/news?since={written['cursor']}")
        assert applied["changed"] == [LB]
        quiet = await place.good("GET", f"/news?since={applied['cursor']}")
        assert quiet["changed"] == []
        for strange in ("other:1", "", applied["cursor"] + "0" * 30, f"{cursor.rpartition(':')[0]}:99"):
            assert (await place.good("GET", f"/news?since={strange}"))["whole"] is True

    play_plugin(tmp_path, story)


def test_statistics_are_those_of_the_listeners(tmp_path: Path):
    async def story(place: Inside) -> None:
        await place.good("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert (await place.good("GET", f"/statistics?id={LB}"))["listeners"] == []
        counted = Figures(connections=3, bytes_in=100, active=1)
        for _ in place.node_counts.reporting("node", {LISTENER: counted}, 60, lambda _: 3600):
            pass
        (told,) = (await place.good("GET", f"/statistics?id={LB}&id={OTHER}&id={LB}"))["listeners"]
        assert (told["id"], told["total_connections"], told["bytes_in"], told["active_connections"]) == (
            LISTENER,
            3,
            100,
            1,
        )

    play_plugin(tmp_path, story)


async def test_a_feed_that_has_forgotten_says_that_all_is_to_be_looked_at():
    feed = StatusFeed("f", known=3)
    start = (await feed.since("", 0)).cursor
    feed.hear(map(owner, "abc"))
    told = await feed.since(start, 0)
    assert (told.ids, told.is_whole) == (("a", "b", "c"), False)
    feed.hear([owner("a"), Owner(Kind.NETWORK, "n")])
    assert (await feed.since(told.cursor, 0)).ids == ("a",)
    assert (await feed.since(start, 0)).ids == ("b", "c", "a")
    feed.hear([owner("d")])
    assert (await feed.since(start, 0)).is_whole
    assert (await feed.since(told.cursor, 0)).ids == ("a", "d")


async def test_what_does_not_fit_into_one_answer_is_in_the_next_one():
    feed = StatusFeed("f")
    start = (await feed.since("", 0)).cursor
    feed.hear(map(owner, range(MOST_TOLD + 1)))
    first = await feed.since(start, 0)
    second = await feed.since(first.cursor, 0)
    assert [len(first.ids), first.ids[0], second.ids] == [MOST_TOLD, "0", (str(MOST_TOLD),)]


async def test_so_many_may_wait_and_no_more():
    feed = StatusFeed("f")
    start = (await feed.since("", 0)).cursor
    waiting = [asyncio.create_task(feed.since(start, 30)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    assert (await feed.since(start, 30)).ids == ()
    feed.hear([owner("a")])
    assert {(await each).ids for each in waiting} == {("a",)}
    assert (await feed.since((await waiting[0]).cursor, 0)).ids == ()


def test_that_members_answer_is_news_though_no_row_changes(tmp_path: Path):
    async def story(place: Inside) -> None:
        await place.good("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        await place.rest()
        endpoint = Endpoint(machine(11).id, parse_address("10.0.0.11"), 8080, Transport.TCP)
        for health in (Health.ONLINE, Health.ERROR, Health.ONLINE):
            cursor = (await place.good("GET", "/news"))["cursor"]
            for _ in place.model.observe(HEALTH, {endpoint: health}):
                pass
            assert (await place.good("GET", f"/news?since={cursor}"))["changed"] == [LB]
            told = (await place.good("GET", f"/statuses/{LB}"))["loadbalancer"]
            assert [each["operating_status"] for each in told["members"]] == [health.name]

    play_plugin(tmp_path, story)


def test_where_members_need_a_port_of_others_to_be_probed_from(tmp_path: Path):
    four = machine(2).fixed_ips[0]
    probes = replace(machine(2), project_id="demo", device_owner=PortUse.PROBE.value, device_id=f"{DEVICE}{NET}")
    probes = replace(probes, id="0", fixed_ips=(replace(four, address=parse_address("10.0.0.2")),))

    async def story(place: Inside) -> None:
        def see(*documents: Network | Port) -> None:
            for _ in place.model.observe(FOREIGN, {owner_of(each): neutrons(each) for each in documents}):
                pass

        async def told() -> object:
            return (await place.good("GET", f"/statuses/{LB}"))["loadbalancer"]["probed_networks"]

        see(network(), vip_port(), machine(11))
        assert (await place.good("GET", f"/probed-networks/{NET}")) == {"network": {"is_probed": False, "cidrs": []}}
        await place.good("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert await told() == [{"id": NET, "cidrs": ["10.0.0.0/24"], "is_ready": False}]
        needed = {"network": {"is_probed": True, "cidrs": ["10.0.0.0/24"]}}
        assert await place.good("GET", f"/probed-networks/{NET}") == needed
        cursor = (await place.good("GET", "/news"))["cursor"]
        see(probes)
        assert (await place.good("GET", f"/news?since={cursor}"))["changed"] == [LB], (
            "who has waited for it hears of it"
        )
        assert await told() == [{"id": NET, "cidrs": ["10.0.0.0/24"], "is_ready": True}]
        assert (await place.call("DELETE", f"/healthmonitors/{MONITOR}")).status_code == 204
        assert await told() == []
        assert (await place.good("GET", f"/probed-networks/{NET}")) == {"network": {"is_probed": False, "cidrs": []}}

    play(plugin.make_door, tmp_path, story, "/plugin")
