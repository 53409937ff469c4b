"""A real Octavia with the providers `ovn` and `fairlead` on one Northbound database, and the takeover command.

The command takes over one load balancer of the stock provider, and does not touch the other. Its Neutron is Fairlead's
network front end, so switches with Neutron's names are added directly.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from harness.fuzz.machine import SCHEMA, SERVER
from harness.octavia_plugin.cloud import (
    LAUNCH,
    OCTAVIA,
    SETTLE_TIMEOUT,
    STOCK_CONF,
    STOCK_PROVIDERS,
    OctaviaCloud,
    cloud,
)
from harness.shell import OpenStackShell, shell
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.octavia
COLUMNS = (
    "name",
    "protocol",
    "vips",
    "selection_fields",
    "options",
    "ip_port_mappings",
    "health_check",
    "external_ids",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OctaviaCloud]:
    missing = [str(each) for each in (OCTAVIA.parent.parent / ".installed", SERVER, SCHEMA) if not each.exists()]
    if missing:
        reason = f"needs {' and '.join(missing)} (scripts/setup lab)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with cloud(tmp_path_factory.mktemp("adopt"), providers=STOCK_PROVIDERS, more=STOCK_CONF) as made:
        yield made


@pytest.fixture(scope="module")
def cli(place: OctaviaCloud) -> Iterator[OpenStackShell]:
    with shell(place.folder / "clouds.yaml") as typed:
        yield typed


@pytest.fixture(scope="module")
def network(place: OctaviaCloud, cli: OpenStackShell) -> str:
    made = cli.run_ok("network create net -f json")["id"]
    cli.run_ok("subnet create sub --network net --subnet-range 10.0.0.0/24 -f json")
    for last in (11, 12, 13):
        cli.run_ok(f"port create vm{last} --network net --fixed-ip ip-address=10.0.0.{last} -f json")
    northbound(place, "ls-add", f"neutron-{made}")
    return str(made)


def northbound(place: OctaviaCloud, *words: str) -> str:
    command = ["ovn-nbctl", f"--db={place.database.northbound}", "--no-leader-only", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout


def rows(place: OctaviaCloud, name: str) -> list[dict[str, Any]]:
    """Rows with this name, and whether a switch refers to them."""
    told = northbound(place, "--format=json", "find", "Load_Balancer", f"name={name}")
    found = json.loads(told)
    made = [dict(zip(found["headings"], row, strict=True)) for row in found["data"]]
    users = northbound(place, "--bare", "--columns=name,load_balancer", "list", "Logical_Switch")
    return [
        {**row, "has switches": row["_uuid"][1] in users} for row in sorted(made, key=lambda row: str(row["protocol"]))
    ]


def stock(place: OctaviaCloud, network: str, name: str, **more: Any) -> str:
    """A load balancer of the stock provider with all its features: TCP and UDP, two members.

    Returns its id when its rows are complete.
    """
    subnet = place.fairlead.client.get("/network/v2.0/subnets").json()["subnets"][0]["id"]
    members = [{"address": f"10.0.0.{last}", "protocol_port": 8080, "subnet_id": subnet} for last in (11, 12)]
    pool = {"protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": members, "name": f"pool-{name}"}
    listeners = [
        {"name": f"http-{name}", "protocol": "TCP", "protocol_port": 80, "default_pool": pool, **more},
        {"name": f"dns-{name}", "protocol": "UDP", "protocol_port": 53},
    ]
    body = {"name": name, "provider": "ovn", "vip_subnet_id": subnet, "listeners": listeners}
    made: str = place.request("POST", "loadbalancers", {"loadbalancer": body})["loadbalancer"]["id"]
    wait_vip(place, made, "10.0.0.12:8080")
    wait_equal(lambda: shown(place, made)["provisioning_status"], "ACTIVE", seconds=SETTLE_TIMEOUT)
    wait_until(
        lambda: all(each in str(rows(place, made)) for each in written_last(place, made)), seconds=SETTLE_TIMEOUT
    )
    return made


def wait_vip(place: OctaviaCloud, name: str, backend: str) -> None:
    """Wait until rows with this name have a backend."""

    def has_it(found: list[dict[str, Any]]) -> bool:
        return any(backend in str(row["vips"]) for row in found)

    wait_until(lambda: rows(place, name), backend, is_enough=has_it, seconds=SETTLE_TIMEOUT)


def written_last(place: OctaviaCloud, identity: str) -> list[str]:
    """Values that the stock provider writes last, after ACTIVE: the status of each member."""
    pools = place.request("GET", f"pools?loadbalancer_id={identity}")["pools"]
    members = [place.request("GET", f"pools/{pool['id']}/members")["members"] for pool in pools]
    return ["neutron:member_status", *(f'"{each["id"]}": "NO_MONITOR"' for found in members for each in found)]


def shown(place: OctaviaCloud, identity: str) -> dict[str, Any]:
    found: dict[str, Any] = place.request("GET", f"loadbalancers/{identity}")["loadbalancer"]
    return found


def octavias(place: OctaviaCloud, identity: str) -> tuple[str, str, str]:
    """Values that a takeover would change. Statuses may still change by the stock provider's queue."""
    found = shown(place, identity)
    return found["provider"], found["provisioning_status"], found["vip_port_id"]


