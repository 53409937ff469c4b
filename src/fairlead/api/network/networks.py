"""Networks. A network with its subnets is one document: deleting it deletes them.

External networks are made by administrators, flat or as a VLAN of a physical network; every project sees them. Not
here, and refused: provider attributes of other networks, several segments of one, QoS policies, availability zones, a
default external network.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.api.fields import NULL, Parser, Values, array_schema, object_schema, or_null, reads
from fairlead.api.listing import Item
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, refused
from fairlead.api.network.collection import (
    BUILD_STATUS,
    Collection,
    Filters,
    RequestContext,
    Viewpoint,
    by_project,
    encode_standard,
    given,
    named,
    network_owner,
    sift_nothing,
    standard_values,
)
from fairlead.api.network.limits import LARGEST_MTU, LARGEST_VLAN, LEAST_MTU, LEAST_MTU_IPV6, SUBNETS
from fairlead.api.openapi import IDENTITY, TEXT
from fairlead.changes import access
from fairlead.changes.identity import Identity
from fairlead.changes.resources import revised
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Network, PortUse, Segment, SegmentType
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

_PROVIDER = ("provider:network_type", "provider:physical_network", "provider:segmentation_id")
HIDDEN = frozenset(_PROVIDER)
"""Only an administrator sees what a network is outside OVN."""
_TAG = parsers.integer(1, LARGEST_VLAN)
_PROVIDED: Mapping[str, Parser[Any]] = dict(
    zip(_PROVIDER, (parsers.word_of(SegmentType), parsers.name, _TAG), strict=True)
)


@reads(array_schema(object_schema({name: or_null(parser.schema) for name, parser in _PROVIDED.items()}), 1))
def _segments(value: object) -> Values | None:
    """One segment, which is the same as the provider attributes of the network."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("it is a list of segments")
    if len(value) > 1:
        raise ValueError("several segments of one network are not supported; give one")
    unknown = sorted(str(name) for each in value for name in each if name not in _PROVIDED)
    if unknown:
        raise ValueError(f"a segment has {', '.join(_PROVIDER)}, and not {', '.join(unknown)}")
    given = [(name, item) for each in value for name, item in each.items() if item is not None]
    return {name: _PROVIDED[name](item) for name, item in given}


ATTRIBUTES = {
    **STANDARD,
    "admin_state_up": Attribute(parse=parsers.boolean),
    "mtu": Attribute(parse=parsers.integer(LEAST_MTU, LARGEST_MTU), nullable=True),
    "shared": Attribute(parse=parsers.boolean),
    "status": read_only(TEXT),
    "subnets": read_only(array_schema(IDENTITY, SUBNETS), sifts=False),
    "port_security_enabled": Attribute(parse=parsers.boolean),
    "router:external": Attribute(parse=parsers.boolean),
    "is_default": Attribute(parse=parsers.only(False, because="a default external network is not supported")),
    "provider:network_type": Attribute(parse=parsers.word_of(SegmentType), put=False, nullable=True),
    "provider:physical_network": Attribute(put=False, nullable=True),
    "provider:segmentation_id": Attribute(parse=_TAG, put=False, nullable=True),
    "segments": Attribute(parse=_segments, put=False, nullable=True, sifts=False, shows=False),
    "dns_domain": refused("", because="DNS names are not supported"),
    "vlan_transparent": refused(False, because="VLANs of workloads are not supported", put=False),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "ipv4_address_scope": read_only(NULL),
    "ipv6_address_scope": read_only(NULL),
    "availability_zone_hints": Attribute(
        parse=parsers.only([], because="availability zones are not supported"), put=False, sifts=False
    ),
    "availability_zones": read_only(array_schema(TEXT, 0), sifts=False),
}


def encode_network(view: Viewpoint, network: Network) -> Item:
    owner, segment = network_owner(network.id), network.segment
    item = {
        **encode_standard(view, network, owner),
        "admin_state_up": network.admin_state_up,
        "mtu": network.mtu,
        "shared": network.shared,
        "status": BUILD_STATUS[view.status(owner)],
        "subnets": [subnet.id for subnet in network.subnets],
        "port_security_enabled": network.port_security_enabled,
        "router:external": network.external,
        "is_default": False,
        "provider:network_type": segment and segment.type.value,
        "provider:physical_network": segment and segment.physical_network,
        "provider:segmentation_id": segment and segment.id,
        "qos_policy_id": None,
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        "availability_zone_hints": [],
        "availability_zones": [],
    }
    return item if view.caller.is_admin else {name: item[name] for name in item if name not in HIDDEN}


