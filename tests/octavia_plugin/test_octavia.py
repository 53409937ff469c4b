"""Fairlead in a real Octavia: rows in a real ovsdb-server, and correct statuses, whichever process is killed."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from harness.octavia_plugin.cloud import PROJECT, SETTLE_TIMEOUT, OctaviaCloud, cloud_or_skip
from harness.shell import OpenStackShell, shell
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.octavia


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OctaviaCloud]:
    with cloud_or_skip(tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def cli(place: OctaviaCloud) -> Iterator[OpenStackShell]:
    with shell(place.folder / "clouds.yaml") as typed:
        yield typed


@pytest.fixture(scope="module")
def web(place: OctaviaCloud, cli: OpenStackShell) -> str:
    """A network and a load balancer with all its parts, made with the stock client; returns the load balancer's id."""
    cli.run_ok("network create net -f json")
    cli.run_ok("subnet create sub --network net --subnet-range 10.0.0.0/24 -f json")
    for last in (11, 12, 13):
        cli.run_ok(f"port create vm{last} --network net --fixed-ip ip-address=10.0.0.{last} -f json")
    wait = "--wait -f json"
    made: dict[str, Any] = cli.run_ok(f"loadbalancer create --name web --provider fairlead --vip-subnet-id sub {wait}")
    assert (made["provisioning_status"], made["provider"]) == ("ACTIVE", "fairlead")
    cli.run_ok(f"loadbalancer listener create --name http --protocol TCP --protocol-port 80 {wait} web")
    pool = "loadbalancer pool create --name app --listener http --protocol TCP --lb-algorithm ROUND_ROBIN"
    cli.run_ok(f"{pool} {wait}")
    cli.run_ok(f"loadbalancer member create app --name one --address 10.0.0.11 --protocol-port 8080 --weight 3 {wait}")
    cli.run_ok(f"loadbalancer healthmonitor create --type TCP --delay 5 --timeout 3 --max-retries 2 {wait} app")
    cli.run_ok(
        "loadbalancer pool create --name plain --loadbalancer web --protocol TCP --lb-algorithm ROUND_ROBIN --wait"
    )
    place.settle()
    return str(made["id"])


def test_stock_client_creates_ovn_rows_and_an_active_load_balancer(place: OctaviaCloud, cli: OpenStackShell, web: str):
    vip = cli.run_ok("loadbalancer show web -f json")["vip_address"]
    shown = place.fairlead.client.get(f"/operator/owners/{web}").json()
    written = " ".join(shown["actual"].values())
    assert f"{vip}:80" in written
    assert "10.0.0.11:8080" in written
    assert shown["actual"] == shown["desired"]
    tree = cli.run_ok("loadbalancer status show web")["loadbalancer"]
    assert {tree["provisioning_status"], tree["listeners"][0]["provisioning_status"]} == {"ACTIVE"}
    assert tree["listeners"][0]["pools"][0]["members"][0]["name"] == "one"


def test_updates_arrive_and_unsupported_options_are_rejected_before_storage(
    place: OctaviaCloud, cli: OpenStackShell, web: str
):
    before = place.octavia_statuses()
    option = "Provider 'fairlead' does not support a requested option"
    cli.run_error("loadbalancer listener create --protocol HTTP --protocol-port 81 web", f"{option}: protocol HTTP")
    limited = "loadbalancer listener create --protocol TCP --protocol-port 82 --connection-limit 5 web"
    cli.run_error(limited, f"{option}: connection_limit")
    cli.run_error("loadbalancer l7policy create --action REJECT http", f"{option}: L7 policies")
    assert place.octavia_statuses() == before
    cli.run_ok("loadbalancer member set app one --weight 7 --wait")
    cli.run_ok("loadbalancer pool set app --session-persistence type=SOURCE_IP --wait")
    cli.run_ok("loadbalancer listener set http --allowed-cidr 10.0.0.0/8 --wait")
    cli.run_ok("loadbalancer set web --name shop --wait")
    cli.run_ok("loadbalancer failover shop --wait")
    cli.run_ok("loadbalancer set shop --name web --wait")
    pool = cli.run_ok("loadbalancer pool show app -f json")["id"]
    batch = [{"address": f"10.0.0.{last}", "protocol_port": 8080, "weight": last} for last in (11, 12, 13)]
    place.request("PUT", f"pools/{pool}/members", {"members": batch[1:]})
    place.settle()
    place.request("PUT", f"pools/{pool}/members?additive_only=true", {"members": batch[:1]})
    place.settle()
    kept = place.fairlead.client.get(f"/load-balancer/v2/lbaas/pools/{pool}/members").json()["members"]
    assert sorted((each["address"], each["weight"]) for each in kept) == [
        (each["address"], each["weight"]) for each in batch
    ]


