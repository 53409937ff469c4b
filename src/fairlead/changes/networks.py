"""Changes of networks: allowed attributes, requirements of external networks, and conditions for updates and deletion.

A network and its subnets are one document, so they are deleted together.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import put_if_changed, with_update_time
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import SYSTEM_USES, Network, Port, PortUse, Segment, SegmentType
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot

MIN_IPV6_MTU = 1280
"""Minimum MTU with IPv6, in bytes (RFC 8200, section 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRequest:
    """Requested provider segment; None for attributes absent from the request."""

    type: SegmentType | None = None
    physical_network: str | None = None
    tag: int | None = None
    announced: bool = False
    """Whether the network has no segment and hosts announce its addresses."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWithoutType(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWithoutNetwork(Refusal):
    """The segment has no physical network."""

    type: SegmentType


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatSegmentWithTag(Refusal):
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VlanWithoutTag(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOfInternalNetwork(Refusal):
    """Only an external network can have a provider segment."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInUse(Refusal):
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedWithSegment(Refusal):
    """An announced network cannot have a provider segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedExternal(Refusal):
    """An announced network cannot be external: it has neither router gateways nor floating IPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedForVips(Refusal):
    """Addresses of an announced network can only be VIPs."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MtuTooSmall(Refusal):
    """The MTU is too small for a network with IPv6 subnets."""

    network_id: str
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInUse(Refusal):
    """The network has ports."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingInUse(Refusal):
    """Other projects have ports on the network, so it must remain shared."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipsOnNetwork(Refusal):
    """The network has VIPs, so it cannot become external."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIPsOnNetwork(Refusal):
    """The network has Local IPs, so it cannot become external."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalNetworkInUse(Refusal):
    """The network has router gateways or floating IPs, so it must remain external."""

    network_id: str


# Requests


def create_network(
    snapshot: Snapshot, asker: Identity, network: Network, asked: SegmentRequest, said: frozenset[str] = frozenset()
) -> Changes:
    """Create a network with the requested segment, if any. `said` are the fields in the request. Raises Refused."""
    access.check_owner(asker, network.project_id, Network)
    reserved = {name for name in ("shared", "external") if getattr(network, name)} | (said & {"segment"})
    if asked != SegmentRequest():
        reserved.add("segment")
    access.check_fields(asker.is_admin, Verb.CREATE, Network, reserved)
    check_new(snapshot.networks, network.id)
    if asked.announced:
        return Changes(puts=(_announced(network, asked),))
    return Changes(puts=(replace(network, segment=_segment(snapshot, network, asked)),))


def update_network(
    snapshot: Snapshot, asker: Identity, old: Network, new: Network, said: frozenset[str], now: datetime
) -> Changes:
    """Update a network. `said` are the fields in the request. Raises Refused."""
    access.check_own(asker, Verb.UPDATE, old)
    reserved = {name for name in ("shared", "external") if name in said or getattr(old, name) != getattr(new, name)}
    access.check_fields(asker.is_admin, Verb.UPDATE, Network, reserved)
    new = with_update_time(old, new, now)
    check_mtu(new)
    if old.shared and not new.shared and any(port.project_id != old.project_id for port in ports_on(snapshot, old)):
        raise Refused(SharingInUse(network_id=old.id))
    if new.external == old.external:
        return put_if_changed(snapshot, new)
    _check_external_change(snapshot, old)
    return Changes(puts=(replace(new, routes=()),), requires_unchanged_model=True)


def delete_network(snapshot: Snapshot, asker: Identity, network: Network) -> Changes:
    """Delete a network with its probe and proxy ports. Raises Refused."""
    access.check_own(asker, Verb.DELETE, network)
    access.check(asker.is_admin or not network.announced, Verb.DELETE, Network)
    ports = list(ports_on(snapshot, network))
    if any(port.use not in SYSTEM_USES for port in ports):
        raise Refused(NetworkInUse(network_id=network.id))
    gone = (Owner(Kind.PORT, port.id) for port in ports)
    return Changes(deletes=(*gone, Owner(Kind.NETWORK, network.id)), requires_unchanged_model=True)


def with_segment(snapshot: Snapshot, network: Network, asked: SegmentRequest) -> Network:
    """Return the network with the requested segment, which may be its present one. Raises Refused."""
    old = network.segment
    if old is not None and asked == SegmentRequest(type=old.type, physical_network=old.physical_network, tag=old.id):
        return network
    return replace(network, segment=_segment(snapshot, network, asked))


def ports_on(snapshot: Snapshot, network: Network) -> Iterator[Port]:
    return (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS))


def check_mtu(network: Network) -> None:
    """Check the MTU, because IPv6 has a larger minimum than IPv4. Raises Refused."""
    if network.mtu < MIN_IPV6_MTU and any(subnet.cidr.version == 6 for subnet in network.subnets):
        raise Refused(MtuTooSmall(network_id=network.id, least=MIN_IPV6_MTU))


def check_not_announced(network: Network) -> None:
    """Check that the network can have other objects than VIPs. Raises Refused."""
    if network.announced:
        raise Refused(AnnouncedForVips(network_id=network.id))


def _announced(network: Network, asked: SegmentRequest) -> Network:
    if asked != SegmentRequest(announced=True):
        raise Refused(AnnouncedWithSegment())
    if network.external:
        raise Refused(AnnouncedExternal())
    return replace(network, announced=True)


def _segment(snapshot: Snapshot, network: Network, asked: SegmentRequest) -> Segment | None:
    """Return the requested segment if it is consistent and free. Raises Refused."""
    if asked.type is None:
        if asked != SegmentRequest():
            raise Refused(SegmentWithoutType())
        return None
    if asked.type is SegmentType.FLAT and asked.tag is not None:
        raise Refused(FlatSegmentWithTag(tag=asked.tag))
    if not asked.physical_network:
        raise Refused(SegmentWithoutNetwork(type=asked.type))
    if asked.type is SegmentType.VLAN and asked.tag is None:
        raise Refused(VlanWithoutTag())
    if not network.external:
        raise Refused(SegmentOfInternalNetwork(network_id=network.id))
    segment = Segment(type=asked.type, physical_network=asked.physical_network, id=asked.tag)
    if segment in snapshot.segments:
        raise Refused(SegmentInUse(segment=segment))
    return segment


def _check_external_change(snapshot: Snapshot, network: Network) -> None:
    """Check that a network can become external, or internal. Raises Refused."""
    if network.announced:
        raise Refused(AnnouncedExternal())
    if not network.external:
        if network.id in snapshot.network_vips:
            raise Refused(VipsOnNetwork(network_id=network.id))
        if network.id in snapshot.network_local_ips:
            raise Refused(LocalIPsOnNetwork(network_id=network.id))
        return
    if any(port.use in (PortUse.ROUTER_GATEWAY, PortUse.FLOATING_IP) for port in ports_on(snapshot, network)):
        raise Refused(ExternalNetworkInUse(network_id=network.id))
    if network.segment is not None:
        raise Refused(SegmentOfInternalNetwork(network_id=network.id))
