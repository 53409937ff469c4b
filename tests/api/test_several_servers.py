"""Several servers over one store, in one process: a write answered by one is visible on every other, in each API."""

import asyncio
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from fairlead.store import etcd_calls, read_barrier
from fairlead.store.interface import StoreUnavailable
from harness.etcd import EtcdCluster, etcd_cluster
from harness.front_ends.two_servers import LBS, two_servers
from harness.waiting import eventually, eventually_equal

pytestmark = pytest.mark.slow

LISTENERS = "/load-balancer/v2.0/lbaas/listeners"
LXD = {"type": "ovn", "config": {"network": "none"}}
_NUMBERS = count()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/s.db"
    return f"{request.getfixturevalue('etcd').url}/servers{next(_NUMBERS)}"


async def test_write_to_one_server_is_visible_on_another_in_every_api(url: str):
    async with two_servers(url) as (one, two):
        for round_ in range(10):
            here, there = (one, two) if round_ % 2 else (two, one)
            balancer = await here.build(name=f"web{round_}")
            assert (await there.request("GET", f"{LBS}/{balancer['id']}")).status_code == 200
            assert (await there.request("GET", f"{LBS}?name=web{round_}")).json()["loadbalancers"] != []
            assert (await there.request("GET", f"/network/v2.0/ports/{balancer['vip_port_id']}")).status_code == 200
            assert (await there.request("GET", f"/operator/owners/{balancer['id']}")).status_code == 200
            listener = await there.create(
                LISTENERS, "listener", loadbalancer_id=balancer["id"], protocol="TCP", protocol_port=80
            )
            assert (await here.request("DELETE", f"{LISTENERS}/{listener['id']}")).status_code == 204
            assert (await there.request("GET", f"{LISTENERS}/{listener['id']}")).status_code == 404
            made = await here.request("POST", "/1.0/networks", {"name": f"lx{round_}", **LXD})
            assert made.status_code < 300, made.text
            assert (await there.request("GET", f"/1.0/networks/lx{round_}")).status_code == 200


async def test_concurrent_claims_of_one_address_or_name_succeed_once(url: str):
    async with two_servers(url) as (one, two):
        subnet = (await one.build())["vip_subnet_id"]
        for address in range(10, 20):
            body = {"loadbalancer": {"vip_subnet_id": subnet, "vip_address": f"10.0.0.{address}"}}
            answers = await asyncio.gather(*(each.request("POST", LBS, body) for each in (one, two) * 2))
            assert sorted(each.status_code for each in answers) == [201, 409, 409, 409]
        networks = [each.request("POST", "/1.0/networks", {"name": "alone", **LXD}) for each in (one, two) * 2]
        assert sorted(each.status_code < 300 for each in await asyncio.gather(*networks)) == [False] * 3 + [True]


async def test_last_unit_of_a_quota_is_allocated_once(url: str):
    async with two_servers(url) as (one, two):
        balancer = await one.build()
        project = balancer["project_id"]
        for limit in range(2, 6):
            quota = {"quota": {"loadbalancer": limit}}
            answer = await one.request("PUT", f"/load-balancer/v2.0/lbaas/quotas/{project}", quota)
            assert answer.status_code < 300, answer.text
            body = {"loadbalancer": {"vip_subnet_id": balancer["vip_subnet_id"]}}
            answers = await asyncio.gather(*(each.request("POST", LBS, body) for each in (one, two) * 3))
            assert sorted(each.status_code for each in answers) == [201, *[403] * 5]
            assert len((await two.request("GET", LBS)).json()["loadbalancers"]) == limit


