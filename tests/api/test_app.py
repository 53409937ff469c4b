"""Metrics, health endpoints and access to them."""

import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import generate_latest

from fairlead import __version__
from fairlead.api.app import make_app
from fairlead.api.http.access_control import Answered
from fairlead.api.http.authentication import (
    ROLES,
    IdentityProviderUnavailable,
    LoginAttempt,
    NoProjectScope,
    TooManyLogins,
    authenticate_as_admin,
)
from fairlead.api.http.front_end import Services
from fairlead.api.http.identity_api import known_projects
from fairlead.api.octavia import make_front_end
from fairlead.api.operator.metrics import Metrics
from fairlead.changes.identity import Identity
from fairlead.compilers.ovn import OVN
from fairlead.dataplane.ovn import LogicalSwitch, by_key
from fairlead.model.documents.network import Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import Quota
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import DataplaneState
from fairlead.reconciler.loop import Reconciler
from fairlead.runtime.loop_lag import LoopLag
from fairlead.store.interface import StoreUnavailable
from harness.api import NOON, InProcessServer, dataplanes_with, in_process_server

ADMIN = Identity(user="a", project_id="p", roles=ROLES)


def _services(place: InProcessServer) -> Services:
    return Services(
        model=place.model,
        applied=place.reconciler.applied,
        now=lambda: NOON,
        new_id=lambda: "1",
        mtu=1442,
        external_mtu=1500,
        resync_owner=place.reconciler.read_again,
        wait_for_outcome=place.wait_applied,
    )


async def get(
    folder: Path, path: str, *, caller: Identity | None, now: DataplaneState, origin: str = ""
) -> httpx.Response:
    async def authenticate(_: LoginAttempt) -> Identity | None:
        return caller

    async with in_process_server(make_front_end, folder, "") as place:
        app = make_app(_services(place), dataplanes_with(place.reconciler, now), authenticate).all
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
            await client.post("/network/v2.0/networks", json={"network": {"name": "n"}})
            await client.put("/load-balancer/v2.0/quotas/n", json={"quota": {}})
            await place.reconcile()
            return await client.get(path, headers={"origin": origin} if origin else {})


@pytest.mark.parametrize(
    ("now", "code", "words"),
    [
        (DataplaneState(connected=True, is_leader=True), 200, "ready"),
        (DataplaneState(connected=True, is_leader=False), 200, "ready: another server is the leader"),
        (DataplaneState(connected=False, is_leader=False), 503, "not ready: OVN is not reachable"),
        (DataplaneState(connected=True, is_leader=True, facts_missing_seconds=29.0), 200, "ready"),
        (
            DataplaneState(connected=True, is_leader=True, facts_missing_seconds=31.0, missing_facts="port bindings"),
            503,
            "not ready: no port bindings received for 31 s",
        ),
        (
            DataplaneState(connected=True, is_leader=True, facts_missing_seconds=31.0),
            503,
            "not ready: no health monitor results received for 31 s",
        ),
    ],
)
async def test_readyz_reports_whether_changes_can_reach_ovn(tmp_path: Path, now: DataplaneState, code: int, words: str):
    answer = await get(tmp_path, "/readyz", caller=None, now=now)
    assert (answer.status_code, answer.text) == (code, words + "\n")


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
        ("http://door:9876", 403),
        ("http://localhost", 403),
        ("http://door", 200),
    ],
)
async def test_requests_with_a_foreign_origin_are_rejected(tmp_path: Path, origin: str, code: int):
    now = DataplaneState(connected=True, is_leader=True)
    answer = await get(tmp_path, "/metrics", caller=ADMIN, now=now, origin=origin)
    assert answer.status_code == code


