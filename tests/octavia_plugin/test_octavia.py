"""Fairlead in a real Octavia: rows in a real ovsdb-server, and correct statuses, whichever process is killed."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from harness.octavia_plugin.cloud import PROJECT, SETTLED, Cloud, made_place
from harness.shell import Shell, shell
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.octavia


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with made_place(tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="module")
def cli(place: Cloud) -> Iterator[Shell]:
    with shell(place.folder / "clouds.yaml") as typed:
        yield typed


@pytest.fixture(scope="module")
def web(place: Cloud, cli: Shell) -> str:
    """A network and a load balancer with all its parts, made with the stock client; returns the load balancer's id."""
    cli.good("network create net -f json")
    cli.good("subnet create sub --network net --subnet-range 10.0.0.0/24 -f json")
    for last in (11, 12, 13):
        cli.good(f"port create vm{last} --network net --fixed-ip ip-address=10.0.0.{last} -f json")
    wait = "--wait -f json"
    made: dict[str, Any] = cli.good(f"loadbalancer create --name web --provider fairlead --vip-subnet-id sub {wait}")
    assert (made["provisioning_status"], made["provider"]) == ("ACTIVE", "fairlead")
    cli.good(f"loadbalancer listener create --name http --protocol TCP --protocol-port 80 {wait} web")
    pool = "loadbalancer pool create --name app --listener http --protocol TCP --lb-algorithm ROUND_ROBIN"
    cli.good(f"{pool} {wait}")
    cli.good(f"loadbalancer member create app --name one --address 10.0.0.11 --protocol-port 8080 --weight 3 {wait}")
    cli.good(f"loadbalancer healthmonitor create --type TCP --delay 5 --timeout 3 --max-retries 2 {wait} app")
    cli.good(
        "loadbalancer pool create --name plain --loadbalancer web --protocol TCP --lb-algorithm ROUND_ROBIN --wait"
    )
    place.settle()
    return str(made["id"])


def test_what_the_stock_client_makes_is_rows_of_ovn_and_active_in_octavia(place: Cloud, cli: Shell, web: str):
    vip = cli.good("loadbalancer show web -f json")["vip_address"]
    shown = place.fairlead.client.get(f"/operator/owners/{web}").json()
    written = " ".join(shown["actual"].values())
    assert f"{vip}:80" in written
    assert "10.0.0.11:8080" in written
    assert shown["actual"] == shown["desired"]
    tree = cli.good("loadbalancer status show web")["loadbalancer"]
    assert {tree["provisioning_status"], tree["listeners"][0]["provisioning_status"]} == {"ACTIVE"}
    assert tree["listeners"][0]["pools"][0]["members"][0]["name"] == "one"


def test_changes_arrive_and_what_cannot_be_had_is_named_before_octavia_stores_it(place: Cloud, cli: Shell, web: str):
    before = place.everything()
    option = "Provider 'fairlead' does not support a requested option"
    cli.bad("loadbalancer listener create --protocol HTTP --protocol-port 81 web", f"{option}: protocol HTTP")
    limited = "loadbalancer listener create --protocol TCP --protocol-port 82 --connection-limit 5 web"
    cli.bad(limited, f"{option}: connection_limit")
    cli.bad("loadbalancer l7policy create --action REJECT http", f"{option}: L7 policies")
    assert place.everything() == before
    cli.good("loadbalancer member set app one --weight 7 --wait")
    cli.good("loadbalancer pool set app --session-persistence type=SOURCE_IP --wait")
    cli.good("loadbalancer listener set http --allowed-cidr 10.0.0.0/8 --wait")
    cli.good("loadbalancer set web --name shop --wait")
    cli.good("loadbalancer failover shop --wait")
    cli.good("loadbalancer set shop --name web --wait")
    pool = cli.good("loadbalancer pool show app -f json")["id"]
    batch = [{"address": f"10.0.0.{last}", "protocol_port": 8080, "weight": last} for last in (11, 12, 13)]
    place.ask("PUT", f"pools/{pool}/members", {"members": batch[1:]})
    place.settle()
    place.ask("PUT", f"pools/{pool}/members?additive_only=true", {"members": batch[:1]})
    place.settle()
    kept = place.fairlead.client.get(f"/load-balancer/v2/lbaas/pools/{pool}/members").json()["members"]
    assert sorted((each["address"], each["weight"]) for each in kept) == [
        (each["address"], each["weight"]) for each in batch
    ]


