"""External networks, router gateways and floating IPs."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.model.documents.network import PortUse
from harness.front_ends.network_world import NetworkFrontEnd

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"
FLAT = {"provider:network_type": "flat", "provider:physical_network": "physnet"}


@pytest.fixture
def public(door: NetworkFrontEnd) -> dict[str, Any]:
    """Create the administrator's external network, with a subnet of each family."""
    made = door.create("network", name="public", **{"router:external": True, **FLAT})
    door.create("subnet", network_id=made["id"], cidr="203.0.113.0/24", name="public4")
    door.create("subnet", network_id=made["id"], cidr="2001:db8::/64", name="public6")
    return door.call_ok("GET", f"/networks/{made['id']}")["network"]


@pytest.fixture
def net(door: NetworkFrontEnd) -> dict[str, Any]:
    """Create a network as bob."""
    made = door.create("network", "bob", name="net")
    door.create("subnet", "bob", network_id=made["id"], cidr="10.0.0.0/24")
    return door.call_ok("GET", f"/networks/{made['id']}")["network"]


@pytest.fixture
def router(door: NetworkFrontEnd, net: dict[str, Any], public: dict[str, Any]) -> dict[str, Any]:
    """Create a router as bob, between net and public."""
    made = door.create("router", "bob", external_gateway_info={"network_id": public["id"]})
    path = f"/routers/{made['id']}/add_router_interface"
    door.call_ok("PUT", path, {"subnet_id": net["subnets"][0]}, "bob")
    return made


def lines(door: NetworkFrontEnd, word: str) -> list[str]:
    rows = (str(row) for rows in door.server.driver.rows.values() for row in rows.values())
    return sorted(row for row in rows if row.startswith(word))


# External networks


def test_gateway_without_address_gets_one_from_a_subnet_added_later(door: NetworkFrontEnd, net: dict[str, Any]):
    """The LXD API makes such gateways: an uplink may have routes and no gateway."""
    made = door.create("network", name="public", **{"router:external": True, **FLAT})
    outside = door.create("subnet", network_id=made["id"], cidr="198.51.100.0/24", gateway_ip=None)
    router = door.create("router", "bob", external_gateway_info={"network_id": made["id"]})
    door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": net["subnets"][0]}, "bob")
    vm = door.create("port", "bob", network_id=net["id"])
    floating = door.create("floatingip", "bob", floating_network_id=made["id"], port_id=vm["id"])
    network = door.snapshot.networks[made["id"]]
    (gateway,) = (port for port in door.snapshot.ports.values() if port.use is PortUse.ROUTER_GATEWAY)
    routed = replace(network.subnets[0], allocation_pools=())
    door.write(replace(network, subnets=(routed,), routes=(routed.cidr,)), replace(gateway, fixed_ips=()))
    assert door.call_ok("GET", f"/floatingips/{floating['id']}")["floatingip"]["status"] == "DOWN"
    assert not lines(door, "NAT")
    for version, cidr in ((4, "203.0.113.0/24"), (6, "2001:db8::/64")):
        door.create("subnet", network_id=made["id"], cidr=cidr, ip_version=version)
    shown = door.call_ok("GET", f"/routers/{router['id']}")["router"]["external_gateway_info"]
    (given,) = shown["external_fixed_ips"]
    assert given["subnet_id"] != outside["id"]
    assert given["ip_address"].startswith("203.0.113.")
    assert door.call_ok("GET", f"/floatingips/{floating['id']}")["floatingip"]["status"] == "ACTIVE"
    assert [line for line in lines(door, "NAT") if "dnat_and_snat" in line]


def test_external_network_has_the_mtu_of_its_physical_network(
    door: NetworkFrontEnd, public: dict[str, Any], net: dict[str, Any]
):
    assert (public["mtu"], net["mtu"]) == (1500, 1442)
    assert door.update("network", public, mtu=9000)["mtu"] == 9000
    assert door.update("network", public, mtu=None)["mtu"] == 1500


