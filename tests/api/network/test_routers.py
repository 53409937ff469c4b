"""Routers: interfaces by subnet and by port, and routes."""

from typing import Any

import pytest

from harness.front_ends.network_world import NetworkFrontEnd

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"


@pytest.fixture
def router(door: NetworkFrontEnd) -> dict[str, Any]:
    return door.create("router", name="r")


@pytest.fixture
def net(door: NetworkFrontEnd) -> dict[str, Any]:
    net = door.create("network", name="net")
    door.create("subnet", network_id=net["id"], cidr="10.0.0.0/24")
    door.create("subnet", network_id=net["id"], cidr="fd00::/64")
    return door.call_ok("GET", f"/networks/{net['id']}")["network"]


def add(door: NetworkFrontEnd, router: dict[str, Any], **target: str) -> dict[str, Any]:
    answer: dict[str, Any] = door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", target)
    return answer


def refused_add(door: NetworkFrontEnd, router: dict[str, Any], **target: str) -> tuple[int, str, str]:
    return door.call_error("PUT", f"/routers/{router['id']}/add_router_interface", target)


def test_router_response_has_every_attribute_that_clients_show(door: NetworkFrontEnd):
    router = door.create("router", name="r", admin_state_up=False, tags=["t"])
    assert router == {
        "id": router["id"],
        "name": "r",
        "description": "",
        "project_id": "one",
        "tenant_id": "one",
        "tags": ["t"],
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": 1,
        "admin_state_up": False,
        "status": "BUILD",
        "routes": [],
        "external_gateway_info": None,
        "flavor_id": None,
        "availability_zone_hints": [],
        "availability_zones": [],
    }
    assert door.call_ok("GET", f"/routers/{router['id']}") == {"router": {**router, "status": "ACTIVE"}}


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"routes": []}, "Attribute 'routes' not allowed in POST"),
        ({"high": True}, "Unrecognized attribute(s) 'high'"),
        (
            {"external_gateway_info": {"enable_snat": False}},
            "Invalid input for external_gateway_info. Reason: Validation of dictionary's keys failed. Expected keys: "
            "{'network_id'}.",
        ),
        (
            {"external_gateway_info": {"network_id": UNKNOWN_ID, "qos_policy_id": UNKNOWN_ID}},
            "Invalid input for external_gateway_info. Reason: Unexpected keys supplied: qos_policy_id.",
        ),
    ],
)
def test_invalid_routers_are_refused(door: NetworkFrontEnd, attributes: dict[str, Any], message: str):
    assert door.call_error("POST", "/routers", {"router": attributes}) == (400, "HTTPBadRequest", message)


def test_interface_by_subnet_gets_the_gateway_address(
    door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]
):
    four, six = net["subnets"]
    added = add(door, router, subnet_id=four)
    assert added == {
        "id": router["id"],
        "tenant_id": "one",
        "project_id": "one",
        "port_id": added["port_id"],
        "network_id": net["id"],
        "subnet_id": four,
        "subnet_ids": [four],
    }
    port = door.call_ok("GET", f"/ports/{added['port_id']}")["port"]
    assert port["fixed_ips"] == [{"subnet_id": four, "ip_address": "10.0.0.1"}]
    assert (port["device_owner"], port["device_id"]) == ("network:router_interface", router["id"])
    assert add(door, router, subnet_id=six)["port_id"] != added["port_id"]
    removed = door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"subnet_id": four})
    assert removed == added
    assert door.call("GET", f"/ports/{added['port_id']}")[0] == 404


def test_reattached_subnet_keeps_its_gateway_mac(door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]):
    """A subnet that is detached and attached again gets the same gateway MAC, which machines have in their neighbour
    tables."""
    macs = []
    for _ in range(2):
        added = add(door, router, subnet_id=net["subnets"][0])
        macs.append(door.call_ok("GET", f"/ports/{added['port_id']}")["port"]["mac_address"])
        door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"port_id": added["port_id"]})
    assert macs[0] == macs[1]
    other = add(door, door.create("router"), subnet_id=net["subnets"][0])
    assert door.call_ok("GET", f"/ports/{other['port_id']}")["port"]["mac_address"] != macs[0]


