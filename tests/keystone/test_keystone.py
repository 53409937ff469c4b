"""A real Keystone, a Fairlead server that uses it, and the unmodified client, which finds both by the catalogue."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.fuzz.machine import SCHEMA, SERVER, FuzzedServer, fuzzed_server
from harness.keystone.cloud import INSTALLED, SYSTEM, KeystoneServer, keystone, options, password_of
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.client

BELOW_DEFAULT = 40  # seconds; less than the default of token_cache_seconds, so the option has an effect
UNAVAILABLE = "requests with tokens that are not cached get 503"
LBS, NETWORKS = "/load-balancer/v2.0/lbaas/loadbalancers", "/network/v2.0/networks"
POOLS = "/load-balancer/v2.0/lbaas/pools"
OPENSTACK, OURS = (Path(sys.executable).with_name(name) for name in ("openstack", "fairlead"))


@dataclass
class KeystoneSite:
    cloud: KeystoneServer
    server: FuzzedServer
    clouds: str

    def run(self, who: str, command: str, program: Path = OPENSTACK) -> "subprocess.CompletedProcess[str]":
        """Run the stock client, or another program, as this user."""
        environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": self.clouds, "OS_CLOUD": who, "PYTHONWARNINGS": "ignore"}
        return subprocess.run(
            [program, *command.split()], env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False
        )

    def good(self, who: str, command: str) -> Any:
        ended = self.run(who, f"{command} -f json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def bad(self, who: str, command: str) -> str:
        ended = self.run(who, command)
        assert ended.returncode != 0, ended.stdout
        return ended.stderr

    def call(self, token: str, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        return self.server.client.request(method, path, json=body, headers={"X-Auth-Token": token, **headers})

    def log(self) -> str:
        return self.server.log.read_text()

    def keystone_requests(self, administrator: str) -> int:
        """Return the server's own count of requests to Keystone about tokens."""
        text = self.call(administrator, "GET", "/metrics").text
        return sum(map(int, re.findall(r"^fairlead_keystone_requests_total\S* (\d+)\.0$", text, re.MULTILINE)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeystoneSite]:
    if not (INSTALLED.exists() and SERVER.exists() and SCHEMA.exists()):
        reason = f"needs .venv-keystone (scripts/keystone makes it), {SERVER} and {SCHEMA}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    folder = tmp_path_factory.mktemp("cloud")
    with keystone(folder) as cloud, fuzzed_server(folder, options(cloud, folder)) as server:
        cloud.register_fairlead(server.url)
        yield KeystoneSite(cloud, server, cloud.clouds())
        assert [line for line in server.bug_reports() if UNAVAILABLE not in line] == []
        for secret in (password_of("fairlead"), "gAAAAA"):
            assert secret not in server.log.read_text()


@pytest.fixture(scope="module")
def web(place: KeystoneSite) -> dict[str, Any]:
    """Create a load balancer as alice with the client."""
    place.good("alice", "network create net")
    place.good("alice", "subnet create --network net --subnet-range 10.0.0.0/24 sub")
    made: dict[str, Any] = place.good("alice", "loadbalancer create --name web --vip-subnet-id sub --wait")
    return made


def names(listed: list[dict[str, Any]]) -> list[str]:
    return sorted(each.get("name") or each["Name"] for each in listed)


def test_client_finds_both_apis_in_the_catalogue_and_projects_are_isolated(place: KeystoneSite, web: dict[str, Any]):
    assert web["project_id"] == place.cloud.ids["shop"]
    seen = {
        ("alice", "loadbalancer list"): ["web"],
        ("bob", "loadbalancer list"): [],
        ("admin", "loadbalancer list"): ["web"],
        ("root", "loadbalancer list"): ["web"],
        ("bob", "network list"): [],
        ("sam", "network list"): ["net"],
    }
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda case: names(place.good(*case)), seen)
    assert dict(zip(seen, found, strict=True)) == seen


def test_only_roles_with_write_access_may_write(place: KeystoneSite, web: dict[str, Any]):
    words = {
        ("rita", "loadbalancer set --name mine web"): "Policy does not allow this request to be performed. (HTTP 403)",
        ("rita", "network create mine"): "rule:create_network is disallowed by policy",
        ("sam", f"network delete {place.good('sam', 'network list')[0]['ID']}"): "disallowed by policy",
    }
    for case, expected in words.items():
        assert expected in place.bad(*case)
    project = place.cloud.ids["other"]
    made = place.good("root", f"network create --project {project} given")
    assert made["project_id"] == project
    assert names(place.good("bob", "network list")) == ["given"]