def adopt(place: OctaviaCloud, *words: str) -> "subprocess.Popen[str]":
    command = [OCTAVIA, LAUNCH, "fairlead", "octavia", "adopt", "--config-file", place.folder / "octavia.conf", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, text=True, env=place.environment)  # type: ignore[call-overload, no-any-return]


def run(place: OctaviaCloud, *words: str) -> tuple[int, str, str]:
    with adopt(place, *words) as process:
        out, complaint = process.communicate(timeout=SETTLE_TIMEOUT)
        return process.returncode, out, complaint.splitlines()[-1] if complaint else ""


def test_adopt_takes_one_load_balancer_and_leaves_the_other_untouched(
    place: OctaviaCloud, cli: OpenStackShell, network: str
):
    other, web = stock(place, network, "other"), stock(place, network, "web")
    before, theirs = rows(place, other), rows(place, web)
    assert run(place, "web", "--dry-run")[:2] == (0, f"{web}: possible\n")
    assert rows(place, web) == theirs
    code, out, _ = run(place, web, "--json")
    assert (code, json.loads(out)) == (
        0,
        [{"load_balancer": web, "outcome": "adopted", "reason": "", "message": ""}],
    )
    assert rows(place, web) == []
    assert {row["protocol"] for kind in ("tcp", "udp") for row in rows(place, f"{web}-{kind}")} == {"tcp", "udp"}
    now = shown(place, web)
    assert (now["provider"], now["provisioning_status"]) == ("fairlead", "ACTIVE")
    port = cli.run_ok(f"port show {now['vip_port_id']} -f json")
    assert (port["name"], port["device_owner"]) == (f"octavia-lb-{web}", "Octavia")
    assert run(place, "web")[:2] == (0, f"{web}: already ours\n")
    assert rows(place, other) == before
    live_on(place, cli, web, now["vip_port_id"])
    assert rows(place, other) == before
    cli.run_ok("loadbalancer member create pool-other --name three --address 10.0.0.13 --protocol-port 8080 --wait")
    wait_vip(place, other, "10.0.0.13:8080")
    cli.run_ok("loadbalancer delete other --cascade --wait")
    wait_equal(lambda: rows(place, other), [], seconds=SETTLE_TIMEOUT)


def live_on(place: OctaviaCloud, cli: OpenStackShell, web: str, port_id: str) -> None:
    """Assert that the stock client changes, monitors and deletes it like any other load balancer of Fairlead."""
    cli.run_ok("loadbalancer member create pool-web --name three --address 10.0.0.13 --protocol-port 8080 --wait")
    cli.run_ok("loadbalancer healthmonitor create --type TCP --delay 5 --timeout 3 --max-retries 2 --wait pool-web")
    cli.run_ok("loadbalancer pool set pool-web --session-persistence type=SOURCE_IP --wait")
    (tcp, *_) = rows(place, f"{web}-tcp-ip_src")
    assert "10.0.0.13:8080" in str(tcp["vips"])
    assert tcp["health_check"]
    cli.run_ok("loadbalancer delete web --cascade --wait")
    wait_equal(lambda: rows(place, f"{web}-taken"), [], seconds=SETTLE_TIMEOUT)
    assert place.fairlead.client.get(f"/network/v2.0/ports/{port_id}").status_code == 404


