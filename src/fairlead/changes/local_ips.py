"""Changes of Local IPs: the port with the address, and its project.

The port belongs to the Local IP's project, on a network that may be shared by another one. A port that was created for
the address is deleted with the Local IP; a machine's port stays, and cannot be deleted before. Replicas are in
`changes/associations.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from immutables import Map

from fairlead.changes import access
from fairlead.changes.access import NotFound, Verb
from fairlead.changes.addresses import AddressOutsideNetwork, choose_mac, choose_service_address, choose_subnet
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.monitor_checks import DelayTooShort
from fairlead.changes.networks import check_not_announced
from fairlead.changes.probe_ports import make_probe_ports
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import with_update_time
from fairlead.model.documents.addresses import IPAddress, is_usable
from fairlead.model.documents.indexes import NO_IDS, Ids
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.local_ip import (
    Fallback,
    LocalIP,
    Mode,
    ReplicaMonitor,
    find_association,
)
from fairlead.model.documents.network import Network, Port, PortUse, Resource
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sizes import MIN_UDP_CONNECT_DELAY_SECONDS
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLocalIP(Resource):
    """Requested Local IP. Its address is that of an existing port, or a new one on a network."""

    port_id: str | None = None
    network_id: str | None = None
    """Network for a new address; ignored if a port is given."""
    new_port_id: str
    """Id of the port to create for a new address."""
    address: IPAddress | None = None
    """Address; None for the only one of the port, or for any free one of the network, preferring IPv4."""
    mode: Mode = Mode.TRANSLATE
    fallback: Fallback = Fallback.FORWARD
    health_monitor: ReplicaMonitor | None = None


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class PortOrNetworkNeeded(Refusal):
    """The request has neither a port nor a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLocalPort(Refusal):
    """The port does not exist, or the caller may not see it."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWithoutSubnet(Refusal):
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkIsExternal(Refusal):
    """The network is external, so no machines are on it."""

    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortIsNotMachine(Refusal):
    """The port is not a machine's."""

    port_id: str
    use: PortUse


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPortOfOtherProject(Refusal):
    """The port belongs to another project, which is rejected for every caller, because a Local IP has one project."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPortWithoutAddress(Refusal):
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLacksAddress(Refusal):
    port_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWithManyAddresses(Refusal):
    """The port has several addresses, so the request must specify one."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIPExists(Refusal):
    """A Local IP for this address of the network exists."""

    address: IPAddress
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIPAsReplica(Refusal):
    """The address of one Local IP would be a replica of another, but a packet is translated once only."""

    address: IPAddress
    local_ip_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIPInUse(Refusal):
    """The Local IP has replicas."""

    local_ip_id: str


# Requests


def find_local_ip(snapshot: Snapshot, asker: Identity, local_ip_id: str) -> LocalIP:
    """Return a Local IP that the caller may see. Raises Refused."""
    found = snapshot.local_ips.get(local_ip_id)
    if found is None or not asker.may_see(found.project_id):
        raise Refused(NotFound(what=LocalIP, id=local_ip_id))
    return found


def create_local_ip(snapshot: Snapshot, asker: Identity, new: NewLocalIP) -> Changes:
    """Create a Local IP. Raises Refused."""
    access.check_owner(asker, new.project_id, LocalIP)
    check_new(snapshot.local_ips, new.id)
    _check_monitor(new.health_monitor)
    if new.port_id is not None:
        port, address = _given_port(snapshot, asker, new, new.port_id)
        made: tuple[Port, ...] = ()
    elif new.network_id is not None:
        port = _new_port(snapshot, asker, new, new.network_id)
        made, address = (port,), port.fixed_ips[0].address
    else:
        raise Refused(PortOrNetworkNeeded())
    local_ip = LocalIP(
        id=new.id,
        project_id=new.project_id,
        name=new.name,
        description=new.description,
        created_at=new.created_at,
        network_id=port.network_id,
        port_id=port.id,
        address=address,
        mode=new.mode,
        fallback=new.fallback,
        health_monitor=new.health_monitor,
    )
    return Changes(puts=(*made, local_ip), reads=list_reads(local_ip, port.id), requires_unchanged_model=True)


def update_local_ip(snapshot: Snapshot, asker: Identity, old: LocalIP, new: LocalIP, now: datetime) -> Changes:
    """Update a Local IP. Raises Refused."""
    access.check_own(asker, Verb.UPDATE, old)
    if new.health_monitor != old.health_monitor:
        _check_monitor(new.health_monitor)
    new = with_update_time(old, new, now)
    return Changes() if new == old else Changes(puts=(*make_probe_ports(snapshot, new, now), new))