def test_keystone_roles_work_in_both_apis_and_octavia_roles_in_its_own(place: KeystoneSite, web: dict[str, Any]):
    """Keystone's roles work in both APIs, and Octavia's older ones in its own."""
    lists = {
        "alice": (["web"], ["net"]),
        "rita": (["web"], ["net"]),
        "olga": (["web"], []),
        "bob": ([], ["given"]),
    }
    for user, expected in lists.items():
        token = place.cloud.token(user)
        balancers = place.call(token, "GET", LBS).json()["loadbalancers"]
        networks = place.call(token, "GET", NETWORKS).json()["networks"]
        assert (names(balancers), names(networks)) == expected, user
    for user, status in {"rita": 403, "olga": 403}.items():
        token = place.cloud.token(user)
        assert place.call(token, "DELETE", f"{LBS}/{web['id']}").status_code == status
        assert place.call(token, "POST", NETWORKS, {"network": {}}).status_code == status


@pytest.mark.parametrize("who", ["alice", "root"])
def test_fairlead_commands_log_in_like_the_stock_client(place: KeystoneSite, web: dict[str, Any], who: str):
    token = place.cloud.token("alice")
    body = {
        "pool": {"name": f"pool-{who}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP", "loadbalancer_id": web["id"]}
    }
    made = place.call(token, "POST", POOLS, body)
    assert made.status_code == 201, made.text
    ended = place.run(who, f"pool set pool-{who} --locality chassis --json", OURS)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["locality"] == "CHASSIS"
    refused = place.run("bob", f"pool show pool-{who}", OURS)
    assert refused.returncode == 1
    assert "no pool" in refused.stderr.lower()


def test_system_scope_is_accepted_and_domain_or_missing_scope_is_rejected(place: KeystoneSite, web: dict[str, Any]):
    cloud = place.cloud
    root, sam = cloud.token("admin", SYSTEM), cloud.token("sam", SYSTEM)
    body = {"loadbalancer": {"vip_network_id": web["vip_network_id"]}}
    assert "Missing project ID in request" in place.call(root, "POST", LBS, body).json()["faultstring"]
    assert place.call(root, "POST", NETWORKS, {"network": {}}).status_code == 400
    assert place.call(sam, "POST", LBS, body).status_code == 403
    assert place.call(root, "GET", "/metrics").status_code == 200
    assert place.call(sam, "GET", "/metrics").status_code == 403
    for token in (
        cloud.token("dora", {"domain": {"id": "default"}}),
        cloud.token("dora", {}),
        cloud.token("alice", {}),
    ):
        refused = place.call(token, "GET", LBS)
        assert (refused.status_code, refused.json()["faultcode"]) == (403, "Client")
        refused = place.call(token, "GET", NETWORKS)
        assert (refused.status_code, refused.json()["NeutronError"]["type"]) == (403, "PolicyNotAuthorized")


def test_project_is_taken_from_the_token_not_from_headers(place: KeystoneSite, web: dict[str, Any]):
    bob = place.cloud.token("bob")
    listed = place.call(bob, "GET", LBS, **{"X-Project-Id": place.cloud.ids["shop"], "X-Roles": "admin"})
    assert listed.json()["loadbalancers"] == []
    assert place.call(bob, "GET", f"{LBS}/{web['id']}").status_code in (403, 404)


def test_application_credentials_work_except_with_access_rules(place: KeystoneSite, web: dict[str, Any]):
    cloud, alice = place.cloud, place.cloud.token("alice")

    def by_credential(**more: object) -> str:
        body = {"application_credential": {"name": f"c{len(more)}", "secret": "s", **more}}
        path = f"{cloud.url}/users/{cloud.ids['alice']}/application_credentials"
        made = cloud.client.post(path, json=body, headers={"X-Auth-Token": alice}).json()["application_credential"]
        credential = {"id": made["id"], "secret": "s"}
        return cloud.token_by({"methods": ["application_credential"], "application_credential": credential})

    assert place.call(by_credential(), "GET", LBS).json()["loadbalancers"][0]["name"] == "web"
    # access rules of credentials are not evaluated, so such a credential may call nothing
    rules = [{"path": "/v2.0/networks", "method": "GET", "service": "network"}]
    assert place.call(by_credential(access_rules=rules), "GET", NETWORKS).status_code == 401


def wait_refused(place: KeystoneSite, token: str) -> None:
    """Wait until the cache entry of the token expires; tests/api/keystone test the time with a virtual clock."""
    wait_equal(lambda: place.call(token, "GET", LBS).status_code, 401, seconds=BELOW_DEFAULT)


