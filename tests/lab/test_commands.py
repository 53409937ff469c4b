"""Every stock `openstack loadbalancer` command for load balancers and their parts, against a real OVN.

The tests check the output of each command, and that an ACTIVE object has its rows in OVN.
"""

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest

from fairlead.lab import Lab, Traffic
from harness.catalog import RESOURCES, run_every_command
from harness.lab.site import LabSite, open_site
from harness.shell import LoadBalancerShell, shell
from harness.waiting import wait_equal

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab)
    site.network("plain", "10.0.0.0/24", "fd00:a::/64")
    site.machines("plain", {"one": "chassis1", "two": "chassis2"}, serve=[8080])
    site.machines("plain", {"client": "chassis1"})
    with site.counting():
        yield site
    for name in ("one", "two", "client"):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module")
def cli(site: LabSite) -> Iterator[LoadBalancerShell]:
    with shell(site.service.folder / "clouds.yaml") as typed:
        yield LoadBalancerShell(typed)


def commands() -> set[str]:
    """Names of all the client's commands, except those for objects without rows, such as quotas and flavors."""
    names = {point.name.replace("_", " ") for point in entry_points(group="openstack.load_balancer.v2")}
    wanted = {name.removeprefix("loadbalancer ") for name in names}
    return {name for name in wanted if name.split()[0] not in RESOURCES}


def statuses(shown: dict[str, Any]) -> tuple[str, str]:
    return shown["provisioning_status"], shown["operating_status"]


@pytest.mark.extended
def test_every_stock_command_for_objects_without_ovn_rows_works(cli: LoadBalancerShell):
    run_every_command(cli)


def test_every_stock_load_balancer_command_works_against_ovn(site: LabSite, cli: LoadBalancerShell):
    load_balancers(cli)
    listeners(cli)
    pools(cli)
    members(site, cli)
    monitors(cli)
    check_traffic(site, cli)
    policies(cli)
    figures(cli)
    ends(cli)
    typed = {name for name in commands() for line in cli.lines if line == name or line.startswith(f"{name} ")}
    assert commands() - typed == set()


def load_balancers(cli: LoadBalancerShell) -> None:
    made = cli.run_ok(
        "create --name web --description d --vip-subnet-id plain-v4 --vip-address 10.0.0.100"
        " --additional-vip subnet-id=plain-v6,ip-address=fd00:a::100 --tag gold --wait -f json"
    )
    assert (made["vip_address"], *statuses(made)) == ("10.0.0.100", "ACTIVE", "ONLINE")
    assert "fd00:a::100" in str(made["additional_vips"])
    assert [row["name"] for row in cli.run_ok("list --tags gold -f json")] == ["web"]
    assert cli.run_ok("list --name nobody -f json") == []
    cli.run_ok("set web --name shop --description other --tag silver --wait")
    shown = cli.run_ok("show shop -f json")
    assert (shown["description"], sorted(shown["tags"])) == ("other", ["gold", "silver"])
    cli.run_ok("unset shop --description --tag silver --wait")
    assert cli.run_ok("show shop -f json")["description"] == ""
    cli.run_ok("set shop --disable --wait")
    assert statuses(cli.run_ok("show shop -f json")) == ("ACTIVE", "OFFLINE")
    cli.run_ok("set shop --enable --wait")
    cli.run_ok("failover shop --wait")
    cli.run_error("create --name no --vip-subnet-id plain-v4 --vip-address 10.0.0.100", "already in use: 10.0.0.100")


def listeners(cli: LoadBalancerShell) -> None:
    made = cli.run_ok(
        "listener create --name http --protocol TCP --protocol-port 80 --allowed-cidr 10.0.0.0/24"
        " --allowed-cidr fd00:a::/64 --timeout-client-data 1000 --wait -f json shop"
    )
    assert (made["protocol_port"], made["timeout_client_data"], *statuses(made)) == (80, 1000, "ACTIVE", "ONLINE")
    assert "10.0.0.0/24" in made["allowed_cidrs"]
    assert [row["name"] for row in cli.run_ok("listener list --loadbalancer shop -f json")] == ["http"]
    cli.run_ok("listener set http --description d --timeout-client-data 2000 --wait")
    assert cli.run_ok("listener show http -f json")["timeout_client_data"] == 2000
    cli.run_ok("listener unset http --description --timeout-client-data --wait")
    assert cli.run_ok("listener show http -f json")["timeout_client_data"] == 50000
    cli.run_error("listener create --protocol TCP --protocol-port 80 shop", "Another Listener on this Load Balancer")
    cli.run_error("listener create --protocol HTTP --protocol-port 81 shop", "protocol HTTP")
    cli.run_error("listener set http --connection-limit 5", "connection_limit")


