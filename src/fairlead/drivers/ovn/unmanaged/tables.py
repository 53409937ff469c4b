"""Rows of other managers in OVN, and the documents (networks, ports, routers) that are built from them: finds which
documents to rebuild after a row changes. No I/O.

An event only identifies the changed rows. Dependent documents are recorded, and rebuilt from the state after the whole
transaction. So the documents do not depend on the order of events, and equal those of a fresh read.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from fairlead.drivers.ovn.unmanaged.documents import (
    RowIdentity,
    check_options,
    floating_document,
    identify,
    network_document,
    port_document,
    router_document,
)
from fairlead.drivers.ovn.unmanaged.evidence import (
    AddressInSubnet,
    Evidence,
    Malformed,
    RouterEnd,
    is_gateway,
    read_address,
    traces_of_port,
)
from fairlead.drivers.ovn.unmanaged.links import Key, Links, RowIndex
from fairlead.drivers.ovn.unmanaged.registry import Registry
from fairlead.drivers.ovn.unmanaged.rows import (
    TABLES,
    BalancerRow,
    DhcpOptionsRow,
    GlobalRow,
    NatRow,
    RouteRow,
    RouterPortRow,
    RouterRow,
    SwitchPortRow,
    SwitchRow,
    UnmanagedRow,
    read_held,
    read_row,
)
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sanitize import shorten
from fairlead.model.documents.unmanaged import (
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedObject,
    UnmanagedPort,
    UnmanagedRouter,
    Writer,
)
from fairlead.runtime.steps import Steps

SWITCH, PORT, ROUTER, ROUTER_PORT = "Logical_Switch", "Logical_Switch_Port", "Logical_Router", "Logical_Router_Port"
NAT, ROUTE, DHCP = "NAT", "Logical_Router_Static_Route", "DHCP_Options"
GLOBAL = "NB_Global"
MAX_REASON_LENGTH = 100
_KINDS = {SWITCH: Kind.NETWORK, PORT: Kind.PORT, ROUTER: Kind.ROUTER, NAT: Kind.FLOATING_IP}
"""Tables with one document per row."""
_LEADS_TO, _TO_PORT, _ON_NETWORK = "leads to", "to port", "on network"
_Make: TypeAlias = Callable[[str], UnmanagedObject | None]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A port with everything that determines its evidence about the network."""

    switch: str
    row: SwitchPortRow
    end: RouterEnd | None


