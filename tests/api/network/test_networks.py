"""Networks and subnets: responses, refusals and their texts."""

from typing import Any

import pytest

from fairlead.api.network import limits
from fairlead.changes.subnets import MAX_SUBNETS
from harness.front_ends.network_world import NetworkFrontEnd

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"


@pytest.fixture
def net(door: NetworkFrontEnd) -> dict[str, Any]:
    return door.create("network", name="net")


@pytest.fixture
def subnet(door: NetworkFrontEnd, net: dict[str, Any]) -> dict[str, Any]:
    return door.create("subnet", name="four", network_id=net["id"], cidr="10.0.0.0/24", ip_version=4)


def test_network_response_has_every_attribute_that_clients_show(door: NetworkFrontEnd):
    made = door.create("network", name="net", description="of mine", tags=["b", "a"], mtu=1500)
    assert made == {
        "id": made["id"],
        "name": "net",
        "description": "of mine",
        "project_id": "one",
        "tenant_id": "one",
        "tags": ["a", "b"],
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": 1,
        "admin_state_up": True,
        "mtu": 1500,
        "shared": False,
        "status": "BUILD",
        "subnets": [],
        "port_security_enabled": True,
        "router:external": False,
        "is_default": False,
        "provider:network_type": None,
        "provider:physical_network": None,
        "provider:segmentation_id": None,
        "qos_policy_id": None,
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        "availability_zone_hints": [],
        "availability_zones": [],
    }
    assert door.call_ok("GET", f"/networks/{made['id']}") == {"network": {**made, "status": "ACTIVE"}}


def test_network_mtu_defaults_to_the_configured_mtu(door: NetworkFrontEnd, net: dict[str, Any]):
    assert net["mtu"] == 1442
    assert door.update("network", net, mtu=9000)["mtu"] == 9000
    assert door.update("network", net, mtu=None)["mtu"] == 1442


def test_update_without_a_change_writes_nothing(door: NetworkFrontEnd, net: dict[str, Any]):
    before = door.snapshot
    assert door.update("network", net, name="net", admin_state_up=True)["revision_number"] == 1
    assert door.snapshot is before


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"bogus": 1}, "Unrecognized attribute(s) 'bogus'"),
        ({"b": 1, "a": 1}, "Unrecognized attribute(s) 'a, b'"),
        ({"id": UNKNOWN_ID}, "Attribute 'id' not allowed in POST"),
        ({"status": "ACTIVE"}, "Attribute 'status' not allowed in POST"),
        ({"name": 5}, "Invalid input for name. Reason: '5' is not a valid string."),
        ({"name": None}, "Invalid input for name. Reason: A value is required."),
        ({"name": "x" * 256}, f"Invalid input for name. Reason: '{'x' * 256}' exceeds maximum length of 255."),
        ({"name": "a\0b"}, "Invalid input for name. Reason: 'a\0b' is not a valid string."),
        (
            {"admin_state_up": "maybe"},
            "Invalid input for admin_state_up. Reason: 'maybe' is not a valid boolean value.",
        ),
        ({"mtu": 67}, "Invalid input for mtu. Reason: '67' is too small - must be at least '68'."),
        ({"mtu": 65536}, "Invalid input for mtu. Reason: '65536' is too large - must be no larger than '65535'."),
        ({"mtu": "big"}, "Invalid input for mtu. Reason: 'big' is not an integer."),
        ({"mtu": True}, "Invalid input for mtu. Reason: 'True' is not an integer."),
        (
            {"provider:network_type": "vxlan"},
            "Invalid input for provider:network_type. Reason: vxlan is not in ['announced', 'flat', 'vlan'].",
        ),
        (
            {"is_default": True},
            "Invalid input for is_default. Reason: a default external network is not supported.",
        ),
        ({"qos_policy_id": UNKNOWN_ID}, "Invalid input for qos_policy_id. Reason: QoS policies are not supported."),
        ({"tags": ["a", "a"]}, "Invalid input for tags. Reason: Duplicate items in the list: 'a'."),
        ({"tags": "a"}, "Invalid input for tags. Reason: 'a' is not a list."),
        ({"project_id": "one", "tenant_id": "two"}, "'project_id' and 'tenant_id' do not match"),
    ],
)
def test_invalid_networks_are_refused(door: NetworkFrontEnd, attributes: dict[str, Any], message: str):
    assert door.call_error("POST", "/networks", {"network": attributes}) == (400, "HTTPBadRequest", message)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"{", "MalformedRequestBody"),
        (b"", "MalformedRequestBody"),
        (b"[" * 100_000, "MalformedRequestBody"),
        (b"[]", "HTTPBadRequest"),
        (b"{}", "HTTPBadRequest"),
        (b'{"network": 5}', "HTTPBadRequest"),
        (b'{"network": null}', "HTTPBadRequest"),
        (b'{"networks": []}', "HTTPBadRequest"),
        (b'{"networks": {}}', "HTTPBadRequest"),
        (b'{"networks": [5]}', "HTTPBadRequest"),
        (b'{"network": {"name": "\\ud800"}}', "MalformedRequestBody"),
    ],
)
def test_malformed_body_is_refused_and_writes_nothing(door: NetworkFrontEnd, content: bytes, error: str):
    before = door.snapshot
    answer = door.send("POST", "/v2.0/networks", content=content)
    assert (answer.status_code, answer.json()["NeutronError"]["type"]) == (400, error)
    assert door.snapshot is before


