"""Limits on the size of an aggregate, whether its parts come in one request or in many."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from fairlead.api.http.front_end import MAX_DOCUMENT_BYTES, MAX_QUERY_BYTES
from fairlead.api.http.listing import MAX_SORT_KEYS
from fairlead.api.network.limits import BULK, FIXED_IPS, TAGS
from fairlead.api.octavia import limits
from fairlead.changes import gateways
from fairlead.changes.routers import MAX_ROUTES
from fairlead.changes.subnets import MAX_SUBNETS
from fairlead.model.documents import sizes
from harness.etcd import EtcdCluster, etcd_cluster
from harness.whole_application import Caller

INTERFACES = 6
"""Below the API's own limit, because each interface is a request."""
NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "etcd"])
def caller(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Caller]:
    """Yield a caller per store; etcd limits the number of operations of a transaction."""
    url = f"{request.getfixturevalue('etcd').url}/{uuid4()}" if request.param == "etcd" else ""
    made = Caller(tmp_path, url=url)
    yield made
    made.close()


@pytest.fixture
def net(caller: Caller) -> str:
    made: str = caller.make(f"{NETWORK}/networks", "network")["id"]
    caller.make(f"{NETWORK}/subnets", "subnet", network_id=made, cidr="10.0.0.0/24")
    return made


def refused(caller: Caller, method: str, path: str, body: Any, words: str) -> None:
    answer = caller.send(method, path, json=body)
    assert (answer.status_code, words in answer.text) == (400, True), answer.text


def listener(port: int, **more: Any) -> dict[str, Any]:
    return {"protocol": "TCP", "protocol_port": port, **more}


def pool(number: int, **more: Any) -> dict[str, Any]:
    return {"name": f"p{number}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP", **more}


def member(number: int, **more: Any) -> dict[str, Any]:
    return {"address": f"10.1.{number // 250}.{number % 250}", "protocol_port": 80, "weight": 0, **more}


def test_number_of_listeners_and_pools_per_load_balancer_is_limited(caller: Caller, net: str):
    listeners = [listener(port) for port in range(1, sizes.MAX_LISTENERS + 1)]
    pools = [pool(number) for number in range(sizes.MAX_POOLS)]
    body = {"vip_network_id": net, "listeners": listeners, "pools": pools}
    made = caller.make(f"{BALANCER}/loadbalancers", "loadbalancer", **body)["id"]
    one_more = listener(9999, loadbalancer_id=made)
    words = f"at most {sizes.MAX_LISTENERS} listeners"
    refused(caller, "POST", f"{BALANCER}/listeners", {"listener": one_more}, words)
    words = f"at most {sizes.MAX_POOLS} pools"
    refused(caller, "POST", f"{BALANCER}/pools", {"pool": pool(9999, loadbalancer_id=made)}, words)
    more = {**body, "listeners": [*listeners, listener(9999)]}
    words = "listeners. Value: '[{'protocol"
    refused(caller, "POST", f"{BALANCER}/loadbalancers", {"loadbalancer": more}, words)


def test_number_of_members_per_load_balancer_is_limited(caller: Caller, net: str):
    body = {"vip_network_id": net, "pools": [pool(0), pool(1)]}
    made = caller.make(f"{BALANCER}/loadbalancers", "loadbalancer", **body)["pools"]
    members = [f"{BALANCER}/pools/{each['id']}/members" for each in made]
    batch = [member(number) for number in range(sizes.MAX_MEMBERS)]
    assert caller.send("PUT", members[0], json={"members": batch}).status_code == 202
    words = f"at most {sizes.MAX_MEMBERS} members"
    for path in members:
        refused(caller, "POST", path, {"member": member(9999)}, words)
    refused(caller, "PUT", f"{members[0]}?additive_only=true", {"members": [member(9999)]}, words)
    refused(caller, "PUT", members[1], {"members": [*batch, member(9999)]}, f"at most {sizes.MAX_MEMBERS} items")


def test_size_of_a_load_balancer_document_is_limited(caller: Caller, net: str):
    """Documents have a maximum size, because the maximum number of parts can exceed one write of the store."""
    tags = [f"{number:03}" + "\U0001f4a9" * 252 for number in range(limits.TAGS)]
    made = caller.make(f"{BALANCER}/loadbalancers", "loadbalancer", vip_network_id=net)["id"]
    count = 0
    while caller.send(
        "POST", f"{BALANCER}/pools", json={"pool": pool(count, loadbalancer_id=made, tags=tags)}
    ).is_success:
        count += 1
    assert count == MAX_DOCUMENT_BYTES // (limits.TAGS * 1011)
    words = f"loadbalancer/{made} would have"
    refused(caller, "POST", f"{BALANCER}/pools", {"pool": pool(99, loadbalancer_id=made, tags=tags)}, words)
    assert caller.send("PUT", f"{BALANCER}/loadbalancers/{made}", json={"loadbalancer": {"name": "x"}}).is_success


