"""Unmanaged rows as documents of the model. Pure function of rows and evidence from related rows.

* Neutron's ids are in the names of switches, routers and ports, and in a floating IP's external_ids. Names of LXD and
  Incus may be reused, so ids are derived from the rows' UUIDs.

* Missing information defaults to the least access. A network without a known project belongs to no project.

* No network is `external` here: a VIP on an outside network uses the hidden router of its switch, because the gateway
  is not managed by Fairlead.

* A router port is identified by its connection, not by its name, so its router exists too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid5

from fairlead.dataplane.ovn_tables import unmanaged_name
from fairlead.drivers.ovn.unmanaged.evidence import (
    AddressInSubnet,
    Evidence,
    Localnet,
    Malformed,
    OwnerProject,
    PortProject,
    PresumedSubnetId,
    RouterEnd,
    RouterInterface,
    SubnetId,
    SubnetNextHop,
    interfaces_of,
    read_interfaces,
)
from fairlead.drivers.ovn.unmanaged.rows import DhcpOptionsRow, NatRow, RouteRow, RouterRow, SwitchPortRow, SwitchRow
from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address, parse_network
from fairlead.model.documents.network import (
    ExternalGateway,
    FixedIP,
    PortUse,
    Segment,
    SegmentType,
    Subnet,
    sort_routes,
    subnet_with,
)
from fairlead.model.documents.network import Route as Leads
from fairlead.model.documents.sanitize import shorten
from fairlead.model.documents.unmanaged import (
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedPort,
    UnmanagedRouter,
    Writer,
)

NAMESPACE = UUID("5b3df7f0-1f5c-5d34-8a3e-5a0e9b0c41d6")
"""Namespace of derived ids."""
UNKNOWN_CREATION_TIME = datetime(1970, 1, 1, tzinfo=UTC)
"""Creation time, which no row contains."""
DEFAULT_MTU = 1442
"""Default MTU in bytes: 1500 of the underlay less 58 of geneve over IPv4."""
MAX_SUBNETS = 500
"""Maximum subnets of one network."""
MAX_ROUTES = 500
"""Maximum routes of one router."""
MAX_NAME_LENGTH = 255
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_IS_UUID = re.compile(_UUID)
_NEUTRON = "neutron-"
_LXD = re.compile(r"(?:lxd|incus)-net[0-9]{1,20}-(?:ls-int|ls-ext|lr)")
_INSTANCE = re.compile(rf"(?:lxd|incus)-net[0-9]{{1,20}}-instance-({_UUID})-.*")
_MAC = re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")
_ROUTER_DEVICE_OWNERS = frozenset({PortUse.ROUTER_INTERFACE.value, PortUse.ROUTER_GATEWAY.value})


@dataclass(frozen=True, slots=True)
class RowIdentity:
    id: str
    writer: Writer
    row: str


def identify(name: str, uuid: str) -> RowIdentity | None:
    """Identify a switch or router; None for other writers. Raises Malformed."""
    if name.startswith(_NEUTRON):
        return RowIdentity(_read_id(name.removeprefix(_NEUTRON)), Writer.NEUTRON, unmanaged_name(name, uuid))
    if _LXD.fullmatch(name):
        writer = Writer.INCUS if name.startswith(Writer.INCUS.value) else Writer.LXD
        return RowIdentity(derived_id(uuid), writer, unmanaged_name(name, uuid))
    return None


def derived_id(*parts: str) -> str:
    return str(uuid5(NAMESPACE, "/".join(parts)))


def _read_id(text: str) -> str:
    if not _IS_UUID.fullmatch(text):
        raise Malformed(f"'{text}' is not a UUID")
    return text


def _clean(text: str) -> str:
    return text if len(text) <= MAX_NAME_LENGTH and text.isprintable() else shorten(text, MAX_NAME_LENGTH)


# Networks


def check_options(row: DhcpOptionsRow) -> None:
    """Check DHCP options. Raises Malformed."""
    try:
        parse_network(row.cidr)
    except ValueError as error:
        raise Malformed(str(error)) from None
    if row.router:
        _parse_address(row.router)


def network_document(
    identity: RowIdentity, switch: SwitchRow, evidence: Evidence, options: Sequence[DhcpOptionsRow]
) -> UnmanagedNetwork:
    """Build a network. `options` are its readable DHCP options."""
    project_id = _only_project(evidence)
    return UnmanagedNetwork(
        id=identity.id,
        project_id=project_id,
        name=_clean(switch.title or switch.name),
        created_at=UNKNOWN_CREATION_TIME,
        mtu=_read_mtu([switch.mtu, *(each.mtu for each in options)]),
        shared=any(used.project_id != project_id for used in evidence.all_of(PortProject)),
        segment=_segment(evidence),
        subnets=tuple(_subnets(identity, project_id, evidence, options)),
        row=identity.row,
        writer=identity.writer,
    )


def _only_project(evidence: Evidence) -> str:
    """Return the network's project: that of Neutron's metadata port, or the common one of all its ports, or ""."""
    owners = {trace.project_id for trace in evidence.all_of(OwnerProject)} or {
        trace.project_id for trace in evidence.all_of(PortProject)
    }
    return _clean(owners.pop()) if len(owners) == 1 else ""


def _read_mtu(texts: Iterable[str]) -> int:
    return next((int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 6), DEFAULT_MTU)


def _segment(evidence: Evidence) -> Segment | None:
    wires = sorted(evidence.all_of(Localnet), key=lambda wire: (wire.physical_network, wire.tag or 0))
    if not wires:
        return None
    wire = wires[0]
    kind = SegmentType.FLAT if wire.tag is None else SegmentType.VLAN
    return Segment(type=kind, physical_network=_clean(wire.physical_network), id=wire.tag)


def _subnets(
    identity: RowIdentity, project_id: str, evidence: Evidence, options: Sequence[DhcpOptionsRow]
) -> Iterator[Subnet]:
    served = {parse_network(each.cidr): each for each in sorted(options, key=lambda each: each.subnet_id, reverse=True)}
    cidrs = sorted({*served, *(on.cidr for on in evidence.all_of(AddressInSubnet))}, key=_in_order)[:MAX_SUBNETS]
    ids = _subnet_ids(evidence, served)
    gateways = _gateways(evidence, served, ids)
    for cidr in cidrs:
        yield Subnet(
            id=ids.get(cidr) or derived_id(identity.id, str(cidr)),
            project_id=project_id,
            created_at=UNKNOWN_CREATION_TIME,
            cidr=cidr,
            gateway=gateways.get(cidr),
            allocation_pools=(),
            enable_dhcp=cidr in served,
        )


def _in_order(cidr: IPNetwork) -> tuple[int, int, int]:
    return cidr.version, int(cidr.network_address), cidr.prefixlen


def _subnet_ids(evidence: Evidence, served: Mapping[IPNetwork, DhcpOptionsRow]) -> dict[IPNetwork, str]:
    """Map subnets to ids from rows. Presumed ids do not override explicit ones, and ids are unique."""
    found = {cidr: each.subnet_id for cidr, each in served.items() if _IS_UUID.fullmatch(each.subnet_id)}
    taken = set(found.values())
    for trace in (*_by_id(evidence.all_of(SubnetId)), *_by_id(evidence.all_of(PresumedSubnetId))):
        if trace.cidr not in found and trace.subnet_id not in taken and _IS_UUID.fullmatch(trace.subnet_id):
            found[trace.cidr] = trace.subnet_id
            taken.add(trace.subnet_id)
    return found


def _by_id(traces: Iterable[SubnetId | PresumedSubnetId]) -> list[SubnetId | PresumedSubnetId]:
    return sorted(traces, key=lambda trace: (trace.subnet_id, _in_order(trace.cidr)))


def _gateways(
    evidence: Evidence, served: Mapping[IPNetwork, DhcpOptionsRow], ids: Mapping[IPNetwork, str]
) -> dict[IPNetwork, IPAddress]:
    """Return the gateways, from DHCP options, a router's default route, or the lowest address of a router."""
    found = dict[IPNetwork, IPAddress]()
    for interface in sorted(evidence.all_of(RouterInterface), key=lambda each: int(each.address), reverse=True):
        found[interface.cidr] = interface.address
    by_id = {subnet_id: cidr for cidr, subnet_id in ids.items()}
    for leaves in sorted(evidence.all_of(SubnetNextHop), key=lambda each: int(each.address), reverse=True):
        cidr = by_id.get(leaves.subnet_id)
        if cidr is not None and leaves.address in cidr:
            found[cidr] = leaves.address
    for cidr, each in served.items():
        if each.router:
            found[cidr] = _parse_address(each.router)
    return found