def test_ipv6_udp_flavor_and_availability_zone_are_supported(place: OctaviaCloud, cli: OpenStackShell, web: str):
    network = cli.run_ok("network show net -f json")["id"]
    cli.run_ok("subnet create six --network net --ip-version 6 --subnet-range fd00:5::/64 -f json")
    cli.run_ok("port create vm6 --network net --fixed-ip subnet=six,ip-address=fd00:5::11 -f json")
    offer(place, network)
    lb = "loadbalancer create --name both --provider fairlead --vip-subnet-id six --additional-vip subnet-id=sub"
    made = cli.run_ok(f"{lb} --flavor plain --availability-zone here --wait -f json")
    assert (made["provisioning_status"], made["vip_address"].startswith("fd00:5::")) == ("ACTIVE", True)
    four = cli.run_ok("loadbalancer show both -f json -c additional_vips")["additional_vips"]
    listener = "loadbalancer listener create --name dns --protocol UDP --protocol-port 53 --wait -f json both"
    cli.run_ok(f"{listener} --allowed-cidr fd00:6::/64 --allowed-cidr 10.6.0.0/16")
    cli.run_ok("loadbalancer pool create --name six --listener dns --protocol UDP --lb-algorithm SOURCE_IP_PORT --wait")
    pool = cli.run_ok("loadbalancer pool show six -f json")["id"]
    members = [
        {"address": "fd00:5::11", "protocol_port": 53, "subnet_id": cli.run_ok("subnet show six -f json")["id"]},
        {"address": "10.0.0.11", "protocol_port": 53, "subnet_id": cli.run_ok("subnet show sub -f json")["id"]},
    ]
    place.request("PUT", f"pools/{pool}/members", {"members": members})
    place.settle()
    written = " ".join(place.fairlead.client.get(f"/operator/owners/{made['id']}").json()["actual"].values())
    for vip, member in ((f"[{made['vip_address']}]", "[fd00:5::11]:53"), (four[0]["ip_address"], "10.0.0.11:53")):
        assert f"{vip}:53" in written
        assert member in written
    assert "fd00:6::/64" in written
    code, told = place.sync("--dry-run", "--at-once", "both")
    assert (code, told["differences"]) == (0, []), "what was written is what Octavia has"
    unknown = {"name": "odd", "provider_name": "fairlead", "flavor_data": json.dumps({"size": "xl"})}
    answer = place.octavia.post("/v2/lbaas/flavorprofiles", json={"flavorprofile": unknown})
    assert (answer.status_code, "flavor_data size" in answer.text) == (501, True), answer.text
    cli.run_ok("loadbalancer delete both --cascade --wait")
    place.settle()
    cli.run_ok("port delete vm6")
    cli.run_ok("subnet delete six")


def offer(place: OctaviaCloud, network: str) -> None:
    """Create a flavor and an availability zone with the provider's capabilities."""
    of_provider = {"provider_name": "fairlead"}
    flavor = {"name": "plain", **of_provider, "flavor_data": "{}"}
    made = place.request("POST", "flavorprofiles", {"flavorprofile": flavor})["flavorprofile"]["id"]
    place.request("POST", "flavors", {"flavor": {"name": "plain", "flavor_profile_id": made}})
    zone = {"name": "here", **of_provider, "availability_zone_data": json.dumps({"valid_vip_networks": [network]})}
    answer = place.request("POST", "availabilityzoneprofiles", {"availability_zone_profile": zone})
    made = answer["availability_zone_profile"]["id"]
    place.request(
        "POST", "availabilityzones", {"availability_zone": {"name": "here", "availability_zone_profile_id": made}}
    )


def test_load_balancer_tree_is_created_and_cascade_deleted_with_its_port(
    place: OctaviaCloud, cli: OpenStackShell, web: str
):
    monitor = {"type": "UDP-CONNECT", "delay": 5, "timeout": 3, "max_retries": 1}
    members = [{"address": "10.0.0.11", "protocol_port": 53}]
    pool = {"name": "dns", "protocol": "UDP", "lb_algorithm": "SOURCE_IP", "members": members, "healthmonitor": monitor}
    listener = {"protocol": "UDP", "protocol_port": 53, "default_pool": pool}
    subnet = cli.run_ok("subnet show sub -f json")["id"]
    body = {"name": "tree", "vip_subnet_id": subnet, "provider": "fairlead", "listeners": [listener]}
    made = place.request("POST", "loadbalancers", {"loadbalancer": body})["loadbalancer"]
    held = {each["id"] for each in (*made["listeners"], *made["pools"], *made["pools"][0]["members"])}
    assert place.settle().keys() >= {made["id"], *held}
    cli.run_ok(f"port show {made['vip_port_id']} -f json")
    cli.run_ok("loadbalancer delete tree --cascade --wait")
    assert made["id"] not in place.fairlead_statuses()
    place.settle()
    cli.run_error(f"port show {made['vip_port_id']} -f json", "No Port found")