async def test_concurrent_changes_on_two_servers_lose_no_accepted_listener(url: str):
    async with two_servers(url) as (one, two):
        balancer = await one.build()
        path = f"{LBS}/{balancer['id']}"
        ports = range(1000, 1020)
        bodies = [
            {"listener": {"loadbalancer_id": balancer["id"], "protocol": "TCP", "protocol_port": p}} for p in ports
        ]
        asked = [(one, two)[number % 2].request("POST", LISTENERS, body) for number, body in enumerate(bodies)]
        answers = await asyncio.gather(*asked)
        assert {each.status_code for each in answers} <= {201, 409}
        made = {each.json()["listener"]["protocol_port"] for each in answers if each.status_code == 201}
        assert made
        for server in (one, two):
            found = (await server.request("GET", f"{LISTENERS}?loadbalancer_id={balancer['id']}")).json()["listeners"]
            assert {each["protocol_port"] for each in found} == made
            await server.server.reconcile()
            assert (await server.request("GET", path)).json()["loadbalancer"]["provisioning_status"] == "ACTIVE"
        assert (await one.request("DELETE", f"{path}?cascade=true")).status_code == 204
        late = await two.request("POST", LISTENERS, bodies[0])
        assert late.status_code == 404, late.text


READS = {
    LBS: ("faultstring", True),
    "/network/v2.0/networks": ("NeutronError", True),
    "/1.0/networks": ("error", True),
    "/plugin/statuses": ("error", True),
    "/operator/plan": ("plan", False),
}
"""Path per API front end -> the content of its response, and whether that is an error."""


async def test_store_requests_fail_during_an_etcd_outage_and_recover_afterwards(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
):
    """Requests that depend on the store get an error in their API's format while no member of etcd runs."""
    monkeypatch.setattr(read_barrier, "TIMEOUT", 1.0)
    monkeypatch.setattr(etcd_calls, "TOTAL_TIMEOUT", 1.5)
    monkeypatch.setattr("fairlead.api.operator.metrics.STORE_TIMEOUT", 0.5)

    async with two_servers(f"{etcd.url}/servers{next(_NUMBERS)}") as (one, two):
        balancer = await one.build()
        for member in range(3):
            etcd.signal(member, signal.SIGSTOP)
        try:
            await two.request("GET", LBS)
            for path, (word, fails) in READS.items():
                answer = await two.request("GET", path)
                assert answer.status_code == (503 if fails else 200), (path, answer.text)
                assert word in answer.json(), answer.text
                assert ("retry-after" if fails else "warning") in answer.headers
            renamed = await one.request("PUT", f"{LBS}/{balancer['id']}", {"loadbalancer": {"name": "late"}})
            assert renamed.status_code == 503
            assert "faultstring" in renamed.json()
            await eventually(
                lambda: two.request("GET", "/readyz"),
                is_enough=lambda answer: "the store is unavailable" in answer.text,
            )
            assert (
                "fairlead_store_unavailable_since_timestamp_seconds 0.0"
                not in (await two.request("GET", "/metrics")).text
            )
        finally:
            for member in range(3):
                etcd.signal(member, signal.SIGCONT)
        await asyncio.to_thread(etcd.wait)
        await eventually_equal(two.readiness, 200)
        assert not any(each.follow_task.done() for each in (one, two))
        name = {"loadbalancer": {"name": "again"}}
        assert (await one.request("PUT", f"{LBS}/{balancer['id']}", name)).status_code == 200
        assert (await two.request("GET", f"{LBS}/{balancer['id']}")).json()["loadbalancer"]["name"] == "again"


async def test_failed_read_barrier_is_retried_without_requests(url: str, monkeypatch: pytest.MonkeyPatch):
    """A reverse proxy leaves out a server that is not ready, so such a server gets no requests and must retry by
    itself."""
    monkeypatch.setattr("fairlead.api.operator.metrics.STORE_TIMEOUT", 0.0)

    async with two_servers(url) as (_, two):
        await two.build()
        with monkeypatch.context() as away:
            away.setattr(two.server.store, "head", _away)
            assert (await two.request("GET", LBS)).status_code == 503
        assert (await two.request("GET", "/readyz")).status_code == 503
        await eventually_equal(two.readiness, 200)


async def _away() -> int:
    raise StoreUnavailable("an election takes its time")
