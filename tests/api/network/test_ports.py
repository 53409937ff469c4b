"""Ports: allocated addresses, and the attributes that a caller may set."""

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from fairlead.api.network import limits
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import LoadBalancer, Vip
from fairlead.model.registry.facts import PLUGGED
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON
from harness.front_ends.network_world import NetworkFrontEnd

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"


@pytest.fixture
def net(door: NetworkFrontEnd) -> dict[str, Any]:
    """Create a network with a subnet of each family."""
    net = door.create("network", name="net")
    door.create("subnet", name="four", network_id=net["id"], cidr="10.0.0.0/29")
    door.create("subnet", name="six", network_id=net["id"], cidr="fd00::/64")
    return door.call_ok("GET", f"/networks/{net['id']}")["network"]


def addresses(port: dict[str, Any]) -> list[str]:
    return [fixed["ip_address"] for fixed in port["fixed_ips"]]


def test_port_response_has_every_attribute_that_clients_show(door: NetworkFrontEnd, net: dict[str, Any]):
    wanted = [{"ip_address": "10.0.0.3"}, {"subnet_id": net["subnets"][1], "ip_address": "FD00:0::5"}]
    port = door.create(
        "port",
        name="vm",
        network_id=net["id"],
        fixed_ips=wanted,
        mac_address="FA-16-3E-00-00-01",
        device_id="box",
        device_owner="compute:nova",
        tags=["blue"],
        **{"binding:host_id": "node1", "security_groups": [], "binding:profile": None, "binding:vnic_type": "normal"},
    )
    assert port == {
        "id": port["id"],
        "name": "vm",
        "description": "",
        "project_id": "one",
        "tenant_id": "one",
        "tags": ["blue"],
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": 4,
        "network_id": net["id"],
        "mac_address": "fa:16:3e:00:00:01",
        "fixed_ips": [
            {"subnet_id": net["subnets"][0], "ip_address": "10.0.0.3"},
            {"subnet_id": net["subnets"][1], "ip_address": "fd00::5"},
        ],
        "admin_state_up": True,
        "device_id": "box",
        "device_owner": "compute:nova",
        "status": "DOWN",
        "port_security_enabled": True,
        "binding:host_id": "node1",
        "binding:vnic_type": "normal",
        "binding:profile": {},
        "binding:vif_type": "ovs",
        "binding:vif_details": {},
        "security_groups": [],
        "allowed_address_pairs": [],
        "extra_dhcp_opts": [],
        "qos_policy_id": None,
    }
    run_to_completion(door.server.model.observe(PLUGGED, {port["id"]: "node1"}))
    assert door.call_ok("GET", f"/ports/{port['id']}") == {"port": {**port, "status": "ACTIVE"}}
    assert door.update("port", port, admin_state_up=False)["status"] == "DOWN"


def test_port_gets_an_address_of_each_family_until_a_pool_is_exhausted(door: NetworkFrontEnd, net: dict[str, Any]):
    ports = [door.create("port", network_id=net["id"]) for _ in range(5)]
    four = {ip_address(addresses(port)[0]) for port in ports}
    assert four == {ip_address(f"10.0.0.{n}") for n in range(2, 7)}
    six = {ip_address(addresses(port)[1]) for port in ports}
    assert len(six) == 5
    assert all(item in ip_network("fd00::/64") for item in six)
    assert len({port["mac_address"] for port in ports}) == 5
    assert door.call_error("POST", "/ports", {"port": {"network_id": net["id"]}}) == (
        409,
        "IpAddressGenerationFailure",
        f"No more IP addresses available on network {net['id']}.",
    )
    door.create("subnet", network_id=net["id"], cidr="10.0.1.0/24")
    assert addresses(door.create("port", network_id=net["id"]))[0].startswith("10.0.1.")


def test_bulk_create_gives_each_port_distinct_addresses(door: NetworkFrontEnd, net: dict[str, Any]):
    ports = door.call_ok("POST", "/ports", {"ports": [{"network_id": net["id"]}] * 5})["ports"]
    assert len({addresses(port)[0] for port in ports}) == 5
    assert len({port["mac_address"] for port in ports}) == 5
    assert (
        door.call_error(
            "POST", "/ports", {"ports": [{"network_id": net["id"], "fixed_ips": []}] * 2 + [{"network_id": net["id"]}]}
        )[1]
        == "IpAddressGenerationFailure"
    )