def test_a_token_that_is_revoked_is_refused_when_its_cache_entry_expires(place: KeystoneSite):
    token = place.cloud.token("alice")
    assert place.call(token, "GET", LBS).status_code == 200
    place.cloud.revoke(token)
    wait_refused(place, token)
    never_seen = place.cloud.token("alice")
    place.cloud.revoke(never_seen)
    answer = place.call(never_seen, "GET", LBS)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == f'Keystone uri="{place.cloud.url}"'
    assert answer.json()["error"]["title"] == "Unauthorized"


def test_disabled_project_and_deleted_user_are_rejected(place: KeystoneSite):
    cloud = place.cloud
    cloud.create("project", "gone", domain_id="default")
    cloud.create("user", "ben", domain_id="default", password=password_of("ben"))
    for project in ("gone", "other"):
        cloud.grant(f"/projects/{cloud.ids[project]}", "ben", "member")
    in_gone, in_other = (cloud.token("ben", {"project": {"id": cloud.ids[project]}}) for project in ("gone", "other"))
    assert [place.call(token, "GET", LBS).status_code for token in (in_gone, in_other)] == [200, 200]
    cloud.call("PATCH", f"/projects/{cloud.ids['gone']}", {"project": {"enabled": False}})
    wait_refused(place, in_gone)
    assert place.call(in_other, "GET", LBS).status_code == 200
    cloud.call("DELETE", f"/users/{cloud.ids['ben']}")
    wait_refused(place, in_other)


@pytest.mark.parametrize("token", ["nonsense", "gAAAAA" + "x" * 177, "x" * 5000, ""])
def test_invalid_token_is_rejected(place: KeystoneSite, token: str):
    assert place.call(token, "GET", LBS).status_code == 401


def test_known_tokens_stay_valid_and_others_get_503_while_keystone_is_down(place: KeystoneSite, web: dict[str, Any]):
    """Known tokens stay valid; each unknown one is answered 503 after one request to Keystone, in the format of the
    front end; all tokens are accepted again when Keystone is back."""
    cloud = place.cloud
    known, new, root = cloud.token("alice"), cloud.token("bob"), cloud.token("admin", SYSTEM)
    assert place.call(known, "GET", LBS).status_code == 200
    place.keystone_requests(root)
    cloud.stop()

    def log_after_a_known_call() -> str:
        assert place.call(known, "GET", LBS).json()["loadbalancers"][0]["name"] == "web"
        return place.log()

    wait_until(log_after_a_known_call, "a question about the known token", is_enough=lambda log: UNAVAILABLE in log)
    asked = place.keystone_requests(root)
    assert place.call(known, "GET", LBS).json()["loadbalancers"][0]["name"] == "web"
    balancing, networking = place.call(new, "GET", LBS), place.call(new, "GET", NETWORKS)
    assert place.keystone_requests(root) - asked <= 4, "more than one question for a request"
    assert (balancing.status_code, balancing.json()["faultcode"]) == (503, "Server")
    assert (networking.status_code, networking.json()["NeutronError"]["type"]) == (503, "HTTPServiceUnavailable")
    assert balancing.headers["retry-after"] == "2"
    assert "error" in place.call(new, "GET", "/operator/plan").json()
    cloud.start()
    wait_equal(lambda: place.call(new, "GET", LBS).status_code, 200)
    assert place.log().count(UNAVAILABLE) <= 3  # once for each reason
    assert place.log().count("responds again") == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"KEYSTONE_USER": "alice"}, "it rejects user 'alice' of project 'service'"),
        (
            {"KEYSTONE_URL": "{url}/nothing"},
            "returned status 404 to a login: keystone.url must be the URL of the Identity API v3",
        ),
    ],
)
def test_server_does_not_start_with_unusable_keystone_options(
    place: KeystoneSite, tmp_path: Path, wrong: dict[str, str], words: str
):
    environment = {
        **options(place.cloud, tmp_path),
        "FAIRLEAD_STORE_PATH": str(tmp_path / "db"),
        "FAIRLEAD_SERVER_LISTEN": "127.0.0.1:0",
        **{f"FAIRLEAD_{name}": value.format(url=place.cloud.url) for name, value in wrong.items()},
    }
    ended = subprocess.run(
        [sys.executable, "-m", "fairlead.cli.main", "server"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode != 0
    assert words in ended.stderr
    assert password_of("fairlead") not in ended.stderr
    assert "Traceback" not in ended.stderr