def test_both_families_udp_flavors_and_zones(place: Cloud, cli: Shell, web: str):
    network = cli.good("network show net -f json")["id"]
    cli.good("subnet create six --network net --ip-version 6 --subnet-range fd00:5::/64 -f json")
    cli.good("port create vm6 --network net --fixed-ip subnet=six,ip-address=fd00:5::11 -f json")
    offer(place, network)
    lb = "loadbalancer create --name both --provider fairlead --vip-subnet-id six --additional-vip subnet-id=sub"
    made = cli.good(f"{lb} --flavor plain --availability-zone here --wait -f json")
    assert (made["provisioning_status"], made["vip_address"].startswith("fd00:5::")) == ("ACTIVE", True)
    four = cli.good("loadbalancer show both -f json -c additional_vips")["additional_vips"]
    listener = "loadbalancer listener create --name dns --protocol UDP --protocol-port 53 --wait -f json both"
    cli.good(f"{listener} --allowed-cidr fd00:6::/64 --allowed-cidr 10.6.0.0/16")
    cli.good("loadbalancer pool create --name six --listener dns --protocol UDP --lb-algorithm SOURCE_IP_PORT --wait")
    pool = cli.good("loadbalancer pool show six -f json")["id"]
    members = [
        {"address": "fd00:5::11", "protocol_port": 53, "subnet_id": cli.good("subnet show six -f json")["id"]},
        {"address": "10.0.0.11", "protocol_port": 53, "subnet_id": cli.good("subnet show sub -f json")["id"]},
    ]
    place.ask("PUT", f"pools/{pool}/members", {"members": members})
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
    cli.good("loadbalancer delete both --cascade --wait")
    place.settle()
    cli.good("port delete vm6")
    cli.good("subnet delete six")


def offer(place: Cloud, network: str) -> None:
    """Create a flavor and an availability zone with the provider's capabilities."""
    of_provider = {"provider_name": "fairlead"}
    flavor = {"name": "plain", **of_provider, "flavor_data": "{}"}
    made = place.ask("POST", "flavorprofiles", {"flavorprofile": flavor})["flavorprofile"]["id"]
    place.ask("POST", "flavors", {"flavor": {"name": "plain", "flavor_profile_id": made}})
    zone = {"name": "here", **of_provider, "availability_zone_data": json.dumps({"valid_vip_networks": [network]})}
    answer = place.ask("POST", "availabilityzoneprofiles", {"availability_zone_profile": zone})
    made = answer["availability_zone_profile"]["id"]
    place.ask(
        "POST", "availabilityzones", {"availability_zone": {"name": "here", "availability_zone_profile_id": made}}
    )


def test_a_tree_comes_and_goes_with_all_that_it_holds_and_its_port(place: Cloud, cli: Shell, web: str):
    monitor = {"type": "UDP-CONNECT", "delay": 5, "timeout": 3, "max_retries": 1}
    members = [{"address": "10.0.0.11", "protocol_port": 53}]
    pool = {"name": "dns", "protocol": "UDP", "lb_algorithm": "SOURCE_IP", "members": members, "healthmonitor": monitor}
    listener = {"protocol": "UDP", "protocol_port": 53, "default_pool": pool}
    subnet = cli.good("subnet show sub -f json")["id"]
    body = {"name": "tree", "vip_subnet_id": subnet, "provider": "fairlead", "listeners": [listener]}
    made = place.ask("POST", "loadbalancers", {"loadbalancer": body})["loadbalancer"]
    held = {each["id"] for each in (*made["listeners"], *made["pools"], *made["pools"][0]["members"])}
    assert place.settle().keys() >= {made["id"], *held}
    cli.good(f"port show {made['vip_port_id']} -f json")
    cli.good("loadbalancer delete tree --cascade --wait")
    assert made["id"] not in place.truth()
    place.settle()
    cli.bad(f"port show {made['vip_port_id']} -f json", "No Port found")