def test_number_of_ports_per_request_is_limited(caller: Caller, net: str):
    """A request has a maximum number of ports; with all of their addresses this change writes the most keys."""
    addresses = [f"10.2.{number // 250}.{number % 250 + 1}" for number in range(FIXED_IPS * BULK)]
    caller.make(f"{NETWORK}/subnets", "subnet", network_id=net, cidr="10.2.0.0/16", gateway_ip=None)
    ports = [
        {"network_id": net, "fixed_ips": [{"ip_address": each} for each in addresses[number::BULK]]}
        for number in range(BULK)
    ]
    assert caller.send("POST", f"{NETWORK}/ports", json={"ports": ports}).status_code == 201
    refused(caller, "POST", f"{NETWORK}/ports", {"ports": [{"network_id": net}] * (BULK + 1)}, f"at most {BULK}")
    answer = caller.send("POST", f"{NETWORK}/ports", json={"port": {**ports[0]}})
    assert (answer.status_code, answer.json()["NeutronError"]["type"]) == (409, "IpAddressAlreadyAllocated")


def test_number_of_subnets_per_network_is_limited(caller: Caller, net: str):
    def subnet(number: int) -> dict[str, Any]:
        return {"network_id": net, "cidr": f"10.1.{number}.0/24"}

    many = [subnet(number) for number in range(MAX_SUBNETS - 1)]
    for some in (many[:BULK], many[BULK : 2 * BULK], many[2 * BULK :]):
        assert caller.send("POST", f"{NETWORK}/subnets", json={"subnets": some}).status_code == 201
    refused(caller, "POST", f"{NETWORK}/subnets", {"subnet": subnet(255)}, f"at most {MAX_SUBNETS} subnets")


def test_number_of_tags_per_resource_is_limited(caller: Caller, net: str):
    path = f"{NETWORK}/networks/{net}/tags"
    assert caller.send("PUT", path, json={"tags": [str(number) for number in range(TAGS)]}).is_success
    refused(caller, "PUT", f"{path}/more", None, f"at most {TAGS} are allowed")
    refused(caller, "POST", path, {"tags": ["more"]}, f"at most {TAGS} are allowed")


def test_number_of_interfaces_and_routes_per_router_is_limited(caller: Caller, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateways, "MAX_INTERFACES", INTERFACES)
    router = caller.make(f"{NETWORK}/routers", "router")["id"]
    ports = [{"network_id": other} for other in _networks(caller, INTERFACES + 1)]
    made = caller.send("POST", f"{NETWORK}/ports", json={"ports": ports}).json()["ports"]
    add = f"{NETWORK}/routers/{router}/add_router_interface"
    for port in made[:-1]:
        assert caller.send("PUT", add, json={"port_id": port["id"]}).status_code == 200
    refused(caller, "PUT", add, {"port_id": made[-1]["id"]}, f"at most {INTERFACES} interfaces")
    routes = [{"destination": f"172.16.{number}.0/24", "nexthop": "10.1.0.9"} for number in range(MAX_ROUTES + 1)]
    path = f"{NETWORK}/routers/{router}"
    assert caller.send("PUT", f"{path}/add_extraroutes", json={"router": {"routes": routes[:-1]}}).status_code == 200
    for where in (path, f"{path}/add_extraroutes"):
        refused(caller, "PUT", where, {"router": {"routes": routes}}, f"exceeds the maximum {MAX_ROUTES}")


def _networks(caller: Caller, count: int) -> list[str]:
    """Create networks with a subnet each, and return their ids."""
    made = caller.send("POST", f"{NETWORK}/networks", json={"networks": [{}] * count}).json()["networks"]
    ids: list[str] = [network["id"] for network in made]
    subnets = [
        {"network_id": each, "cidr": f"10.{1 + number // 256}.{number % 256}.0/24"} for number, each in enumerate(ids)
    ]
    assert caller.send("POST", f"{NETWORK}/subnets", json={"subnets": subnets}).status_code == 201
    return ids


def test_query_length_and_number_of_sort_keys_are_limited(caller: Caller):
    for path in (f"{NETWORK}/ports", f"{BALANCER}/loadbalancers"):
        assert caller.send("GET", f"{path}?name={'x' * MAX_QUERY_BYTES}").status_code == 414
        query = "&".join(["sort_key=name"] * (MAX_SORT_KEYS + 1))
        answer = caller.send("GET", f"{path}?{query}")
        assert (answer.status_code, f"at most {MAX_SORT_KEYS} sort keys" in answer.text) == (400, True)