FORMATS = {
    "/load-balancer/v2.0/lbaas/loadbalancers": lambda body: (body["faultcode"], body["faultstring"]),
    "/network/v2.0/networks": lambda body: (body["NeutronError"]["type"], body["NeutronError"]["message"]),
    "/1.0/networks": lambda body: (body["type"], body["error"]),
    "/operator/plan": lambda body: ("", body["error"]),
    "/agent/sightings": lambda body: ("", body["error"]),
    "/nothing": lambda body: ("", body["error"]),
    "/metrics": lambda body: ("", body["error"]),
}


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize(
    ("error", "status", "kinds", "words"),
    [
        (
            IdentityProviderUnavailable(1.5),
            503,
            {"Server", "HTTPServiceUnavailable", "error", ""},
            "The identity service does not respond",
        ),
        (NoProjectScope(), 403, {"Client", "PolicyNotAuthorized", "error", ""}, "The token has no project scope."),
    ],
)
async def test_authentication_errors_use_the_format_of_the_front_end(
    tmp_path: Path, path: str, error: Exception, status: int, kinds: set[str], words: str
):
    async def authenticate(attempt: LoginAttempt) -> Identity | None:
        assert attempt.token == "t"
        raise error

    async def story() -> httpx.Response:
        async with in_process_server(make_front_end, tmp_path, "") as place:
            now = DataplaneState(connected=True, is_leader=True)
            app = make_app(_services(place), dataplanes_with(place.reconciler, now), authenticate).all
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
                return await client.get(path, headers={"x-auth-token": "t"})

    answer = await story()
    kind, said = FORMATS[path](answer.json())
    assert (answer.status_code, kind in kinds) == (status, True)
    assert said.startswith(words)
    assert answer.headers.get("retry-after") == ("2" if status == 503 else None)
    assert answer.headers["x-openstack-request-id"] == "req-1"


async def test_unauthenticated_response_has_a_www_authenticate_challenge(tmp_path: Path):
    async def nobody(_: LoginAttempt) -> Identity | None:
        return None

    async def story(**options: str) -> httpx.Response:
        async with in_process_server(make_front_end, tmp_path, "") as place:
            now = DataplaneState(connected=True, is_leader=True)
            app = make_app(_services(place), dataplanes_with(place.reconciler, now), nobody, **options).all  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
                return await client.get("/network/v2.0/networks")

    assert (await story()).headers["www-authenticate"] == 'Basic realm="fairlead"'
    challenge = 'Keystone uri="http://k:5000/v3"'
    answer = await story(challenge=challenge)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, challenge)
    assert answer.json()["error"]["code"] == 401


async def test_metrics_are_served_to_administrators_only(tmp_path: Path):
    now = DataplaneState(connected=True, is_leader=True)
    assert (await get(tmp_path / "1", "/metrics", caller=None, now=now)).status_code == 401
    member = Identity(user="m", project_id="p", roles=frozenset({"member"}))
    assert (await get(tmp_path / "2", "/metrics", caller=member, now=now)).status_code == 403
    text = (await get(tmp_path / "3", "/metrics", caller=ADMIN, now=now)).text
    for line in (
        'fairlead_owners{kind="network",status="ACTIVE"} 1.0',
        'fairlead_owners{kind="router",status="ACTIVE"} 0.0',
        'fairlead_members{status="ERROR"} 0.0',
        'fairlead_applies_total{dataplane="ovn",outcome="changed"} 1.0',
        'fairlead_full_reconcile_corrections_total{dataplane="ovn"} 0.0',
        'fairlead_dataplane_connected{dataplane="ovn"} 1.0',
        'fairlead_dataplane_leader{dataplane="ovn"} 1.0',
        "fairlead_southbound_connected 0.0",
        'fairlead_http_request_duration_seconds_count{api="network",code="201",method="POST"} 1.0',
        'fairlead_compile_duration_seconds_count{dataplane="ovn",kind="network"} 1.0',
        'fairlead_apply_duration_seconds_count{dataplane="ovn",kind="network"} 1.0',
        'fairlead_oldest_unapplied_change_timestamp_seconds{dataplane="ovn"} 0.0',
        "fairlead_store_unavailable_since_timestamp_seconds 0.0",
        "fairlead_connected_announcers 0.0",
        "fairlead_connected_agents 0.0",
        f'fairlead_build_info{{version="{__version__}"}} 1.0',
        "process_resident_memory_bytes ",
    ):
        assert line in text
    assert 'kind="quota"' not in text
    assert "_created" not in text


