"""Application of row changes to the kernel: elements in one transaction, and routes and addresses around it."""

from collections import ChainMap
from collections.abc import Iterator, Mapping

from fairlead.dataplane.native import (
    HostTunnel,
    LocalMemberAddress,
    NativeRow,
    OtherHost,
    Service,
    Vip,
    tunnel_hosts,
    vip_key,
)
from fairlead.dataplane.rows import Diff, Key
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.native.nftables.connections import RetainedSlots
from fairlead.drivers.native.nftables.elements import ElementChanges
from fairlead.drivers.native.nftables.encoding import (
    Numbers,
    TargetList,
    client_elements,
    hairpins,
    pattern_elements,
    queried_key,
    service_key,
    target_elements,
    target_value,
)
from fairlead.drivers.native.nftables.ruleset import FAMILIES, PATTERNS
from fairlead.drivers.native.observed import KernelState, OwnRows, row_elements
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Owner

_NONE = Numbers(0, 0, 0)
_Change = tuple[Owner, NativeRow | None, NativeRow | None]


class RowWriter:
    """Changes of some owners, written together."""

    def __init__(self, found: KernelState, diffs: Mapping[Owner, Diff]) -> None:
        """Raises DriverError, including MissingReference. `found` is updated after everything is written."""
        self._state = found
        self._rows = {owner: _after(found.owners.get(owner, {}), diff) for owner, diff in diffs.items()}
        self._changes = list(self._compare())
        self._check()
        services = list(_services(self._changes))
        wanted = {key: None for key, _, _ in services} | {key: after for key, _, after in services if after}
        self._slots = found.patterns.plan(
            {key: after.slots or None if after else None for key, after in wanted.items()}
        )
        values = dict[int, tuple[bytes, ...]]()
        self._served = found.target_lists.plan(
            {key: _encode_targets(after, values) if after else None for key, after in wanted.items()}
        )
        self._clients = found.lists.plan({key: after.clients if after else None for key, after in wanted.items()})
        self._ends_queries = [
            (row, _retained_slots(after))
            for _, before, after in services
            if (row := after or before) and _ends_queries(before, after)
        ]

    def _compare(self) -> Iterator[_Change]:
        for owner, rows in self._rows.items():
            before = self._state.owners.get(owner, {})
            yield from ((owner, row, None) for key, row in before.items() if key not in rows)
            yield from ((owner, before.get(key), row) for key, row in rows.items() if before.get(key) != row)

    def _check(self) -> None:
        """Check that referenced rows exist, and that no row belongs to another owner."""
        hosts = {row.host for _, _, row in self._changes if isinstance(row, HostTunnel)} | self._state.tunnels.keys()
        takers = dict[Key, Owner]()
        for owner, _, row in self._changes:
            if isinstance(row, Service):
                missing = tunnel_hosts(row) - hosts
                if missing:
                    raise MissingReference(f"{owner}: no tunnel to host {min(missing)}")
                if (vip := vip_key(row.vip)) not in self._rows[owner]:
                    raise MissingReference(f"{owner}: {' '.join(vip)} does not exist")
            elif isinstance(row, Vip | HostTunnel | LocalMemberAddress):
                had = self._owner_of(row)
                keeps = had is not None and row.key in self._rows.get(had, {row.key})
                whose = had if had is not None and keeps else takers.setdefault(row.key, owner)
                if whose != owner:
                    raise DriverError(f"{row} belongs to {whose}")

    def _owner_of(self, row: Vip | HostTunnel | LocalMemberAddress) -> Owner | None:
        match row:
            case Vip():
                return self._state.vips.get(row.address)
            case HostTunnel():
                return self._state.tunnels.get(row.host)
            case LocalMemberAddress():  # a host has at most two, and they change rarely
                return next((owner for owner, rows in self._state.owners.items() if row.key in rows), None)

    def write(self, ground: Prerequisites) -> None:
        """Write the changes. Raises DriverError with a known result, and Unavailable or OSError with an unknown one."""
        changes = self._elements(ground.table)
        had = {row.address: owner for owner, row, _ in self._changes if isinstance(row, Vip) and row.is_local}
        has = {row.address: owner for owner, _, row in self._changes if isinstance(row, Vip) and row.is_local}
        taken = {row.address for _, _, row in self._changes if isinstance(row, Vip) and row.is_received}
        released = {row.address for _, row, _ in self._changes if isinstance(row, Vip) and row.is_received} - taken
        ways = {row.host: row.address for _, _, row in self._changes if isinstance(row, HostTunnel)}
        for host, address in ways.items():
            ground.routing.add_tunnel(host, address)
        ground.routing.receive(sorted(taken, key=str))  # first, so that connections continue
        ground.routing.remove_vips([each for each in had if each not in has])
        ground.transact(changes)
        for _, before, row in self._changes:
            if isinstance(before, HostTunnel) and row is None and before.host not in ways:
                ground.routing.remove_tunnel(before.host)
        vips = ChainMap(has, self._state.vips)
        refused = ground.routing.add_vips([each for each in has if each not in had], vips)
        for each in refused:
            vip = Vip(address=each, is_local=False)
            self._rows[has[each]][vip.key] = vip
        ground.routing.stop_receiving(sorted(released, key=str))
        ground.routing.remove_vips([each for each in released if each not in has])
        ground.routing.route_own(sorted(taken, key=str), vips)
        for family in FAMILIES.values():
            ending = {
                queried_key(service_key(row)): staying
                for row, staying in self._ends_queries
                if row.vip.version == family.version
            }
            if ending:
                ground.flush_queried(family, ending)
        self._commit()
        if refused:
            raise DriverError(
                f"VIP {', '.join(map(str, refused))} is already an address of this host: remove it from the host"
            )

    def _elements(self, table: str) -> ElementChanges:
        changes, found = ElementChanges(table), self._state
        for owner, before, after in self._changes:
            old = row_elements(before, owner, found.numbers(before.key)) if before else {}
            new = row_elements(after, owner, self._numbers(after)) if after else {}
            changes.change_all(old, new)
        for owner, rows in self._rows.items():
            changes.change_all(hairpins(found.owners.get(owner, {}).values()), hairpins(rows.values()))
        for number, (slots, others) in self._slots.changes.items():
            changes.change(PATTERNS, pattern_elements(number, slots or b""), pattern_elements(number, others or b""))
        for number, (served, instead) in self._served.changes.items():
            changes.change_all(target_elements(number, served), target_elements(number, instead))
        for number, (clients, other) in self._clients.changes.items():
            changes.change_all(client_elements(number, clients or ()), client_elements(number, other or ()))
        return changes

    def _numbers(self, row: NativeRow) -> Numbers:
        if not isinstance(row, Service):
            return _NONE
        key = row.key
        return Numbers(self._slots.number_of(key), self._served.number_of(key), self._clients.number_of(key))

    def _commit(self) -> None:
        self._state.patterns.commit(self._slots)
        self._state.target_lists.commit(self._served)
        self._state.lists.commit(self._clients)
        for owner, before, after in self._changes:
            if isinstance(before, HostTunnel) and after is None and self._state.tunnels.get(before.host) == owner:
                del self._state.tunnels[before.host]
            elif isinstance(before, Vip) and after is None and self._state.vips.get(before.address) == owner:
                del self._state.vips[before.address]
        for owner, rows in self._rows.items():
            self._state.owners.pop(owner, None)
            if rows:
                self._state.owners[owner] = rows
        for owner, _, after in self._changes:
            if isinstance(after, HostTunnel):
                self._state.tunnels[after.host] = owner
            elif isinstance(after, Vip):
                self._state.vips[after.address] = owner


