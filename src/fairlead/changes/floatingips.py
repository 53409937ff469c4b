"""Floating IPs: an address of an external network that leads to a fixed address of a port, which may be a VIP port.

A port of its own holds the address, so it cannot be allocated again. The destination port can be deleted: the floating
IP is then free and stays in its project. Floating IPs are IPv4 only, because IPv6 addresses are routed.
"""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access
from fairlead.changes.access import Verb
from fairlead.changes.addresses import AddressHolder, AddressRequest, choose_fixed_ips, choose_mac
from fairlead.changes.gateways import find_external_network, serves_project
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import (
    FixedIP,
    FloatingIP,
    Network,
    Port,
    PortUse,
    Resource,
    Router,
    clear_destination,
    find_subnet,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.domain import Topology
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot, has_working_gateway

OWNERS_WITHOUT_FLOATING_IP = ("network:", "neutron:", PortUse.PROBE)
"""Prefixes of device owners without floating IPs. These are ports of the network itself (neutron, common/utils.py,
is_fip_serviced), and probe ports, which have no machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Destination of a floating IP; none without a port.
    The address is optional if the port has one IPv4 address only."""

    port_id: str | None = None
    fixed_address: IPAddress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFloatingIP(Resource):
    """Requested floating IP; any free address if the request has neither an address nor a subnet."""

    network_id: str
    address_port_id: str
    """Id of the port that will hold the address."""
    subnet_id: str | None = None
    address: IPAddress | None = None
    destination: Destination = Destination()


# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkWithoutIPv4(Refusal):
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetWithoutIPv4(Refusal):
    subnet_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressNotIPv4(Refusal):
    """The address of a floating IP must be IPv4."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAddressNotIPv4(Refusal):
    """The fixed address of a floating IP must be IPv4."""

    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedAddressWithoutPort(Refusal):
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PortNotInProject(Refusal):
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCannotHaveFloatingIP(Refusal):
    """The port belongs to the network itself."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortLacksFixedAddress(Refusal):
    port_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWithoutIPv4(Refusal):
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortWithManyIPv4(Refusal):
    """The port has several IPv4 addresses, so the request must specify one."""

    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRouterToExternalNetwork(Refusal):
    """No router that serves the project joins the port's subnet and the external network with an address there."""

    network_id: str
    subnet_id: str
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationInUse(Refusal):
    """Another floating IP of the same network leads to this address of the port."""

    floating_ip: FloatingIP
    port_id: str
    fixed_address: IPAddress


# Requests


def create_floating_ip(snapshot: Snapshot, asker: Identity, new: NewFloatingIP) -> Changes:
    """Create a floating IP. Raises Refused."""
    network = find_external_network(snapshot, asker, new.network_id, FloatingIP)
    if not any(subnet.cidr.version == 4 for subnet in network.subnets):
        raise Refused(NetworkWithoutIPv4(network_id=network.id))
    access.check_owner(asker, new.project_id, FloatingIP)
    named = {"address"} if new.address is not None else set[str]()
    access.check_fields(asker.is_admin, Verb.CREATE, FloatingIP, named)
    check_new(snapshot.floating_ips, new.id)
    check_new(snapshot.ports, new.address_port_id)
    port = _address_port(snapshot, network, new)
    fresh = FloatingIP(
        id=new.id,
        project_id=new.project_id,
        description=new.description,
        tags=new.tags,
        created_at=new.created_at,
        network_id=network.id,
        address=port.fixed_ips[0].address,
        address_port_id=port.id,
    )
    made, reads = _with_destination(snapshot, asker, fresh, new.destination)
    return Changes(puts=(port, made), reads=(Owner(Kind.NETWORK, network.id), *reads))


def update_floating_ip(
    snapshot: Snapshot,
    asker: Identity,
    old: FloatingIP,
    new: FloatingIP,
    destination: Destination | None,
    now: datetime,
) -> Changes:
    """Update a floating IP. None as destination keeps the present one. Raises Refused."""
    access.check_own(asker, Verb.UPDATE, old)
    changed, reads = (new, ()) if destination is None else _with_destination(snapshot, asker, new, destination)
    if changed == old:
        return Changes()
    return Changes(puts=(replace(changed, updated_at=now),), reads=reads)


def delete_floating_ip(snapshot: Snapshot, asker: Identity, floating_ip: FloatingIP) -> Changes:
    """Delete a floating IP and its port. Raises Refused."""
    access.check_own(asker, Verb.DELETE, floating_ip)
    return Changes(deletes=(Owner(Kind.FLOATING_IP, floating_ip.id), Owner(Kind.PORT, floating_ip.address_port_id)))


# Address


def _address_port(snapshot: Snapshot, network: Network, new: NewFloatingIP) -> Port:
    mac = choose_mac(snapshot, new.address_port_id)
    holder = AddressHolder(port_id=new.address_port_id, mac=mac, network=network)
    return Port(
        id=new.address_port_id,
        project_id="",
        created_at=new.created_at,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=(_address(snapshot, holder, new),),
        device_id=new.id,
        device_owner=PortUse.FLOATING_IP.value,
    )


def _address(snapshot: Snapshot, holder: AddressHolder, new: NewFloatingIP) -> FixedIP:
    if new.address is not None and new.address.version != 4:
        raise Refused(AddressNotIPv4(address=new.address))
    anywhere = new.subnet_id is None and new.address is None
    asked = None if anywhere else (AddressRequest(subnet_id=new.subnet_id, address=new.address),)
    of_family = [each for each in choose_fixed_ips(snapshot, holder, asked) if each.address.version == 4]
    if not of_family:
        raise Refused(SubnetWithoutIPv4(subnet_id=new.subnet_id))
    return of_family[0]


# Destination


def _with_destination(
    snapshot: Snapshot, asker: Identity, floating_ip: FloatingIP, destination: Destination
) -> tuple[FloatingIP, tuple[Owner, ...]]:
    """Return the floating IP with the destination, and the documents that the decision depends on. Raises Refused."""
    if destination.port_id is None:
        if destination.fixed_address is not None:
            raise Refused(FixedAddressWithoutPort(address=destination.fixed_address))
        return clear_destination(floating_ip), ()
    port = _port(snapshot, asker, floating_ip, destination.port_id)
    fixed = _choose_fixed_ip(port, destination.fixed_address)
    router = _router(snapshot, asker, floating_ip, port, fixed)
    for other_id in snapshot.port_floating_ips.get(port.id, NO_IDS):
        other = snapshot.floating_ips[other_id]
        same = (other.fixed_address, other.network_id) == (fixed.address, floating_ip.network_id)
        if same and other.id != floating_ip.id:
            raise Refused(DestinationInUse(floating_ip=floating_ip, port_id=port.id, fixed_address=fixed.address))
    changed = replace(floating_ip, port_id=port.id, fixed_address=fixed.address, router_id=router.id)
    read = (Owner(Kind.PORT, port.id), Owner(Kind.ROUTER, router.id), Owner(Kind.NETWORK, port.network_id))
    return changed, read


def _port(snapshot: Snapshot, asker: Identity, floating_ip: FloatingIP, port_id: str) -> Port:
    port = access.find_port(snapshot, asker, port_id)
    if port.project_id != floating_ip.project_id and not asker.is_admin:
        raise Refused(PortNotInProject(port_id=port_id))
    if port.use is not PortUse.VIP and port.device_owner.startswith(OWNERS_WITHOUT_FLOATING_IP):
        raise Refused(PortCannotHaveFloatingIP(port_id=port_id))
    return port


def _choose_fixed_ip(port: Port, wanted: IPAddress | None) -> FixedIP:
    """Return the port's fixed address that is meant. Raises Refused."""
    if wanted is not None and wanted.version != 4:
        raise Refused(FixedAddressNotIPv4(address=wanted))
    found = [each for each in port.fixed_ips if each.address.version == 4 and wanted in (None, each.address)]
    if wanted is not None and not found:
        raise Refused(PortLacksFixedAddress(port_id=port.id, address=wanted))
    if not found:
        raise Refused(PortWithoutIPv4(port_id=port.id))
    if len(found) > 1:
        raise Refused(PortWithManyIPv4(port_id=port.id))
    return found[0]


def _router(snapshot: Snapshot, asker: Identity, floating_ip: FloatingIP, port: Port, fixed: FixedIP) -> Router:
    """Return a router that joins both networks and serves the floating IP's project. Its gateway must have an address,
    otherwise it receives nothing from the external network. The gateway of the port's subnet is preferred. For an
    administrator, another project's router is accepted if there is no other. Raises Refused."""
    found = [
        snapshot.routers[router_id]
        for router_id in sorted(snapshot.network_routers.get(port.network_id, NO_IDS))
        if router_id in snapshot.network_gateways.get(floating_ip.network_id, NO_IDS)
        and has_working_gateway(snapshot, snapshot.routers[router_id])
        and _addresses(snapshot, router_id, fixed.subnet_id)
    ]
    balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port.id, ""))
    if balancer is not None:  # load balancers exist only on routers of their own project
        found = [router for router in found if Topology(snapshot).is_exclusive_to(router.id, balancer.project_id)]
    own = [router for router in found if serves_project(snapshot, router, port, floating_ip.project_id)]
    found = own or (found if asker.is_admin else [])
    if not found:
        raise Refused(
            NoRouterToExternalNetwork(network_id=floating_ip.network_id, subnet_id=fixed.subnet_id, port_id=port.id)
        )
    subnet = find_subnet(snapshot.networks[port.network_id], fixed.subnet_id)
    gateway = subnet.gateway if subnet else None
    return next((each for each in found if gateway in _addresses(snapshot, each.id, fixed.subnet_id)), found[0])


def _addresses(snapshot: Snapshot, router_id: str, subnet_id: str) -> list[IPAddress]:
    ports = (snapshot.ports[port_id] for port_id in snapshot.router_interfaces.get(router_id, NO_IDS))
    return [fixed.address for port in ports for fixed in port.fixed_ips if fixed.subnet_id == subnet_id]