def test_too_large_body_is_refused_with_413(door: NetworkFrontEnd):
    answer = door.send("POST", "/v2.0/networks", content=b" " * (4 * 2**20 + 1))
    assert (answer.status_code, answer.json()["NeutronError"]["type"]) == (413, "RequestTooLarge")


def test_read_only_attributes_cannot_be_set(door: NetworkFrontEnd, net: dict[str, Any]):
    for name in ("id", "status", "subnets", "tags", "project_id", "revision_number"):
        told = door.call_error("PUT", f"/networks/{net['id']}", {"network": {name: "x"}})
        assert told == (400, "HTTPBadRequest", f"Cannot update read-only attribute {name}")


@pytest.mark.parametrize("plural", ["networks", "subnets", "ports", "routers"])
@pytest.mark.parametrize("key", [UNKNOWN_ID, "web"])
def test_unknown_ids_and_names_are_reported_as_not_found(door: NetworkFrontEnd, plural: str, key: str):
    """A name in the path is reported as not found, so clients continue with a lookup by name."""
    name = plural.removesuffix("s").capitalize()
    stop = "" if plural == "routers" else "."
    expected = (404, f"{name}NotFound", f"{name} {key} could not be found{stop}")
    for method, body in (("GET", None), ("DELETE", None), ("PUT", {plural.removesuffix("s"): {"name": "x"}})):
        assert door.call_error(method, f"/{plural}/{key}", body) == expected
    assert door.call_error("GET", f"/{plural}?marker={UNKNOWN_ID}") == (
        404,
        expected[1],
        expected[2].replace(key, UNKNOWN_ID),
    )


def test_bulk_create_of_networks_is_atomic(door: NetworkFrontEnd):
    made = door.call_ok("POST", "/networks", {"networks": [{"name": "a"}, {"network": {"name": "b"}}]})["networks"]
    assert [item["name"] for item in made] == ["a", "b"]
    assert len({item["revision_number"] for item in made}) == 1
    assert door.call_error("POST", "/networks", {"networks": [{"name": "c"}, {"mtu": 1}]})[0] == 400
    many = [{"name": "x"}] * (limits.BULK + 1)
    assert door.call_error("POST", "/networks", {"networks": many})[2] == (
        "Invalid input for operation: one request creates at most 100 networks."
    )


def test_network_is_deleted_with_its_subnets_but_not_while_ports_exist(
    door: NetworkFrontEnd, net: dict[str, Any], subnet: dict[str, Any]
):
    port = door.create("port", network_id=net["id"])
    assert door.call_error("DELETE", f"/networks/{net['id']}") == (
        409,
        "NetworkInUse",
        f"Unable to complete operation on network {net['id']}. There are one or more ports still in use on the "
        "network.",
    )
    door.call_ok("DELETE", f"/ports/{port['id']}")
    assert door.call("DELETE", f"/networks/{net['id']}") == (204, None)
    assert door.call_ok("GET", "/subnets") == {"subnets": []}
    assert door.server.driver.rows == {}


