"""A load balancer created by the Octavia API is visible in the LXD API, and the other way round."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.whole_application import Caller

NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"
LBS = "/1.0/networks/net/load-balancers"
BODY = {
    "listen_address": "10.0.0.100",
    "description": "both",
    "config": {"healthcheck": "true"},
    "backends": [{"name": "a", "target_address": "10.0.0.11", "target_port": "8080-8081"}],
    "ports": [{"protocol": "tcp", "listen_port": "80,90", "target_backend": ["a"]}],
}


class BothFrontEnds:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.network = caller.make(f"{NETWORK}/networks", "network", name="net")["id"]
        wanted = {"network_id": self.network, "cidr": "10.0.0.0/24", "ip_version": 4}
        self.subnet = caller.make(f"{NETWORK}/subnets", "subnet", **wanted)["id"]
        for number in (11, 12):
            fixed = [{"ip_address": f"10.0.0.{number}"}]
            caller.make(f"{NETWORK}/ports", "port", network_id=self.network, fixed_ips=fixed)

    def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return self._caller.send(method, path, **({} if body is None else {"json": body}))

    def good(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.send(method, path, body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def only(self, plural: str) -> Any:
        (found,) = self.good("GET", f"{BALANCER}/{plural}")[plural]
        return found


@pytest.fixture
def both(tmp_path: Path) -> Iterator[BothFrontEnds]:
    opened = Caller(tmp_path)
    yield BothFrontEnds(opened)
    opened.close()


def test_octavia_api_shows_load_balancer_created_by_lxd_api(both: BothFrontEnds):
    both.good("POST", LBS, BODY)
    shown = both.only("loadbalancers")
    assert (shown["vip_address"], shown["description"], shown["vip_network_id"]) == (
        "10.0.0.100",
        "both",
        both.network,
    )
    listener, pool = both.only("listeners"), both.only("pools")
    assert (listener["protocol"], listener["protocol_port"]) == ("TCP", 80)
    (member,) = both.good("GET", f"{BALANCER}/pools/{pool['id']}/members")["members"]
    assert (member["name"], member["address"]) == ("a", "10.0.0.11")
    assert both.only("healthmonitors")["delay"] == 10


def test_octavia_api_cannot_change_listeners_or_pools_of_lxd_load_balancers(both: BothFrontEnds):
    both.good("POST", LBS, BODY)
    shown, listener, pool = both.only("loadbalancers"), both.only("listeners"), both.only("pools")
    one, tag = f"{LBS}/10.0.0.100", both.send("GET", f"{LBS}/10.0.0.100").headers["etag"]
    for method, path, body in (
        ("PUT", f"listeners/{listener['id']}", {"listener": {"description": "x"}}),
        ("DELETE", f"listeners/{listener['id']}", None),
        ("POST", "listeners", {"listener": {"loadbalancer_id": shown["id"], "protocol": "TCP", "protocol_port": 9}}),
        ("POST", f"pools/{pool['id']}/members", {"member": {"address": "10.0.0.12", "protocol_port": 80}}),
        ("DELETE", f"pools/{pool['id']}", None),
    ):
        assert both.send(method, f"{BALANCER}/{path}", body).status_code == 409, path
    assert both.send("GET", one).headers["etag"] == tag
    path = f"{BALANCER}/loadbalancers/{shown['id']}"
    both.good("PUT", path, {"loadbalancer": {"description": "mine"}})
    assert both.good("GET", one)["metadata"]["description"] == "mine"
    both.good("DELETE", f"{path}?cascade=true")
    assert both.good("GET", LBS)["metadata"] == []


TREE = {
    "name": "web",
    "description": "of Octavia",
    "vip_address": "10.0.0.50",
    "listeners": [
        {"name": "front", "protocol": "TCP", "protocol_port": 80, "default_pool": {"name": "app"}},
        {"name": "bare", "protocol": "UDP", "protocol_port": 53},
    ],
    "pools": [
        {
            "name": "app",
            "protocol": "TCP",
            "lb_algorithm": "SOURCE_IP",
            "session_persistence": {"type": "SOURCE_IP"},
            "healthmonitor": {"type": "TCP", "delay": 5, "timeout": 4, "max_retries": 2},
            "members": [
                {"name": "a", "address": "10.0.0.11", "protocol_port": 8080, "weight": 2},
                {"address": "10.0.0.12", "protocol_port": 8080},
            ],
        }
    ],
}


def test_lxd_api_shows_load_balancer_created_by_octavia_api(both: BothFrontEnds):
    both.good("POST", f"{BALANCER}/loadbalancers", {"loadbalancer": {**TREE, "vip_subnet_id": both.subnet}})
    one = f"{LBS}/10.0.0.50"
    assert both.good("GET", LBS)["metadata"] == [one]
    shown = both.good("GET", one)["metadata"]
    nameless = shown["backends"][1]["name"]
    backends = [
        {"name": name, "description": "", "target_port": "8080", "target_address": address}
        for name, address in (("a", "10.0.0.11"), (nameless, "10.0.0.12"))
    ]
    assert shown == {
        "listen_address": "10.0.0.50",
        "location": "",
        "description": "of Octavia",
        "config": {
            "fairlead.affinity": "source-ip",
            "fairlead.algorithm": "source-ip",
            "fairlead.healthcheck.method": "tcp",
            "fairlead.weight.a": "2",
            "healthcheck": "true",
            "healthcheck.failure_count": "3",
            "healthcheck.interval": "5",
            "healthcheck.success_count": "2",
            "healthcheck.timeout": "4",
            "volatile.fairlead.status": "Pending",  # Octavia's response does not wait for OVN
        },
        "backends": backends,
        "ports": [
            {"description": "", "protocol": "tcp", "listen_port": "80", "target_backend": ["a", nameless]},
            {"description": "", "protocol": "udp", "listen_port": "53", "target_backend": []},
        ],
    }
    state = both.good("GET", f"{one}/state")["metadata"]["backend_health"]
    assert state["a"]["ports"] == [{"protocol": "tcp", "port": 8080, "status": "unknown"}]
    assert both.good("GET", "/1.0/networks/net/forwards")["metadata"] == []


def test_lxd_api_deletes_but_does_not_change_octavia_load_balancer(both: BothFrontEnds):
    both.good("POST", f"{BALANCER}/loadbalancers", {"loadbalancer": {**TREE, "vip_subnet_id": both.subnet}})
    one = f"{LBS}/10.0.0.50"
    for method in ("PUT", "PATCH"):
        answer = both.send(method, one, {"description": "mine"})
        told = "Failed updating load balancer: It was created through another API and can be changed only there"
        assert (answer.status_code, answer.json()["error"]) == (409, told)
    both.good("DELETE", one)
    assert both.good("GET", f"{BALANCER}/loadbalancers")["loadbalancers"] == []


def test_lxd_api_lists_octavia_vip_on_the_uplink_under_the_routed_network(both: BothFrontEnds):
    """A VIP that the Octavia API made on the uplink blocks changes of the network's router, so the LXD API lists and
    deletes it."""
    uplink = both.good("POST", f"{NETWORK}/networks", {"network": {"name": "up", "router:external": True}})["network"]
    wanted = {"network_id": uplink["id"], "cidr": "203.0.113.0/24", "ip_version": 4}
    outside = both.good("POST", f"{NETWORK}/subnets", {"subnet": wanted})["subnet"]["id"]
    router = {"external_gateway_info": {"network_id": uplink["id"]}}
    router_id = both.good("POST", f"{NETWORK}/routers", {"router": router})["router"]["id"]
    both.good("PUT", f"{NETWORK}/routers/{router_id}/add_router_interface", {"subnet_id": both.subnet})
    balancer = {"vip_subnet_id": outside, "vip_address": "203.0.113.50"}
    both.good("POST", f"{BALANCER}/loadbalancers", {"loadbalancer": balancer})
    one = f"{LBS}/203.0.113.50"
    assert both.good("GET", LBS)["metadata"] == [one]
    assert one in both.good("GET", "/1.0/networks/net")["metadata"]["used_by"]
    both.good("DELETE", one)
    assert both.good("GET", f"{BALANCER}/loadbalancers")["loadbalancers"] == []


def test_octavia_does_not_show_forwards(both: BothFrontEnds):
    port = {"protocol": "tcp", "listen_port": "80", "target_address": "10.0.0.11"}
    both.good("POST", "/1.0/networks/net/forwards", {"listen_address": "10.0.0.100", "ports": [port]})
    for plural in ("loadbalancers", "listeners", "pools"):
        assert both.good("GET", f"{BALANCER}/{plural}")[plural] == []
