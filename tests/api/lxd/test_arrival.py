"""LXD API: a response to a change arrives after the change is in the dataplane, or reports why it is not."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.drivers.fake import Fault
from fairlead.model.documents.owner import Kind
from harness.front_ends.lxd_balancing import BODY, FORWARD, FORWARDS, LBS, LISTEN, LISTEN6, backend, port, settle
from harness.front_ends.lxd_world import LxdFrontEnd

STORED = "the change is stored and is applied once OVN accepts it"
NETWORK = "/1.0/networks/other?project=one"
SIX = {
    "backends": [backend("six", target_address="fd00::11")],
    "ports": [port("53", "six"), port("53", "six", protocol="udp")],
}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    door = LxdFrontEnd(tmp_path)
    settle(door)
    yield door
    door.close()


def stop(site: LxdFrontEnd) -> None:
    """Let OVN reject every transaction."""
    site.server.driver._fault = lambda: Fault.REJECTED


def resume(site: LxdFrontEnd) -> None:
    site.server.driver._fault = lambda: Fault.NONE
    site.server.reconciler.retry_now()
    site.reconcile()


def rows_at_the_answer(site: LxdFrontEnd, method: str, path: str, body: Any = None) -> tuple[int, set[str]]:
    """Return the response's status and the kinds of owners that have rows at that moment."""

    async def ask() -> tuple[int, set[str]]:
        answer = await site.server.client.request(method, path.removeprefix("/1.0"), json=body)
        return answer.status_code, {owner.kind.value for owner in site.server.driver.rows}

    site.server.caller = site.callers["root"]
    found: tuple[int, set[str]] = site.run(ask())
    return found


@pytest.mark.parametrize(("listen", "body"), [(LISTEN, BODY), (LISTEN6, {**BODY, **SIX})])
def test_load_balancer_response_waits_until_ovn_rows_are_written_or_deleted(
    site: LxdFrontEnd, listen: str, body: dict[str, Any]
):
    assert rows_at_the_answer(site, "POST", LBS, {**body, "listen_address": listen})[0] == 201
    assert Kind.LOAD_BALANCER.value in {owner.kind.value for owner in site.server.driver.rows}
    status, kinds = rows_at_the_answer(site, "DELETE", f"{LBS}/{listen}")
    assert (status, Kind.LOAD_BALANCER.value in kinds, Kind.VIP_GATEWAY.value in kinds) == (200, False, False)


def test_network_response_waits_until_ovn_rows_are_written_or_deleted(site: LxdFrontEnd):
    site.call_ok("DELETE", "/1.0/networks/four")
    body = {
        "name": "new",
        "type": "ovn",
        "config": {"network": "UPLINK", "ipv4.address": "10.7.0.1/24", "ipv4.nat": "true"},
    }
    before = set(site.server.driver.rows)
    assert rows_at_the_answer(site, "POST", "/1.0/networks", body)[0] == 201
    assert {owner.kind for owner in set(site.server.driver.rows) - before} == {Kind.NETWORK, Kind.ROUTER, Kind.PORT}
    assert rows_at_the_answer(site, "DELETE", "/1.0/networks/new")[0] == 200
    assert set(site.server.driver.rows) == before


