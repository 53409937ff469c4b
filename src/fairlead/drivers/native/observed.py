"""All managed rows in the kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead.dataplane.native import Here, NativeRow, Own, Service, Vip, Way
from fairlead.dataplane.rows import Key
from fairlead.drivers.native.nftables.elements import Changes, Elements, Shape, read_elements
from fairlead.drivers.native.nftables.encoding import (
    ByShape,
    Clients,
    Numbers,
    Served,
    address,
    asked_key,
    client_elements,
    hairpins,
    own_elements,
    pattern_elements,
    read_clients,
    read_patterns,
    read_served,
    read_services,
    served_elements,
    service_elements,
    vip_elements,
    word,
)
from fairlead.drivers.native.nftables.ruleset import FAMILIES, PATTERNS, SHAPES, WAYS
from fairlead.drivers.native.prerequisites import Ground
from fairlead.drivers.native.shared import Shared
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.conntrack_flush import Cut

OwnRows = dict[Key, NativeRow]


@dataclass(slots=True)
class Found:
    """State of the kernel, updated with each applied change."""

    handle: bytes
    """Handle of the table."""
    owners: dict[Owner, OwnRows] = field(default_factory=dict)
    vips: dict[IPAddress, Owner] = field(default_factory=dict)
    ways: dict[int, Owner] = field(default_factory=dict)
    patterns: Shared[bytes] = field(default_factory=Shared)
    served: Shared[Served] = field(default_factory=Shared)
    lists: Shared[Clients] = field(default_factory=Shared)

    def numbers(self, key: Key) -> Numbers:
        return Numbers(self.patterns.of(key), self.served.of(key), self.lists.of(key))


def read(ground: Ground) -> Found:
    """Read all rows, and remove incomplete and unknown elements. Raises Interrupted, Unavailable and OSError."""
    found = Found(ground.handle())
    tables = {shape: read_elements(ground.netlink, ground.table, shape) for shape in SHAPES}
    _read_hosts(ground, tables, found)
    _read_vips(ground, tables, found)
    _read_services(tables, found)
    stray = Changes(ground.table)
    wanted = _elements(found)
    for shape, elements in tables.items():
        stray.remove(shape, elements.keys() - wanted.get(shape, {}).keys())
    for family in FAMILIES.values():
        noted = read_elements(ground.netlink, ground.table, family.asked).keys()
        stray.remove(family.asked, noted - {asked_key(key) for key in wanted.get(family.service, {})})
    ground.transact(stray)
    return found


def leads_to(found: Found, cut: Cut) -> bool:
    """Whether a row leads connections to this member on this host."""
    owner = found.vips.get(cut.address)
    key = "Service", str(cut.address), cut.transport.value, str(cut.port)
    row = found.owners.get(owner, {}).get(key) if owner is not None else None
    return isinstance(row, Service) and Here(address=cut.member, port=cut.member_port) in row.targets


@dataclass(slots=True, kw_only=True)
class Missing:
    """Missing parts of rows other than elements."""

    stands: bool
    """Whether devices, sysctls and rules are in place."""
    ways: list[Way]
    held: list[IPAddress]
    taken: list[IPAddress]

    def __bool__(self) -> bool:
        return not self.stands or bool(self.ways or self.held or self.taken)


def find_missing(found: Found, ground: Ground) -> Missing:
    """Find missing parts. Raises Unavailable and OSError."""
    rows = [row for rows in found.owners.values() for row in rows.values() if isinstance(row, Vip | Way)]
    ways, held, taken = ground.routing.ways(), set(ground.routing.held()), set(ground.routing.taken())
    vips = [row for row in rows if isinstance(row, Vip)]
    return Missing(
        stands=ground.stands(),
        ways=[row for row in rows if isinstance(row, Way) and ways.get(row.host) != row.address],
        held=[row.address for row in vips if row.held and row.address not in held],
        taken=[row.address for row in vips if row.taken and row.address not in taken],
    )


def mend(missing: Missing, found: Found, ground: Ground) -> bool:
    """Restore missing parts from the known rows.

    Returns whether nothing is missing any more: the host itself may have been given the address of a VIP. Raises
    DriverError and OSError.
    """
    if not missing.stands:
        ground.install()
    for way in missing.ways:
        ground.routing.add_way(way.host, way.address)
    ground.routing.take(missing.taken)
    return not ground.routing.hold(missing.held, found.vips)


def follow_addresses(found: Found, ground: Ground) -> None:
    """Update the source address for the host's own connections to VIPs. It is no row, because it depends on the host's
    addresses. Raises Unavailable and OSError."""
    vips = (row for rows in found.owners.values() for row in rows.values() if isinstance(row, Vip))
    ground.routing.lead_own_anew([row.address for row in vips if row.held or row.taken], found.vips)


def _read_hosts(ground: Ground, tables: Mapping[Shape, Elements], found: Found) -> None:
    ways = ground.routing.ways()
    for key, name in tables[WAYS].items():
        host = int.from_bytes(key, "little")
        if (to := ways.get(host)) is not None and _put(found, name, Way(host=host, address=to)):
            del ways[host]
    for host in ways:
        ground.routing.remove_way(host)
    for family in FAMILIES.values():
        for key, name in tables[family.own].items():
            _put(found, name, Own(address=address(key)))


def _read_vips(ground: Ground, tables: Mapping[Shape, Elements], found: Found) -> None:
    held, taken = set(ground.routing.held()), set(ground.routing.taken())
    ending = list[IPAddress]()
    for family in FAMILIES.values():
        for key, name in tables[family.vips].items():
            where = address(key)
            vip = Vip(address=where, held=where in held, taken=where in taken - held)
            if _put(found, name, vip) and (vip.held or vip.taken):
                ending.append(vip.address)
    ground.routing.lead_own_anew(ending, found.vips)
    ground.routing.leave(sorted(held - found.vips.keys(), key=str))
    ground.routing.release(sorted(taken - (found.vips.keys() - held), key=str))


def _read_services(tables: Mapping[Shape, Elements], found: Found) -> None:
    serving = read_served(tables)
    for row, numbers in read_services(tables, read_patterns(tables[PATTERNS]), serving, read_clients(tables)):
        if (owner := found.vips.get(row.vip)) is None:
            continue
        found.owners[owner][row.key] = row
        if row.slots:
            found.patterns.found(row.slots, numbers.slots, row.key)
        if row.targets:
            found.served.found(serving[numbers.served].served, numbers.served, row.key)
        if row.clients is not None:
            found.lists.found(row.clients, numbers.clients, row.key)


def _put(found: Found, name: bytes, row: Way | Own | Vip) -> bool:
    """Add a row. Returns False for an element without a valid owner, which was added manually."""
    try:
        owner = Owner.parse(name.decode())
    except ValueError:
        return False
    found.owners.setdefault(owner, {})[row.key] = row
    match row:
        case Way():
            found.ways[row.host] = owner
        case Vip():
            found.vips[row.address] = owner
    return True


def _elements(found: Found) -> ByShape:
    """Return the elements of all rows."""
    whole: ByShape = {WAYS: {word(host): b"" for host in found.ways}, PATTERNS: {}}
    parts = [hairpins(rows.values()) for rows in found.owners.values()]
    for owner, rows in found.owners.items():
        parts += (row_elements(row, owner, found.numbers(row.key)) for row in rows.values())
    parts += (served_elements(number, served) for served, number in found.served.numbers.items())
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
        case Way():
            return {WAYS: {word(row.host): str(owner).encode()}}
        case Own():
            return own_elements(row, str(owner))
        case Vip():
            return vip_elements(row, str(owner))
        case Service():
            return service_elements(row, numbers)
