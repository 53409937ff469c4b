"""Immutability: a change to a pending object waits, and is refused when the wait exceeds its limit."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.reconciler.loop import STALL_TIMEOUT
from harness.front_ends.octavia_world import MONITOR, OctaviaFrontEnd
from harness.waiting import DEADLINE

LB = "Load Balancer {lb} is immutable and cannot be updated."
POOL = "Pool {app} is immutable and cannot be updated."
POLICY = "L7Policy {policy} is immutable and cannot be updated."
STATE = "Invalid state PENDING_CREATE of loadbalancer resource {lb}"
REQUESTS: list[tuple[str, str, Any, str]] = [
    ("PUT", "/loadbalancers/{lb}", {"loadbalancer": {"name": "x"}}, STATE),
    ("DELETE", "/loadbalancers/{lb}?cascade=true", None, STATE),
    ("PUT", "/loadbalancers/{lb}/failover", None, STATE),
    ("POST", "/listeners", {"listener": {"loadbalancer_id": "{lb}", "protocol": "TCP", "protocol_port": 82}}, LB),
    ("PUT", "/listeners/{front}", {"listener": {"name": "x"}}, LB),
    ("DELETE", "/listeners/{front}", None, LB),
    ("POST", "/pools", {"pool": {"loadbalancer_id": "{lb}", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}, LB),
    ("PUT", "/pools/{app}", {"pool": {"name": "x"}}, LB),
    ("DELETE", "/pools/{app}", None, LB),
    ("POST", "/pools/{app}/members", {"member": {"address": "10.0.0.19", "protocol_port": 80}}, POOL),
    ("PUT", "/pools/{app}/members", {"members": []}, POOL),
    ("PUT", "/pools/{app}/members/{a}", {"member": {"weight": 2}}, POOL),
    ("DELETE", "/pools/{app}/members/{a}", None, POOL),
    ("PUT", "/healthmonitors/{monitor}", {"healthmonitor": {"delay": 9}}, POOL),
    ("DELETE", "/healthmonitors/{monitor}", None, POOL),
    ("POST", "/l7policies", {"l7policy": {"listener_id": "{front}", "action": "REJECT"}}, LB),
    ("PUT", "/l7policies/{policy}", {"l7policy": {"name": "x"}}, LB),
    ("DELETE", "/l7policies/{policy}", None, LB),
    ("POST", "/l7policies/{policy}/rules", {"rule": {"type": "PATH", "compare_type": "REGEX", "value": "x"}}, POLICY),
    ("DELETE", "/l7policies/{policy}/rules/{rule}", None, POLICY),
]


def filled(body: Any, ids: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {key: filled(value, ids) for key, value in body.items()}
    return body.format(**ids) if isinstance(body, str) else body


def test_change_of_a_pending_object_is_refused_after_the_wait_limit(anything: OctaviaFrontEnd):
    door = anything
    door.create_tree()
    door.server.is_reconciling = False

    async def all_at_once() -> list[Any]:
        calls = (
            door.server.call(method, "/v2.0/lbaas" + path.format(**door.ids), filled(body, door.ids))
            for method, path, body, _ in REQUESTS
        )
        return await asyncio.gather(*calls)

    before = door.server.model.snapshot
    for (method, path, _, words), answer in zip(REQUESTS, door.run(all_at_once()), strict=True):
        told = (answer.status_code, answer.json()["faultstring"])
        assert told == (409, words.format(**door.ids)), (method, path)
    assert door.server.model.snapshot is before


def test_member_change_in_a_pending_tree_is_refused_for_the_load_balancer(anything: OctaviaFrontEnd):
    door = anything
    door.create_tree()
    door.reconcile()
    door.server.is_reconciling = False
    door.call_ok("PUT", "/listeners/{other}", {"listener": {"name": "x"}})
    member = {"member": {"address": "10.0.0.19", "protocol_port": 80}}
    assert door.call_error("POST", "/pools/{app}/members", member) == (409, LB.format(**door.ids))
    assert door.call_error("PUT", "/loadbalancers/{lb}", {"loadbalancer": {}})[1] == STATE.format(**door.ids).replace(
        "PENDING_CREATE", "PENDING_UPDATE"
    )


@pytest.mark.parametrize(("method", "path", "body", "_"), REQUESTS, ids=[f"{each[0]} {each[1]}" for each in REQUESTS])
def test_change_waits_until_the_pending_change_is_applied(
    anything: OctaviaFrontEnd, method: str, path: str, body: Any, _: str
):
    anything.create_tree()
    anything.call_ok(method, path, filled(body, anything.ids))


def test_objects_in_error_can_be_changed_and_deleted(anything: OctaviaFrontEnd):
    door = anything
    door.break_dataplane()
    door.create_tree()
    door.reconcile()
    door.server.is_reconciling = False
    assert door.show("lb", door.ids["lb"])["provisioning_status"] == "ERROR"
    door.call_ok("POST", "/healthmonitors", {"healthmonitor": {**MONITOR, "pool_id": door.ids["files"]}})
    door.call_ok("DELETE", "/pools/{app}/members/{a}")
    door.call_ok("PUT", "/loadbalancers/{lb}/failover")
    door.call_ok("DELETE", "/loadbalancers/{lb}?cascade=true")


def test_pending_objects_can_be_changed_when_the_dataplane_is_stalled(anything: OctaviaFrontEnd):
    """Pending changes stop blocking when the dataplane is stalled: OVN does not reply, or another server leads but does
    not write."""
    door = anything
    door.create_tree()
    door.server.is_reconciling = False
    door.server.reconciler._clock = lambda: 2 * STALL_TIMEOUT
    assert door.show("lb", door.ids["lb"])["provisioning_status"] == "PENDING_CREATE"
    door.call_ok("PUT", "/listeners/{front}", {"listener": {"name": "x"}})
    assert door.show("lb", door.ids["lb"])["provisioning_status"] == "PENDING_UPDATE"


@pytest.fixture
def patient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OctaviaFrontEnd]:
    """Yield a site in which a change waits for its predecessor without a practical limit."""
    monkeypatch.setattr("harness.api.REQUEST_TIMEOUT", DEADLINE)
    opened = OctaviaFrontEnd(tmp_path)
    yield opened
    opened.close()


def test_concurrent_writers_lose_no_member(patient: OctaviaFrontEnd):
    """Each writer waits for its predecessor, while the reconciler runs as one task among them."""
    door = patient
    door.create_tree()
    door.reconcile()
    door.server.is_reconciling = False

    async def race() -> list[int]:
        working = asyncio.create_task(door.server.reconciler.run())
        calls = [
            door.server.call(
                "POST",
                f"/v2.0/lbaas/pools/{door.ids['app']}/members",
                {"member": {"address": f"10.0.0.{number}", "protocol_port": 80}},
            )
            for number in range(100, 110)
        ]
        answers = await asyncio.gather(*calls)
        working.cancel()
        return [answer.status_code for answer in answers]

    done = door.run(race())
    assert set(done) <= {201, 409}
    shown = door.call_ok("GET", "/pools/{app}/members")["members"]
    assert len(shown) == 2 + done.count(201)
    assert done.count(201) > 1