@pytest.mark.parametrize(("listen", "body"), [(LISTEN, BODY), (LISTEN6, {**BODY, **SIX})])
@pytest.mark.parametrize("many", [LBS, FORWARDS])
def test_load_balancer_rejected_by_ovn_returns_503_and_is_shown_as_errored(
    site: LxdFrontEnd, many: str, listen: str, body: dict[str, Any]
):
    noun = {LBS: "load balancer", FORWARDS: "forward"}[many]
    if many == FORWARDS:
        target = {LISTEN: "10.0.0.11", LISTEN6: "fd00::11"}[listen]
        body = {**FORWARD, "ports": [{**FORWARD["ports"][0], "target_address": target}]}
    one = f"{many}/{listen}"
    stop(site)
    answer = site.send("POST", many, {**body, "listen_address": listen})
    said = answer.json()
    assert (answer.status_code, said["error_code"]) == (503, 503)
    assert said["error"] == f"Failed creating {noun}: Failed applying OVN load balancer: refused; {STORED}"
    assert site.call_ok("GET", one)["config"] == {"volatile.fairlead.status": "Errored"}
    assert site.call_ok("GET", f"{many}?recursion=1")[0]["config"] == {"volatile.fairlead.status": "Errored"}
    if many == LBS:
        assert site.call_ok("GET", f"{one}/state") == {"backend_health": None, "status": "Errored"}

    changed = {**site.call_ok("GET", one), "description": "new"}  # as a client sends the document it read
    answer = site.send("PUT", one, changed)
    assert answer.json()["error"] == f"Failed updating {noun}: Failed applying OVN load balancer: refused; {STORED}"
    assert site.call_ok("GET", one)["description"] == "new"
    resume(site)
    assert site.call_ok("GET", one)["config"] == {}
    if many == LBS:
        assert site.call_ok("GET", f"{one}/state")["status"] == "Created"

    stop(site)
    answer = site.send("DELETE", one)
    assert answer.json()["error"] == f"Failed deleting {noun}: Failed applying OVN load balancer: refused; {STORED}"
    assert site.call_error("GET", one)[0] == 404
    resume(site)
    assert Kind.LOAD_BALANCER not in {owner.kind for owner in site.server.driver.rows}


def test_fix_after_a_failed_apply_returns_success(site: LxdFrontEnd):
    """An error of an earlier attempt is not the outcome of a later change."""
    stop(site)
    assert site.send("POST", LBS, {**BODY, "listen_address": LISTEN}).status_code == 503
    site.server.driver._fault = lambda: Fault.NONE
    site.server.reconciler.retry_now()
    site.call_ok("PUT", f"{LBS}/{LISTEN}", {**BODY, "description": "cured"})


def test_requests_time_out_with_503_when_ovn_does_not_reply(site: LxdFrontEnd):
    """OVN accepts the connection and never replies: each request ends, and so do the tasks that wait for it."""
    site.server.is_reconciling = False

    async def ask_at_once() -> list[int]:
        paths = [f"198.51.100.{number}" for number in range(20, 24)]
        bodies = [{**BODY, "listen_address": each} for each in paths]
        path = LBS.removeprefix("/1.0")
        answers = await asyncio.gather(*(site.server.client.post(path, json=body) for body in bodies))
        return [answer.status_code for answer in answers]

    site.server.caller = site.callers["root"]
    assert site.run(ask_at_once()) == [503] * 4
    shown = site.run(site.server.client.get(f"{LBS.removeprefix('/1.0')}/198.51.100.20")).json()["metadata"]
    assert shown["config"] == {"volatile.fairlead.status": "Pending"}
    assert not site.server.reconciler._outcomes._waiters or site.run(_nobody_waits(site))


async def _nobody_waits(site: LxdFrontEnd) -> bool:
    await site.server.reconcile()
    return not site.server.reconciler._outcomes._waiters


def test_network_rejected_by_ovn_returns_503_and_is_shown_as_errored(site: LxdFrontEnd):
    body = {
        "name": "new",
        "type": "ovn",
        "config": {"network": "UPLINK", "ipv4.address": "10.7.0.1/24", "ipv4.nat": "true"},
    }
    stop(site)
    answer = site.send("POST", "/1.0/networks", body)
    assert (answer.status_code, answer.json()["error"]) == (503, f"Failed applying OVN network: refused; {STORED}")
    assert site.call_ok("GET", "/1.0/networks/new")["status"] == "Errored"
    resume(site)
    assert site.call_ok("GET", "/1.0/networks/new")["status"] == "Created"
    stop(site)
    answer = site.send("DELETE", "/1.0/networks/new")
    assert (answer.status_code, answer.json()["error"]) == (503, f"Failed applying OVN network: refused; {STORED}")
    resume(site)


@pytest.mark.parametrize(("method", "value"), [("PUT", ""), ("PATCH", ""), ("PUT", "Created"), ("PATCH", "x")])
def test_clients_cannot_set_the_status_option(site: LxdFrontEnd, method: str, value: str):
    site.call_ok("POST", LBS, {**BODY, "listen_address": LISTEN})
    body = {**BODY, "config": {"volatile.fairlead.status": value}}
    text = 'Failed updating load balancer: Option "volatile.fairlead.status" is set by the server'
    assert site.call_error(method, f"{LBS}/{LISTEN}", body) == (400, text)