def test_subnet_response_has_every_attribute_that_clients_show(
    door: NetworkFrontEnd, net: dict[str, Any], subnet: dict[str, Any]
):
    assert subnet == {
        "id": subnet["id"],
        "name": "four",
        "description": "",
        "project_id": "one",
        "tenant_id": "one",
        "tags": [],
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": 2,
        "network_id": net["id"],
        "cidr": "10.0.0.0/24",
        "ip_version": 4,
        "gateway_ip": "10.0.0.1",
        "allocation_pools": [{"start": "10.0.0.2", "end": "10.0.0.254"}],
        "dns_nameservers": [],
        "host_routes": [],
        "enable_dhcp": True,
        "ipv6_address_mode": None,
        "ipv6_ra_mode": None,
        "subnetpool_id": None,
        "use_default_subnetpool": False,
        "segment_id": None,
        "service_types": [],
    }
    assert door.call_ok("GET", f"/networks/{net['id']}")["network"]["subnets"] == [subnet["id"]]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"cidr": "10.9.0.7/16"}, {"cidr": "10.9.0.0/16", "gateway_ip": "10.9.0.1"}),
        ({"cidr": "10.9.0.0/30"}, {"allocation_pools": [{"start": "10.9.0.2", "end": "10.9.0.2"}]}),
        (
            {"cidr": "10.9.0.0/24", "gateway_ip": "10.9.0.9"},
            {
                "allocation_pools": [
                    {"start": "10.9.0.1", "end": "10.9.0.8"},
                    {"start": "10.9.0.10", "end": "10.9.0.254"},
                ]
            },
        ),
        (
            {"cidr": "10.9.0.0/24", "gateway_ip": None},
            {"gateway_ip": None, "allocation_pools": [{"start": "10.9.0.1", "end": "10.9.0.254"}]},
        ),
        (
            {"cidr": "10.9.0.0/24", "allocation_pools": [{"start": "10.9.0.50", "end": "10.9.0.60"}]},
            {"allocation_pools": [{"start": "10.9.0.50", "end": "10.9.0.60"}]},
        ),
        (
            {"cidr": "10.9.0.0/31", "enable_dhcp": False},
            {"gateway_ip": "10.9.0.1", "allocation_pools": [{"start": "10.9.0.0", "end": "10.9.0.0"}]},
        ),
        (
            {"cidr": "10.9.0.0/32", "enable_dhcp": False},
            {"gateway_ip": None, "allocation_pools": [{"start": "10.9.0.0", "end": "10.9.0.0"}]},
        ),
        (
            {"cidr": "FD00:0::/64", "ip_version": 6},
            {
                "cidr": "fd00::/64",
                "gateway_ip": "fd00::1",
                "allocation_pools": [{"start": "fd00::2", "end": "fd00::ffff:ffff:ffff:ffff"}],
            },
        ),
        (
            {"cidr": "fd00::/64", "ipv6_address_mode": "slaac", "ipv6_ra_mode": "slaac"},
            {"ipv6_address_mode": "slaac", "ipv6_ra_mode": "slaac", "ip_version": 6},
        ),
        (
            {
                "cidr": "10.9.0.0/24",
                "dns_nameservers": ["8.8.8.8"],
                "host_routes": [{"destination": "10.8.0.0/16", "nexthop": "10.9.0.4"}],
            },
            {"dns_nameservers": ["8.8.8.8"], "host_routes": [{"destination": "10.8.0.0/16", "nexthop": "10.9.0.4"}]},
        ),
    ],
)
def test_valid_subnets_are_created_with_derived_defaults(
    door: NetworkFrontEnd, net: dict[str, Any], attributes: dict[str, Any], expected: dict[str, Any]
):
    made = door.create("subnet", network_id=net["id"], **attributes)
    assert {name: made[name] for name in expected} == expected
    assert door.call_ok("GET", f"/subnets/{made['id']}") == {"subnet": made}


