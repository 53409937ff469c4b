"""Tenant isolation in both APIs: another project's resources cannot be used, blocked or told from missing ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.front_ends.tenants import BALANCER, NETWORK, by_name, message
from harness.whole_application import Caller

NOWHERE = "99999999-0000-4000-8000-000000000009"


class TenantsWithCallers:
    """Network square is shared; alice and bob have one network each, and alice's router joins hers and square to
    public."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.public, _ = self.network("", "203.0.113.0/24", **{"router:external": True})
        self.square, self.square_subnet = self.network("", "10.5.0.0/24", shared=True)
        self.alices, self.alices_subnet = self.network("alice", "10.0.0.0/24")
        self.bobs, self.bobs_subnet = self.network("bob", "10.0.0.0/24")
        self.alices_router = self.router("alice", self.square)

    def send(self, who: str, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {"Authorization": who} if who else {}
        return self.caller.send(method, path, json=body, headers=headers)

    def make(self, who: str, singular: str, door: str = NETWORK, **attributes: Any) -> Any:
        answer = self.send(who, "POST", f"{door}/{singular}s", {singular: attributes})
        assert answer.status_code == 201, answer.text
        return answer.json()[singular]

    def network(self, who: str, cidr: str, **attributes: Any) -> tuple[str, str]:
        made = self.make(who, "network", **attributes)["id"]
        return made, self.make(who, "subnet", network_id=made, cidr=cidr)["id"]

    def router(self, who: str, network_id: str) -> str:
        """Create a router with a gateway and a port on this network."""
        made = self.make(who, "router", external_gateway_info={"network_id": self.public})["id"]
        port = self.make(who, "port", network_id=network_id)["id"]
        self.send(who, "PUT", f"{NETWORK}/routers/{made}/add_router_interface", {"port_id": port})
        return str(made)


@pytest.fixture
def town(tmp_path: Path) -> Iterator[TenantsWithCallers]:
    caller = Caller(tmp_path, by_name)
    yield TenantsWithCallers(caller)
    caller.close()


@pytest.mark.parametrize("what", ["a machine", "a VIP"])
def test_floating_ip_does_not_use_the_router_of_another_project(town: TenantsWithCallers, what: str):
    """A floating IP cannot use another project's router, and so does not block changes of it."""
    if what == "a VIP":
        port = town.make("bob", "loadbalancer", BALANCER, vip_subnet_id=town.square_subnet)["vip_port_id"]
    else:
        port = town.make("bob", "port", network_id=town.square)["id"]
    body = {"floatingip": {"floating_network_id": town.public, "port_id": port}}
    refused = town.send("bob", "POST", f"{NETWORK}/floatingips", body)
    assert (refused.status_code, message(refused)) == (
        404,
        f"External network {town.public} is not reachable from subnet {town.square_subnet}.  Therefore, cannot "
        f"associate Port {port} with a Floating IP.",
    )
    own = town.router("bob", town.square)
    made = town.send("bob", "POST", f"{NETWORK}/floatingips", body).json()["floatingip"]
    assert made["router_id"] == own
    refused = town.send("bob", "PUT", f"{NETWORK}/routers/{own}", {"router": {"external_gateway_info": None}})
    assert refused.status_code == 409
    for_alice = {"router": {"external_gateway_info": None}}
    assert town.send("alice", "PUT", f"{NETWORK}/routers/{town.alices_router}", for_alice).status_code == 200


@pytest.mark.parametrize("change", ["gateway", "interface"])
def test_floating_ip_set_by_an_administrator_does_not_block_router_changes(town: TenantsWithCallers, change: str):
    """A floating IP that an administrator routed through another project's router does not block changes, but is
    unassociated by them."""
    port = town.make("bob", "port", network_id=town.square)["id"]
    made = town.make("", "floatingip", floating_network_id=town.public, port_id=port, project_id="bob")
    assert made["router_id"] == town.alices_router
    path = f"{NETWORK}/routers/{town.alices_router}"
    if change == "gateway":
        answer = town.send("alice", "PUT", path, {"router": {"external_gateway_info": None}})
    else:
        body = {"subnet_id": town.square_subnet}
        answer = town.send("alice", "PUT", f"{path}/remove_router_interface", body)
    assert answer.status_code == 200
    shown = town.send("bob", "GET", f"{NETWORK}/floatingips/{made['id']}").json()["floatingip"]
    assert (shown["port_id"], shown["router_id"]) == (None, None)


def test_an_administrators_router_on_a_tenants_own_network_serves_the_tenant(town: TenantsWithCallers):
    """An administrator's router on a tenant's network serves the tenant, and floating IPs block its detachment."""
    router = town.make("", "router", external_gateway_info={"network_id": town.public})["id"]
    path = f"{NETWORK}/routers/{router}"
    town.send("", "PUT", f"{path}/add_router_interface", {"subnet_id": town.bobs_subnet})
    balancer = town.make("bob", "loadbalancer", BALANCER, vip_subnet_id=town.bobs_subnet)
    for port in (town.make("bob", "port", network_id=town.bobs)["id"], balancer["vip_port_id"]):
        made = town.make("bob", "floatingip", floating_network_id=town.public, port_id=port)
        assert made["router_id"] == router
    refused = town.send("", "PUT", f"{path}/remove_router_interface", {"subnet_id": town.bobs_subnet})
    assert refused.status_code == 409


def test_tenant_cannot_choose_a_vip_address_on_a_shared_network(town: TenantsWithCallers):
    """Only the network's owner and administrators may choose the address of a VIP, as with fixed_ips of ports."""
    rule = "(rule:create_port and (rule:create_port:fixed_ips:ip_address)) is disallowed by policy"
    fixed = [{"subnet_id": town.square_subnet, "ip_address": "10.5.0.77"}]
    refused = town.send("bob", "POST", f"{NETWORK}/ports", {"port": {"network_id": town.square, "fixed_ips": fixed}})
    assert (refused.status_code, message(refused)) == (403, rule)
    where = {"vip_subnet_id": town.square_subnet}
    for body in (
        {**where, "vip_address": "10.5.0.77"},
        {"vip_network_id": town.square, "vip_address": "10.5.0.77"},
        {**where, "additional_vips": [{"subnet_id": town.square_subnet, "ip_address": "10.5.0.77"}]},
    ):
        refused = town.send("bob", "POST", f"{BALANCER}/loadbalancers", {"loadbalancer": body})
        assert (refused.status_code, message(refused)) == (403, rule)
    assert town.make("bob", "loadbalancer", BALANCER, **where)["vip_address"].startswith("10.5.0.")
    assert town.make("", "loadbalancer", BALANCER, **where, vip_address="10.5.0.77")["vip_address"] == "10.5.0.77"
    own = {"vip_subnet_id": town.bobs_subnet, "vip_address": "10.0.0.77"}
    assert town.make("bob", "loadbalancer", BALANCER, **own)["vip_address"] == "10.0.0.77"


def request(town: TenantsWithCallers) -> dict[str, tuple[str, str, Any, str]]:
    """Return requests that name another project's resource: method, path, body, and that resource's id."""
    pool = town.make(
        "bob",
        "loadbalancer",
        BALANCER,
        vip_subnet_id=town.bobs_subnet,
        pools=[{"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}],
    )["pools"][0]["id"]
    router = town.make("bob", "router")["id"]
    port = town.make("alice", "port", network_id=town.alices)["id"]
    balancers, subnet = f"{BALANCER}/loadbalancers", town.alices_subnet
    more = {"vip_subnet_id": town.bobs_subnet, "additional_vips": [{"subnet_id": subnet}]}
    member = {"address": "10.0.0.5", "protocol_port": 80, "subnet_id": subnet}
    interfaces, floating = f"{NETWORK}/routers/{router}/add_router_interface", {"floating_network_id": town.public}
    gateway = {"external_gateway_info": {"network_id": town.alices}}
    return {
        "vip_subnet_id": ("POST", balancers, {"loadbalancer": {"vip_subnet_id": subnet}}, subnet),
        "vip_network_id": ("POST", balancers, {"loadbalancer": {"vip_network_id": town.alices}}, town.alices),
        "vip_port_id": ("POST", balancers, {"loadbalancer": {"vip_port_id": port}}, port),
        "additional_vips": ("POST", balancers, {"loadbalancer": more}, subnet),
        "member": ("POST", f"{BALANCER}/pools/{pool}/members", {"member": member}, subnet),
        "members": ("PUT", f"{BALANCER}/pools/{pool}/members", {"members": [member]}, subnet),
        "interface by subnet": ("PUT", interfaces, {"subnet_id": subnet}, subnet),
        "interface by port": ("PUT", interfaces, {"port_id": port}, port),
        "gateway": ("POST", f"{NETWORK}/routers", {"router": gateway}, town.alices),
        "floating IP of a port": (
            "POST",
            f"{NETWORK}/floatingips",
            {"floatingip": {**floating, "port_id": port}},
            port,
        ),
        "floating network": (
            "POST",
            f"{NETWORK}/floatingips",
            {"floatingip": {"floating_network_id": town.alices}},
            town.alices,
        ),
        "floating IP of a subnet": (
            "POST",
            f"{NETWORK}/floatingips",
            {"floatingip": {**floating, "subnet_id": subnet}},
            subnet,
        ),
        "port": ("POST", f"{NETWORK}/ports", {"port": {"network_id": town.alices}}, town.alices),
        "port's subnet": (
            "POST",
            f"{NETWORK}/ports",
            {"port": {"network_id": town.bobs, "fixed_ips": [{"subnet_id": subnet}]}},
            subnet,
        ),
        "subnet": (
            "POST",
            f"{NETWORK}/subnets",
            {"subnet": {"network_id": town.alices, "cidr": "10.8.0.0/24"}},
            town.alices,
        ),
    }


def test_foreign_resource_returns_the_same_error_as_a_missing_resource(town: TenantsWithCallers):
    for name, (method, path, body, identity) in request(town).items():
        answers = []
        for known in (identity, NOWHERE):
            answer = town.send("bob", method, path, _naming(body, identity, known))
            assert 400 <= answer.status_code < 500, (name, answer.text)
            answers.append((answer.status_code, message(answer).replace(known, "X")))
        assert answers[0] == answers[1], name


def _naming(body: Any, old: str, new: str) -> Any:
    if isinstance(body, dict):
        return {key: _naming(value, old, new) for key, value in body.items()}
    if isinstance(body, list):
        return [_naming(each, old, new) for each in body]
    return new if body == old else body
