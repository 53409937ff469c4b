"""Idempotent updates by a service: Fairlead compares the complete load balancer and applies the differences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.model.documents.loadbalancer import DownMember, Locality
from fairlead.model.registry.changeset import Changes
from harness.api import InProcessServer
from harness.front_ends.plugin_world import (
    LB,
    LISTENER,
    MONITOR,
    ONE,
    OTHER,
    POOL,
    SECOND,
    TWO,
    WHOLE,
    call_error,
    play_plugin,
)

LISTENERS, POOLS = WHOLE["listeners"], WHOLE["pools"]
MEMBER, PROBE = POOLS[0]["members"][0], POOLS[0]["healthmonitor"]


def pool(**changes: Any) -> dict[str, Any]:
    return {**WHOLE, "pools": [{**POOLS[0], **changes}]}


async def compared(place: InProcessServer, whole: dict[str, Any]) -> tuple[list[Any], int]:
    before = place.model.snapshot.revision
    found = await place.call_ok("POST", f"/loadbalancers/{LB}/comparison", {"loadbalancer": whole})
    assert place.model.snapshot.revision == before, "who compares writes nothing"
    return found["differences"], found["revision"]


def differ(kind: str, part: str, **attributes: tuple[Any, Any]) -> dict[str, Any]:
    shown = {name: {"said": said, "stored": stored} for name, (said, stored) in attributes.items()}
    return {"kind": kind, "id": part, "missing": False, "attributes": shown}


def test_identical_load_balancer_is_not_written(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        await place.call_ok("PUT", f"/pools/{POOL}", {"pool": {"locality": "CHASSIS", "tags": ["ours"]}})
        cidrs = ["10.1.0.0/16", "10.0.0.0/16"]
        await place.call_ok("PUT", f"/listeners/{LISTENER}", {"listener": {"allowed_cidrs": cidrs}})
        whole = {**WHOLE, "listeners": [{**LISTENERS[0], "allowed_cidrs": sorted(cidrs)}]}
        found, revision = await compared(place, whole)
        assert found == []
        assert (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]["revision"] == revision
        await place.call_ok("PUT", f"/loadbalancers/{LB}/whole?revision={revision}", {"loadbalancer": whole})
        assert place.model.snapshot.revision == revision

    play_plugin(tmp_path, story)


@pytest.mark.parametrize(
    ("whole", "difference"),
    [
        ({**WHOLE, "name": "shop"}, differ("loadbalancers", LB, name=("shop", "web"))),
        ({**WHOLE, "admin_state_up": False}, differ("loadbalancers", LB, admin_state_up=(False, True))),
        (
            {**WHOLE, "listeners": [{**LISTENERS[0], "allowed_cidrs": ["10.0.0.0/8"], "name": "m"}]},
            differ("listeners", LISTENER, allowed_cidrs=(["10.0.0.0/8"], None), name=("m", "l")),
        ),
        (pool(description="d", lb_algorithm="SOURCE_IP"),
            differ("pools", POOL, description=("d", ""), lb_algorithm=("SOURCE_IP", "ROUND_ROBIN"))),
        (pool(members=[{**MEMBER, "weight": 7}]), differ("members", ONE, weight=(7, 2))),
        (pool(healthmonitor={**PROBE, "delay": 9, "name": "h"}),
            differ("healthmonitors", MONITOR, delay=(9, 5), name=("h", ""))),
    ],
    ids=["name", "admin-state", "listener", "pool", "member", "monitor"],
)  # fmt: skip
def test_differences_are_listed_and_applied(tmp_path: Path, whole: dict[str, Any], difference: Any):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        before = place.model.snapshot.load_balancers[LB]
        found, revision = await compared(place, whole)
        assert found == [difference]
        await place.call_ok("PUT", f"/loadbalancers/{LB}/whole?revision={revision}", {"loadbalancer": whole})
        assert (await compared(place, whole))[0] == []
        after = place.model.snapshot.load_balancers[LB]
        assert (after.vip, after.kept, after.pools[0].members[0].ordinal) == (before.vip, before.kept, 0)
        assert after.listeners is before.listeners or after.listeners[0].created_at == before.listeners[0].created_at

    play_plugin(tmp_path, story)


def test_missing_parts_are_created_and_unlisted_parts_stay(tmp_path: Path):
    more = {"id": TWO, "address": "10.0.0.12", "protocol_port": 8080}
    udp = {"id": SECOND, "protocol": "UDP", "protocol_port": 53}

    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        await place.call_ok("POST", "/listeners", {"listener": {**udp, "id": OTHER, "loadbalancer_id": LB}})
        await place.call_ok("DELETE", f"/healthmonitors/{MONITOR}")
        whole = {
            **pool(members=[more, MEMBER]),
            "listeners": [{**udp, "protocol": "TCP"}, *LISTENERS],
        }
        found, _ = await compared(place, whole)
        assert [(each["kind"], each["id"], each["missing"]) for each in found] == [
            ("healthmonitors", MONITOR, True),
            ("members", TWO, True),
            ("listeners", SECOND, True),
        ]
        await place.call_ok("PUT", f"/loadbalancers/{LB}/whole", {"loadbalancer": whole})
        made = place.model.snapshot.load_balancers[LB]
        assert [(each.id, each.ordinal) for each in made.pools[0].members] == [(ONE, 0), (TWO, 1)]
        assert [each.id for each in made.listeners] == [LISTENER, OTHER, SECOND]
        assert {each.project_id for each in (*made.listeners, *made.pools[0].members)} == {"tenant"}
        assert (await compared(place, whole))[0] == []

    play_plugin(tmp_path, story)


def test_update_keeps_attributes_unknown_to_the_service(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        await place.call_ok("PUT", f"/pools/{POOL}", {"pool": {"locality": "CHASSIS", "tags": ["ours"]}})
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        await place.call_ok("PUT", f"/pools/{POOL}", {"pool": {"down_member": "RESET"}})
        await place.call_ok("PUT", f"/loadbalancers/{LB}/whole", {"loadbalancer": pool(name="p")})
        made = place.model.snapshot.load_balancers[LB].pools[0]
        assert (made.name, made.tags, made.locality, bool(made.tables)) == ("p", ("ours",), Locality.CHASSIS, True)
        assert made.down_member is DownMember.RESET

    play_plugin(tmp_path, story)


def test_invalid_or_outdated_update_is_rejected(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        _, revision = await compared(place, WHOLE)
        await place.call_ok("PUT", f"/loadbalancers/{LB}", {"loadbalancer": {"name": "new"}})
        whole, at = {"loadbalancer": {**WHOLE, "name": "old"}}, f"/loadbalancers/{LB}/whole"
        status, said = await call_error(place, "PUT", f"{at}?revision={revision}", whole)
        assert (status, "has changed since" in said) == (409, True)
        limited = {"loadbalancer": {**WHOLE, "listeners": [{**LISTENERS[0], "connection_limit": 5}]}}
        assert await call_error(place, "PUT", at, limited) == (501, "connection_limit")
        for query, body in (("?revision=x", whole), ("", {"loadbalancer": {**WHOLE, "id": OTHER}})):
            assert (await call_error(place, "PUT", at + query, body))[0] == 400
        other = f"/loadbalancers/{OTHER}"
        elsewhere = {"loadbalancer": {**WHOLE, "id": OTHER}}
        assert (await call_error(place, "PUT", f"{other}/whole", elsewhere))[0] == 404
        own = replace(place.model.snapshot.load_balancers[LB], kept=None)
        await place.model.write(lambda _: Changes(puts=(own,)))
        assert (await call_error(place, "POST", f"/loadbalancers/{LB}/comparison", whole))[0] == 404

    play_plugin(tmp_path, story)