def _parse_address(text: str) -> IPAddress:
    try:
        return parse_address(text)
    except ValueError as error:
        raise Malformed(str(error)) from None


# Ports


def port_document(
    uuid: str, row: SwitchPortRow, network: UnmanagedNetwork, end: RouterEnd | None, router_id: str | None
) -> UnmanagedPort | None:
    """Build a port; None for a localnet port, or a router port without a router. Raises Malformed."""
    if row.type == "localnet" or (row.device_owner in _ROUTER_DEVICE_OWNERS and router_id is None):
        return None
    if row.type == "router" and router_id is None:
        return None
    if network.writer is Writer.NEUTRON and not _IS_UUID.fullmatch(row.name):
        raise Malformed(f"port name '{row.name}' is not a UUID")
    addresses = _addresses(row, end, network)
    return UnmanagedPort(
        id=row.name if network.writer is Writer.NEUTRON else derived_id(uuid),
        project_id=_clean(row.project_id),
        name=_clean(row.title or row.name),
        created_at=UNKNOWN_CREATION_TIME,
        network_id=network.id,
        mac_address=_mac(row, end),
        fixed_ips=tuple(_fixed_ips(addresses, network)),
        admin_state_up=row.enabled,
        device_id=_clean(router_id if router_id is not None else row.device_id or _instance(row.name)),
        device_owner=_device_owner(row, end),
        host=_clean(row.host or row.chassis.partition(",")[0] or row.lxd_location or row.incus_location),
        port_security_enabled="unknown" not in row.addresses,
        row=unmanaged_name(row.name, uuid),
        writer=network.writer,
    )