def test_tenant_port_is_used_as_vip_and_released(place: OctaviaCloud, cli: OpenStackShell, web: str):
    port = cli.run_ok("port create mine --network net -f json")["id"]
    cli.run_ok(f"loadbalancer create --name guest --provider fairlead --vip-port-id {port} --wait -f json")
    cli.run_ok("loadbalancer delete guest --wait")
    assert cli.run_ok(f"port show {port} -f json")["device_owner"] == ""
    cli.run_ok(f"port delete {port}")


def test_exceeded_fairlead_quota_is_an_octavia_error_and_stores_nothing(place: OctaviaCloud, web: str):
    """Octavia checks its own quotas itself, before it calls a driver."""
    before, door = place.octavia_statuses(), place.fairlead.client
    quota = f"/load-balancer/v2/lbaas/quotas/{PROJECT}"
    subnet = place.request("GET", f"loadbalancers/{web}")["loadbalancer"]["vip_subnet_id"]
    door.put(quota, json={"quota": {"loadbalancer": 1, "listener": 1}}).raise_for_status()
    body = {"name": "more", "vip_subnet_id": subnet, "provider": "fairlead"}
    listener = {"loadbalancer_id": web, "protocol": "TCP", "protocol_port": 4000}
    for path, asked, what in (
        ("loadbalancers", {"loadbalancer": body}, "Load Balancer"),
        ("listeners", {"listener": listener}, "Listener"),
    ):
        answer = place.octavia.post(f"/v2/lbaas/{path}", json=asked)
        said = f"Provider 'fairlead' reports error: Quota has been met for resources: {what}"
        assert (answer.status_code, answer.json()["faultstring"]) == (500, said)
    assert place.octavia_statuses() == before == place.fairlead_statuses()
    door.delete(quota).raise_for_status()
    assert place.sync("--delete-ports", "--at-once")[0] == 0


def test_orphan_ports_are_reported_and_deleted_on_request(place: OctaviaCloud, cli: OpenStackShell, web: str):
    """Octavia creates the VIP's port before Fairlead rejects the load balancer."""
    place.settle()
    balancer = place.request("GET", f"loadbalancers/{web}")["loadbalancer"]
    listener = {"protocol": "HTTP", "protocol_port": 80}
    body = {"name": "more", "vip_subnet_id": balancer["vip_subnet_id"], "provider": "fairlead", "listeners": [listener]}
    assert place.octavia.post("/v2/lbaas/loadbalancers", json={"loadbalancer": body}).status_code == 501
    ports = cli.run_ok("port list --device-owner Octavia --long -f json")
    (left,) = {each["ID"] for each in ports} - {balancer["vip_port_id"]}
    code, told = place.sync("--dry-run", "--delete-ports")
    (found,) = told["differences"]
    assert (code, found["what"], found["id"]) == (3, "orphan port", left)
    code, told = place.sync("--at-once")
    assert (code, [(each["what"], each["id"]) for each in told["differences"]]) == (1, [("kept orphan port", left)])
    cli.run_ok(f"port show {left} -f json")
    assert place.sync("web", "--at-once") == (0, {"load_balancers": 1, "dry_run": False, "differences": []})
    code, told = place.sync("--delete-ports", "--at-once")
    assert (code, [(each["what"], each["id"]) for each in told["differences"]]) == (0, [("orphan port", left)])
    cli.run_error(f"port show {left} -f json", "No Port found")
    cli.run_ok(f"port show {balancer['vip_port_id']} -f json")
    assert place.sync("--at-once") == (0, {"load_balancers": 1, "dry_run": False, "differences": []})


def test_octavia_stays_pending_while_the_driver_agent_is_down(place: OctaviaCloud, web: str):
    place.kill("agent")
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 90, "name": "waits"}}
    made = place.request("POST", "listeners", body)["listener"]["id"]
    assert place.octavia_statuses()[made][0] == "PENDING_CREATE"
    place.start("agent")
    assert place.settle()[made] == ("ACTIVE", "ONLINE")
    place.request("DELETE", f"listeners/{made}")
    assert made not in place.settle()