def test_external_network_maps_to_a_physical_network_by_a_localnet_port(door: NetworkFrontEnd, public: dict[str, Any]):
    assert (public["router:external"], public["provider:segmentation_id"]) == (True, None)
    assert {name: public[name] for name in FLAT} == FLAT
    [port] = [line for line in lines(door, "Logical_Switch_Port") if "localnet" in line]
    assert port.endswith("type=localnet addresses='unknown' options:network_name=physnet")
    vlan = {"provider:network_type": "vlan", "provider:physical_network": "physnet", "provider:segmentation_id": 7}
    other = door.create("network", **{"router:external": True, **vlan})
    assert {name: other[name] for name in vlan} == vlan
    assert any(line.endswith("tag=7 tag_request=7") for line in lines(door, "Logical_Switch_Port"))
    assert len(door.call_ok("GET", "/networks?router:external=true")["networks"]) == 2
    assert door.create("network", **{"router:external": True})["provider:network_type"] is None


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        ({"provider:physical_network": "p"}, "network_type required"),
        ({"provider:segmentation_id": 7}, "network_type required"),
        ({"provider:network_type": "flat"}, "physical_network required for flat provider network"),
        ({**FLAT, "provider:segmentation_id": 7}, "segmentation_id prohibited for flat provider network"),
        (
            {"provider:network_type": "vlan", "provider:physical_network": "p"},
            "segmentation_id required for vlan provider network: no range is configured",
        ),
        ({**FLAT, "router:external": False}, "provider attributes are supported for external networks only"),
    ],
)
def test_invalid_provider_attributes_are_refused(door: NetworkFrontEnd, attributes: dict[str, Any], told: str):
    body = {"network": {"router:external": True, **attributes}}
    assert door.call_error("POST", "/networks", body) == (400, "InvalidInput", f"Invalid input for operation: {told}.")


def test_provider_segment_belongs_to_at_most_one_network(door: NetworkFrontEnd, public: dict[str, Any]):
    told = door.call_error("POST", "/networks", {"network": {"router:external": True, **FLAT}})
    text = "Unable to create the flat network. Physical network physnet is in use."
    assert told == (409, "FlatNetworkInUse", text)
    vlan = {"provider:network_type": "vlan", "provider:physical_network": "physnet", "provider:segmentation_id": 7}
    first = door.create("network", **{"router:external": True, **vlan})
    told = door.call_error("POST", "/networks", {"network": {"router:external": True, **vlan}})
    text = "Unable to create the network. The VLAN 7 on physical network physnet is in use."
    assert told == (409, "VlanIdInUse", text)
    door.call_ok("DELETE", f"/networks/{first['id']}")
    door.create("network", **{"router:external": True, **vlan})


def test_external_networks_are_visible_to_all_and_created_by_administrators(
    door: NetworkFrontEnd, public: dict[str, Any]
):
    told = door.call_error("POST", "/networks", {"network": {"router:external": True, **FLAT}}, "bob")
    names = ("provider:network_type", "provider:physical_network", "router:external")
    rules = " and ".join(f"rule:create_network:{name}" for name in names)
    assert told == (403, "PolicyNotAuthorized", f"(rule:create_network and ({rules})) is disallowed by policy")
    [seen] = door.call_ok("GET", "/networks?router:external=true", caller="bob")["networks"]
    assert seen["id"] == public["id"]
    assert not seen.keys() & FLAT.keys()
    assert door.call_ok("GET", "/subnets", caller="bob") == {"subnets": []}
    told = door.call_error("POST", "/ports", {"port": {"network_id": public["id"]}}, "bob")
    assert told == (403, "PolicyNotAuthorized", "rule:create_port is disallowed by policy")
    own = door.create("network", "bob")
    body = {"network": {"router:external": True}}
    assert door.call_error("PUT", f"/networks/{own['id']}", body, "bob")[0] == 403


def test_external_flag_can_change_only_while_the_network_is_unused(
    door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]
):
    plain = door.create("network")
    assert door.update("network", plain, **{"router:external": True})["router:external"] is True
    assert door.update("network", plain, **{"router:external": False})["router:external"] is False
    told = door.call_error("PUT", f"/networks/{public['id']}", {"network": {"router:external": False}})
    assert told[:2] == (409, "ExternalNetworkInUse")
    told = door.call_error("PUT", f"/networks/{public['id']}", {"network": {"provider:physical_network": "other"}})
    assert told[2] == "Cannot update read-only attribute provider:physical_network"
    assert door.call_error("DELETE", f"/networks/{public['id']}")[1] == "NetworkInUse"


# Gateways