def _device_owner(row: SwitchPortRow, end: RouterEnd | None) -> str:
    if end is None:
        return _clean(row.device_owner)
    return (PortUse.ROUTER_GATEWAY if end.is_gateway else PortUse.ROUTER_INTERFACE).value


def _instance(name: str) -> str:
    found = _INSTANCE.fullmatch(name)
    return found[1] if found else ""


def _mac(row: SwitchPortRow, end: RouterEnd | None) -> str:
    """Return the MAC; "" if no row has it: a port without port security in subnets without DHCP."""
    if end is not None:
        return _read_mac(end.port.mac)
    texts = (text.split() for text in (row.dynamic, *sorted(row.addresses)))
    return next((words[0].lower() for words in texts if words and _MAC.fullmatch(words[0].lower())), "")


def _read_mac(text: str) -> str:
    if not _MAC.fullmatch(text.lower()):
        raise Malformed(f"'{text}' is not a MAC address")
    return text.lower()


def _addresses(
    row: SwitchPortRow, end: RouterEnd | None, network: UnmanagedNetwork
) -> list[tuple[IPAddress, IPNetwork | None]]:
    """Return the addresses with their subnets, if known. In Neutron's order, because the first is the primary one."""
    if network.writer is Writer.NEUTRON and (row.cidrs or end is None):
        return [*read_interfaces(row.cidrs.split())]
    if end is not None:
        return [*interfaces_of(end.port)]
    texts = row.dynamic or next(iter(sorted(text for text in row.addresses if text != "unknown")), "")
    return [(_parse_address(text), None) for text in texts.split()[1:] if text != "dynamic"]


def _fixed_ips(addresses: Iterable[tuple[IPAddress, IPNetwork | None]], network: UnmanagedNetwork) -> Iterator[FixedIP]:
    by_cidr = {subnet.cidr: subnet for subnet in network.subnets}
    for address, cidr in addresses:
        subnet = subnet_with(network, address) if cidr is None else by_cidr.get(cidr)
        if subnet is not None:
            yield FixedIP(subnet_id=subnet.id, address=address)


# Routers and floating IPs


def router_document(
    identity: RowIdentity, row: RouterRow, ports: Sequence[UnmanagedPort], routes: Iterable[RouteRow], *, snat: bool
) -> UnmanagedRouter:
    """Build a router. `ports` are its known ports. Of several gateways the first is used. Raises Malformed."""
    gateways = sorted((port for port in ports if port.use is PortUse.ROUTER_GATEWAY), key=lambda port: port.id)
    projects = {port.project_id for port in ports if port.use is PortUse.ROUTER_INTERFACE}
    return UnmanagedRouter(
        id=identity.id,
        project_id=projects.pop() if len(projects) == 1 else "",
        name=_clean(row.title or row.name),
        created_at=UNKNOWN_CREATION_TIME,
        admin_state_up=row.enabled,
        routes=sort_routes(_static_routes(routes)),
        gateway=_gateway(gateways[0], snat=snat) if gateways else None,
        row=identity.row,
        writer=identity.writer,
    )


def _gateway(port: UnmanagedPort, *, snat: bool) -> ExternalGateway:
    return ExternalGateway(network_id=port.network_id, port_id=port.id, enable_snat=snat)


def _static_routes(routes: Iterable[RouteRow]) -> Iterator[Leads]:
    told = sorted((each for each in routes if not each.is_gateway), key=lambda each: (each.prefix, each.nexthop))
    for route in told[:MAX_ROUTES]:
        try:
            yield Leads(destination=parse_network(route.prefix), nexthop=parse_address(route.nexthop))
        except ValueError:
            continue  # forms of OVN only: `discard`, a prefix without its length


def floating_document(
    uuid: str, row: NatRow, router: UnmanagedRouter, port: UnmanagedPort | None
) -> UnmanagedFloatingIP:
    """Build a floating IP, unassociated if its port or fixed address does not exist. Raises Malformed."""
    fixed = _parse_address(row.logical_ip)
    leads = port is not None and any(each.address == fixed for each in port.fixed_ips)
    return UnmanagedFloatingIP(
        id=_read_id(row.floating_ip_id),
        project_id=port.project_id if port is not None else "",
        created_at=UNKNOWN_CREATION_TIME,
        network_id=_read_id(row.network_id),
        address=_parse_address(row.external_ip),
        address_port_id=derived_id(uuid),
        port_id=port.id if port is not None and leads else None,
        fixed_address=fixed if leads else None,
        router_id=router.id if leads else None,
        row=unmanaged_name(row.floating_ip_id, uuid),
        writer=router.writer,
    )
