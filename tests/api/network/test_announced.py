"""Announced networks in Neutron's API: `--provider-network-type announced`, for one project or shared."""

from typing import Any

import pytest

from harness.front_ends.network_world import NetworkFrontEnd

KIND = {"provider:network_type": "announced"}


@pytest.fixture
def pool(door: NetworkFrontEnd) -> dict[str, Any]:
    return door.create("network", name="vips", **KIND)


def test_operator_creates_an_announced_network_with_subnets_of_both_families(
    door: NetworkFrontEnd, pool: dict[str, Any]
):
    for version, cidr in ((4, "203.0.113.0/24"), (6, "2001:db8:5::/64")):
        door.create("subnet", network_id=pool["id"], cidr=cidr, ip_version=version, gateway_ip=None)
    shown = door.call_ok("GET", f"/networks/{pool['id']}")["network"]
    wire = [shown[f"provider:{name}"] for name in ("network_type", "physical_network", "segmentation_id")]
    assert (wire, shown["router:external"], len(shown["subnets"])) == (["announced", None, None], False, 2)
    listed = door.call_ok("GET", "/networks?provider:network_type=announced")["networks"]
    assert [each["id"] for each in listed] == [pool["id"]]


def test_invalid_announced_networks_are_refused_with_the_reason(door: NetworkFrontEnd, pool: dict[str, Any]):
    wire = {"network": KIND | {"provider:physical_network": "phys"}}
    assert "which has no physical segment" in door.call_error("POST", "/networks", wire)[2]
    outside = {"network": KIND | {"router:external": True}}
    assert "cannot be external" in door.call_error("POST", "/networks", outside)[2]
    assert door.call("POST", "/networks", {"network": KIND}, "ann")[0] == 403
    first = {"network_id": pool["id"], "cidr": "203.0.113.0/24", "ip_version": 4}
    assert door.call("POST", "/subnets", {"subnet": first}, "ann")[0] == 403
    door.create("subnet", **first)
    other = door.create("network", **KIND)
    again = {"subnet": first | {"network_id": other["id"]}}
    assert f"overlaps with a subnet of announced network {pool['id']}" in door.call_error("POST", "/subnets", again)[2]
    port = {"port": {"network_id": pool["id"]}}
    assert "its addresses are VIPs of load balancers only" in door.call_error("POST", "/ports", port)[2]