V4, V6 = {"cidr": "10.9.0.0/24"}, {"cidr": "fd00::/64"}


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({}, "BadRequest: Bad subnets request: a subnetpool must be specified in the absence of a cidr."),
        ({"cidr": "10.9.0.0"}, "HTTPBadRequest: Invalid input for cidr. Reason: '10.9.0.0' is not a valid IP subnet."),
        ({"cidr": "ten/8"}, "HTTPBadRequest: Invalid input for cidr. Reason: 'ten/8' is not a valid IP subnet."),
        ({"cidr": 5}, "HTTPBadRequest: Invalid input for cidr. Reason: '5' is not a valid IP subnet."),
        ({"cidr": "0.0.0.0/0"}, "InvalidInput: Invalid input for operation: 0 is not allowed as CIDR prefix length."),
        (
            {**V4, "ip_version": 6},
            "InvalidInput: Invalid input for operation: cidr '10.9.0.0/24' does not match the ip_version '6'.",
        ),
        ({**V4, "ip_version": 5}, "HTTPBadRequest: Invalid input for ip_version. Reason: 5 is not in [4, 6]."),
        (
            {"cidr": "10.9.0.0/31"},
            "InvalidInput: Invalid input for operation: Subnet has a prefix length that is incompatible with DHCP "
            "service enabled.",
        ),
        (
            {"cidr": "224.0.0.0/24"},
            "InvalidInput: Invalid input for operation: Multicast IP subnet is not supported if enable_dhcp is True.",
        ),
        (
            {**V4, "gateway_ip": "10.8.0.1"},
            "InvalidInput: Invalid input for operation: Gateway is not valid on subnet.",
        ),
        (
            {**V4, "gateway_ip": "10.9.0.255"},
            "InvalidInput: Invalid input for operation: Gateway is not valid on subnet.",
        ),
        (
            {**V4, "gateway_ip": "fd00::1"},
            "InvalidInput: Invalid input for operation: gateway_ip 'fd00::1' does not match the ip_version '4'.",
        ),
        (
            {**V4, "gateway_ip": "here"},
            "HTTPBadRequest: Invalid input for gateway_ip. Reason: 'here' is not a valid IP address.",
        ),
        (
            {**V4, "allocation_pools": [{"start": "10.9.0.1", "end": "10.9.0.9"}]},
            "409 GatewayConflictWithAllocationPools: Gateway ip 10.9.0.1 conflicts with allocation pool "
            "10.9.0.1-10.9.0.9.",
        ),
        (
            {**V4, "allocation_pools": [{"start": "10.9.0.200", "end": "10.9.1.9"}]},
            "OutOfBoundsAllocationPool: The allocation pool 10.9.0.200-10.9.1.9 spans beyond the subnet cidr "
            "10.9.0.0/24.",
        ),
        (
            {**V4, "allocation_pools": [{"start": "10.9.0.9", "end": "10.9.0.2"}]},
            "InvalidAllocationPool: The allocation pool 10.9.0.9-10.9.0.2 is not valid.",
        ),
        (
            {**V4, "allocation_pools": [{"start": "10.9.0.9", "end": "fd00::1"}]},
            "InvalidAllocationPool: The allocation pool 10.9.0.9-fd00::1 is not valid.",
        ),
        (
            {
                **V4,
                "allocation_pools": [
                    {"start": "10.9.0.20", "end": "10.9.0.30"},
                    {"start": "10.9.0.2", "end": "10.9.0.20"},
                ],
            },
            "409 OverlappingAllocationPools: Found overlapping allocation pools: 10.9.0.2-10.9.0.20 "
            "10.9.0.20-10.9.0.30 for subnet 10.9.0.0/24.",
        ),
        (
            {**V4, "allocation_pools": [{"start": "10.9.0.20"}]},
            "HTTPBadRequest: Invalid input for allocation_pools. Reason: Invalid input. '{'start': '10.9.0.20'}' must "
            "be a dictionary with keys: ['end', 'start'].",
        ),
        (
            {**V4, "dns_nameservers": ["8.8.8.8", "8.8.8.8"]},
            "HTTPBadRequest: Invalid input for dns_nameservers. Reason: Duplicate nameserver '8.8.8.8'.",
        ),
        (
            {**V4, "dns_nameservers": [f"8.8.8.{n}" for n in range(6)]},
            "HTTPBadRequest: Invalid input for dns_nameservers. Reason: there are 6 items, and at most 5 are allowed.",
        ),
        (
            {**V4, "dns_nameservers": ["fd00::1"]},
            "InvalidInput: Invalid input for operation: dns_nameserver 'fd00::1' does not match the ip_version '4'.",
        ),
        (
            {**V4, "host_routes": [{"destination": "fd00::/64", "nexthop": "10.9.0.1"}]},
            "InvalidInput: Invalid input for operation: destination 'fd00::/64' does not match the ip_version '4'.",
        ),
        (
            {**V4, "ipv6_ra_mode": "slaac"},
            "InvalidInput: Invalid input for operation: ipv6_ra_mode is not valid when ip_version is 4.",
        ),
        (
            {**V6, "ipv6_ra_mode": "slaac", "ipv6_address_mode": "dhcpv6-stateful"},
            "InvalidInput: Invalid input for operation: ipv6_ra_mode set to 'slaac' with ipv6_address_mode set to "
            "'dhcpv6-stateful' is not valid. If both attributes are set, they must be the same value.",
        ),
        (
            {"cidr": "fd00::/80", "ipv6_address_mode": "slaac"},
            "InvalidInput: Invalid input for operation: Invalid CIDR fd00::/80 for IPv6 address mode. OpenStack uses "
            "the EUI-64 address format, which requires the prefix to be /64.",
        ),
        (
            {**V6, "ipv6_address_mode": "slaac", "enable_dhcp": False},
            "InvalidInput: Invalid input for operation: ipv6_ra_mode or ipv6_address_mode cannot be set when "
            "enable_dhcp is set to False.",
        ),
        (
            {**V4, "subnetpool_id": UNKNOWN_ID},
            "HTTPBadRequest: Invalid input for subnetpool_id. Reason: subnet pools are not supported; give a cidr.",
        ),
        (
            {"cidr": "10.0.0.128/25"},
            "InvalidInput: Invalid input for operation: Requested subnet with cidr: 10.0.0.128/25 for network: NET "
            "overlaps with another subnet.",
        ),
    ],
)
@pytest.mark.usefixtures("subnet")
def test_invalid_subnets_are_refused(
    door: NetworkFrontEnd, net: dict[str, Any], attributes: dict[str, Any], error: str
):
    status, kind, message = door.call_error("POST", "/subnets", {"subnet": {"network_id": net["id"], **attributes}})
    told = f"{kind}: {message.replace(net['id'], 'NET')}"
    assert (told if status == 400 else f"{status} {told}") == error


