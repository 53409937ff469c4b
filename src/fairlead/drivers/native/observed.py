"""All managed rows in the kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.dataplane.native import HostTunnel, LocalMember, LocalMemberAddress, NativeRow, Service, Vip
from fairlead.dataplane.rows import Key
from fairlead.drivers.native.nftables.elements import ElementChanges, Elements, Shape, read_elements
from fairlead.drivers.native.nftables.encoding import (
    ByShape,
    Clients,
    Numbers,
    TargetList,
    address,
    client_elements,
    hairpins,
    own_elements,
    pattern_elements,
    queried_key,
    read_clients,
    read_patterns,
    read_services,
    read_targets,
    service_elements,
    target_elements,
    vip_elements,
    word,
)
from fairlead.drivers.native.nftables.ruleset import FAMILIES, PATTERNS, SHAPES, TUNNEL_OWNERS
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.drivers.native.shared_values import SharedValues
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.conntrack_flush import TrackedConnection

OwnRows = dict[Key, NativeRow]


@dataclass(slots=True)
class KernelState:
    """State of the kernel, updated with each applied change."""

    handle: bytes
    """Handle of the table."""
    owners: dict[Owner, OwnRows] = field(default_factory=dict)
    vips: dict[IPAddress, Owner] = field(default_factory=dict)
    tunnels: dict[int, Owner] = field(default_factory=dict)
    patterns: SharedValues[bytes] = field(default_factory=SharedValues)
    target_lists: SharedValues[TargetList] = field(default_factory=SharedValues)
    lists: SharedValues[Clients] = field(default_factory=SharedValues)

    def numbers(self, key: Key) -> Numbers:
        return Numbers(self.patterns.number_of(key), self.target_lists.number_of(key), self.lists.number_of(key))


def read(ground: Prerequisites) -> KernelState:
    """Read all rows, and remove incomplete and unknown elements. Raises Interrupted, Unavailable and OSError."""
    found = KernelState(ground.handle())
    tables = {shape: read_elements(ground.netlink, ground.table, shape) for shape in SHAPES}
    _read_hosts(ground, tables, found)
    _read_vips(ground, tables, found)
    _read_services(tables, found)
    stray = ElementChanges(ground.table)
    wanted = _elements(found)
    for shape, elements in tables.items():
        stray.remove(shape, elements.keys() - wanted.get(shape, {}).keys())
    for family in FAMILIES.values():
        noted = read_elements(ground.netlink, ground.table, family.queried).keys()
        stray.remove(family.queried, noted - {queried_key(key) for key in wanted.get(family.service, {})})
    ground.transact(stray)
    return found


def forwards_to(found: KernelState, cut: TrackedConnection) -> bool:
    """Whether a row leads connections to this member on this host."""
    owner = found.vips.get(cut.address)
    key = "Service", str(cut.address), cut.transport.value, str(cut.port)
    row = found.owners.get(owner, {}).get(key) if owner is not None else None
    return isinstance(row, Service) and LocalMember(address=cut.member, port=cut.member_port) in row.targets


@dataclass(slots=True, kw_only=True)
class MissingParts:
    """Missing parts of rows other than elements."""

    has_prerequisites: bool
    """Whether devices, sysctls and rules are in place."""
    tunnels: list[HostTunnel]
    vips: list[IPAddress]
    received_vips: list[IPAddress]

    def __bool__(self) -> bool:
        return not self.has_prerequisites or bool(self.tunnels or self.vips or self.received_vips)


def find_missing(found: KernelState, ground: Prerequisites) -> MissingParts:
    """Find missing parts. Raises Unavailable and OSError."""
    rows = [row for rows in found.owners.values() for row in rows.values() if isinstance(row, Vip | HostTunnel)]
    ways, held, taken = ground.routing.tunnels(), set(ground.routing.added_vips()), set(ground.routing.received_vips())
    vips = [row for row in rows if isinstance(row, Vip)]
    return MissingParts(
        has_prerequisites=ground.is_complete(),
        tunnels=[row for row in rows if isinstance(row, HostTunnel) and ways.get(row.host) != row.address],
        vips=[row.address for row in vips if row.is_local and row.address not in held],
        received_vips=[row.address for row in vips if row.is_received and row.address not in taken],
    )


def restore(missing: MissingParts, found: KernelState, ground: Prerequisites) -> bool:
    """Restore missing parts from the known rows.

    Returns whether nothing is missing any more: the host itself may have been given the address of a VIP. Raises
    DriverError and OSError.
    """
    if not missing.has_prerequisites:
        ground.install()
    for way in missing.tunnels:
        ground.routing.add_tunnel(way.host, way.address)
    ground.routing.receive(missing.received_vips)
    return not ground.routing.add_vips(missing.vips, found.vips)


def update_source_address(found: KernelState, ground: Prerequisites) -> None:
    """Update the source address for the host's own connections to VIPs. It is no row, because it depends on the host's
    addresses. Raises Unavailable and OSError."""
    vips = (row for rows in found.owners.values() for row in rows.values() if isinstance(row, Vip))
    ground.routing.update_own_routes([row.address for row in vips if row.is_local or row.is_received], found.vips)


def _read_hosts(ground: Prerequisites, tables: Mapping[Shape, Elements], found: KernelState) -> None:
    ways = ground.routing.tunnels()
    for key, name in tables[TUNNEL_OWNERS].items():
        host = int.from_bytes(key, "little")
        if (to := ways.get(host)) is not None and _put(found, name, HostTunnel(host=host, address=to)):
            del ways[host]
    for host in ways:
        ground.routing.remove_tunnel(host)
    for family in FAMILIES.values():
        for key, name in tables[family.own].items():
            _put(found, name, LocalMemberAddress(address=address(key)))


def _read_vips(ground: Prerequisites, tables: Mapping[Shape, Elements], found: KernelState) -> None:
    held, taken = set(ground.routing.added_vips()), set(ground.routing.received_vips())
    ending = list[IPAddress]()
    for family in FAMILIES.values():
        for key, name in tables[family.vips].items():
            where = address(key)
            vip = Vip(address=where, is_local=where in held, is_received=where in taken - held)
            if _put(found, name, vip) and (vip.is_local or vip.is_received):
                ending.append(vip.address)
    ground.routing.update_own_routes(ending, found.vips)
    ground.routing.remove_vips(sorted(held - found.vips.keys(), key=str))
    ground.routing.stop_receiving(sorted(taken - (found.vips.keys() - held), key=str))


def _read_services(tables: Mapping[Shape, Elements], found: KernelState) -> None:
    serving = read_targets(tables)
    for row, numbers in read_services(tables, read_patterns(tables[PATTERNS]), serving, read_clients(tables)):
        if (owner := found.vips.get(row.vip)) is None:
            continue
        found.owners[owner][row.key] = row
        if row.slots:
            found.patterns.add_existing(row.slots, numbers.slots, row.key)
        if row.targets:
            found.target_lists.add_existing(serving[numbers.targets].target_list, numbers.targets, row.key)
        if row.clients is not None:
            found.lists.add_existing(row.clients, numbers.clients, row.key)


def _put(found: KernelState, name: bytes, row: HostTunnel | LocalMemberAddress | Vip) -> bool:
    """Add a row. Returns False for an element without a valid owner, which was added manually."""
    try:
        owner = Owner.parse(name.decode())
    except ValueError:
        return False
    found.owners.setdefault(owner, {})[row.key] = row
    match row:
        case HostTunnel():
            found.tunnels[row.host] = owner
        case Vip():
            found.vips[row.address] = owner
    return True


def _elements(found: KernelState) -> ByShape:
    """Return the elements of all rows."""
    whole: ByShape = {TUNNEL_OWNERS: {word(host): b"" for host in found.tunnels}, PATTERNS: {}}
    parts = [hairpins(rows.values()) for rows in found.owners.values()]
    for owner, rows in found.owners.items():
        parts += (row_elements(row, owner, found.numbers(row.key)) for row in rows.values())
    parts += (target_elements(number, served) for served, number in found.target_lists.numbers.items())
    parts += (client_elements(number, clients) for clients, number in found.lists.numbers.items())
    for slots, number in found.patterns.numbers.items():
        whole[PATTERNS].update(pattern_elements(number, slots))
    for part in parts:
        for shape, elements in part.items():
            whole.setdefault(shape, {}).update(elements)
    return whole


def row_elements(row: NativeRow, owner: Owner, numbers: Numbers) -> ByShape:
    """Return the elements of this row alone."""
    match row:
        case HostTunnel():
            return {TUNNEL_OWNERS: {word(row.host): str(owner).encode()}}
        case LocalMemberAddress():
            return own_elements(row, str(owner))
        case Vip():
            return vip_elements(row, str(owner))
        case Service():
            return service_elements(row, numbers)
