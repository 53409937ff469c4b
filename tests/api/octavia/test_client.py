"""The unmodified `openstack loadbalancer` commands, in the order of a typical session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.served import served, write_clouds
from harness.shell import OpenStackShell, shell

pytestmark = pytest.mark.client


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("served")
    with served(folder) as address:
        yield write_clouds(folder, address)


@pytest.fixture(scope="module")
def cli(clouds: Path) -> Iterator[OpenStackShell]:
    with shell(clouds) as typed:
        yield typed


def test_a_load_balancer_from_create_to_delete(cli: OpenStackShell):
    good, bad = cli.run_ok, cli.run_error
    good("network create net -f json")
    good("subnet create sub --network net --subnet-range 10.0.0.0/24 -f json")
    made = good("loadbalancer create --name web --vip-subnet-id sub --vip-address 10.0.0.10 --tag t --wait -f json")
    assert (made["vip_address"], made["provisioning_status"], made["provider"]) == ("10.0.0.10", "ACTIVE", "fairlead")
    bad("loadbalancer create --name no --vip-subnet-id sub --vip-address 10.0.0.10", "already in use: 10.0.0.10")
    bad("loadbalancer create --name no --vip-subnet-id nothing", "Unable to locate nothing in subnets")

    listener = "loadbalancer listener create --name http --protocol TCP --protocol-port 80"
    assert good(f"{listener} --timeout-client-data 1000 web --wait -f json")["timeout_client_data"] == 1000
    bad(f"{listener} web", "Another Listener on this Load Balancer is already using protocol TCP")
    bad("loadbalancer listener create --protocol HTTP --protocol-port 81 web", "protocol HTTP")
    pool = "loadbalancer pool create --name app --listener http --protocol TCP --lb-algorithm ROUND_ROBIN"
    assert good(f"{pool} --session-persistence type=SOURCE_IP --wait -f json")["session_persistence"]
    member = "loadbalancer member create app --address 10.0.0.11 --protocol-port 8080 --subnet-id sub --name one"
    assert good(f"{member} --weight 3 --wait -f json")["weight"] == 3
    bad(member, "Another member on this pool is already using ip 10.0.0.11")

    assert [row["name"] for row in good("loadbalancer list --tags t -f json")] == ["web"]
    assert good("loadbalancer listener list --loadbalancer web -f json")[0]["protocol_port"] == 80
    assert good("loadbalancer pool show app -f json")["listeners"]
    assert good("loadbalancer member list app -f json")[0]["operating_status"] == "NO_MONITOR"
    tree = good("loadbalancer status show web")["loadbalancer"]
    assert tree["listeners"][0]["pools"][0]["members"][0]["name"] == "one"
    assert good("loadbalancer provider list -f json")[0]["name"] == "fairlead"

    good("loadbalancer set web --name shop --description d --disable --wait")
    assert good("loadbalancer show shop -f json")["operating_status"] == "OFFLINE"
    good("loadbalancer set shop --enable --wait")
    good("loadbalancer member set app one --weight 0 --wait")
    assert good("loadbalancer member show app one -f json")["operating_status"] == "DRAINING"
    good("loadbalancer pool set app --lb-algorithm SOURCE_IP --wait")
    good("loadbalancer pool unset app --session-persistence --wait")
    good("loadbalancer listener unset http --default-pool --wait")
    assert good("loadbalancer listener show http -f json")["default_pool_id"] is None
    good("loadbalancer failover shop --wait")
    bad("loadbalancer healthmonitor create app --type HTTP --delay 5 --timeout 3 --max-retries 2", "health monitors")
    bad("loadbalancer l7policy create http --action REJECT", "a requested option: L7 policies")
    assert good("loadbalancer healthmonitor list -f json") == good("loadbalancer l7policy list -f json") == []

    bad("loadbalancer delete shop", "it has children")
    good("loadbalancer member delete app one --wait")
    good("loadbalancer delete shop --cascade --wait")
    bad("loadbalancer show shop", "Unable to locate shop in loadbalancers")
    assert good("loadbalancer list -f json") == []
    good("network delete net")