def test_a_subnet_needs_a_network(door: NetworkFrontEnd):
    assert door.call_error("POST", "/subnets", {"subnet": {"cidr": "10.0.0.0/24"}}) == (
        400,
        "HTTPBadRequest",
        "Failed to parse request. Required attribute 'network_id' not specified",
    )
    assert door.call_error("POST", "/subnets", {"subnet": {"cidr": "10.0.0.0/24", "network_id": "net"}})[2] == (
        "Invalid input for network_id. Reason: 'net' is not a valid UUID."
    )
    assert door.call_error("POST", "/subnets", {"subnet": {"cidr": "10.0.0.0/24", "network_id": UNKNOWN_ID}}) == (
        404,
        "NetworkNotFound",
        f"Network {UNKNOWN_ID} could not be found.",
    )


def test_ipv6_subnet_requires_an_mtu_of_at_least_1280(door: NetworkFrontEnd, net: dict[str, Any]):
    door.update("network", net, mtu=1200)
    refused = (409, "NetworkMTUSubnetConflict", f"MTU of {net['id']} is not valid, subnet requires a minimum of 1280")
    assert door.call_error("POST", "/subnets", {"subnet": {"network_id": net["id"], **V6}}) == refused
    door.update("network", net, mtu=1280)
    door.create("subnet", network_id=net["id"], **V6)
    assert door.call_error("PUT", f"/networks/{net['id']}", {"network": {"mtu": 1279}}) == refused


def test_number_of_subnets_per_network_is_limited(door: NetworkFrontEnd, net: dict[str, Any]):
    subnets = [{"network_id": net["id"], "cidr": f"10.{n}.0.0/24"} for n in range(MAX_SUBNETS)]
    for first in range(0, MAX_SUBNETS, limits.BULK):
        door.call_ok("POST", "/subnets", {"subnets": subnets[first : first + limits.BULK]})
    told = door.call_error("POST", "/subnets", {"subnet": {"network_id": net["id"], "cidr": "10.0.1.0/24"}})
    assert told == (400, "InvalidInput", "Invalid input for operation: a network has at most 256 subnets.")


def test_subnet_can_be_updated_except_its_cidr(door: NetworkFrontEnd, subnet: dict[str, Any]):
    changed = door.update("subnet", subnet, name="new", dns_nameservers=["1.1.1.1"], enable_dhcp=False, gateway_ip=None)
    expected = {"name": "new", "dns_nameservers": ["1.1.1.1"], "enable_dhcp": False, "gateway_ip": None}
    assert {name: changed[name] for name in expected} == expected
    pools = [{"start": "10.0.0.1", "end": "10.0.0.20"}]
    assert door.update("subnet", subnet, allocation_pools=pools)["allocation_pools"] == pools
    assert door.call_error("PUT", f"/subnets/{subnet['id']}", {"subnet": {"gateway_ip": "10.0.0.5"}})[1] == (
        "GatewayConflictWithAllocationPools"
    )
    assert door.call_error("PUT", f"/subnets/{subnet['id']}", {"subnet": {"cidr": "10.1.0.0/24"}})[2] == (
        "Cannot update read-only attribute cidr"
    )