def test_unsupported_load_balancer_is_rejected_and_unchanged(place: OctaviaCloud, cli: OpenStackShell, network: str):
    limited = stock(place, network, "limited", connection_limit=5)
    before = rows(place, limited), octavias(place, limited)
    for words in (["--dry-run"], []):
        code, out, complaint = run(place, *words, "limited")
        assert (code, out) == (3, "")
        assert complaint == f"{limited}: refused: rejected by Fairlead: the provider does not support connection_limit"
    assert (rows(place, limited), octavias(place, limited)) == before
    code, out, _ = run(place, "--json", "nobody", "limited")
    told = {each["load_balancer"]: each["reason"] for each in json.loads(out)}
    assert (code, told) == (3, {"nobody": "unknown", limited: "501"})


def test_adopt_is_rejected_if_networks_lose_service_unless_named(
    place: OctaviaCloud, cli: OpenStackShell, network: str
):
    """The stock provider has it on a network and a router on which Fairlead would not have it."""
    served = stock(place, network, "served")
    other, router = "11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"
    northbound(place, "ls-add", f"neutron-{other}", "--", "lr-add", f"neutron-{router}")
    tcp, udp = (row["_uuid"][1] for row in rows(place, served))
    northbound(place, "add", "Logical_Switch", f"neutron-{other}", "load_balancer", udp)
    northbound(place, "add", "Logical_Router", f"neutron-{router}", "load_balancer", tcp, udp)
    before = rows(place, served), octavias(place, served)
    said = "refused: rejected by Fairlead: clients would stay with the other provider on"
    named = "to accept this, list each of these."
    code, out, complaint = run(place, "--dry-run", "served")
    assert (code, out) == (3, "")
    assert complaint == f"{served}: {said} network {other} and router {router}; {named}"
    assert run(place, "served", "--leave", other) == (3, "", f"{served}: {said} router {router}; {named}")
    assert (rows(place, served), octavias(place, served)) == before
    assert run(place, "--leave", other, "--leave", router, "served")[:2] == (0, f"{served}: adopted\n")
    assert rows(place, served) == []


def test_load_balancer_with_a_separate_additional_vip_port_is_rejected(
    place: OctaviaCloud, cli: OpenStackShell, network: str
):
    cli.run_ok("subnet create six --network net --ip-version 6 --subnet-range fd00:7::/64 -f json")
    lb = "loadbalancer create --name two --provider ovn --vip-subnet-id sub --additional-vip subnet-id=six"
    two = cli.run_ok(f"{lb} --wait -f json")["id"]
    before = octavias(place, two)
    for words in (["--dry-run"], []):
        code, out, complaint = run(place, *words, "two")
        assert (code, out) == (3, "")
        assert complaint.startswith(
            f"{two}: refused: rejected by Fairlead: Validation failure: port_id of additional_vips: "
        )
    assert (octavias(place, two), told(place, two)) == (before, None)


def test_kill_before_the_octavia_commit_changes_nothing_and_is_repeatable(
    place: OctaviaCloud, cli: OpenStackShell, network: str
):
    killed = stock(place, network, "killed")
    before = rows(place, killed)
    with place.block_commits(), adopt(place, "killed") as process:
        wait_equal(lambda: told(place, killed), "prepared", seconds=SETTLE_TIMEOUT)
        process.send_signal(signal.SIGKILL)
    assert rows(place, killed) == before
    assert shown(place, killed)["provider"] == "ovn"
    assert run(place, "killed")[:2] == (0, f"{killed}: adopted\n")
    assert (rows(place, killed), told(place, killed)) == ([], "taken")


def test_kill_after_the_octavia_commit_is_completed_by_the_driver_agent(
    place: OctaviaCloud, cli: OpenStackShell, network: str
):
    """Fairlead is down when the command would complete the takeover; Octavia's database has it by then."""
    left = stock(place, network, "left")
    wait_equal(lambda: told(place, left), None, seconds=SETTLE_TIMEOUT)
    with adopt(place, "left") as process:
        wait_equal(lambda: shown(place, left)["provider"], "fairlead", seconds=SETTLE_TIMEOUT)
        process.send_signal(signal.SIGKILL)
    wait_equal(lambda: shown(place, left)["provisioning_status"], "ACTIVE", seconds=SETTLE_TIMEOUT)
    assert (rows(place, left), told(place, left)) == ([], "taken")
    port = cli.run_ok(f"port show {shown(place, left)['vip_port_id']} -f json")
    assert port["device_owner"] == "Octavia"


def told(place: OctaviaCloud, identity: str) -> str | None:
    answer = place.fairlead.client.get(f"/plugin/statuses/{identity}")
    return answer.json()["loadbalancer"]["takeover"] if answer.status_code == 200 else None
