"""Changes of ports: permissions on a network, and protection of ports that serve another object.

A router interface and a VIP port belong to the object that they serve: their addresses and device change only with it.
"""

import re
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.addresses import AddressHolder, AddressRequest, choose_fixed_ips, choose_mac
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.networks import check_not_announced
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import with_update_time
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.local_ip import LocalIP, is_replica, without_replica
from fairlead.model.documents.network import (
    SYSTEM_USES,
    FloatingIP,
    Network,
    Port,
    PortUse,
    Resource,
    clear_destination,
    has_destination,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot

NETWORK_USES = (PortUse.ROUTER_INTERFACE, PortUse.ROUTER_GATEWAY, PortUse.FLOATING_IP, PortUse.LOCAL_IP)
"""Uses of ports that belong to a router, floating IP or Local IP, which alone changes them."""
RESERVED_OWNER = "network:"
"""Prefix of `device_owner` values that only the network's owner may set."""
VIP_DEVICE = "lb-"
_BALANCER = re.compile(VIP_DEVICE + "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_RESERVED = ("host", "mac_address", "port_security_enabled", "device_owner")
"""Fields that need more than the permission to have a port."""
_FIELDS_IN_USE = ("fixed_ips", "device_id", "device_owner")
"""Fields that cannot change while the port serves another object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPort(Resource):
    """Requested port."""

    network_id: str
    mac_address: str | None = None
    """MAC; None for any free one."""
    fixed_ips: tuple[AddressRequest, ...] | None = None
    """Addresses; None for one per IP version of the network."""
    admin_state_up: bool = True
    device_id: str = ""
    device_owner: str = ""
    host: str = ""
    port_security_enabled: bool | None = None
    """Whether port security is enabled; None: the network's default."""
    request_fields: frozenset[str] = frozenset()
    """Fields in the request, with any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChange:
    port: Port
    """Port after the change, except its addresses."""
    fixed_ips: tuple[AddressRequest, ...] | None = None
    """Addresses; None keeps the present ones."""
    request_fields: frozenset[str] = frozenset()
    """Fields in the request, changed or not: both need the same permission."""


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class MacInUse(Refusal):
    network_id: str
    mac: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOwnerReserved(Refusal):
    """A request cannot set this use; it follows from the object that the port serves."""

    use: PortUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PortInUse(Refusal):
    port_id: str
    network_id: str
    device_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortServesNetwork(Refusal):
    """The port is deleted with its router, floating IP or Local IP."""

    port_id: str
    use: PortUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PortIsSystemPort(Refusal):
    """The port is deleted with its subnet, or when it is no longer needed."""

    port_id: str
    use: PortUse


@dataclass(frozen=True, slots=True, kw_only=True)
class PortServesBalancer(Refusal):
    port_id: str
    load_balancer_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHasLocalIP(Refusal):
    """The port has the address of a Local IP."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressIsLocalIP(Refusal):
    """The port must keep the address while the Local IP exists. Otherwise another port could get the address, and both
    would answer for it."""

    port_id: str
    address: IPAddress
    local_ip_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHoldsLocalIP(Refusal):
    """The port was created for the address of a Local IP, which refers to it by this field."""

    port_id: str
    local_ip_id: str
    field: str


# Requests


def create_port(snapshot: Snapshot, asker: Identity, new: NewPort) -> Changes:
    """Create a port. Raises Refused."""
    network = access.find_network(snapshot, asker, new.network_id)
    access.check_owner(asker, new.project_id, Port)
    access.check(access.can_use_network(asker, network), Verb.CREATE, Port)
    check_not_announced(network)
    said = new.request_fields | {name for name in _RESERVED if getattr(new, name) not in (None, "")}
    _check_reserved(asker, network, Verb.CREATE, new, said)
    check_new(snapshot.ports, new.id)
    if not _is_reserved_vip(asker, new):
        _check_use(new.device_owner)
    if new.mac_address is not None:
        _check_mac(snapshot, network, new.id, new.mac_address)
    mac = new.mac_address or choose_mac(snapshot, new.id)
    security = new.port_security_enabled
    port = Port(
        id=new.id,
        project_id=new.project_id,
        name=new.name,
        description=new.description,
        tags=new.tags,
        created_at=new.created_at,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=choose_fixed_ips(snapshot, AddressHolder(port_id=new.id, mac=mac, network=network), new.fixed_ips),
        admin_state_up=new.admin_state_up,
        device_id=new.device_id,
        device_owner=new.device_owner,
        host=new.host,
        port_security_enabled=network.port_security_enabled if security is None else security,
    )
    return Changes(puts=(port,), reads=(Owner(Kind.NETWORK, network.id),))


def update_port(snapshot: Snapshot, asker: Identity, old: Port, change: PortChange, now: datetime) -> Changes:
    """Update a port. Raises Refused."""
    access.check(access.may_change_port(snapshot, asker, old), Verb.UPDATE, Port)
    new, network = change.port, snapshot.networks[old.network_id]
    differs = {name for name in _RESERVED if getattr(new, name) != getattr(old, name)}
    _check_reserved(asker, network, Verb.UPDATE, change, change.request_fields | differs)
    if new.mac_address != old.mac_address:
        _check_mac(snapshot, network, old.id, new.mac_address)
    if change.fixed_ips is not None:
        holder = AddressHolder(port_id=old.id, mac=old.mac_address, network=network, current_addresses=old.fixed_ips)
        new = replace(new, fixed_ips=choose_fixed_ips(snapshot, holder, change.fixed_ips))
    new = with_update_time(old, new, now)
    _check_serving_unchanged(snapshot, old, new)
    if new.device_owner != old.device_owner:
        _check_use(new.device_owner)
    if new == old:
        return Changes()
    _check_local_ips(snapshot, new)
    lost = new.fixed_ips != old.fixed_ips
    freed = _released_references(snapshot, new) if lost else []
    return Changes(puts=(new, *freed), reads=(Owner(Kind.NETWORK, network.id),), requires_unchanged_model=lost)


def delete_port(snapshot: Snapshot, asker: Identity, port: Port) -> Changes:
    """Delete a port. Raises Refused."""
    access.check(access.may_change_port(snapshot, asker, port), Verb.DELETE, Port)
    if port.id in snapshot.port_local_ips:
        raise Refused(PortHasLocalIP(port_id=port.id))
    if port.use in NETWORK_USES:
        raise Refused(PortServesNetwork(port_id=port.id, use=port.use))
    if port.use in SYSTEM_USES:
        raise Refused(PortIsSystemPort(port_id=port.id, use=port.use))
    balancer_id = vip_holder(snapshot, port)
    if balancer_id is not None:
        raise Refused(PortServesBalancer(port_id=port.id, load_balancer_id=balancer_id))
    freed = _released_references(snapshot, replace(port, fixed_ips=()))
    return Changes(puts=tuple(freed), deletes=(Owner(Kind.PORT, port.id),), requires_unchanged_model=True)


def vip_holder(snapshot: Snapshot, port: Port) -> str | None:
    """Return the load balancer whose VIP port this is; None if there is none."""
    if port.use is not PortUse.VIP or not port.device_id.startswith(VIP_DEVICE):
        return None
    balancer = snapshot.load_balancers.get(port.device_id.removeprefix(VIP_DEVICE))
    return balancer.id if balancer is not None and balancer.vip.port_id == port.id else None


def local_ip_of(snapshot: Snapshot, port: Port) -> str | None:
    """Return a Local IP with this port as its own or as a replica, so the port must remain a machine's;
    None if there is none."""
    found = *snapshot.port_local_ips.get(port.id, NO_IDS), *snapshot.replica_local_ips.get(port.id, NO_IDS)
    return min(found, default=None)


def _released_references(snapshot: Snapshot, port: Port) -> list[FloatingIP | LocalIP]:
    """Return floating IPs and Local IPs without their references to addresses that the port no longer has."""
    floating_ips = (snapshot.floating_ips[each] for each in snapshot.port_floating_ips.get(port.id, NO_IDS))
    local_ips = (snapshot.local_ips[each] for each in snapshot.replica_local_ips.get(port.id, NO_IDS))
    return [
        *(clear_destination(floating_ip) for floating_ip in floating_ips if not has_destination(floating_ip, port)),
        *(without_replica(local_ip, port.id) for local_ip in local_ips if not is_replica(local_ip, port)),
    ]


def _check_local_ips(snapshot: Snapshot, port: Port) -> None:
    """Check that the port keeps the addresses of Local IPs. Raises Refused."""
    addresses = {fixed.address for fixed in port.fixed_ips}
    for local_ip_id in sorted(snapshot.port_local_ips.get(port.id, NO_IDS)):
        address = snapshot.local_ips[local_ip_id].address
        if address not in addresses:
            raise Refused(AddressIsLocalIP(port_id=port.id, address=address, local_ip_id=local_ip_id))


def _check_reserved(
    asker: Identity, network: Network, verb: Verb, asked: NewPort | PortChange, said: frozenset[str]
) -> None:
    """Check fields with restricted permissions. Only an administrator may choose the host; only the network's owner may
    disable port security and, on a shared network, choose addresses. Raises Refused."""
    access.check_fields(asker.is_admin, verb, Port, said & {"host"})
    port = asked.port if isinstance(asked, PortChange) else asked
    owned = {
        "mac_address": True,
        "port_security_enabled": port.port_security_enabled is False,
        "device_owner": port.device_owner.startswith(RESERVED_OWNER),
    }
    fields = {name for name, reserved in owned.items() if reserved and name in said}
    if any(each.address is not None for each in asked.fixed_ips or ()):
        fields.add("fixed_ips")
    access.check_fields(asker.may_change(network.project_id), verb, Port, fields)


def _check_mac(snapshot: Snapshot, network: Network, port_id: str, wanted: str) -> None:
    """Check that no port of any network has the MAC, because a router may join any two networks. Raises Refused."""
    if snapshot.macs.get(wanted, port_id) != port_id:
        raise Refused(MacInUse(network_id=network.id, mac=wanted))


def _is_reserved_vip(asker: Identity, new: NewPort) -> bool:
    """Return whether an administrator creates a VIP port for a given load balancer in advance, as Octavia does. The
    port has no row in OVN, and its address does not answer before the load balancer exists."""
    is_vip = new.device_owner == PortUse.VIP.value and _BALANCER.fullmatch(new.device_id)
    return bool(is_vip) and asker.is_admin and not new.host


def _check_use(device_owner: str) -> None:
    """Check that the request does not declare a reserved use. Router interfaces are only created through the router,
    which checks for overlaps, and VIP ports through the load balancer, because they have no row of their own in OVN.
    Raises Refused."""
    if device_owner and device_owner in set(PortUse):
        raise Refused(DeviceOwnerReserved(use=PortUse(device_owner)))


def _check_serving_unchanged(snapshot: Snapshot, old: Port, new: Port) -> None:
    """Check that the change does not affect the router, load balancer or Local IP that the port serves.
    Raises Refused."""
    if old.use not in {*NETWORK_USES, *SYSTEM_USES} and vip_holder(snapshot, old) is None:
        return
    differs = next((name for name in _FIELDS_IN_USE if getattr(old, name) != getattr(new, name)), None)
    if differs is None:
        return
    if old.use is PortUse.LOCAL_IP:
        raise Refused(PortHoldsLocalIP(port_id=old.id, local_ip_id=old.device_id, field=differs))
    raise Refused(PortInUse(port_id=old.id, network_id=old.network_id, device_id=old.device_id))