def create_network(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    standard = standard_values(context, values)
    policy.check(context.caller.may_change(standard["project_id"]), "create_network")
    names = ("shared", "router:external", "segments", *_PROVIDER)
    _check_admin(context, "create_network", {name for name in names if values.get(name)})
    external: bool = values.get("router:external", False)
    network = Network(
        **standard,
        admin_state_up=values.get("admin_state_up", True),
        mtu=values.get("mtu") or _default_mtu(context, external),
        shared=values.get("shared", False),
        external=external,
        segment=_segment(snapshot, _provided(values)),
        port_security_enabled=values.get("port_security_enabled", True),
    )
    return Changes(puts=(network,))


def update_network(snapshot: Snapshot, context: RequestContext, network: Network, values: Values) -> Changes:
    _check_admin(context, "update_network", {"shared", "router:external"} & values.keys())
    fields = given(values, ["name", "description", "admin_state_up", "shared", "port_security_enabled"])
    external: bool = values.get("router:external", network.external)
    fields["external"] = external
    if "mtu" in values:
        fields["mtu"] = values["mtu"] or _default_mtu(context, external)
    changed = revised(network, replace(network, **fields), context.now)
    check_mtu(changed)
    if network.shared and not changed.shared:
        _check_unshare(snapshot, network)
    if changed.external == network.external:
        return put_network(snapshot, changed)
    _check_other_side(snapshot, network)
    return Changes(puts=(changed,), rests_on_absence=True)


def put_network(snapshot: Snapshot, network: Network) -> Changes:
    return Changes() if snapshot.networks.get(network.id) == network else Changes(puts=(network,))


def delete_network(snapshot: Snapshot, network: Network) -> Changes:
    """The ports of probes were made for its subnets, and go with them."""
    ports = [snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS)]
    if any(port.use is not PortUse.PROBE for port in ports):
        raise errors.network_in_use(network.id)
    gone = (Owner(Kind.PORT, port.id) for port in ports)
    return Changes(deletes=(*gone, network_owner(network.id)), rests_on_absence=True)


def _default_mtu(context: RequestContext, external: bool) -> int:
    return context.external_mtu if external else context.mtu


def check_mtu(network: Network) -> None:
    """IPv6 asks more of a link than IPv4. Raises ApiError 409."""
    if network.mtu < LEAST_MTU_IPV6 and any(subnet.cidr.version == 6 for subnet in network.subnets):
        raise errors.mtu_too_small(network.id, LEAST_MTU_IPV6)


def _provided(values: Values) -> Values:
    """With the provider attributes that a list of one segment says. Raises ApiError 400."""
    segment = values.get("segments") or {}
    if segment and any(values.get(name) is not None for name in _PROVIDER):
        raise errors.segments_and_provider()
    return {**values, **segment}


def _segment(snapshot: Snapshot, values: Values) -> Segment | None:
    """Raises ApiError: 400 for what does not fit together, 409 for a VLAN that another network is."""
    kind, physical, tag = (values.get(name) for name in _PROVIDER)
    if kind is None:
        if physical is not None or tag is not None:
            raise errors.invalid_input("network_type required")
        return None
    if kind is SegmentType.FLAT and tag is not None:
        raise errors.invalid_input("segmentation_id prohibited for flat provider network")
    if not physical:
        raise errors.invalid_input(f"physical_network required for {kind.value} provider network")
    if kind is SegmentType.VLAN and tag is None:
        raise errors.invalid_input("segmentation_id required for vlan provider network: no range is configured")
    if not values.get("router:external"):
        raise errors.invalid_input("provider attributes are supported for external networks only")
    segment = Segment(type=kind, physical_network=physical, id=tag)
    if segment in snapshot.segments:
        raise errors.segment_in_use(physical, tag)
    return segment


def _check_other_side(snapshot: Snapshot, network: Network) -> None:
    """Whether a network may become external, or cease to be. Raises ApiError."""
    if not network.external:
        if network.id in snapshot.network_vips:
            raise errors.vips_on_network(network.id)
        return
    ports = (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS))
    if any(port.use in (PortUse.ROUTER_GATEWAY, PortUse.FLOATING_IP) for port in ports):
        raise errors.external_network_in_use(network.id)
    if network.segment is not None:
        raise errors.invalid_input("provider attributes are supported for external networks only")


def _check_unshare(snapshot: Snapshot, network: Network) -> None:
    ports = (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS))
    if any(port.project_id != network.project_id for port in ports):
        raise errors.sharing_in_use(network.id)


def _check_admin(context: RequestContext, rule: str, names: set[str]) -> None:
    policy.check_attributes(context.caller.is_admin, rule, names)


def _owner(snapshot: Snapshot, network: Network) -> Owner:
    return network_owner(network.id)


def _sees(snapshot: Snapshot, caller: Identity, network: Network) -> bool:
    return access.sees_network(caller, network)


def _find(snapshot: Snapshot, network_id: str) -> Network | None:
    return snapshot.networks.get(network_id)


def _candidates(snapshot: Snapshot, filters: Filters) -> "list[Network]":
    return list(named(snapshot.networks, filters))


NETWORKS: Collection[Network] = Collection(
    singular="network",
    plural="networks",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=by_project,
    encode=encode_network,
    sift=sift_nothing,
    create=create_network,
    update=update_network,
    delete=delete_network,
    put=put_network,
)
