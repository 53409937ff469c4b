"""VIPs on external networks, across the two APIs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.whole_application import Caller

NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"


@pytest.fixture
def caller(tmp_path: Path) -> Iterator[Caller]:
    opened = Caller(tmp_path)
    yield opened
    opened.close()


def make_network(caller: Caller, cidr: str, **attributes: Any) -> tuple[str, str]:
    """Create a network with a subnet and return both ids."""
    network = caller.make(f"{NETWORK}/networks", "network", **attributes)["id"]
    return network, caller.make(f"{NETWORK}/subnets", "subnet", network_id=network, cidr=cidr)["id"]


def make_balancer(caller: Caller, subnet: str) -> Any:
    return caller.send("POST", f"{BALANCER}/loadbalancers", json={"loadbalancer": {"vip_subnet_id": subnet}})


def test_floating_ip_is_disassociated_when_its_vip_is_deleted(caller: Caller):
    public, _ = make_network(caller, "203.0.113.0/24", **{"router:external": True})
    _, subnet = make_network(caller, "10.0.0.0/24")
    gateway = {"network_id": public}
    router = caller.make(f"{NETWORK}/routers", "router", external_gateway_info=gateway)["id"]
    caller.send("PUT", f"{NETWORK}/routers/{router}/add_router_interface", json={"subnet_id": subnet})
    balancer = make_balancer(caller, subnet).json()["loadbalancer"]
    wanted = {"floating_network_id": public, "port_id": balancer["vip_port_id"]}
    made = caller.make(f"{NETWORK}/floatingips", "floatingip", **wanted)
    assert (made["fixed_ip_address"], made["router_id"]) == (balancer["vip_address"], router)
    assert caller.send("DELETE", f"{BALANCER}/loadbalancers/{balancer['id']}").status_code == 204
    freed = caller.send("GET", f"{NETWORK}/floatingips/{made['id']}").json()["floatingip"]
    assert (freed["port_id"], freed["fixed_ip_address"], freed["status"]) == (None, None, "DOWN")


def test_a_network_with_vips_does_not_become_external(caller: Caller):
    network, subnet = make_network(caller, "10.0.0.0/24")
    assert make_balancer(caller, subnet).status_code == 201
    body = {"network": {"router:external": True}}
    refused = caller.send("PUT", f"{NETWORK}/networks/{network}", json=body)
    text = f"Network {network} cannot be made external: VIPs of load balancers are on it."
    assert (refused.status_code, refused.json()["NeutronError"]["message"]) == (409, text)


def test_a_vip_on_an_external_network_needs_a_router_with_its_gateway_there(caller: Caller):
    """A VIP on an external network needs a router with a gateway there, and blocks the gateway's removal."""
    public, outside = make_network(caller, "203.0.113.0/24", **{"router:external": True})
    refused = make_balancer(caller, outside)
    told = f"has its gateway on external network {public}: a VIP there would be unreachable."
    assert refused.status_code == 400
    assert refused.json()["faultstring"] == f"Validation failure: No router of project default {told}"
    assert caller.send("GET", f"{NETWORK}/ports").json()["ports"] == []
    gateway = {"network_id": public}
    router = caller.make(f"{NETWORK}/routers", "router", external_gateway_info=gateway)["id"]
    made = make_balancer(caller, outside)
    assert made.status_code == 201
    path = f"{NETWORK}/routers/{router}"
    text = f"since a gateway to external network {public} is required by VIPs of load balancers."
    other, _ = make_network(caller, "198.51.100.0/24", **{"router:external": True})
    for info in ({}, {"network_id": other}):
        refused = caller.send("PUT", path, json={"router": {"external_gateway_info": info}})
        assert (refused.status_code, text in refused.text) == (409, True)
    refused = caller.send("DELETE", path)
    assert (refused.status_code, text in refused.text) == (409, True)
    assert caller.send("PUT", path, json={"router": {"external_gateway_info": gateway}}).status_code == 200
    assert caller.send("DELETE", f"{BALANCER}/loadbalancers/{made.json()['loadbalancer']['id']}").status_code == 204
    assert caller.send("DELETE", path).status_code == 204


def test_floating_ip_cannot_use_a_health_monitor_port(caller: Caller):
    public, _ = make_network(caller, "203.0.113.0/24", **{"router:external": True})
    network, subnet = make_network(caller, "10.0.0.0/24")
    gateway = {"network_id": public}
    router = caller.make(f"{NETWORK}/routers", "router", external_gateway_info=gateway)["id"]
    caller.send("PUT", f"{NETWORK}/routers/{router}/add_router_interface", json={"subnet_id": subnet})
    address = caller.make(f"{NETWORK}/ports", "port", network_id=network)["fixed_ips"][0]["ip_address"]
    monitor = {"type": "TCP", "delay": 5, "timeout": 2, "max_retries": 2}
    pool = {
        "name": "p",
        "protocol": "TCP",
        "lb_algorithm": "SOURCE_IP_PORT",
        "members": [{"address": address, "protocol_port": 80}],
        "healthmonitor": monitor,
    }
    listener = {"name": "l", "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
    body = {"loadbalancer": {"vip_subnet_id": subnet, "listeners": [listener]}}
    assert caller.send("POST", f"{BALANCER}/loadbalancers", json=body).status_code == 201
    probe = f"{NETWORK}/ports?device_owner=ovn-lb-hm:distributed"
    [port] = caller.send("GET", probe).json()["ports"]
    wanted = {"floatingip": {"floating_network_id": public, "port_id": port["id"]}}
    refused = caller.send("POST", f"{NETWORK}/floatingips", json=wanted)
    told = f"Port {port['id']} is unable to be assigned a floating IP"
    assert (refused.status_code, told in refused.text) == (400, True)