def test_a_gateway_has_an_address_of_each_family(door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]):
    info = router["external_gateway_info"]
    assert (info["network_id"], info["enable_snat"]) == (public["id"], True)
    assert [fixed["subnet_id"] for fixed in info["external_fixed_ips"]] == public["subnets"]
    [port] = door.call_ok("GET", "/ports?device_owner=network:router_gateway")["ports"]
    assert (port["device_id"], port["project_id"]) == (router["id"], "")
    assert door.call_ok("GET", "/ports?device_owner=network:router_gateway", caller="bob") == {"ports": []}
    assert door.call_error("DELETE", f"/ports/{port['id']}")[1] == "ServicePortInUse"
    routes = lines(door, "Logical_Router_Static_Route")
    assert [line.split(maxsplit=2)[2] for line in routes] == ["0.0.0.0/0 via 203.0.113.1", "::/0 via 2001:db8::1"]
    assert len(lines(door, "NAT")) == 1
    assert len(lines(door, "Gateway_Chassis")) == 2


def test_gateway_can_be_changed_removed_and_moved_to_another_network(
    door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]
):
    four = public["subnets"][0]
    wanted = {"network_id": public["id"], "external_fixed_ips": [{"subnet_id": four, "ip_address": "203.0.113.9"}]}
    changed = door.update("router", router, external_gateway_info={**wanted, "enable_snat": False})
    assert changed["external_gateway_info"] == {**wanted, "enable_snat": False}
    assert lines(door, "NAT") == []
    again = door.update("router", router, external_gateway_info={**wanted, "enable_snat": False})
    assert again["revision_number"] == changed["revision_number"]
    assert door.update("router", router, "bob", external_gateway_info={})["external_gateway_info"] is None
    assert door.call_ok("GET", "/ports?device_owner=network:router_gateway") == {"ports": []}
    assert lines(door, "Gateway_Chassis") == []
    door.update("router", router, "bob", external_gateway_info={"network_id": public["id"]})
    other = door.create("network", **{"router:external": True})
    door.create("subnet", network_id=other["id"], cidr="198.51.100.0/24")
    moved = door.update("router", router, "bob", external_gateway_info={"network_id": other["id"]})
    assert moved["external_gateway_info"]["network_id"] == other["id"]
    assert len(door.call_ok("GET", "/ports?device_owner=network:router_gateway")["ports"]) == 1
    interface = door.call_ok("GET", f"/ports?device_id={router['id']}", caller="bob")["ports"][0]
    door.call_ok("PUT", f"/routers/{router['id']}/remove_router_interface", {"port_id": interface["id"]}, "bob")
    door.call_ok("DELETE", f"/routers/{router['id']}", caller="bob")
    assert door.call_ok("GET", "/ports") == {"ports": []}


def test_invalid_gateways_are_refused(door: NetworkFrontEnd, public: dict[str, Any], net: dict[str, Any]):
    bare = door.create("network", **{"router:external": True})
    overlap = door.create("network", **{"router:external": True})
    door.create("subnet", network_id=overlap["id"], cidr="10.0.0.0/16")
    router = door.create("router", "bob")
    door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": net["subnets"][0]}, "bob")
    gateway = {"network_id": public["id"], "external_fixed_ips": [{"ip_address": "203.0.113.1"}]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"network_id": net["id"]}, f"Bad router request: Network {net['id']} is not an external network."),
        (
            {"network_id": bare["id"]},
            f"Bad router request: No IPs available for external network {bare['id']}.",
        ),
        (gateway, "Bad router request: External IP 203.0.113.1 is the same as the gateway IP."),
    ]
    for info, message in cases:
        told = door.call_error("PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": info}})
        assert told == (400, "BadRequest", message)
    told = door.call_error(
        "PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": {"network_id": UNKNOWN_ID}}}
    )
    assert told[:2] == (404, "NetworkNotFound")
    body = {"router": {"external_gateway_info": {"network_id": overlap["id"]}}}
    told = door.call_error("PUT", f"/routers/{router['id']}", body)
    assert "overlaps with cidr 10.0.0.0/24" in told[2]
    body = {"router": {"external_gateway_info": {"network_id": public["id"], "enable_snat": False}}}
    told = door.call_error("PUT", f"/routers/{router['id']}", body, "bob")
    assert told[:2] == (403, "PolicyNotAuthorized")
    assert "rule:update_router:external_gateway_info:enable_snat" in told[2]