def test_a_port_can_have_no_address(door: NetworkFrontEnd, net: dict[str, Any]):
    assert door.create("port", network_id=net["id"], fixed_ips=[])["fixed_ips"] == []
    empty = door.create("network")
    assert door.create("port", network_id=empty["id"])["fixed_ips"] == []
    told = door.call_error(
        "POST", "/ports", {"port": {"network_id": empty["id"], "fixed_ips": [{"ip_address": "10.0.0.3"}]}}
    )
    assert told[2] == "Invalid input for operation: IP allocation requires subnets for network."


def test_slaac_address_is_derived_from_the_mac(door: NetworkFrontEnd):
    """SLAAC addresses are derived from the MAC; both are the example of RFC 4291, appendix A."""
    net = door.create("network")
    subnet = door.create("subnet", network_id=net["id"], cidr="fd00::/64", ipv6_address_mode="slaac")
    port = door.create("port", network_id=net["id"], mac_address="34:56:78:9a:bc:de")
    assert addresses(port) == ["fd00::3656:78ff:fe9a:bcde"]
    body = {"port": {"network_id": net["id"], "fixed_ips": [{"ip_address": "fd00::9"}]}}
    assert door.call_error("POST", "/ports", body) == (
        400,
        "AllocationOnAutoAddressSubnet",
        f"IPv6 address fd00::9 cannot be directly assigned to a port on subnet {subnet['id']} as the subnet is "
        "configured for automatic addresses",
    )