def test_interface_by_port_turns_the_port_into_a_router_port(
    door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]
):
    four, six = net["subnets"]
    wanted = [{"ip_address": "10.0.0.254"}, {"subnet_id": six}]
    port = door.create("port", network_id=net["id"], fixed_ips=wanted)
    assert add(door, router, port_id=port["id"])["subnet_ids"] == [four, six]
    assert refused_add(door, router, port_id=port["id"]) == (
        409,
        "PortInUse",
        f"Unable to complete operation on port {port['id']} for network {net['id']}. Port already has an attached "
        f"device {router['id']}.",
    )
    door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"subnet_id": four})
    left = door.call_ok("GET", f"/ports/{port['id']}")["port"]
    assert [fixed["subnet_id"] for fixed in left["fixed_ips"]] == [six]
    body = {"port_id": port["id"], "subnet_id": four}
    assert (
        door.call_error("PUT", f"/routers/{router['id']}/remove_router_interface", body)[1] == "SubnetMismatchForPort"
    )
    door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"port_id": port["id"], "subnet_id": six})
    assert door.call("GET", f"/ports/{port['id']}")[0] == 404


def test_invalid_interfaces_are_refused(door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]):
    four = net["subnets"][0]
    add(door, router, subnet_id=four)
    bad = "Bad router request: "
    assert refused_add(door, router) == (400, "BadRequest", bad + "Either subnet_id or port_id must be specified.")
    assert refused_add(door, router, subnet_id=four, port_id=UNKNOWN_ID)[2] == (
        bad + "Cannot specify both subnet-id and port-id."
    )
    assert refused_add(door, router, subnet_id="four")[2] == bad + "'four' is not a valid UUID."
    assert refused_add(door, router, net=four)[2] == "Unrecognized attribute(s) 'net'"
    assert refused_add(door, router, subnet_id=UNKNOWN_ID)[:2] == (404, "SubnetNotFound")
    assert refused_add(door, router, port_id=UNKNOWN_ID)[:2] == (404, "PortNotFound")
    assert refused_add(door, router, subnet_id=four) == (
        400,
        "BadRequest",
        f"{bad}Router already has a port on subnet {four}.",
    )
    other = door.create("network")
    closed = door.create("subnet", network_id=other["id"], cidr="10.5.0.0/24", gateway_ip=None)
    assert refused_add(door, router, subnet_id=closed["id"])[2] == (
        bad + "Subnet for router interface must have a gateway IP."
    )
    near = door.create("subnet", network_id=other["id"], cidr="10.0.0.128/25")
    assert refused_add(door, router, subnet_id=near["id"])[2] == (
        f"{bad}Cidr 10.0.0.128/25 of subnet {near['id']} overlaps with cidr 10.0.0.0/24 of subnet {four}."
    )
    bare = door.create("port", network_id=other["id"], fixed_ips=[])
    assert refused_add(door, router, port_id=bare["id"])[2] == bad + "Router port must have at least one fixed IP."
    double = [{"subnet_id": closed["id"]}, {"subnet_id": near["id"]}]
    two = door.create("port", network_id=other["id"], fixed_ips=double)
    assert refused_add(door, router, port_id=two["id"])[2] == (
        bad + "Cannot have multiple IPv4 subnets on router port."
    )


def test_interface_is_refused_while_a_port_has_the_gateway_address(
    door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]
):
    door.create("port", network_id=net["id"], fixed_ips=[{"ip_address": "10.0.0.1"}])
    assert refused_add(door, router, subnet_id=net["subnets"][0]) == (
        409,
        "IpAddressAlreadyAllocated",
        f"IP address 10.0.0.1 already allocated in subnet {net['subnets'][0]}",
    )


def test_removal_of_a_missing_interface_is_refused(door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]):
    path = f"/routers/{router['id']}/remove_router_interface"
    port = door.create("port", network_id=net["id"])
    assert door.call_error("PUT", path, {"port_id": port["id"]}) == (
        404,
        "RouterInterfaceNotFound",
        f"Router {router['id']} does not have an interface with id {port['id']}",
    )
    assert door.call_error("PUT", path, {"subnet_id": net["subnets"][0]}) == (
        404,
        "RouterInterfaceNotFoundForSubnet",
        f"Router {router['id']} has no interface on subnet {net['subnets'][0]}",
    )


def test_router_with_interfaces_cannot_be_deleted(door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]):
    added = add(door, router, subnet_id=net["subnets"][0])
    assert door.call_error("DELETE", f"/routers/{router['id']}") == (
        409,
        "RouterInUse",
        f"Router {router['id']} still has ports",
    )
    door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"port_id": added["port_id"]})
    assert door.call("DELETE", f"/routers/{router['id']}") == (204, None)