def delete_local_ip(snapshot: Snapshot, asker: Identity, local_ip: LocalIP, *, force: bool = False) -> Changes:
    """Delete a Local IP; `force` deletes it even with replicas. Raises Refused."""
    access.check_own(asker, Verb.DELETE, local_ip)
    if local_ip.associations and not force:
        raise Refused(LocalIPInUse(local_ip_id=local_ip.id))
    port = snapshot.ports.get(local_ip.port_id)
    was_made = port is not None and port.use is PortUse.LOCAL_IP
    gone = (Owner(Kind.PORT, local_ip.port_id),) if was_made else ()
    return Changes(deletes=(Owner(Kind.LOCAL_IP, local_ip.id), *gone))


# Address


def _given_port(snapshot: Snapshot, asker: Identity, new: NewLocalIP, port_id: str) -> tuple[Port, IPAddress]:
    port = snapshot.ports.get(port_id)
    if port is None or not access.can_see_port(snapshot, asker, port):
        raise Refused(NoLocalPort(port_id=port_id))
    _check_internal(snapshot.networks[port.network_id])
    check_port(port, new.project_id)
    address = choose_port_address(port, [fixed.address for fixed in port.fixed_ips], new.address)
    if any(each.address == address for each in list_local_ips(snapshot.port_local_ips, snapshot, port.id)):
        raise Refused(LocalIPExists(address=address, network_id=port.network_id))
    for other in list_local_ips(snapshot.replica_local_ips, snapshot, port.id):
        replica = find_association(other, port.id)
        if replica is not None and replica.address == address:
            raise Refused(LocalIPAsReplica(address=address, local_ip_id=other.id))
    return port, address


def _new_port(snapshot: Snapshot, asker: Identity, new: NewLocalIP, network_id: str) -> Port:
    """Return a new port without a machine that reserves the address.
    Only the network's owner may choose the address."""
    network = access.find_network(snapshot, asker, network_id)
    _check_internal(network)
    named = {"address"} if new.address is not None else set[str]()
    access.check_fields(asker.may_change(network.project_id), Verb.CREATE, LocalIP, named)
    check_new(snapshot.ports, new.new_port_id)
    if not network.subnets:
        raise Refused(NetworkWithoutSubnet(network_id=network.id))
    if new.address is not None and not any(is_usable(new.address, subnet.cidr) for subnet in network.subnets):
        raise Refused(AddressOutsideNetwork(address=new.address, network_id=network.id))
    subnet = choose_subnet(snapshot, _with_preferred_ip_version(network, new.address), new.address)
    return Port(
        id=new.new_port_id,
        project_id=new.project_id,
        created_at=new.created_at,
        network_id=network.id,
        mac_address=choose_mac(snapshot, new.new_port_id),
        fixed_ips=(choose_service_address(snapshot, network.id, subnet, new.address, new.new_port_id),),
        device_id=new.id,
        device_owner=PortUse.LOCAL_IP.value,
        port_security_enabled=False,
    )


def _with_preferred_ip_version(network: Network, address: IPAddress | None) -> Network:
    """Return the network with subnets of one IP version, IPv4 if it has any, unless the request has an address. The
    choice does not depend on free addresses."""
    version = min(subnet.cidr.version for subnet in network.subnets)
    fitting = tuple(subnet for subnet in network.subnets if subnet.cidr.version == version)
    return replace(network, subnets=fitting) if address is None else network


def _check_internal(network: Network) -> None:
    if network.external:
        raise Refused(NetworkIsExternal(network_id=network.id))
    check_not_announced(network)


def check_port(port: Port, project_id: str) -> None:
    """Check that the port can have the address of a Local IP of this project, or be its replica. Raises Refused."""
    if port.project_id != project_id:
        raise Refused(LocalPortOfOtherProject(port_id=port.id))
    if port.use is not PortUse.MACHINE:
        raise Refused(PortIsNotMachine(port_id=port.id, use=port.use))


def choose_port_address(port: Port, addresses: list[IPAddress], wanted: IPAddress | None) -> IPAddress:
    """Return the port's address that is meant. Raises Refused."""
    if not addresses:
        raise Refused(LocalPortWithoutAddress(port_id=port.id))
    if wanted is None and len(addresses) > 1:
        raise Refused(PortWithManyAddresses(port_id=port.id))
    if wanted is not None and wanted not in addresses:
        raise Refused(PortLacksAddress(port_id=port.id, address=wanted))
    return wanted or addresses[0]


def _check_monitor(monitor: ReplicaMonitor | None) -> None:
    if (
        monitor is not None
        and monitor.type is MonitorType.UDP_CONNECT
        and monitor.delay < MIN_UDP_CONNECT_DELAY_SECONDS
    ):
        raise Refused(DelayTooShort(type=monitor.type, delay=monitor.delay, least=MIN_UDP_CONNECT_DELAY_SECONDS))


# Dependencies of a decision


def list_local_ips(index: Map[str, Ids], snapshot: Snapshot, port_id: str) -> Iterator[LocalIP]:
    return (snapshot.local_ips[each] for each in index.get(port_id, NO_IDS))


def list_reads(local_ip: LocalIP, port_id: str) -> tuple[Owner, ...]:
    return Owner(Kind.NETWORK, local_ip.network_id), Owner(Kind.PORT, port_id)
