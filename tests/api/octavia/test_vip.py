"""Placement of a VIP, and refusals with Octavia's texts (octavia.api.v2.controllers.load_balancer)."""

from dataclasses import replace

import pytest

from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import FixedIP, Port
from fairlead.model.registry.changeset import Changes
from harness.api import NOON
from harness.front_ends.octavia_world import NET, SUBNET, UNKNOWN_ID, OctaviaFrontEnd, machine, network

BARE, OTHER = "11111111-0000-4000-8000-000000000002", "22222222-0000-4000-8000-000000000002"
ELSEWHERE = "22222222-0000-4000-8000-000000000003"


@pytest.fixture
def door(ovn: OctaviaFrontEnd) -> OctaviaFrontEnd:
    """A network with two subnets, one with none, one with a subnet of its own, and a port with an address on each
    subnet of the first."""
    second = replace(
        network().subnets[0], id=OTHER, cidr=parse_network("10.1.0.0/24"), gateway=None, allocation_pools=()
    )
    wide = replace(network(), subnets=(*network().subnets, second))
    both = tuple(
        FixedIP(subnet_id=subnet, address=parse_address(address))
        for subnet, address in ((SUBNET, "10.0.0.60"), (OTHER, "10.1.0.60"))
    )
    port = Port(
        id=machine(60),
        project_id="demo",
        created_at=NOON,
        network_id=NET,
        mac_address="02:00:00:00:00:60",
        fixed_ips=both,
    )
    third = replace(second, id=ELSEWHERE, cidr=parse_network("10.2.0.0/24"))
    others = (replace(network(), id=BARE, subnets=()), replace(network(), id=UNKNOWN_ID, subnets=(third,)))
    ovn.run(ovn.server.model.write(lambda _: Changes(puts=(wide, *others, port))))
    return ovn


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id."),
        ({"vip_network_id": BARE}, "Supplied network does not contain a subnet."),
        (
            {"vip_network_id": NET, "vip_address": "10.8.0.7"},
            "Supplied network does not contain a subnet for VIP address specified.",
        ),
        (
            {"vip_port_id": machine(60), "vip_address": "10.0.0.61"},
            "Specified VIP address not found on the specified VIP port.",
        ),
        (
            {"vip_port_id": machine(60)},
            "VIP port's subnet could not be determined. Please specify either a VIP subnet or address.",
        ),
        (
            {"vip_port_id": machine(60), "vip_subnet_id": SUBNET, "additional_vips": [{"subnet_id": ELSEWHERE}]},
            "All VIP subnets must belong to the same network.",
        ),
    ],
)
def test_invalid_vip_placement_is_refused(door: OctaviaFrontEnd, body: dict[str, object], words: str):
    assert door.call_error("POST", "/loadbalancers", {"loadbalancer": body}) == (400, f"Validation failure: {words}")


@pytest.mark.parametrize(
    ("body", "missing"),
    [
        ({"vip_subnet_id": SUBNET, "vip_network_id": BARE}, SUBNET),
        ({"vip_subnet_id": UNKNOWN_ID}, UNKNOWN_ID),
        (
            {"vip_port_id": machine(60), "vip_subnet_id": SUBNET, "additional_vips": [{"subnet_id": UNKNOWN_ID}]},
            UNKNOWN_ID,
        ),
    ],
)
def test_unusable_vip_subnet_is_reported_as_not_found(door: OctaviaFrontEnd, body: dict[str, object], missing: str):
    """Octavia names the subnet, whether it is on another network than the request says or there is none."""
    assert door.call_error("POST", "/loadbalancers", {"loadbalancer": body}) == (400, f"Subnet {missing} not found.")


@pytest.mark.parametrize("body", [{"vip_address": "10.1.0.60"}, {"vip_subnet_id": OTHER}])
def test_vip_on_a_port_with_several_addresses_is_named_by_address_or_subnet(
    door: OctaviaFrontEnd, body: dict[str, str]
):
    assert door.create("lb", vip_port_id=machine(60), **body)["vip_address"] == "10.1.0.60"


def test_announced_network_is_refused_for_providers_that_do_not_announce(door: OctaviaFrontEnd):
    pool = replace(network(), id=OTHER, announced=True, subnets=(replace(network().subnets[0], id=BARE),))
    door.run(door.server.model.write(lambda _: Changes(puts=(pool,))))
    before = door.run(door.server.store.range(""))
    status, words = door.call_error("POST", "/loadbalancers", {"loadbalancer": {"vip_network_id": OTHER}})
    why = f"Network {OTHER} is announced by hosts, which VIPs of provider fairlead do not support."
    assert (status, words) == (400, f"Validation failure: {why}")
    assert door.run(door.server.store.range("")) == before