def pools(cli: LoadBalancerShell) -> None:
    made = cli.run_ok(
        "pool create --name app --listener http --protocol TCP --lb-algorithm ROUND_ROBIN"
        " --session-persistence type=SOURCE_IP --wait -f json"
    )
    assert (made["lb_algorithm"], "SOURCE_IP" in str(made["session_persistence"])) == ("ROUND_ROBIN", True)
    assert [row["name"] for row in cli.run_ok("pool list --loadbalancer shop -f json")] == ["app"]
    cli.run_ok("pool set app --lb-algorithm SOURCE_IP_PORT --description d --wait")
    cli.run_ok("pool unset app --session-persistence --description --wait")
    shown = cli.run_ok("pool show app -f json")
    assert (shown["lb_algorithm"], shown["session_persistence"]) == ("SOURCE_IP_PORT", None)
    cli.run_error("pool set app --lb-algorithm LEAST_CONNECTIONS", "lb_algorithm LEAST_CONNECTIONS")


def members(site: LabSite, cli: LoadBalancerShell) -> None:
    for name in ("one", "two"):
        address = site.address(name)
        made = cli.run_ok(
            f"member create app --name {name} --address {address} --protocol-port 8080 --weight 2 --wait -f json"
        )
        assert (made["address"], made["weight"], *statuses(made)) == (address, 2, "ACTIVE", "NO_MONITOR")
    assert {row["name"] for row in cli.run_ok("member list app -f json")} == {"one", "two"}
    cli.run_ok("member set app two --weight 0 --wait")
    assert statuses(cli.run_ok("member show app two -f json")) == ("ACTIVE", "DRAINING")
    cli.run_ok("member unset app two --weight --wait")
    assert cli.run_ok("member show app two -f json")["weight"] == 1
    cli.run_error(f"member create app --address {site.address('one')} --protocol-port 8080", "already using ip")


def monitors(cli: LoadBalancerShell) -> None:
    made = cli.run_ok(
        "healthmonitor create app --name probe --type TCP --delay 1 --timeout 1 --max-retries 1 --wait -f json"
    )
    assert (made["type"], made["delay"], *statuses(made)) == ("TCP", 1, "ACTIVE", "ONLINE")
    assert [row["name"] for row in cli.run_ok("healthmonitor list -f json")] == ["probe"]
    cli.run_ok("healthmonitor set probe --delay 2 --max-retries-down 2 --name watch --wait")
    cli.run_ok("healthmonitor unset watch --max-retries-down --wait")
    shown = cli.run_ok("healthmonitor show watch -f json")
    assert (shown["delay"], shown["max_retries_down"]) == (2, 3)
    cli.run_error(
        "healthmonitor create app --type TCP --delay 1 --timeout 1 --max-retries 1", "already has a health monitor"
    )


def check_traffic(site: LabSite, cli: LoadBalancerShell) -> None:
    """Assert that the members answer, and that the monitor reports them ONLINE."""
    site.lab.wait_synced()
    result = site.lab.traffic("client", Traffic(to="10.0.0.100", port=80, count=40, concurrency=4))
    assert (result.errors, set(result.answers)) == ({}, {"one", "two"})
    wait_equal(lambda: {row["operating_status"] for row in cli.run_ok("member list app -f json")}, {"ONLINE"})
    tree = cli.run_ok("status show shop")["loadbalancer"]
    pool = tree["listeners"][0]["pools"][0]
    assert (tree["operating_status"], pool["operating_status"]) == ("ONLINE", "ONLINE")
    assert pool["health_monitor"]["type"] == "TCP"


def policies(cli: LoadBalancerShell) -> None:
    """OVN supports no L7 policies: commands that would create one fail with its name, and the others find none."""
    cli.run_error("l7policy create http --action REJECT", "a requested option: L7 policies")
    assert cli.run_ok("l7policy list -f json") == []
    for line in ("l7policy show x", "l7policy set x --name y", "l7policy unset x --name", "l7policy delete x"):
        cli.run_error(line, "Unable to locate x in l7policies")
    cli.run_error("l7rule create x --compare-type EQUAL_TO --type PATH --value /", "Unable to locate x in l7policies")
    for line in ("l7rule list x", "l7rule show x y", "l7rule set x y --value z", "l7rule unset x y --key"):
        cli.run_error(line, "Unable to locate x in l7policies")
    cli.run_error("l7rule delete x y", "Unable to locate x in l7policies")


def figures(cli: LoadBalancerShell) -> None:
    """The 40 connections of `check_traffic` are counted; probes go to the members directly, and are not."""
    wait_equal(lambda: cli.run_ok("stats show shop -f json")["total_connections"], 40)
    shown = cli.run_ok("stats show shop -f json")
    assert shown.pop("bytes_in") > 40 * 64
    assert shown == {"active_connections": 0, "bytes_out": 0, "request_errors": 0, "total_connections": 40}
    assert cli.run_ok("listener stats show http -f json") == cli.run_ok("stats show shop -f json")


def ends(cli: LoadBalancerShell) -> None:
    cli.run_error("delete shop", "it has children")
    cli.run_ok("healthmonitor delete watch --wait")
    cli.run_ok("member delete app one --wait")
    cli.run_ok("listener delete http --wait")
    cli.run_ok("pool delete app --wait")
    cli.run_ok("delete shop --wait")
    assert cli.run_ok("list -f json") == []