def test_a_port_of_the_tenant_is_taken_and_given_back(place: Cloud, cli: Shell, web: str):
    port = cli.good("port create mine --network net -f json")["id"]
    cli.good(f"loadbalancer create --name guest --provider fairlead --vip-port-id {port} --wait -f json")
    cli.good("loadbalancer delete guest --wait")
    assert cli.good(f"port show {port} -f json")["device_owner"] == ""
    cli.good(f"port delete {port}")


def test_a_quota_of_fairleads_is_an_error_of_octavias_and_nothing_is_stored_or_waits(place: Cloud, web: str):
    """Octavia checks its own quotas itself, before it calls a driver."""
    before, door = place.everything(), place.fairlead.client
    quota = f"/load-balancer/v2/lbaas/quotas/{PROJECT}"
    subnet = place.ask("GET", f"loadbalancers/{web}")["loadbalancer"]["vip_subnet_id"]
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
    assert place.everything() == before == place.truth()
    door.delete(quota).raise_for_status()
    assert place.sync("--delete-ports", "--at-once")[0] == 0


def test_ports_that_octavia_left_are_named_and_deleted_on_request(place: Cloud, cli: Shell, web: str):
    """Octavia creates the VIP's port before Fairlead rejects the load balancer."""
    place.settle()
    balancer = place.ask("GET", f"loadbalancers/{web}")["loadbalancer"]
    listener = {"protocol": "HTTP", "protocol_port": 80}
    body = {"name": "more", "vip_subnet_id": balancer["vip_subnet_id"], "provider": "fairlead", "listeners": [listener]}
    assert place.octavia.post("/v2/lbaas/loadbalancers", json={"loadbalancer": body}).status_code == 501
    ports = cli.good("port list --device-owner Octavia --long -f json")
    (left,) = {each["ID"] for each in ports} - {balancer["vip_port_id"]}
    code, told = place.sync("--dry-run", "--delete-ports")
    (found,) = told["differences"]
    assert (code, found["what"], found["id"]) == (3, "orphan port", left)
    code, told = place.sync("--at-once")
    assert (code, [(each["what"], each["id"]) for each in told["differences"]]) == (1, [("kept orphan port", left)])
    cli.good(f"port show {left} -f json")
    assert place.sync("web", "--at-once") == (0, {"load_balancers": 1, "dry_run": False, "differences": []})
    code, told = place.sync("--delete-ports", "--at-once")
    assert (code, [(each["what"], each["id"]) for each in told["differences"]]) == (0, [("orphan port", left)])
    cli.bad(f"port show {left} -f json", "No Port found")
    cli.good(f"port show {balancer['vip_port_id']} -f json")
    assert place.sync("--at-once") == (0, {"load_balancers": 1, "dry_run": False, "differences": []})


def test_while_the_agent_is_dead_octavia_waits_and_after_that_nothing_does(place: Cloud, web: str):
    place.kill("agent")
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 90, "name": "waits"}}
    made = place.ask("POST", "listeners", body)["listener"]["id"]
    assert place.everything()[made][0] == "PENDING_CREATE"
    place.start("agent")
    assert place.settle()[made] == ("ACTIVE", "ONLINE")
    place.ask("DELETE", f"listeners/{made}")
    assert made not in place.settle()


def test_what_was_written_and_never_committed_is_taken_back(place: Cloud, web: str):
    """The API is killed between the write in Fairlead and the commit in Octavia."""
    before = place.everything()
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 91}}
    known = place.truth().keys()
    killed_when(place, lambda: place.truth().keys() > known, "POST", "listeners", body)
    words = "it is deleted in Fairlead"
    wait_until(lambda: place.log("agent"), words, is_enough=lambda log: words in log, seconds=SETTLED)
    assert place.everything() == before
    assert place.settle() == before


