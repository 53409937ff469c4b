"""Announced networks in Neutron's API: `--provider-network-type announced`, for one project or shared."""

from typing import Any

import pytest

from harness.front_ends.network_world import Door

KIND = {"provider:network_type": "announced"}


@pytest.fixture
def pool(door: Door) -> dict[str, Any]:
    return door.make("network", name="vips", **KIND)


def test_an_operator_declares_a_pool_of_addresses(door: Door, pool: dict[str, Any]):
    for version, cidr in ((4, "203.0.113.0/24"), (6, "2001:db8:5::/64")):
        door.make("subnet", network_id=pool["id"], cidr=cidr, ip_version=version, gateway_ip=None)
    shown = door.good("GET", f"/networks/{pool['id']}")["network"]
    wire = [shown[f"provider:{name}"] for name in ("network_type", "physical_network", "segmentation_id")]
    assert (wire, shown["router:external"], len(shown["subnets"])) == (["announced", None, None], False, 2)
    listed = door.good("GET", "/networks?provider:network_type=announced")["networks"]
    assert [each["id"] for each in listed] == [pool["id"]]


def test_what_cannot_be_says_why(door: Door, pool: dict[str, Any]):
    wire = {"network": KIND | {"provider:physical_network": "phys"}}
    assert "it is on no wire" in door.refused("POST", "/networks", wire)[2]
    outside = {"network": KIND | {"router:external": True}}
    assert "cannot be external" in door.refused("POST", "/networks", outside)[2]
    assert door.call("POST", "/networks", {"network": KIND}, "ann")[0] == 403
    first = {"network_id": pool["id"], "cidr": "203.0.113.0/24", "ip_version": 4}
    assert door.call("POST", "/subnets", {"subnet": first}, "ann")[0] == 403
    door.make("subnet", **first)
    other = door.make("network", **KIND)
    again = {"subnet": first | {"network_id": other["id"]}}
    assert f"overlaps with a subnet of announced network {pool['id']}" in door.refused("POST", "/subnets", again)[2]
    port = {"port": {"network_id": pool["id"]}}
    assert "its addresses are VIPs of load balancers only" in door.refused("POST", "/ports", port)[2]