def test_routes_can_be_set_and_keep_their_interface_in_use(
    door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any]
):
    four = net["subnets"][0]
    add(door, router, subnet_id=four)
    route = {"destination": "10.8.0.0/16", "nexthop": "10.0.0.9"}
    assert door.update("router", router, routes=[route])["routes"] == [route]
    told = door.call_error("PUT", f"/routers/{router['id']}/remove_router_interface", {"subnet_id": four})
    assert told == (
        409,
        "RouterInterfaceInUseByRoute",
        f"Router interface for subnet {four} on router {router['id']} cannot be deleted, as it is required by one or "
        "more routes.",
    )
    more = {"destination": "10.7.0.0/16", "nexthop": "10.0.0.9"}
    body = {"router": {"routes": [more]}}
    assert door.call_ok("PUT", f"/routers/{router['id']}/add_extraroutes", body)["router"]["routes"] == [more, route]
    assert door.call_ok("PUT", f"/routers/{router['id']}/remove_extraroutes", body)["router"]["routes"] == [route]
    assert door.call_error("PUT", f"/routers/{router['id']}/add_extraroutes", {"router": {}})[2] == (
        "Unable to find 'routes' in request body"
    )
    assert door.update("router", router, routes=[])["routes"] == []


@pytest.mark.parametrize(
    ("routes", "error"),
    [
        (
            [{"destination": "10.8.0.0/16", "nexthop": "10.1.0.9"}],
            "InvalidRoutes: Invalid format for routes: [{'destination': '10.8.0.0/16', 'nexthop': '10.1.0.9'}], the "
            "nexthop is not connected with router",
        ),
        (
            [{"destination": "10.8.0.0/16", "nexthop": "10.0.0.1"}],
            "InvalidRoutes: Invalid format for routes: [{'destination': '10.8.0.0/16', 'nexthop': '10.0.0.1'}], the "
            "nexthop is used by router",
        ),
        (
            [{"destination": "fd01::/64", "nexthop": "10.0.0.9"}],
            "InvalidRoutes: Invalid format for routes: [{'destination': 'fd01::/64', 'nexthop': '10.0.0.9'}], the "
            "nexthop is not of the destination's IP version",
        ),
        (
            [{"destination": "10.8.0.0/16", "nexthop": "10.0.0.9"}] * 2,
            "HTTPBadRequest: Invalid input for routes. Reason: Duplicate hostroute '{'destination': '10.8.0.0/16', "
            "'nexthop': '10.0.0.9'}'.",
        ),
        ("all", "HTTPBadRequest: Invalid input for routes. Reason: 'all' is not a list."),
        (
            [{"destination": f"10.8.{n}.0/24", "nexthop": "10.0.0.9"} for n in range(31)],
            "RoutesExhausted: Unable to complete operation for ROUTER. The number of routes exceeds the maximum 30.",
        ),
    ],
)
def test_invalid_routes_are_refused(
    door: NetworkFrontEnd, router: dict[str, Any], net: dict[str, Any], routes: Any, error: str
):
    add(door, router, subnet_id=net["subnets"][0])
    status, kind, message = door.call_error("PUT", f"/routers/{router['id']}", {"router": {"routes": routes}})
    assert (status, f"{kind}: {message.replace(router['id'], 'ROUTER')}") == (400, error)


@pytest.mark.parametrize("name", ["distributed", "ha"])
def test_distributed_and_ha_flags_are_accepted_only_from_administrators(door: NetworkFrontEnd, name: str):
    """Every OVN router is distributed: the attribute is accepted from administrators, has no effect and is not
    shown."""
    made = door.create("router", **{name: False})
    assert name not in made
    door.update("router", made, **{name: True})
    door.create("router", caller="ann", **{name: None})
    told = (403, "PolicyNotAuthorized", f"(rule:create_router and (rule:create_router:{name})) is disallowed by policy")
    for value in (True, False):
        assert door.call_error("POST", "/routers", {"router": {name: value}}, "ann") == told
    status, _, message = door.call_error("POST", "/routers", {"router": {name: "maybe"}})
    assert (status, message) == (400, f"Invalid input for {name}. Reason: 'maybe' is not a valid boolean value.")
