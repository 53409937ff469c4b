"""Unmanaged networks have a separate API: their ids are not found in Neutron's, and nothing there changes them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import ExternalGateway, FixedIP, PortUse, Subnet
from fairlead.model.documents.unmanaged import (
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedPort,
    UnmanagedRouter,
    Writer,
)
from fairlead.model.registry.facts import UNMANAGED
from fairlead.model.registry.kinds import owner_of
from harness.front_ends.network_world import NetworkFrontEnd

NET, OUTSIDE, SUBNET, UNROUTED = (f"{number:08d}-aaaa-4aaa-8aaa-aaaaaaaaaaaa" for number in range(4))
MACHINE, INTERFACE, GATEWAY, ROUTER, FLOATING = (f"{number:08d}-bbbb-4bbb-8bbb-bbbbbbbbbbbb" for number in range(5))
THEIRS: dict[str, Any] = {
    "project_id": "one",
    "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    "writer": Writer.NEUTRON,
    "row": "theirs@1",
}
OURS = {"project_id": "one", "created_at": THEIRS["created_at"]}


def subnet(identity: str, cidr: str) -> Subnet:
    network = parse_network(cidr)
    return Subnet(id=identity, cidr=network, gateway=network[1], allocation_pools=(), **OURS)


def port(identity: str, network_id: str, subnet_id: str, address: str, use: PortUse = PortUse.MACHINE) -> UnmanagedPort:
    return UnmanagedPort(
        id=identity,
        network_id=network_id,
        mac_address="fa:16:3e:00:00:01",
        fixed_ips=(FixedIP(subnet_id=subnet_id, address=parse_address(address)),),
        device_owner=use.value or "compute:nova",
        device_id=ROUTER if use else "machine",
        **THEIRS,
    )


CLOUD = (
    UnmanagedNetwork(id=NET, mtu=1442, subnets=(subnet(SUBNET, "10.0.0.0/24"),), **THEIRS),
    UnmanagedNetwork(id=OUTSIDE, mtu=1442, subnets=(subnet(UNROUTED, "192.0.2.0/24"),), **THEIRS),
    UnmanagedRouter(
        id=ROUTER, gateway=ExternalGateway(network_id=OUTSIDE, port_id=GATEWAY, enable_snat=True), **THEIRS
    ),
    port(MACHINE, NET, SUBNET, "10.0.0.5"),
    port(INTERFACE, NET, SUBNET, "10.0.0.1", PortUse.ROUTER_INTERFACE),
    port(GATEWAY, OUTSIDE, UNROUTED, "192.0.2.2", PortUse.ROUTER_GATEWAY),
    UnmanagedFloatingIP(
        id=FLOATING,
        network_id=OUTSIDE,
        address=parse_address("192.0.2.9"),
        address_port_id="nobody",
        port_id=MACHINE,
        fixed_address=parse_address("10.0.0.5"),
        router_id=ROUTER,
        **THEIRS,
    ),
)
PLACES = {
    "networks": ("network", NET),
    "subnets": ("subnet", SUBNET),
    "ports": ("port", MACHINE),
    "routers": ("router", ROUTER),
    "floatingips": ("floatingip", FLOATING),
}


@pytest.fixture
def cloud(door: NetworkFrontEnd) -> NetworkFrontEnd:
    for _ in door.server.model.observe(UNMANAGED, {owner_of(each): each for each in CLOUD}):
        pass
    return door


@pytest.mark.parametrize("caller", ["admin", "ann", "bob", "root"])
def test_unmanaged_objects_are_not_shown(cloud: NetworkFrontEnd, caller: str):
    for plural, (_, identity) in PLACES.items():
        assert cloud.call_ok("GET", f"/{plural}", caller=caller) == {plural: []}
        assert cloud.call_ok("GET", f"/{plural}?id={identity}", caller=caller) == {plural: []}
        assert cloud.call("GET", f"/{plural}/{identity}", caller=caller)[0] == 404
    assert cloud.call_ok("GET", "/network-ip-availabilities", caller=caller) == {"network_ip_availabilities": []}
    assert cloud.call("GET", f"/network-ip-availabilities/{NET}", caller=caller)[0] == 404


@pytest.mark.parametrize("caller", ["admin", "ann", "root"])
def test_unmanaged_objects_cannot_be_changed(cloud: NetworkFrontEnd, caller: str):
    for plural, (singular, identity) in PLACES.items():
        body = {singular: {"description": "mine"}}
        assert cloud.call_error("PUT", f"/{plural}/{identity}", body, caller)[0] == 404
        assert cloud.call_error("DELETE", f"/{plural}/{identity}", None, caller)[0] == 404
    for verb in ("add_router_interface", "remove_router_interface"):
        for where in ({"subnet_id": SUBNET}, {"port_id": MACHINE}):
            assert cloud.call_error("PUT", f"/routers/{ROUTER}/{verb}", where, caller)[0] == 404


def test_managed_objects_cannot_refer_to_unmanaged_objects(cloud: NetworkFrontEnd):
    mine, router = cloud.create("network", name="mine"), cloud.create("router")
    outside = cloud.create("network", name="out", **{"router:external": True})
    cloud.create("subnet", network_id=outside["id"], cidr="203.0.113.0/24", ip_version=4)
    floating = cloud.create("floatingip", floating_network_id=outside["id"])
    joined, elsewhere = f"/routers/{router['id']}", {"external_gateway_info": {"network_id": OUTSIDE}}
    refused = [
        ("PUT", f"{joined}/add_router_interface", {"subnet_id": SUBNET}),
        ("PUT", f"{joined}/add_router_interface", {"port_id": MACHINE}),
        ("PUT", joined, {"router": elsewhere}),
        ("POST", "/routers", {"router": elsewhere}),
        ("POST", "/ports", {"port": {"network_id": NET}}),
        ("POST", "/ports", {"port": {"network_id": mine["id"], "fixed_ips": [{"subnet_id": SUBNET}]}}),
        ("POST", "/subnets", {"subnet": {"network_id": NET, "cidr": "10.9.0.0/24", "ip_version": 4}}),
        ("POST", "/floatingips", {"floatingip": {"floating_network_id": OUTSIDE}}),
        ("PUT", f"/floatingips/{floating['id']}", {"floatingip": {"port_id": MACHINE}}),
        ("POST", "/local_ips", {"local_ip": {"network_id": NET}}),
        ("POST", "/local_ips", {"local_ip": {"local_port_id": MACHINE}}),
    ]
    for method, path, body in refused:
        status, _, message = cloud.call_error(method, path, body)
        assert status in (400, 404, 409), (path, message)
