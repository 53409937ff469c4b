"""Networks of the Neutron API. A network and its subnets are one document, and are deleted together.

Administrators create external networks (flat, or a VLAN of a physical network), which every project sees, and announced
networks, which a project sees if they are shared. Not implemented and rejected: provider attributes of other networks,
several segments, QoS policies, availability zones, and a default external network.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from fairlead.api.http.listing import Item
from fairlead.api.http.openapi import IDENTITY, TEXT
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, unsupported_attribute
from fairlead.api.network.collection import (
    BUILD_STATUS,
    Collection,
    EncodeContext,
    RequestContext,
    encode_standard,
    named,
    present,
    standard_values,
)
from fairlead.api.network.limits import MAX_MTU, MAX_VLAN, MIN_MTU
from fairlead.api.network.policy import PROVIDER
from fairlead.changes import access, networks
from fairlead.changes.networks import SegmentRequest
from fairlead.changes.subnets import MAX_SUBNETS
from fairlead.model.documents.network import Network, SegmentType
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import as_single_step
from fairlead.schema import NULL, Parser, Values, array_schema, object_schema, or_null, reads


class NetworkType(StrEnum):
    """Provider network type: a physical network, or `announced` for addresses of VIPs that hosts announce."""

    ANNOUNCED = "announced"
    FLAT = "flat"
    VLAN = "vlan"


HIDDEN = frozenset(PROVIDER)
"""Attributes shown only to administrators."""
_TAG = parsers.integer(1, MAX_VLAN)
_PROVIDED: Mapping[str, Parser[Any]] = dict(
    zip(PROVIDER, (parsers.enum_of(NetworkType), parsers.name, _TAG), strict=True)
)


@reads(array_schema(object_schema({name: or_null(parser.schema) for name, parser in _PROVIDED.items()}), 1))
def _segments(value: object) -> Values | None:
    """Parse a list of one segment, which is equivalent to the provider attributes."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError("it is a list of segments")
    if len(value) > 1:
        raise ValueError("several segments of one network are not supported; give one")
    unknown = sorted(str(name) for each in value for name in each if name not in _PROVIDED)
    if unknown:
        raise ValueError(f"a segment has {', '.join(PROVIDER)}, and not {', '.join(unknown)}")
    given = [(name, item) for each in value for name, item in each.items() if item is not None]
    return {name: _PROVIDED[name](item) for name, item in given}


ATTRIBUTES = {
    **STANDARD,
    "admin_state_up": Attribute(parse=parsers.boolean),
    "mtu": Attribute(parse=parsers.integer(MIN_MTU, MAX_MTU), nullable=True),
    "shared": Attribute(parse=parsers.boolean),
    "status": read_only(TEXT),
    "subnets": read_only(array_schema(IDENTITY, MAX_SUBNETS), sifts=False),
    "port_security_enabled": Attribute(parse=parsers.boolean),
    "router:external": Attribute(parse=parsers.boolean),
    "is_default": Attribute(parse=parsers.only(False, because="a default external network is not supported")),
    "provider:network_type": Attribute(parse=parsers.enum_of(NetworkType), put=False, nullable=True),
    "provider:physical_network": Attribute(put=False, nullable=True),
    "provider:segmentation_id": Attribute(parse=_TAG, put=False, nullable=True),
    "segments": Attribute(parse=_segments, put=False, nullable=True, filterable=False, in_responses=False),
    "dns_domain": unsupported_attribute("", because="DNS names are not supported"),
    "vlan_transparent": unsupported_attribute(False, because="VLANs of workloads are not supported", put=False),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "ipv4_address_scope": read_only(NULL),
    "ipv6_address_scope": read_only(NULL),
    "availability_zone_hints": Attribute(
        parse=parsers.only([], because="availability zones are not supported"), put=False, filterable=False
    ),
    "availability_zones": read_only(array_schema(TEXT, 0), sifts=False),
}


def encode_network(view: EncodeContext, network: Network) -> Item:
    owner, segment = owner_of(network), network.segment
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
        "provider:network_type": NetworkType.ANNOUNCED.value if network.announced else segment and segment.type.value,
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
    external: bool = values.get("router:external", False)
    network = Network(
        **standard_values(context, values),
        admin_state_up=values.get("admin_state_up", True),
        mtu=values.get("mtu") or _default_mtu(context, external),
        shared=values.get("shared", False),
        external=external,
        port_security_enabled=values.get("port_security_enabled", True),
    )
    said = policy.fields_of(name for name, value in values.items() if value)
    return networks.create_network(snapshot, context.caller, network, _asked_segment(values), said)


def update_network(snapshot: Snapshot, context: RequestContext, network: Network, values: Values) -> Changes:
    fields = present(values, ["name", "description", "admin_state_up", "shared", "port_security_enabled"])
    external: bool = values.get("router:external", network.external)
    if "mtu" in values:
        fields["mtu"] = values["mtu"] or _default_mtu(context, external)
    changed, said = replace(network, external=external, **fields), policy.fields_of(values)
    return networks.update_network(snapshot, context.caller, network, changed, said, context.now)


def _default_mtu(context: RequestContext, external: bool) -> int:
    return context.external_mtu if external else context.mtu


def _asked_segment(values: Values) -> SegmentRequest:
    """Return the segment from the provider attributes, or from a list of one segment. Raises ApiError 400."""
    segment = values.get("segments") or {}
    if segment and any(values.get(name) is not None for name in PROVIDER):
        raise errors.segments_and_provider()
    kind, physical, tag = ((segment or values).get(name) for name in PROVIDER)
    if kind is NetworkType.ANNOUNCED:
        return SegmentRequest(announced=True, physical_network=physical, tag=tag)
    return SegmentRequest(type=kind and SegmentType(kind.value), physical_network=physical, tag=tag)


NETWORKS: Collection[Network] = Collection(
    singular="network",
    plural="networks",
    attributes=ATTRIBUTES,
    find=lambda snapshot, key: snapshot.networks.get(key),
    candidates=lambda snapshot, filters: named(snapshot.networks, filters),
    sees=lambda _, caller, network: access.can_see_network(caller, network),
    encode=encode_network,
    create=as_single_step(create_network),
    update=update_network,
    delete=networks.delete_network,
)