def test_gateway_cannot_be_removed_while_a_tenant_route_uses_its_network(
    door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]
):
    routes = [{"destination": "198.51.100.0/24", "nexthop": "203.0.113.254"}]
    assert door.update("router", router, "bob", routes=routes)["routes"] == routes
    told = door.call_error("PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": None}}, "bob")
    assert told[1] == "InvalidRoutes"


def test_gateway_is_refused_without_gateway_chassis(door: NetworkFrontEnd, public: dict[str, Any]):
    door.server.model.snapshot = replace(door.snapshot, gateway_chassis=())
    body = {"router": {"external_gateway_info": {"network_id": public["id"]}}}
    status, _, message = door.call_error("POST", "/routers", body)
    assert (status, "ovn.gateway_chassis" in message) == (501, True)


# Floating IPs


def test_floating_ip_can_be_created_moved_between_ports_and_deleted(
    door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]
):
    [net] = door.call_ok("GET", "/networks?name=net")["networks"]
    first, second = (door.create("port", "bob", network_id=net["id"]) for _ in range(2))
    made = door.create("floatingip", "bob", floating_network_id=public["id"], description="web")
    assert made == {
        "id": made["id"],
        "description": "web",
        "project_id": "two",
        "tenant_id": "two",
        "tags": [],
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": made["revision_number"],
        "floating_network_id": public["id"],
        "floating_ip_address": made["floating_ip_address"],
        "subnet_id": None,
        "port_id": None,
        "fixed_ip_address": None,
        "router_id": None,
        "status": "DOWN",
        "port_details": None,
        "qos_policy_id": None,
        "dns_name": "",
        "dns_domain": "",
    }
    address = made["floating_ip_address"]
    [port] = door.call_ok("GET", "/ports?device_owner=network:floatingip")["ports"]
    assert (port["status"], port["device_id"], port["project_id"]) == ("N/A", made["id"], "")
    assert door.call_error("DELETE", f"/ports/{port['id']}")[1] == "ServicePortInUse"
    for target in (first, second):
        fixed = target["fixed_ips"][0]["ip_address"]
        moved = door.update("floatingip", made, "bob", port_id=target["id"])
        assert (moved["port_id"], moved["fixed_ip_address"], moved["router_id"]) == (target["id"], fixed, router["id"])
        assert door.call_ok("GET", f"/floatingips/{made['id']}")["floatingip"]["status"] == "ACTIVE"
        nats = [line for line in lines(door, "NAT") if "dnat_and_snat" in line]
        assert nats == [f"NAT {made['id']} router={router['id']} dnat_and_snat {address} {fixed}"]
    assert door.update("floatingip", made, "bob", description="x")["port_id"] == second["id"]
    assert len(door.call_ok("GET", f"/floatingips?port_id={second['id']}", caller="bob")["floatingips"]) == 1
    assert door.call_ok("GET", f"/floatingips?floating_ip_address={address}", caller="bob")["floatingips"]
    door.call_ok("DELETE", f"/ports/{second['id']}", caller="bob")
    freed = door.call_ok("GET", f"/floatingips/{made['id']}", caller="bob")["floatingip"]
    assert (freed["port_id"], freed["router_id"], freed["status"]) == (None, None, "DOWN")
    door.update("floatingip", made, "bob", port_id=first["id"])
    assert door.update("floatingip", made, "bob", port_id=None)["port_id"] is None
    door.call_ok("DELETE", f"/floatingips/{made['id']}", caller="bob")
    assert door.call_ok("GET", "/ports?device_owner=network:floatingip") == {"ports": []}
    told = door.call_error("GET", f"/floatingips/{made['id']}")
    assert told == (404, "FloatingIPNotFound", f"Floating IP {made['id']} could not be found")


def test_floating_ip_in_use_keeps_its_router_gateway_and_interface(
    door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]
):
    [net] = door.call_ok("GET", "/networks?name=net")["networks"]
    port = door.create("port", "bob", network_id=net["id"])
    made = door.create("floatingip", "bob", floating_network_id=public["id"], port_id=port["id"])
    told = door.call_error("PUT", f"/routers/{router['id']}", {"router": {"external_gateway_info": None}})
    assert told[1] == "RouterExternalGatewayInUseByFloatingIp"
    body = {"subnet_id": net["subnets"][0]}
    told = door.call_error("PUT", f"/routers/{router['id']}/remove_router_interface", body)
    assert told[1] == "RouterInterfaceInUseByFloatingIP"
    door.update("port", port, fixed_ips=[{"ip_address": "10.0.0.99"}])
    assert door.call_ok("GET", f"/floatingips/{made['id']}")["floatingip"]["port_id"] is None