def test_write_never_committed_by_octavia_is_deleted(place: OctaviaCloud, web: str):
    """The API is killed between the write in Fairlead and the commit in Octavia."""
    before = place.octavia_statuses()
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 91}}
    known = place.fairlead_statuses().keys()
    killed_when(place, lambda: place.fairlead_statuses().keys() > known, "POST", "listeners", body)
    words = "deleting it in Fairlead"
    wait_until(lambda: place.log("agent"), words, is_enough=lambda log: words in log, seconds=SETTLE_TIMEOUT)
    assert place.octavia_statuses() == before
    assert place.settle() == before


def test_deletion_rolled_back_by_octavia_is_undone_in_fairlead(place: OctaviaCloud, web: str):
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 92}}
    made = place.request("POST", "listeners", body)["listener"]["id"]
    place.settle()
    killed_when(place, lambda: made not in place.fairlead_statuses(), "DELETE", f"listeners/{made}", None)
    wait_equal(lambda: place.fairlead_statuses().get(made), ("ACTIVE", "ONLINE"), seconds=SETTLE_TIMEOUT)
    assert place.settle()[made] == ("ACTIVE", "ONLINE")
    place.request("DELETE", f"listeners/{made}")
    assert made not in place.settle()


def test_values_rolled_back_by_octavia_are_restored(place: OctaviaCloud, web: str):
    """The API is killed after Fairlead stored a weight and a name that Octavia has not committed."""
    pool = next(each for each in place.request("GET", "pools")["pools"] if each["name"] == "app")["id"]
    member = place.request("GET", f"pools/{pool}/members")["members"][0]

    def stored() -> tuple[str, int]:
        found = place.fairlead.client.get(f"/load-balancer/v2/lbaas/pools/{pool}/members/{member['id']}")
        return found.json()["member"]["name"], found.json()["member"]["weight"]

    before = member["name"], member["weight"]
    assert stored() == before
    change = {"member": {"name": "other", "weight": 99}}
    killed_when(place, lambda: stored() != before, "PUT", f"pools/{pool}/members/{member['id']}", change)
    wait_equal(stored, before, seconds=SETTLE_TIMEOUT)
    assert place.request("GET", f"pools/{pool}/members/{member['id']}")["member"]["weight"] == before[1]
    place.settle()


def test_sync_command_reports_and_repairs_differences(place: OctaviaCloud, web: str):
    """Fairlead's own front ends change, delete and create parts while the provider agent is not running."""
    place.settle()
    place.kill("agent")
    place.override("no-agent.conf", "[driver_agent]\nenabled_provider_agents =\n")
    place.start("agent", "no-agent.conf")
    assert place.sync("--dry-run", "--at-once") == (0, {"load_balancers": 1, "dry_run": True, "differences": []})
    door, pools = place.fairlead.client, place.request("GET", "pools")["pools"]
    lbaas = "/load-balancer/v2/lbaas"
    pool = next(each for each in pools if each["name"] == "app")
    member = pool["members"][0]["id"]
    door.put(f"{lbaas}/pools/{pool['id']}/members/{member}", json={"member": {"weight": 50}}).raise_for_status()
    wait_until(place.fairlead.is_idle, seconds=SETTLE_TIMEOUT)
    door.delete(f"{lbaas}/healthmonitors/{pool['healthmonitor_id']}").raise_for_status()
    wait_until(place.fairlead.is_idle, seconds=SETTLE_TIMEOUT)
    body = {"listener": {"loadbalancer_id": web, "protocol": "TCP", "protocol_port": 99}}
    listener = door.post(f"{lbaas}/listeners", json=body).raise_for_status().json()["listener"]["id"]
    wait_until(place.fairlead.is_idle, seconds=SETTLE_TIMEOUT)
    before = place.fairlead_statuses()
    code, told = place.sync("--dry-run", "--at-once", "web")
    assert (code, place.fairlead_statuses()) == (3, before)
    assert {(each["what"], each["id"]) for each in told["differences"]} >= {
        ("missing", pool["healthmonitor_id"]),
        ("stranger", f"/listeners/{listener}"),
    }
    found = list[dict[str, Any]]()
    while (ran := place.sync("--at-once"))[1]["differences"]:
        assert ran[0] == 0
        found += ran[1]["differences"]
    assert [(each["attribute"], each["id"]) for each in found if each["what"] == "value"] == [("weight", member)]
    assert place.settle().keys() == before.keys() - {listener} | {pool["healthmonitor_id"]}
    place.kill("agent")
    place.start("agent")


def killed_when(place: OctaviaCloud, written: Callable[[], bool], method: str, path: str, body: object) -> None:
    with ThreadPoolExecutor(1) as pool, place.block_commits():
        asked = pool.submit(place.octavia.request, method, f"/v2/lbaas/{path}", json=body)
        wait_until(written, seconds=SETTLE_TIMEOUT)
        place.kill("api")
        with pytest.raises(httpx.TransportError):
            asked.result()
    place.start("api")
