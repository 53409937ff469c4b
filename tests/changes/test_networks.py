"""Networks and subnets: administrator-only attributes, consistency rules, and references that block deletion."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.networks import (
    AskedSegment,
    FlatSegmentWithTag,
    MtuTooSmall,
    NetworkInUse,
    SegmentOfInternalNetwork,
    SegmentTaken,
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
    OtherVersion,
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
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, OWNERS, PORT, STRANGER, having, refusal, subnet

FOUR = NETWORK.subnets[0]
NOTHING = AskedSegment()
NEW = Network(id="new", mtu=1442, **OWNERS)
OUTSIDE = Network(id="new", mtu=1500, external=True, project_id="admin", created_at=NOON)
NO_NAMES: frozenset[str] = frozenset()


def forbidden(verb: Verb, *fields: str) -> NotAllowed:
    return NotAllowed(verb=verb, what=Network, fields=frozenset(fields))


def test_what_a_network_is_to_others_an_administrator_says():
    shared = replace(NEW, shared=True)
    flat = AskedSegment(type=SegmentType.FLAT, physical_network="phys")
    assert refusal(create_network, Snapshot(), OWNER, shared, NOTHING) == forbidden(Verb.CREATE, "shared")
    assert refusal(create_network, Snapshot(), OWNER, NEW, flat) == forbidden(Verb.CREATE, "segment")
    assert refusal(create_network, Snapshot(), GUEST, NEW, NOTHING) == forbidden(Verb.CREATE, "project_id")
    assert create_network(Snapshot(), ADMIN, shared, NOTHING).puts == (shared,)
    outside = replace(NETWORK, external=True)
    assert refusal(update_network, having(NETWORK), OWNER, NETWORK, outside, NO_NAMES, NOON) == forbidden(
        Verb.UPDATE, "external"
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (AskedSegment(physical_network="phys"), SegmentWithoutType()),
        (AskedSegment(type=SegmentType.FLAT), SegmentWithoutNetwork(type=SegmentType.FLAT)),
        (AskedSegment(type=SegmentType.FLAT, physical_network="phys", tag=7), FlatSegmentWithTag(tag=7)),
        (AskedSegment(type=SegmentType.VLAN, physical_network="phys"), VlanWithoutTag()),
    ],
)
def test_a_segment_fits_together(asked: AskedSegment, why: object):
    assert refusal(create_network, Snapshot(), ADMIN, OUTSIDE, asked) == why


def test_one_network_is_a_vlan_and_an_external_one():
    asked = AskedSegment(type=SegmentType.VLAN, physical_network="phys", tag=7)
    segment = Segment(type=SegmentType.VLAN, physical_network="phys", id=7)
    made = replace(OUTSIDE, segment=segment)
    assert create_network(Snapshot(), ADMIN, OUTSIDE, asked).puts == (made,)
    assert refusal(create_network, having(made), ADMIN, replace(OUTSIDE, id="two"), asked) == SegmentTaken(
        segment=segment
    )
    inside = replace(OUTSIDE, external=False)
    assert refusal(create_network, Snapshot(), ADMIN, inside, asked) == SegmentOfInternalNetwork(network_id="new")


def test_who_is_on_a_network_keeps_it():
    there = having(NETWORK, PORT)
    assert refusal(delete_network, there, GUEST, NETWORK) == forbidden(Verb.DELETE)
    assert refusal(delete_network, there, OWNER, NETWORK) == NetworkInUse(network_id="net")
    alone = replace(NETWORK, shared=False)
    assert refusal(update_network, there, ADMIN, NETWORK, alone, NO_NAMES, NOON) == SharingInUse(network_id="net")
    assert refusal(delete_subnet, there, OWNER, FOUR) == SubnetInUse(subnet_id="four")
    probing = replace(PORT, device_owner=PortUse.PROBE.value)
    assert {owner.id for owner in delete_network(having(NETWORK, probing), OWNER, NETWORK).deletes} == {"port", "net"}


def test_a_link_of_ipv6_carries_1280_bytes():
    small = replace(NETWORK, mtu=1000)
    six = subnet("six", "fd00::/64")
    assert refusal(create_subnet, having(small), OWNER, "net", six) == MtuTooSmall(network_id="net", least=1280)


def test_the_owner_of_a_network_makes_its_subnets():
    six = subnet("six", "fd00::/64")
    assert create_subnet(having(NETWORK), OWNER, "net", six).puts == (replace(NETWORK, subnets=(FOUR, six)),)
    guests = replace(six, project_id="guest")
    assert refusal(create_subnet, having(NETWORK), GUEST, "net", guests).fields == frozenset()
    hidden = having(replace(NETWORK, shared=False))
    assert refusal(create_subnet, hidden, STRANGER, "net", guests) == NotFound(what=Network, id="net")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (subnet("s", "10.0.0.128/25"), SubnetsOverlap),
        (subnet("s", "10.1.0.0/31"), TooSmallForDhcp),
        (subnet("s", "10.1.0.0/24", gateway=ip_address("fd00::1")), OtherVersion),
        (subnet("s", "10.1.0.0/24", gateway=ip_address("10.2.0.1")), GatewayOutside),
        (subnet("s", "10.1.0.0/24", ipv6_address_mode=Ipv6Mode.SLAAC), Ipv6ModeOfIpv4),
    ],
)
def test_a_subnet_fits_together_and_to_the_others(made: object, why: type):
    assert isinstance(refusal(create_subnet, having(NETWORK), OWNER, "net", made), why)


def test_a_gateway_is_no_ports_address():
    there = having(NETWORK, PORT)
    taken = replace(FOUR, gateway=PORT.fixed_ips[0].address, allocation_pools=())
    assert refusal(update_subnet, there, OWNER, FOUR, taken, NOON) == GatewayInUse(
        gateway=taken.gateway, port_id="port"
    )
    named = update_subnet(there, OWNER, FOUR, replace(FOUR, name="front"), NOON)
    assert named.puts[0].subnets[0] == replace(FOUR, name="front", updated_at=NOON)
    assert update_subnet(there, OWNER, FOUR, FOUR, NOON).puts == ()