def test_subnet_with_allocated_addresses_cannot_be_deleted(
    door: NetworkFrontEnd, net: dict[str, Any], subnet: dict[str, Any]
):
    port = door.create("port", network_id=net["id"])
    assert door.call_error("DELETE", f"/subnets/{subnet['id']}") == (
        409,
        "SubnetInUse",
        f"Unable to complete operation on subnet {subnet['id']}: One or more ports have an IP allocation from this "
        "subnet.",
    )
    door.call_ok("DELETE", f"/ports/{port['id']}")
    assert door.call("DELETE", f"/subnets/{subnet['id']}") == (204, None)
    assert door.call_ok("GET", f"/networks/{net['id']}")["network"]["subnets"] == []


def test_subnet_gateway_in_use_by_a_router_cannot_be_changed(door: NetworkFrontEnd, subnet: dict[str, Any]):
    router = door.create("router")
    added = door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": subnet["id"]})
    for gateway in (None, "10.0.0.9"):
        body = {"subnet": {"gateway_ip": gateway, "allocation_pools": [{"start": "10.0.0.20", "end": "10.0.0.30"}]}}
        assert door.call_error("PUT", f"/subnets/{subnet['id']}", body) == (
            409,
            "GatewayIpInUse",
            f"Current gateway ip 10.0.0.1 already in use by port {added['port_id']}. Unable to update.",
        )


def test_ip_availability_counts_total_and_used_addresses(
    door: NetworkFrontEnd, net: dict[str, Any], subnet: dict[str, Any]
):
    door.create("port", network_id=net["id"])
    (found,) = door.call_ok("GET", "/network-ip-availabilities")["network_ip_availabilities"]
    assert (found["total_ips"], found["used_ips"]) == (253, 1)
    shown = door.call_ok("GET", f"/network-ip-availabilities/{net['id']}")
    assert shown == {"network_ip_availability": found}


def test_new_ports_inherit_port_security_from_their_network(door: NetworkFrontEnd):
    net = door.create("network", port_security_enabled=False)
    assert net["port_security_enabled"] is False
    old = door.create("port", network_id=net["id"])
    assert old["port_security_enabled"] is False
    assert door.create("port", network_id=net["id"], port_security_enabled=True)["port_security_enabled"] is True
    assert door.update("network", net, port_security_enabled=True)["port_security_enabled"] is True
    assert door.create("port", network_id=net["id"])["port_security_enabled"] is True
    assert door.call_ok("GET", f"/ports/{old['id']}")["port"]["port_security_enabled"] is False
    assert door.call_ok("GET", "/networks?port_security_enabled=False") == {"networks": []}


VLAN = {"provider:network_type": "vlan", "provider:physical_network": "physnet", "provider:segmentation_id": 7}


def test_one_segment_is_the_same_as_provider_attributes(door: NetworkFrontEnd):
    made = door.create("network", segments=[VLAN], **{"router:external": True})
    assert {name: made[name] for name in VLAN} == VLAN
    assert door.create("network", segments=[])["provider:network_type"] is None
    for segments, attributes, told in (
        (
            [VLAN, VLAN],
            {},
            (400, "HTTPBadRequest", "Invalid input for segments. Reason: several segments of one network are not "
             "supported; give one."),
        ),
        (
            [VLAN],
            VLAN,
            (400, "SegmentsSetInConjunctionWithProviders", "Segments and provider values cannot both be set."),
        ),
        (
            [{**VLAN, "provider:segmentation_id": 4095}],
            {},
            (400, "HTTPBadRequest", "Invalid input for segments. Reason: '4095' is too large - must be no larger than "
             "'4094'."),
        ),
    ):  # fmt: skip
        assert door.call_error("POST", "/networks", {"network": {"segments": segments, **attributes}}) == told
    told = (
        403,
        "PolicyNotAuthorized",
        "(rule:create_network and (rule:create_network:segments)) is disallowed by policy",
    )
    assert door.call_error("POST", "/networks", {"network": {"segments": [VLAN]}}, "ann") == told