class UnmanagedTables:
    """Unmanaged tables. Call `take` with changes, then `settle`, which updates the documents in `registry`."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.external_addresses = ExternalAddresses()
        self.unreadable: dict[str, str] = {}
        """UUID of a row -> why it is skipped."""
        self.reasons: set[str] = set()
        """Unreported reasons."""
        self._rows: dict[str, dict[str, UnmanagedRow]] = {table: {} for table in TABLES}
        self._links = {held: Links() for table in TABLES.values() for held in table.holds.values()}
        """Relations, by the table of the children."""
        self._index = RowIndex()
        self._placed: dict[str, _Placed] = {}
        self._evidence: dict[str, Evidence] = {}
        """Evidence by UUID of the switch."""
        self._moved: set[str] = set()
        """Ports with a possibly changed switch or router."""
        self._due: dict[str, set[str]] = {table: set() for table in _KINDS}
        """UUIDs of rows with documents to rebuild."""

    @property
    def answers_for_unplugged(self) -> bool:
        """Whether OVN answers ARP for ports without a chassis (ovn-nb(5), ignore_lsp_down), which is its default."""
        rows = cast(Mapping[str, GlobalRow], self._rows[GLOBAL])
        return any(row.ignore_lsp_down != "false" for row in rows.values())

    def take(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> Steps[None]:
        for table, changes in tables.items():
            for uuid in changes:
                yield from self._take(table, uuid, changes[uuid])
                yield

    def settle(self) -> Steps[None]:
        moved, self._moved = self._moved, set()  # a new set, because a set that was large stays slow to iterate
        for uuid in moved:
            self._place(uuid)
            yield
        yield from self._renew(SWITCH, self._network)
        yield from self._renew(PORT, self._port)
        yield from self._renew(ROUTER, self._router)
        yield from self._renew(NAT, self._floating_ip)

    # Contents of rows

    def _take(self, table: str, uuid: str, change: Mapping[str, Json]) -> Steps[None]:
        before = self._rows[table].get(uuid)
        match change:
            case {"initial": columns} | {"insert": columns}:
                self._put(table, uuid, before, read_row(table, TABLES[table].empty, columns))
                yield from self._toggle(table, uuid, columns)
            case {"modify": columns} if before is not None:
                self._put(table, uuid, before, read_row(table, before, columns))
                yield from self._toggle(table, uuid, columns)
            case {"delete": _} if before is not None:
                self._put(table, uuid, before, None)
                for held in TABLES[table].holds.values():
                    for child in tuple(self._links[held].children(uuid)):
                        self._link(held, uuid, child)
                        yield
            case _:
                pass

    def _put(self, table: str, uuid: str, before: UnmanagedRow | None, after: UnmanagedRow | None) -> None:
        if before == after:
            return
        if before is not None:
            self._touch(table, uuid, before)
        if after is None:
            del self._rows[table][uuid]
        else:
            self._rows[table][uuid] = after
        self._index.change(uuid, _keys(before), _keys(after))
        self.external_addresses.change(_external_addresses(before), _external_addresses(after))
        self.unreadable.pop(uuid, None)
        if after is not None:
            self._touch(table, uuid, after)
        if isinstance(after, DhcpOptionsRow) and _switch_of(after):
            self._try(uuid, check_options, after)

    def _toggle(self, table: str, uuid: str, columns: Mapping[str, Json]) -> Steps[None]:
        for held, children in read_held(table, columns):
            for child in children:
                self._link(held, uuid, child)
                yield

    def _link(self, table: str, holder: str, uuid: str) -> None:
        """Change a relation. An unknown child is processed when its row arrives; a deleted one has been."""
        row = self._rows[table].get(uuid)
        if row is not None:
            self._touch(table, uuid, row)
        self._links[table].toggle(holder, uuid)
        if row is not None:
            self._touch(table, uuid, row)

    # Effects of a change

    def _touch(self, table: str, uuid: str, row: UnmanagedRow) -> None:
        holder = self._links[table].holder(uuid) if table in self._links else None
        match row:
            case SwitchRow(name=name):
                self._due[SWITCH].update(self._index.find(SWITCH, name), (uuid,))
            case RouterRow(name=name):
                for each in (*self._index.find(ROUTER, name), uuid):
                    self._due[ROUTER].add(each)
                    self._touch_ends(each)
            case SwitchPortRow():
                self._moved.add(uuid)
            case RouterPortRow(name=name):
                self._moved.update(self._index.find(_LEADS_TO, name))
                self._due[ROUTER].update((holder,) if holder else ())
            case NatRow(floating_ip_id=identity):
                self._due[NAT].update(self._index.find(NAT, identity), (uuid,))
                self._due[ROUTER].update((holder,) if holder and row.type == "snat" else ())
            case RouteRow():
                self._due[ROUTER].update((holder,) if holder else ())
                if holder and row.is_gateway:
                    self._touch_ends(holder)
            case DhcpOptionsRow():
                self._due[SWITCH].update(self._index.find(SWITCH, _switch_of(row)))
            case BalancerRow() | GlobalRow():
                pass

    def _touch_ends(self, router: str) -> None:
        rows = cast(Mapping[str, RouterPortRow], self._rows[ROUTER_PORT])
        for each in self._links[ROUTER_PORT].children(router):
            if each in rows:
                self._moved.update(self._index.find(_LEADS_TO, rows[each].name))

    # Placement of ports

    def _place(self, uuid: str) -> None:
        self._due[PORT].add(uuid)
        old, new = self._placed.pop(uuid, None), self._find_place(uuid)
        if new is not None:
            self._placed[uuid] = new
        if old != new:
            self._count(old, -1)
            self._count(new, 1)

    def _find_place(self, uuid: str) -> _Placed | None:
        row = cast(SwitchPortRow | None, self._rows[PORT].get(uuid))
        switch = self._links[PORT].holder(uuid)
        return None if row is None or switch is None else _Placed(switch, row, self._find_end(row))

    def _find_end(self, row: SwitchPortRow) -> RouterEnd | None:
        found = min(self._index.find(ROUTER_PORT, row.router_port), default=None) if row.type == "router" else None
        router = None if found is None else self._links[ROUTER_PORT].holder(found)
        if found is None or router is None:
            return None
        end = RouterEnd(router=router, port=cast(RouterPortRow, self._rows[ROUTER_PORT][found]))
        if not end.is_gateway:
            return end
        out = sorted((route for route in self._routes(router) if route.is_gateway), key=lambda route: route.nexthop)
        return RouterEnd(router=router, port=end.port, routes=tuple(out))

    def _routes(self, router: str) -> Iterator[RouteRow]:
        rows = cast(Mapping[str, RouteRow], self._rows[ROUTE])
        return (rows[each] for each in self._links[ROUTE].children(router) if each in rows)

    def _count(self, placed: _Placed | None, number: int) -> None:
        if placed is None:
            return
        evidence = self._evidence.setdefault(placed.switch, Evidence())
        if evidence.change(traces_of_port(placed.row, placed.end), number):
            self._due[SWITCH].add(placed.switch)
        if not evidence:
            del self._evidence[placed.switch]
        if placed.end is not None:
            self._due[ROUTER].add(placed.end.router)

    # Documents

    def _renew(self, table: str, make: _Make) -> Steps[None]:
        differing: dict[str, tuple[UnmanagedObject | None, UnmanagedObject | None]] = {}
        due, self._due[table] = self._due[table], set()
        for uuid in due:
            old, new = self.registry.find(uuid), self._try(uuid, make, uuid)
            if old != new:
                differing[uuid] = old, new
            yield
        for uuid in differing:
            self.registry.drop(uuid)
            yield
        for uuid, (old, new) in differing.items():
            if new is not None:
                self.registry.put(uuid, Owner(_KINDS[table], new.id), new)
            self._touch_dependents(uuid, old, new)
            yield

    def _try(
        self, uuid: str, make: Callable[..., UnmanagedObject | None], *arguments: object
    ) -> UnmanagedObject | None:
        self.unreadable.pop(uuid, None)
        try:
            return make(*arguments)
        except Malformed as error:
            reason = self.unreadable[uuid] = shorten(str(error), MAX_REASON_LENGTH)
            self.reasons.add(reason)
            return None

    def _touch_dependents(self, uuid: str, old: UnmanagedObject | None, new: UnmanagedObject | None) -> None:
        """Mark the dependent documents that are built later."""
        for document in (old, new):
            match document:
                case UnmanagedNetwork(id=identity):
                    self._due[NAT].update(self._index.find(_ON_NETWORK, identity))
                case UnmanagedRouter():
                    self._due[NAT].update(self._links[NAT].children(uuid))
                case UnmanagedPort(id=identity):
                    self._due[NAT].update(self._index.find(_TO_PORT, identity))
                    placed = self._placed.get(uuid)
                    self._due[ROUTER].update((placed.end.router,) if placed and placed.end else ())
                case _:
                    pass
        if isinstance(old or new, UnmanagedNetwork) and self._alters_ports(uuid, old, new):
            self._due[PORT].update(self._links[PORT].children(uuid))

    def _alters_ports(self, uuid: str, old: UnmanagedObject | None, new: UnmanagedObject | None) -> bool:
        """Whether ports change with the network. A new subnet without addresses affects none."""
        if not isinstance(old, UnmanagedNetwork) or not isinstance(new, UnmanagedNetwork) or old.id != new.id:
            return True
        before, after = ({subnet.cidr: subnet.id for subnet in each.subnets} for each in (old, new))
        differing = {cidr for cidr in before.keys() | after.keys() if before.get(cidr) != after.get(cidr)}
        evidence = self._evidence.get(uuid, Evidence())
        return any(new.writer is not Writer.NEUTRON or evidence.has(AddressInSubnet(cidr)) for cidr in differing)

    def _identify(self, table: str, uuid: str) -> RowIdentity | None:
        """Identify a switch or router. Raises Malformed."""
        row = cast(SwitchRow | RouterRow | None, self._rows[table].get(uuid))
        identity = None if row is None else identify(row.name, uuid)
        if row is not None and identity is not None and min(self._index.find(table, row.name)) != uuid:
            raise Malformed("another row has the same name")
        return identity

    def _network(self, uuid: str) -> UnmanagedNetwork | None:
        identity = self._identify(SWITCH, uuid)
        if identity is None:
            return None
        row = cast(SwitchRow, self._rows[SWITCH][uuid])
        readable = [each for each in sorted(self._index.find(DHCP, row.name)) if each not in self.unreadable]
        options = [cast(DhcpOptionsRow, self._rows[DHCP][each]) for each in readable]
        return network_document(identity, row, self._evidence.get(uuid, Evidence()), options)

    def _port(self, uuid: str) -> UnmanagedPort | None:
        placed = self._placed.get(uuid)
        network = None if placed is None else self.registry.find(placed.switch)
        if placed is None or not isinstance(network, UnmanagedNetwork):
            return None
        router_id = None if placed.end is None else self._router_id(placed.end.router)
        return port_document(uuid, placed.row, network, placed.end, router_id)

    def _router_id(self, uuid: str) -> str | None:
        try:
            identity = self._identify(ROUTER, uuid)
        except Malformed:
            return None
        return None if identity is None else identity.id

    def _router(self, uuid: str) -> UnmanagedRouter | None:
        identity = self._identify(ROUTER, uuid)
        if identity is None:
            return None
        ends = cast(Mapping[str, RouterPortRow], self._rows[ROUTER_PORT])
        names = (ends[each].name for each in self._links[ROUTER_PORT].children(uuid) if each in ends)
        ports = (self.registry.find(port) for name in names for port in self._index.find(_LEADS_TO, name))
        nats = cast(Mapping[str, NatRow], self._rows[NAT])
        return router_document(
            identity,
            cast(RouterRow, self._rows[ROUTER][uuid]),
            [port for port in ports if isinstance(port, UnmanagedPort)],
            self._routes(uuid),
            snat=any(each in nats and nats[each].type == "snat" for each in self._links[NAT].children(uuid)),
        )

    def _floating_ip(self, uuid: str) -> UnmanagedFloatingIP | None:
        row = cast(NatRow | None, self._rows[NAT].get(uuid))
        holder = self._links[NAT].holder(uuid)
        router = None if holder is None else self.registry.find(holder)
        same = () if row is None else self._index.find(NAT, row.floating_ip_id)
        if row is None or uuid not in same or not isinstance(router, UnmanagedRouter):
            return None
        if min(same) != uuid:
            raise Malformed("another row has the same id")
        documents = self.registry.documents
        if Owner(Kind.NETWORK, row.network_id) not in documents:
            return None
        port = documents.get(Owner(Kind.PORT, row.port_id))
        return floating_document(uuid, row, router, port if isinstance(port, UnmanagedPort) else None)


class ExternalAddresses:
    """External addresses that other writers use, with their number of rows."""

    def __init__(self) -> None:
        self._rows = Counter[IPAddress]()
        self.changed: set[IPAddress] = set()
        """Addresses added or removed since the set was last emptied."""

    def __contains__(self, address: IPAddress) -> bool:
        return address in self._rows

    def change(self, before: Collection[IPAddress], after: Collection[IPAddress]) -> None:
        if before == after:
            return
        self._rows.subtract(before)
        self._rows.update(after)
        for address in {*before, *after}:
            self.changed.add(address)
            if not self._rows[address]:
                del self._rows[address]


def _external_addresses(row: UnmanagedRow | None) -> tuple[IPAddress, ...]:
    """Return a row's external addresses: of a router's gateway, NAT, LXD or Incus load balancers and forwards."""
    texts: tuple[str, ...]
    match row:
        case BalancerRow(listen=listen) if listen:
            texts = (listen,)
        case NatRow(external_ip=outside) if outside:
            texts = (outside,)
        case RouterPortRow(networks=networks) if is_gateway(row):
            texts = tuple(text.partition("/")[0] for text in sorted(networks))
        case _:
            return ()
    return tuple(address for text in texts if (address := read_address(text)) is not None)


def _switch_of(row: DhcpOptionsRow) -> str:
    """Return the switch that DHCP options belong to; "" for those of one port or of unknown writers."""
    if row.port_id:
        return ""
    return f"neutron-{row.network_id}" if row.network_id else row.lxd_switch or row.incus_switch


def _keys(row: UnmanagedRow | None) -> tuple[Key, ...]:
    """Return the keys that a row is indexed by."""
    match row:
        case SwitchRow(name=name):
            return ((SWITCH, name),)
        case RouterRow(name=name):
            return ((ROUTER, name),)
        case RouterPortRow(name=name):
            return ((ROUTER_PORT, name),)
        case SwitchPortRow(type="router", router_port=name):
            return ((_LEADS_TO, name),)
        case NatRow(type="dnat_and_snat", floating_ip_id=identity) if identity:
            return (NAT, identity), (_TO_PORT, row.port_id), (_ON_NETWORK, row.network_id)
        case DhcpOptionsRow() if _switch_of(row):
            return ((DHCP, _switch_of(row)),)
        case _:
            return ()