def test_invalid_floating_ips_are_refused(door: NetworkFrontEnd, public: dict[str, Any], router: dict[str, Any]):
    [net] = door.call_ok("GET", "/networks?name=net")["networks"]
    port = door.create("port", "bob", network_id=net["id"])
    anns = door.create("port", "ann", network_id=door.create("network", "ann")["id"], fixed_ips=[])
    taken = door.create("floatingip", "bob", floating_network_id=public["id"], port_id=port["id"])
    lonely = door.create("network", "bob")
    door.create("subnet", "bob", network_id=lonely["id"], cidr="10.9.0.0/24")
    far = door.create("port", "bob", network_id=lonely["id"])
    fixed = port["fixed_ips"][0]["ip_address"]
    cases: list[tuple[dict[str, Any], tuple[int, str, str]]] = [
        (
            {"floating_network_id": net["id"]},
            (400, "BadRequest", f"Bad floatingip request: Network {net['id']} is not a valid external network."),
        ),
        ({"floating_network_id": UNKNOWN_ID}, (404, "NetworkNotFound", f"Network {UNKNOWN_ID} could not be found.")),
        ({"port_id": UNKNOWN_ID}, (404, "PortNotFound", f"Port {UNKNOWN_ID} could not be found.")),
        ({"port_id": anns["id"]}, (404, "PortNotFound", f"Port {anns['id']} could not be found.")),
        (
            {"fixed_ip_address": fixed},
            (400, "BadRequest", "Bad floatingip request: fixed_ip_address cannot be specified without a port_id."),
        ),
        (
            {"port_id": port["id"], "fixed_ip_address": "10.0.0.250"},
            (400, "BadRequest", f"Bad floatingip request: Port {port['id']} does not have fixed ip 10.0.0.250."),
        ),
        (
            {"port_id": far["id"]},
            (
                404,
                "ExternalGatewayForFloatingIPNotFound",
                f"External network {public['id']} is not reachable from subnet {far['fixed_ips'][0]['subnet_id']}.  "
                f"Therefore, cannot associate Port {far['id']} with a Floating IP.",
            ),
        ),
    ]
    for body, told in cases:
        whole = {"floatingip": {"floating_network_id": public["id"], **body}}
        assert door.call_error("POST", "/floatingips", whole, "bob") == told
    body = {"floatingip": {"floating_network_id": public["id"], "port_id": port["id"]}}
    assert door.call_error("POST", "/floatingips", body, "bob")[1] == "FloatingIPPortAlreadyAssociated"
    address = taken["floating_ip_address"]
    body = {"floatingip": {"floating_network_id": public["id"], "floating_ip_address": address}}
    assert door.call_error("POST", "/floatingips", body)[1] == "IpAddressAlreadyAllocated"
    assert door.call_error("POST", "/floatingips", body, "bob")[:2] == (403, "PolicyNotAuthorized")
    body = {"floatingip": {"floating_network_id": public["id"], "qos_policy_id": UNKNOWN_ID}}
    assert door.call_error("POST", "/floatingips", body)[2].endswith("QoS policies are not supported.")
    body = {"floatingip": {"name": "x", "floating_network_id": public["id"]}}
    assert door.call_error("POST", "/floatingips", body)[2] == "Unrecognized attribute(s) 'name'"
    chosen = door.create("floatingip", floating_network_id=public["id"], floating_ip_address="203.0.113.77")
    assert chosen["floating_ip_address"] == "203.0.113.77"
    assert door.call_ok("GET", "/floatingips", caller="ann")["floatingips"] != []
    assert door.call_error("GET", f"/floatingips/{chosen['id']}", caller="bob")[0] == 404
    ports = {"port": {"network_id": net["id"], "device_owner": "network:floatingip"}}
    assert door.call_error("POST", "/ports", ports)[2].endswith(
        "device_owner network:floatingip is reserved: it is set by the service of the port."
    )
