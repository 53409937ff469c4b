"""Networks and subnets: administrator-only attributes, consistency rules, and references that block deletion."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.networks import (
    FlatSegmentWithTag,
    MtuTooSmall,
    NetworkInUse,
    SegmentInUse,
    SegmentOfInternalNetwork,
    SegmentRequest,
    SegmentWithoutNetwork,
    SegmentWithoutType,
    SharingInUse,
    VlanWithoutTag,
    create_network,
    delete_network,
    update_network,
)
from fairlead.changes.subnets import (
    GatewayInUse,
    GatewayOutside,
    Ipv6ModeOfIpv4,
    IpVersionMismatch,
    SubnetInUse,
    SubnetsOverlap,
    TooSmallForDhcp,
    create_subnet,
    delete_subnet,
    update_subnet,
)
from fairlead.model.documents.network import Ipv6Mode, Network, PortUse, Segment, SegmentType
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, OWNERS, PORT, STRANGER, refusal, snapshot_with, subnet

FOUR = NETWORK.subnets[0]
NOTHING = SegmentRequest()
NEW = Network(id="new", mtu=1442, **OWNERS)
OUTSIDE = Network(id="new", mtu=1500, external=True, project_id="admin", created_at=NOON)
NO_NAMES: frozenset[str] = frozenset()


def forbidden(verb: Verb, *fields: str) -> NotAllowed:
    return NotAllowed(verb=verb, what=Network, fields=frozenset(fields))


def test_only_an_administrator_sets_shared_external_and_segment():
    shared = replace(NEW, shared=True)
    flat = SegmentRequest(type=SegmentType.FLAT, physical_network="phys")
    assert refusal(create_network, Snapshot(), OWNER, shared, NOTHING) == forbidden(Verb.CREATE, "shared")
    assert refusal(create_network, Snapshot(), OWNER, NEW, flat) == forbidden(Verb.CREATE, "segment")
    assert refusal(create_network, Snapshot(), GUEST, NEW, NOTHING) == forbidden(Verb.CREATE, "project_id")
    assert create_network(Snapshot(), ADMIN, shared, NOTHING).puts == (shared,)
    outside = replace(NETWORK, external=True)
    assert refusal(update_network, snapshot_with(NETWORK), OWNER, NETWORK, outside, NO_NAMES, NOON) == forbidden(
        Verb.UPDATE, "external"
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (SegmentRequest(physical_network="phys"), SegmentWithoutType()),
        (SegmentRequest(type=SegmentType.FLAT), SegmentWithoutNetwork(type=SegmentType.FLAT)),
        (SegmentRequest(type=SegmentType.FLAT, physical_network="phys", tag=7), FlatSegmentWithTag(tag=7)),
        (SegmentRequest(type=SegmentType.VLAN, physical_network="phys"), VlanWithoutTag()),
    ],
)
def test_inconsistent_segments_are_refused(asked: SegmentRequest, why: object):
    assert refusal(create_network, Snapshot(), ADMIN, OUTSIDE, asked) == why


def test_segment_belongs_to_one_external_network():
    asked = SegmentRequest(type=SegmentType.VLAN, physical_network="phys", tag=7)
    segment = Segment(type=SegmentType.VLAN, physical_network="phys", id=7)
    made = replace(OUTSIDE, segment=segment)
    assert create_network(Snapshot(), ADMIN, OUTSIDE, asked).puts == (made,)
    assert refusal(create_network, snapshot_with(made), ADMIN, replace(OUTSIDE, id="two"), asked) == SegmentInUse(
        segment=segment
    )
    inside = replace(OUTSIDE, external=False)
    assert refusal(create_network, Snapshot(), ADMIN, inside, asked) == SegmentOfInternalNetwork(network_id="new")


def test_network_with_ports_cannot_be_deleted_or_unshared():
    there = snapshot_with(NETWORK, PORT)
    assert refusal(delete_network, there, GUEST, NETWORK) == forbidden(Verb.DELETE)
    assert refusal(delete_network, there, OWNER, NETWORK) == NetworkInUse(network_id="net")
    alone = replace(NETWORK, shared=False)
    assert refusal(update_network, there, ADMIN, NETWORK, alone, NO_NAMES, NOON) == SharingInUse(network_id="net")
    assert refusal(delete_subnet, there, OWNER, FOUR) == SubnetInUse(subnet_id="four")
    probing = replace(PORT, device_owner=PortUse.PROBE.value)
    assert {owner.id for owner in delete_network(snapshot_with(NETWORK, probing), OWNER, NETWORK).deletes} == {
        "port",
        "net",
    }


def test_ipv6_subnet_requires_an_mtu_of_1280():
    small = replace(NETWORK, mtu=1000)
    six = subnet("six", "fd00::/64")
    assert refusal(create_subnet, snapshot_with(small), OWNER, "net", six) == MtuTooSmall(network_id="net", least=1280)


def test_only_the_network_owner_creates_subnets():
    six = subnet("six", "fd00::/64")
    assert create_subnet(snapshot_with(NETWORK), OWNER, "net", six).puts == (replace(NETWORK, subnets=(FOUR, six)),)
    guests = replace(six, project_id="guest")
    assert refusal(create_subnet, snapshot_with(NETWORK), GUEST, "net", guests).fields == frozenset()
    hidden = snapshot_with(replace(NETWORK, shared=False))
    assert refusal(create_subnet, hidden, STRANGER, "net", guests) == NotFound(what=Network, id="net")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (subnet("s", "10.0.0.128/25"), SubnetsOverlap),
        (subnet("s", "10.1.0.0/31"), TooSmallForDhcp),
        (subnet("s", "10.1.0.0/24", gateway=ip_address("fd00::1")), IpVersionMismatch),
        (subnet("s", "10.1.0.0/24", gateway=ip_address("10.2.0.1")), GatewayOutside),
        (subnet("s", "10.1.0.0/24", ipv6_address_mode=Ipv6Mode.SLAAC), Ipv6ModeOfIpv4),
    ],
)
def test_inconsistent_or_overlapping_subnets_are_refused(made: object, why: type):
    assert isinstance(refusal(create_subnet, snapshot_with(NETWORK), OWNER, "net", made), why)


def test_gateway_cannot_be_the_address_of_a_port():
    there = snapshot_with(NETWORK, PORT)
    taken = replace(FOUR, gateway=PORT.fixed_ips[0].address, allocation_pools=())
    assert refusal(update_subnet, there, OWNER, FOUR, taken, NOON) == GatewayInUse(
        gateway=taken.gateway, port_id="port"
    )
    named = update_subnet(there, OWNER, FOUR, replace(FOUR, name="front"), NOON)
    assert named.puts[0].subnets[0] == replace(FOUR, name="front", updated_at=NOON)
    assert update_subnet(there, OWNER, FOUR, FOUR, NOON).puts == ()
