"""Associations: the ports that are replicas of a Local IP.

Replicas are ports of machines in the Local IP's project and on its network, for every caller: a replica in another
project would receive the clients' traffic.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.identity import Identity
from fairlead.changes.local_ips import LocalIPAsReplica, check_port, choose_port_address, list_local_ips, list_reads
from fairlead.changes.probe_ports import make_probe_ports
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.local_ip import Association, LocalIP, find_association, without_replica
from fairlead.model.documents.network import Port
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaRequest:
    """Requested replica."""

    port_id: str
    address: IPAddress | None = None
    """Address of the port; None if it has only one of the Local IP's IP version."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOfItself(Refusal):
    """The port has the Local IP's own address."""

    port_id: str
    local_ip_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOnOtherNetwork(Refusal):
    port_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIpVersionMismatch(Refusal):
    """The port has no address of the Local IP's IP version, or the requested address has another version."""

    port_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyAssociated(Refusal):
    local_ip_id: str
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyAssociations(Refusal):
    local_ip_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAssociated(Refusal):
    local_ip_id: str
    port_id: str


# Requests


def associate(snapshot: Snapshot, asker: Identity, local_ip: LocalIP, asked: ReplicaRequest, now: datetime) -> Changes:
    """Add a replica, as the newest one. Raises Refused."""
    access.check_own(asker, Verb.ADD, local_ip)
    port = access.find_port(snapshot, asker, asked.port_id)
    _check_replica(local_ip, port)
    address = _choose_replica_address(local_ip, port, asked.address)
    for other in list_local_ips(snapshot.port_local_ips, snapshot, port.id):
        if other.address == address:
            raise Refused(LocalIPAsReplica(address=address, local_ip_id=other.id))
    if len(local_ip.associations) >= MAX_ASSOCIATIONS:
        raise Refused(TooManyAssociations(local_ip_id=local_ip.id, most=MAX_ASSOCIATIONS))
    added = Association(port_id=port.id, address=address, created_at=now)
    changed = replace(local_ip, associations=(*local_ip.associations, added))
    probes = make_probe_ports(snapshot, changed, now)
    return Changes(puts=(*probes, changed), reads=list_reads(local_ip, port.id), requires_unchanged_model=True)


def dissociate(snapshot: Snapshot, asker: Identity, local_ip: LocalIP, port_id: str) -> Changes:
    """Remove a replica. Raises Refused."""
    access.check_own(asker, Verb.REMOVE, local_ip)
    if find_association(local_ip, port_id) is None:
        raise Refused(NotAssociated(local_ip_id=local_ip.id, port_id=port_id))
    return Changes(puts=(without_replica(local_ip, port_id),))


# Implementation


def _check_replica(local_ip: LocalIP, port: Port) -> None:
    if port.network_id != local_ip.network_id:
        raise Refused(ReplicaOnOtherNetwork(port_id=port.id, network_id=local_ip.network_id))
    if port.id == local_ip.port_id:
        raise Refused(ReplicaOfItself(port_id=port.id, local_ip_id=local_ip.id))
    check_port(port, local_ip.project_id)
    if find_association(local_ip, port.id) is not None:
        raise Refused(AlreadyAssociated(local_ip_id=local_ip.id, port_id=port.id))


def _choose_replica_address(local_ip: LocalIP, port: Port, wanted: IPAddress | None) -> IPAddress:
    version = local_ip.address.version
    fitting = [fixed.address for fixed in port.fixed_ips if fixed.address.version == version]
    if (wanted is not None and wanted.version != version) or (port.fixed_ips and not fitting):
        raise Refused(ReplicaIpVersionMismatch(port_id=port.id, version=version))
    return choose_port_address(port, fitting, wanted)