def _encode_targets(row: Service, known: dict[int, tuple[bytes, ...]]) -> TargetList | None:
    """Encode targets. `known` caches them by identity, because the rows of a pool share one object."""
    if not row.targets:
        return None
    values = known.get(id(row.targets))
    if values is None:
        values = known[id(row.targets)] = tuple(map(target_value, row.targets))
    return TargetList(values, row.previous_owners)


def _after(before: OwnRows, diff: Diff) -> OwnRows:
    rows = {key: row for key, row in before.items() if key not in diff.deletes}
    changed = {**diff.creates, **{key: update.after for key, update in diff.updates.items()}}
    return rows | {key: row for key, row in changed.items() if isinstance(row, NativeRow)}


def _services(changes: list[_Change]) -> Iterator[tuple[Key, Service | None, Service | None]]:
    for _, before, after in changes:
        old, new = before if isinstance(before, Service) else None, after if isinstance(after, Service) else None
        if (row := new or old) is not None:
            yield row.key, old, new


def _retained_slots(after: Service | None) -> RetainedSlots:
    """Return the slots that stay with other hosts. Not needed for TCP, where a packet shows whether it is the first."""
    if after is None or after.transport is Transport.TCP:
        return RetainedSlots(False, frozenset())
    return RetainedSlots(
        after.by_source, frozenset(_remote_slots(after).union(slot for slot, _ in after.previous_owners))
    )


def _remote_slots(row: Service) -> set[int]:
    """Return the slots of other hosts."""
    there = {place for place, target in enumerate(row.targets) if isinstance(target, OtherHost)}
    return {slot for slot, place in enumerate(row.slots) if place in there}


def _ends_queries(before: Service | None, after: Service | None) -> bool:
    """Whether queries about connections end: the service is deleted, slots of other hosts become this host's, or
    previous owners are not queried any more."""
    if before is None or after is None:
        return after is None
    theirs = _remote_slots(before) | (
        {slot for slot, _ in before.previous_owners} - {slot for slot, _ in after.previous_owners}
    )
    if not after.slots:  # no members in between: the next change could not find the earlier queries
        return bool(theirs)
    return not theirs <= _remote_slots(after)
