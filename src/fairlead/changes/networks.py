"""Networks: what may be said of one, what an external one may be, and when it may change or go.

A network with its subnets is one document: deleting it deletes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import revised, rewrite
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import UNASKED, Network, Port, PortUse, Segment, SegmentType
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

LEAST_MTU_IPV6 = 1280
"""Bytes (RFC 8200, section 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSegment:
    """What a request says of the wire outside OVN; None is what it does not say."""

    type: SegmentType | None = None
    physical_network: str | None = None
    tag: int | None = None
    announced: bool = False
    """There is to be none: hosts announce the addresses of the network."""


# What is refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWithoutType(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentWithoutNetwork(Refusal):
    """No physical network is named."""

    type: SegmentType


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatSegmentWithTag(Refusal):
    tag: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VlanWithoutTag(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOfInternalNetwork(Refusal):
    """Only an external network is anything outside OVN."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTaken(Refusal):
    segment: Segment


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedOnWire(Refusal):
    """An announced network is on no wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedExternal(Refusal):
    """An announced network is not an external one: no router has its gateway there, and no floating IP is on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedForVips(Refusal):
    """Addresses of an announced network are VIPs, and nothing else."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MtuTooSmall(Refusal):
    """For a network with IPv6 subnets."""

    network_id: str
    least: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInUse(Refusal):
    """Ports are on it."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingInUse(Refusal):
    """Other projects have ports on it."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VipsOnNetwork(Refusal):
    """It cannot become external."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIPsOnNetwork(Refusal):
    """It cannot become external."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalNetworkInUse(Refusal):
    """It cannot cease to be external: gateways or floating IPs are on it."""

    network_id: str


# What is done


def create_network(
    snapshot: Snapshot, asker: Identity, network: Network, asked: AskedSegment, said: frozenset[str] = frozenset()
) -> Changes:
    """The network has no segment yet; it gets the one that is asked for, if any is. `said` are fields that the request
    names. Raises Refused."""
    access.check_owner(asker, network.project_id, Network)
    reserved = {name for name in ("shared", "external") if getattr(network, name)} | (said & {"segment"})
    if asked != AskedSegment():
        reserved.add("segment")
    access.check_fields(asker.is_admin, Verb.CREATE, Network, reserved)
    check_new(snapshot.networks, network.id)
    if asked.announced:
        return Changes(puts=(_announced(network, asked),))
    return Changes(puts=(replace(network, segment=_segment(snapshot, network, asked)),))


def update_network(
    snapshot: Snapshot, asker: Identity, old: Network, new: Network, said: frozenset[str], now: datetime
) -> Changes:
    """`said` are fields that the request names. Raises Refused."""
    access.check_own(asker, Verb.UPDATE, old)
    reserved = {name for name in ("shared", "external") if name in said or getattr(old, name) != getattr(new, name)}
    access.check_fields(asker.is_admin, Verb.UPDATE, Network, reserved)
    new = revised(old, new, now)
    check_mtu(new)
    if old.shared and not new.shared and any(port.project_id != old.project_id for port in ports_on(snapshot, old)):
        raise Refused(SharingInUse(network_id=old.id))
    if new.external == old.external:
        return rewrite(snapshot, new)
    _check_other_side(snapshot, old)
    return Changes(puts=(replace(new, routes=()),), rests_on_absence=True)


def delete_network(snapshot: Snapshot, asker: Identity, network: Network) -> Changes:
    """The ports of probes were made for its subnets, and go with them. Raises Refused."""
    access.check_own(asker, Verb.DELETE, network)
    access.check(asker.is_admin or not network.announced, Verb.DELETE, Network)
    ports = list(ports_on(snapshot, network))
    if any(port.use not in UNASKED for port in ports):
        raise Refused(NetworkInUse(network_id=network.id))
    gone = (Owner(Kind.PORT, port.id) for port in ports)
    return Changes(deletes=(*gone, Owner(Kind.NETWORK, network.id)), rests_on_absence=True)


def with_segment(snapshot: Snapshot, network: Network, asked: AskedSegment) -> Network:
    """The network on the wire that is asked for, which may be the one that it is on. Raises Refused."""
    old = network.segment
    if old is not None and asked == AskedSegment(type=old.type, physical_network=old.physical_network, tag=old.id):
        return network
    return replace(network, segment=_segment(snapshot, network, asked))


def ports_on(snapshot: Snapshot, network: Network) -> Iterator[Port]:
    return (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS))


def check_mtu(network: Network) -> None:
    """IPv6 asks more of a link than IPv4. Raises Refused."""
    if network.mtu < LEAST_MTU_IPV6 and any(subnet.cidr.version == 6 for subnet in network.subnets):
        raise Refused(MtuTooSmall(network_id=network.id, least=LEAST_MTU_IPV6))


def check_plain(network: Network) -> None:
    """Whether anything but VIPs may be on it. Raises Refused."""
    if network.announced:
        raise Refused(AnnouncedForVips(network_id=network.id))


def _announced(network: Network, asked: AskedSegment) -> Network:
    if asked != AskedSegment(announced=True):
        raise Refused(AnnouncedOnWire())
    if network.external:
        raise Refused(AnnouncedExternal())
    return replace(network, announced=True)


def _segment(snapshot: Snapshot, network: Network, asked: AskedSegment) -> Segment | None:
    """What is asked, if it fits together and no other network is that. Raises Refused."""
    if asked.type is None:
        if asked != AskedSegment():
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
        raise Refused(SegmentTaken(segment=segment))
    return segment


def _check_other_side(snapshot: Snapshot, network: Network) -> None:
    """Whether a network may become external, or cease to be. Raises Refused."""
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