def test_what_is_gone_though_octavia_rolled_it_back_is_made_again(place: Cloud, web: str):
    body = {"listener": {"loadbalancer_id": web, "protocol": "UDP", "protocol_port": 92}}
    made = place.ask("POST", "listeners", body)["listener"]["id"]
    place.settle()
    killed_when(place, lambda: made not in place.truth(), "DELETE", f"listeners/{made}", None)
    wait_equal(lambda: place.truth().get(made), ("ACTIVE", "ONLINE"), seconds=SETTLED)
    assert place.settle()[made] == ("ACTIVE", "ONLINE")
    place.ask("DELETE", f"listeners/{made}")
    assert made not in place.settle()


def test_values_that_octavia_rolled_back_are_put_back(place: Cloud, web: str):
    """The API is killed after Fairlead stored a weight and a name that Octavia has not committed."""
    pool = next(each for each in place.ask("GET", "pools")["pools"] if each["name"] == "app")["id"]
    member = place.ask("GET", f"pools/{pool}/members")["members"][0]

    def stored() -> tuple[str, int]:
        found = place.fairlead.client.get(f"/load-balancer/v2/lbaas/pools/{pool}/members/{member['id']}")
        return found.json()["member"]["name"], found.json()["member"]["weight"]

    before = member["name"], member["weight"]
    assert stored() == before
    change = {"member": {"name": "other", "weight": 99}}
    killed_when(place, lambda: stored() != before, "PUT", f"pools/{pool}/members/{member['id']}", change)
    wait_equal(stored, before, seconds=SETTLED)
    assert place.ask("GET", f"pools/{pool}/members/{member['id']}")["member"]["weight"] == before[1]
    place.settle()


def test_a_command_says_what_differs_and_puts_it_right(place: Cloud, web: str):
    """Fairlead's own front ends change, delete and create parts while the provider agent is not running."""
    place.settle()
    place.kill("agent")
    place.override("no-agent.conf", "[driver_agent]\nenabled_provider_agents =\n")
    place.start("agent", "no-agent.conf")
    assert place.sync("--dry-run", "--at-once") == (0, {"load_balancers": 1, "dry_run": True, "differences": []})
    door, pools = place.fairlead.client, place.ask("GET", "pools")["pools"]
    lbaas = "/load-balancer/v2/lbaas"
    pool = next(each for each in pools if each["name"] == "app")
    member = pool["members"][0]["id"]
    door.put(f"{lbaas}/pools/{pool['id']}/members/{member}", json={"member": {"weight": 50}}).raise_for_status()
    wait_until(place.fairlead.has_nothing_to_do, seconds=SETTLED)
    door.delete(f"{lbaas}/healthmonitors/{pool['healthmonitor_id']}").raise_for_status()
    wait_until(place.fairlead.has_nothing_to_do, seconds=SETTLED)
    body = {"listener": {"loadbalancer_id": web, "protocol": "TCP", "protocol_port": 99}}
    listener = door.post(f"{lbaas}/listeners", json=body).raise_for_status().json()["listener"]["id"]
    wait_until(place.fairlead.has_nothing_to_do, seconds=SETTLED)
    before = place.truth()
    code, told = place.sync("--dry-run", "--at-once", "web")
    assert (code, place.truth()) == (3, before)
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


def killed_when(place: Cloud, written: Callable[[], bool], method: str, path: str, body: object) -> None:
    with ThreadPoolExecutor(1) as pool, place.nothing_committed():
        asked = pool.submit(place.octavia.request, method, f"/v2/lbaas/{path}", json=body)
        wait_until(written, seconds=SETTLED)
        place.kill("api")
        with pytest.raises(httpx.TransportError):
            asked.result()
    place.start("api")
