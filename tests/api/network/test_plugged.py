"""Port status as OVN reports it: an unplugged port is DOWN, and only an administrator sees the chassis."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.api.network.collection import EncodeContext
from fairlead.api.network.ports import encode_port
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.status import AppliedState
from fairlead.model.registry.facts import PLUGGED
from fairlead.runtime.steps import run_to_completion
from harness.front_ends.network_world import CALLERS, NetworkFrontEnd


@pytest.fixture
def vm(door: NetworkFrontEnd) -> dict[str, Any]:
    net = door.create("network", "ann", name="net")
    door.create("subnet", "ann", name="four", network_id=net["id"], cidr="10.0.0.0/24")
    return door.create("port", "ann", name="vm", network_id=net["id"])


def shown(door: NetworkFrontEnd, port: dict[str, Any], caller: str = "admin") -> dict[str, Any]:
    found: dict[str, Any] = door.call_ok("GET", f"/ports/{port['id']}", caller=caller)["port"]
    return found


def bound(door: NetworkFrontEnd, port: dict[str, Any]) -> tuple[str, str, str]:
    found = shown(door, port)
    return found["status"], found["binding:host_id"], found["binding:vif_type"]


def plug(door: NetworkFrontEnd, port: dict[str, Any], node: str | None) -> None:
    run_to_completion(door.server.model.observe(PLUGGED, {port["id"]: node}))


def test_port_is_active_while_plugged_into_a_node(door: NetworkFrontEnd, vm: dict[str, Any]):
    assert bound(door, vm) == ("DOWN", "", "unbound")
    for node in ("node1", "node2"):
        plug(door, vm, node)
        assert bound(door, vm) == ("ACTIVE", node, "ovs")
    revision = shown(door, vm)["revision_number"]
    assert door.update("port", vm, admin_state_up=False)["status"] == "DOWN"
    assert bound(door, vm) == ("DOWN", "node2", "ovs")
    door.update("port", vm, admin_state_up=True)
    assert bound(door, vm)[0] == "ACTIVE"
    plug(door, vm, None)
    assert bound(door, vm) == ("DOWN", "", "unbound")
    assert shown(door, vm)["revision_number"] == revision + 2, "what is seen is no change of the document"


def test_plugged_port_is_down_until_its_rows_are_written(door: NetworkFrontEnd, vm: dict[str, Any]):
    plug(door, vm, "node1")
    assert door.update("port", vm, name="new")["status"] == "DOWN"
    assert bound(door, vm)[0] == "ACTIVE"


def test_port_lists_are_filtered_by_observed_status_and_host(door: NetworkFrontEnd, vm: dict[str, Any]):
    other = door.create("port", "ann", name="other", network_id=vm["network_id"])
    plug(door, vm, "node1")

    def names(query: str, caller: str = "admin") -> list[str]:
        return [port["name"] for port in door.call_ok("GET", f"/ports?{query}", caller=caller)["ports"]]

    assert (names("status=ACTIVE"), names("status=DOWN")) == (["vm"], ["other"])
    assert names("binding:host_id=node1") == ["vm"]
    assert names("status=ACTIVE", "ann") == ["vm"]
    assert names("status=ACTIVE", "bob") == []
    plug(door, other, "node1")
    assert len(names("binding:host_id=node1")) == 2


def test_only_an_administrator_sees_the_host_of_a_port(door: NetworkFrontEnd, vm: dict[str, Any]):
    plug(door, vm, "node1")
    seen = shown(door, vm, "ann")
    assert (seen["status"], {"binding:host_id", "binding:vif_type"} & seen.keys()) == ("ACTIVE", set())
    assert door.call_error("GET", f"/ports/{vm['id']}", caller="bob")[0] == 404


def test_requested_host_is_shown_before_the_port_is_plugged(door: NetworkFrontEnd, vm: dict[str, Any]):
    """A client that sets `binding:host_id` reads it back immediately, with the VIF type that plugs the port in."""
    door.update("port", vm, **{"binding:host_id": "node7"})
    assert bound(door, vm) == ("DOWN", "node7", "ovs")
    plug(door, vm, "node7")
    assert bound(door, vm) == ("ACTIVE", "node7", "ovs")


def test_router_interface_is_active_unbound_and_gateway_only_on_a_node(door: NetworkFrontEnd, vm: dict[str, Any]):
    public = door.create("network", name="public", **{"router:external": True})
    door.create("subnet", network_id=public["id"], cidr="192.0.2.0/24")
    router = door.create("router", name="r", external_gateway_info={"network_id": public["id"]})
    subnet = vm["fixed_ips"][0]["subnet_id"]
    door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": subnet})
    [interface] = door.call_ok("GET", "/ports?device_owner=network:router_interface")["ports"]
    [gateway] = door.call_ok("GET", "/ports?device_owner=network:router_gateway")["ports"]
    assert bound(door, interface) == ("ACTIVE", "", "unbound")
    assert bound(door, gateway) == ("DOWN", "", "unbound")
    plug(door, gateway, "gw1")
    assert bound(door, gateway) == ("ACTIVE", "gw1", "ovs")


def test_floating_ip_is_active_whether_or_not_its_port_is_plugged(door: NetworkFrontEnd, vm: dict[str, Any]):
    """The status of a floating IP depends on its association alone, not on the port's status, as in Neutron with
    OVN."""
    public = door.create("network", name="public", **{"router:external": True})
    door.create("subnet", network_id=public["id"], cidr="192.0.2.0/24")
    router = door.create("router", "ann", external_gateway_info={"network_id": public["id"]})
    subnet = vm["fixed_ips"][0]["subnet_id"]
    door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": subnet}, "ann")
    made = door.create("floatingip", "ann", floating_network_id=public["id"], port_id=vm["id"])

    def statuses() -> tuple[str, str]:
        found = door.call_ok("GET", f"/floatingips/{made['id']}", caller="ann")["floatingip"]
        return found["status"], found["port_details"]["status"]

    assert statuses() == ("ACTIVE", "DOWN")
    plug(door, vm, "node1")
    assert statuses() == ("ACTIVE", "ACTIVE")


def test_vip_port_is_bound_to_no_node(door: NetworkFrontEnd, vm: dict[str, Any]):
    """A VIP's port is bound to no node, as in Neutron, because every node answers for the VIP."""
    holder = replace(door.snapshot.ports[vm["id"]], device_owner=PortUse.VIP.value, device_id="lb-x")
    door.write(holder)
    assert bound(door, vm) == ("DOWN", "", "unbound")


def test_plugged_port_with_an_apply_error_is_shown_as_error(door: NetworkFrontEnd, vm: dict[str, Any]):
    plug(door, vm, "node1")
    view = EncodeContext(
        snapshot=door.snapshot, applied=lambda _: AppliedState(error="refused"), caller=CALLERS["admin"]
    )
    assert encode_port(view, door.snapshot.ports[vm["id"]])["status"] == "ERROR"