async def test_imported_objects_are_counted_in_metrics_and_statistics(tmp_path: Path):
    followed = {("neutron", "port"): 24, ("neutron", "network"): 6, ("lxd", "network"): 2}
    now = DataplaneState(
        connected=True, is_leader=True, imports_networks=True, imported=followed, unreadable=3, blockers=("no",)
    )
    text = (await get(tmp_path / "1", "/metrics", caller=ADMIN, now=now)).text
    for line in (
        'fairlead_import_connected{dataplane="ovn"} 1.0',
        'fairlead_imported_objects{dataplane="ovn",kind="port",writer="neutron"} 24.0',
        'fairlead_import_unreadable_rows{dataplane="ovn"} 3.0',
        'fairlead_apply_blockers{dataplane="ovn"} 1.0',
    ):
        assert line in text
    figures = (await get(tmp_path / "2", "/operator/statistics", caller=ADMIN, now=now)).json()
    assert figures["dataplanes"]["ovn"]["followed"] == {
        "heard": True,
        "unreadable": 3,
        "hindrances": ["no"],
        "documents": {"lxd": {"network": 2}, "neutron": {"network": 6, "port": 24}},
    }


async def test_operator_lookup_of_a_kind_without_rows_returns_404(tmp_path: Path):
    now = DataplaneState(connected=True, is_leader=True)
    answer = await get(tmp_path / "1", "/operator/owners/quota/n", caller=ADMIN, now=now)
    assert (answer.status_code, "has no rows" in answer.text) == (404, True)
    answer = await get(tmp_path / "2", "/operator/owners/n", caller=ADMIN, now=now)
    assert answer.json()["owner"].startswith("network/")


async def test_identity_stub_returns_a_project_for_any_name(tmp_path: Path):
    """The Identity API stub has a project for every name, because the stock client looks it up before it reads a
    quota."""
    now = DataplaneState(connected=True, is_leader=True)
    shop = {"id": "shop", "name": "shop", "enabled": True, "domain_id": "default"}
    for number, path in enumerate(("/projects/shop", "/v3/projects/shop")):
        answer = await get(tmp_path / str(number), path, caller=ADMIN, now=now)
        assert answer.json() == {"project": shop}
    answer = await get(tmp_path / "2", "/v3/projects?name=shop", caller=ADMIN, now=now)
    assert answer.json()["projects"] == [shop]
    for number, path in enumerate(("/projects/shop", "/v3/projects/shop", "/v3/projects"), 3):
        assert (await get(tmp_path / str(number), path, caller=None, now=now)).status_code == 401


def test_project_list_is_complete_for_administrators_only():
    quotas = (Quota(project_id="shop", network=1), Quota(project_id="bank", pool=1))
    snapshot = apply_changes(Snapshot(), Changes(puts=(*quotas, Router(id="r", project_id="farm", created_at=NOON))), 1)
    assert known_projects(snapshot, ADMIN) == sorted({"bank", "farm", "shop", ADMIN.project_id})
    member = Identity(user="u", project_id="shop", roles=frozenset({"member"}))
    assert known_projects(snapshot, member) == ["shop"]
    assert known_projects(snapshot, replace(member, project_id="new")) == ["new"]


async def test_standby_is_not_ready_while_changes_wait_for_the_leader(tmp_path: Path):
    async def run() -> str:
        async with in_process_server(make_front_end, tmp_path, "") as place:
            reconciler = Reconciler(dataplane=OVN, driver=place.driver, snapshot=Snapshot, clock=lambda: clock[0])
            reconciler.mark([Owner(Kind.NETWORK, "n")])
            clock[0] = 31.0
            app = make_app(
                _services(place),
                dataplanes_with(reconciler, DataplaneState(connected=True, is_leader=False)),
                authenticate_as_admin,
            ).all
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
                return (await client.get("/readyz")).text

    clock = [0.0]
    assert (await run()) == "not ready: another server is the leader; a change waits for 31 s\n"


