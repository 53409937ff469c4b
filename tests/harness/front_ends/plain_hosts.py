"""Plain hosts that an operator declares, and members behind them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.compilers.providers import dataplanes_of, parse_names
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from harness.api import PLAIN, Deployment
from harness.front_ends.tenants import BALANCER, NETWORK, by_name
from harness.whole_application import Caller

NAMES = parse_names("ovn=ovn,native=native", "ovn")
ONE = {
    "addresses": ["10.20.0.21", "fd00:20::21"],
    "prefixes": [{"cidr": "10.1.0.0/24"}, {"cidr": "fd00:1::/64", "project_id": "alice"}],
}


def compile_own(snapshot: Snapshot, owner: Owner) -> Rows:
    """Rows of OVN for an owner. Raises Unsupported if plain hosts do not support it."""
    central, *others = dataplanes_of(NAMES)
    for each in others:
        each.compile(snapshot, owner)
    return central.compile(snapshot, owner)


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    opened = Caller(tmp_path, by_name, compile_owner=compile_own, deployment=Deployment(PLAIN.facts, NAMES))
    yield opened
    opened.close()


def put(caller: Caller, name: str, **body: Any) -> httpx.Response:
    return caller.send("PUT", f"/operator/hosts/{name}", json=body)


def as_tenant(caller: Caller, method: str, path: str, body: Any = None) -> httpx.Response:
    return caller.send(method, path, json=body, headers={"Authorization": "alice"})


def announced(caller: Caller) -> str:
    wanted = {"provider:network_type": "announced", "project_id": "alice", "shared": True}
    network = str(caller.make(f"{NETWORK}/networks", "network", **wanted)["id"])
    for cidr, version in (("203.0.113.0/24", 4), ("2001:db8:5::/64", 6)):
        made = {"network_id": network, "cidr": cidr, "ip_version": version, "project_id": "alice"}
        assert caller.send("POST", f"{NETWORK}/subnets", json={"subnet": made}).status_code == 201
    return network


def balancer(caller: Caller, network: str, *members: str) -> httpx.Response:
    found = [{"address": at, "protocol_port": 8080} for at in members]
    pool = {"name": "app", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": found}
    front = {"name": "front", "protocol": "TCP", "protocol_port": 443, "default_pool": pool}
    wanted = {"name": "shop", "provider": "native", "vip_network_id": network, "listeners": [front]}
    return as_tenant(caller, "POST", f"{BALANCER}/loadbalancers", {"loadbalancer": wanted})