SUBNET = {"subnet_id": "FOUR"}


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        (
            {"fixed_ips": [{"ip_address": "10.9.0.1"}]},
            "400 InvalidIpForNetwork: IP address 10.9.0.1 is not a valid IP for any of the subnets on the specified "
            "network.",
        ),
        (
            {"fixed_ips": [{**SUBNET, "ip_address": "10.9.0.1"}]},
            "400 InvalidIpForSubnet: IP address 10.9.0.1 is not a valid IP for the specified subnet.",
        ),
        (
            {"fixed_ips": [{**SUBNET, "ip_address": "10.0.0.0"}]},
            "400 InvalidIpForSubnet: IP address 10.0.0.0 is not a valid IP for the specified subnet.",
        ),
        (
            {"fixed_ips": [{**SUBNET, "ip_address": "10.0.0.7"}]},
            "400 InvalidIpForSubnet: IP address 10.0.0.7 is not a valid IP for the specified subnet.",
        ),
        (
            {"fixed_ips": [{"ip_address": "10.0.0.5"}]},
            "409 IpAddressAlreadyAllocated: IP address 10.0.0.5 already allocated in subnet FOUR",
        ),
        (
            {"fixed_ips": [{"subnet_id": UNKNOWN_ID}]},
            "400 InvalidInput: Invalid input for operation: Failed to create port on network NET, because fixed_ips "
            f"included invalid subnet {UNKNOWN_ID}.",
        ),
        (
            {"fixed_ips": [{"ip_address": "10.0.0.3"}, {"ip_address": "10.0.0.3"}]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: Duplicate IP address '10.0.0.3'.",
        ),
        (
            {"fixed_ips": [{"ip_address": "10.0.0.300"}]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: '10.0.0.300' is not a valid IP address.",
        ),
        (
            {"fixed_ips": [{"ip_address": "::ffff:10.0.0.3"}]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: '::ffff:10.0.0.3' is not a valid IP address.",
        ),
        (
            {"fixed_ips": [{"subnet_id": "four"}]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: 'four' is not a valid UUID.",
        ),
        (
            {"fixed_ips": [{}]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: IP allocation requires subnet_id or ip_address.",
        ),
        (
            {"fixed_ips": ["10.0.0.3"]},
            "400 HTTPBadRequest: Invalid input for fixed_ips. Reason: Invalid data format for fixed IP: '10.0.0.3'.",
        ),
        (
            {"fixed_ips": [SUBNET] * (limits.FIXED_IPS + 1)},
            "400 InvalidInput: Invalid input for operation: Exceeded maximum amount of fixed ips per port.",
        ),
        (
            {"fixed_ips": [SUBNET] * 6},
            "409 IpAddressGenerationFailure: No more IP addresses available on network NET.",
        ),
        (
            {"mac_address": "fa:16:3e:00:00:05"},
            "409 MacAddressInUse: Unable to complete operation for network NET. The mac address fa:16:3e:00:00:05 is "
            "in use.",
        ),
        (
            {"mac_address": "01:00:5e:00:00:01"},
            "400 HTTPBadRequest: Invalid input for mac_address. Reason: '01:00:5e:00:00:01' is not a valid MAC "
            "address.",
        ),
        (
            {"mac_address": "00:00:00:00:00:00"},
            "400 HTTPBadRequest: Invalid input for mac_address. Reason: '00:00:00:00:00:00' is not a valid MAC "
            "address.",
        ),
        (
            {"mac_address": "fa:16:3e"},
            "400 HTTPBadRequest: Invalid input for mac_address. Reason: 'fa:16:3e' is not a valid MAC address.",
        ),
        (
            {"security_groups": [UNKNOWN_ID]},
            "400 HTTPBadRequest: Invalid input for security_groups. Reason: security groups are not supported; give an "
            "empty list.",
        ),
        (
            {"allowed_address_pairs": [{"ip_address": "10.0.0.9"}]},
            "400 HTTPBadRequest: Invalid input for allowed_address_pairs. Reason: address pairs are not supported.",
        ),
        (
            {"binding:vnic_type": "direct"},
            "400 HTTPBadRequest: Invalid input for binding:vnic_type. Reason: only ports of the virtual switch are "
            "supported: normal.",
        ),
        (
            {"device_owner": "network:router_interface"},
            "400 BadRequest: Bad port request: device_owner network:router_interface is reserved: it is set by"
            " add_router_interface.",
        ),
        ({"network_id": UNKNOWN_ID}, f"404 NetworkNotFound: Network {UNKNOWN_ID} could not be found."),
        ({"binding:vif_type": "ovs"}, "400 HTTPBadRequest: Attribute 'binding:vif_type' not allowed in POST"),
        (
            {"dns_name": "vm"},
            "400 HTTPBadRequest: Invalid input for dns_name. Reason: DNS names are not supported.",
        ),
        ({"numa": "vm"}, "400 HTTPBadRequest: Unrecognized attribute(s) 'numa'"),
    ],
)
def test_invalid_ports_are_refused(door: NetworkFrontEnd, net: dict[str, Any], attributes: dict[str, Any], error: str):
    door.create("port", network_id=net["id"], fixed_ips=[{"ip_address": "10.0.0.5"}], mac_address="fa:16:3e:00:00:05")
    if "fixed_ips" in attributes:
        attributes = {"fixed_ips": [_placed(item, net) for item in attributes["fixed_ips"]]}
    status, kind, message = door.call_error("POST", "/ports", {"port": {"network_id": net["id"], **attributes}})
    message = message.replace(net["id"], "NET").replace(net["subnets"][0], "FOUR")
    assert f"{status} {kind}: {message}" == error


def _placed(item: Any, net: dict[str, Any]) -> Any:
    return (
        {**item, "subnet_id": net["subnets"][0]} if isinstance(item, dict) and item.get("subnet_id") == "FOUR" else item
    )


def test_fixed_ips_update_keeps_addresses_that_still_match(door: NetworkFrontEnd, net: dict[str, Any]):
    four, six = net["subnets"]
    port = door.create("port", network_id=net["id"], fixed_ips=[{"ip_address": "10.0.0.3"}])
    more = door.update("port", port, fixed_ips=[*port["fixed_ips"], {"subnet_id": six}])
    assert addresses(more)[0] == "10.0.0.3"
    same = door.update("port", port, fixed_ips=[{"subnet_id": six}, {"subnet_id": four}])
    assert set(addresses(same)) == set(addresses(more))
    two = door.update("port", port, fixed_ips=[{"subnet_id": four}, {"subnet_id": four}])
    assert addresses(two)[0] == "10.0.0.3"
    assert len(set(addresses(two))) == 2
    free = next(item for item in ("10.0.0.5", "10.0.0.6") if item not in addresses(two))
    other = door.create("port", network_id=net["id"], fixed_ips=[{"ip_address": free}])
    told = door.call_error(
        "PUT", f"/ports/{port['id']}", {"port": {"fixed_ips": [{"ip_address": addresses(other)[0]}]}}
    )
    assert told[1] == "IpAddressAlreadyAllocated"
    assert door.update("port", port, fixed_ips=[])["fixed_ips"] == []


def test_port_update_changes_writable_attributes_and_keeps_fixed_ips(door: NetworkFrontEnd, net: dict[str, Any]):
    port = door.create("port", network_id=net["id"])
    wanted = {
        "name": "new",
        "description": "d",
        "admin_state_up": False,
        "device_id": "x",
        "device_owner": "compute:nova",
        "binding:host_id": "node2",
        "port_security_enabled": False,
        "mac_address": "fa:16:3e:00:00:09",
    }
    changed = door.update("port", port, **wanted)
    assert {name: changed[name] for name in wanted} == wanted
    assert changed["fixed_ips"] == port["fixed_ips"]
    unset = door.update("port", port, device_id="", device_owner="", **{"binding:host_id": None})
    assert (unset["device_id"], unset["device_owner"], unset["binding:host_id"]) == ("", "", "")
    for name in ("network_id", "project_id", "tags", "status"):
        told = door.call_error("PUT", f"/ports/{port['id']}", {"port": {name: UNKNOWN_ID}})
        assert told[2] == f"Cannot update read-only attribute {name}"


def test_router_interface_port_cannot_be_deleted_or_reassigned(door: NetworkFrontEnd, net: dict[str, Any]):
    router = door.create("router")
    added = door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": net["subnets"][0]})
    path = f"/ports/{added['port_id']}"
    assert door.call_error("DELETE", path) == (
        409,
        "ServicePortInUse",
        f"Port {added['port_id']} cannot be deleted directly via the port API: has device owner "
        "network:router_interface.",
    )
    for change in ({"device_id": ""}, {"device_owner": "x"}, {"fixed_ips": [{"ip_address": "10.0.0.3"}]}):
        assert door.call_error("PUT", path, {"port": change})[:2] == (409, "PortInUse")
    assert door.call_ok("PUT", path, {"port": {"name": "up"}})["port"]["name"] == "up"


def test_vip_port_and_its_network_cannot_be_deleted_while_in_use(door: NetworkFrontEnd, net: dict[str, Any]):
    port = door.create("port", network_id=net["id"], fixed_ips=[{"ip_address": "10.0.0.4"}])
    held = door.server.model.snapshot.ports[port["id"]]
    door.write(replace(held, device_owner="Octavia", device_id="lb-b1"))
    vip = Vip(address=parse_address("10.0.0.4"), port_id=port["id"], subnet_id=net["subnets"][0], network_id=net["id"])
    door.write(LoadBalancer(id="b1", project_id="one", created_at=NOON, provider="ovn", vip=vip))
    assert door.call_error("DELETE", f"/ports/{port['id']}") == (
        409,
        "ServicePortInUse",
        f"Port {port['id']} cannot be deleted directly via the port API: still used by load balancer b1.",
    )
    assert door.call_error("PUT", f"/ports/{port['id']}", {"port": {"fixed_ips": []}})[1] == "PortInUse"
    assert door.call_error("DELETE", f"/subnets/{net['subnets'][0]}")[1] == "SubnetInUse"
    assert door.call_error("DELETE", f"/networks/{net['id']}")[1] == "NetworkInUse"


def test_vip_port_without_a_load_balancer_id_is_refused(door: NetworkFrontEnd, net: dict[str, Any]):
    body = {"port": {"network_id": net["id"], "device_owner": "Octavia", "device_id": "lb-x"}}
    code, kind, words = door.call_error("POST", "/ports", body)
    assert (code, kind, "is reserved: it is set by the load balancer" in words) == (400, "BadRequest", True)


def test_administrator_may_create_the_port_of_a_future_load_balancer(door: NetworkFrontEnd, net: dict[str, Any]):
    """Administrators may create a port for a future load balancer, as Octavia does before it calls its provider
    driver."""
    device = "lb-00000000-0000-4000-8000-00000000000a"
    body = {"port": {"network_id": net["id"], "device_owner": "Octavia", "device_id": device}}
    assert door.call_error("POST", "/ports", body, "ann")[0] == 400
    made = door.call("POST", "/ports", body)[1]["port"]
    assert (made["device_owner"], made["device_id"]) == ("Octavia", device)
    assert door.call("DELETE", f"/ports/{made['id']}")[0] == 204
    body["port"]["binding:host_id"] = "node"
    assert door.call_error("POST", "/ports", body)[0] == 400