async def test_reconcile_request_returns_503_while_the_store_is_unavailable(tmp_path: Path):
    async def deleted() -> frozenset[Owner]:
        raise StoreUnavailable("the disk is gone")

    async def run() -> tuple[int, object]:
        async with in_process_server(make_front_end, tmp_path, "") as place:
            place.driver.rows = {Owner(Kind.NETWORK, "n"): by_key([LogicalSwitch(name="n")])}
            reconciler = Reconciler(
                dataplane=OVN, driver=place.driver, snapshot=Snapshot, clock=lambda: 0.0, deleted=deleted
            )
            app = make_app(
                _services(place),
                dataplanes_with(reconciler, DataplaneState(connected=True, is_leader=True)),
                authenticate_as_admin,
            ).all
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
                answer = await client.post("/operator/resync")
                return answer.status_code, answer.json()

    assert (await run()) == (503, {"error": "the store is unavailable: the disk is gone"})


async def test_paced_requests_are_counted_by_front_end(tmp_path: Path):
    """Not by tenant, and under no names of the callers' invention."""

    async def authenticate(attempt: LoginAttempt) -> Identity | None:
        if attempt.token is None:
            raise TooManyLogins(7)
        return ADMIN

    async with in_process_server(make_front_end, tmp_path, "") as place:
        app = make_app(
            _services(place),
            dataplanes_with(place.reconciler, DataplaneState(connected=True, is_leader=True)),
            authenticate,
        )
        transport = httpx.ASGITransport(app=app.all)
        async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
            for path in ("/load-balancer/x", "/load-balancer/y", "/network/x", "/nothing/x"):
                answer = await client.get(path)
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
            text = (await client.get("/metrics", headers={"x-auth-token": "t"})).text
    assert {each: value for each, value in paced(text).items() if value} == {
        ("load-balancer", "refused"): 2.0,
        ("network", "refused"): 1.0,
        ("other", "refused"): 1.0,
    }


def paced(text: str) -> dict[tuple[str, str], float]:
    pattern = r'^fairlead_api_paced_requests_total\{api="(.*)",outcome="(.*)"\} (.*)$'
    return {(api, outcome): float(value) for api, outcome, value in re.findall(pattern, text, re.MULTILINE)}


async def test_paced_request_counters_start_at_zero(tmp_path: Path):
    """A rate over a counter that appears with its first event misses this event."""
    answer = await get(tmp_path, "/metrics", caller=ADMIN, now=DataplaneState(connected=True, is_leader=True))
    apis = {"load-balancer", "network", "operator", "agent", "plugin", "1.0", "projects", "v3", "root", "other"}
    found = paced(answer.text)
    assert apis == {api for api, _ in found}
    assert found == {(api, outcome): 0.0 for api in apis for outcome in ("delayed", "refused")}


@pytest.mark.parametrize(
    ("status", "delayed", "outcome"),
    [(200, True, "delayed"), (503, True, "delayed"), (429, True, "refused"), (429, False, "refused")],
)
async def test_a_paced_request_has_one_outcome(tmp_path: Path, status: int, delayed: bool, outcome: str):
    async with in_process_server(make_front_end, tmp_path, "") as place:
        dataplanes = dataplanes_with(place.reconciler, DataplaneState(connected=True, is_leader=True))
        metrics = Metrics(_services(place), dataplanes, LoopLag(), frozenset({"network"}))
    metrics.observe(Answered(path="/network/x", method="GET", status=status, seconds=0.1, delayed=delayed))
    found = paced(generate_latest(metrics._registry).decode())
    assert {each: value for each, value in found.items() if value} == {("network", outcome): 1.0}


async def test_unknown_paths_and_methods_add_no_metric_labels(tmp_path: Path):
    """Unknown paths and methods do not become label values, because each would be kept forever."""

    async def run() -> tuple[str, str]:
        async with in_process_server(make_front_end, tmp_path, "") as place:
            now = DataplaneState(connected=True, is_leader=True)
            app = make_app(_services(place), dataplanes_with(place.reconciler, now), authenticate_as_admin).all
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
                await client.get("/nothing/x")
                await client.request("BREW", "/nothing/x")
                before = (await client.get("/metrics")).text
                for number in range(300):
                    await client.get(f"/nothing{number}/x")
                    await client.request(f"BREW{number}", f"/nothing{number}/x")
                return before, (await client.get("/metrics")).text

    before, after = await run()
    assert 'api="other",code="404",method="GET"' in after
    assert "nothing" not in after
    assert "BREW" not in after
    assert (
        after.count("http_request_duration_seconds_bucket") - before.count("http_request_duration_seconds_bucket") <= 13
    )
