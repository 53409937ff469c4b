"""Wire format of slices: JSON lines that the server writes and the agent reads.

A line is a JSON object with one of these names, and the fields listed with it:

    list       start of a full slice: the agent drops its slice, and the lines up to the next `at` replace it. Has
               `agents_probe` (whether agents probe members) and `parting` (the drain timeout in seconds, for which
               previous owners of flows are remembered)
    put        a document (`kind/id`), with its `generation` and the `document` in the format of the store; without a
               generation, the document is of an unmanaged network (`model/documents/unmanaged.py`)
    delete     a document that was deleted, or that the chassis no longer reaches
    health     members of a load balancer, or replicas of a Local IP, that are down (`down`) and that answered
               (`online`)
    chassis    the chassis itself, as in the OVN Southbound database; without ports if OVN has no chassis of that name
    covered    places of delegated probing (`model/queries/delegated_probing.py`), and whether this chassis probes each
    proxies    proxies of a plain host (`host`), by the names its agent uses, each with the ports it serves. A line
               replaces the host's earlier one. A host without a line is one this server has no report of: lines of
               another server stay valid for it, also across `list`
    addresses  addresses of a plain host (`host`) that are its own although a placement routes them to it. A line
               replaces the host's earlier one; hosts without a line as for `proxies`
    at         the cursor, and the `revision` of the store. It ends a batch that is applied as one; an agent that
               reconnects with it receives what follows

Each line carries the current state, never an operation, so a repeated line has no effect.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
from immutables import Map

from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import (
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedObject,
    UnmanagedPort,
    UnmanagedRouter,
    is_unmanaged,
)
from fairlead.model.queries.host_facts import OwnAddressUpdate, dependents_of_own_addresses
from fairlead.model.queries.proxies import ProxyUpdate, balancers_of_changed_proxies
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, load_documents, owners_with_rows, with_unmanaged
from fairlead.model.registry.facts import OWN_ADDRESSES, PROXIES, with_facts
from fairlead.model.registry.kinds import has_rows
from fairlead.model.snapshot import Aggregate, Snapshot, with_health
from fairlead.runtime.steps import Steps
from fairlead.store.codec import decode, encode, encode_value, read_value

MAX_LINE_BYTES = 2 * 2**20
"""Maximum length of a line in bytes; a document takes at most 1.25 MiB."""
FOREIGN_CLASSES: Mapping[Kind, type[UnmanagedObject]] = {
    Kind.NETWORK: UnmanagedNetwork,
    Kind.ROUTER: UnmanagedRouter,
    Kind.PORT: UnmanagedPort,
    Kind.FLOATING_IP: UnmanagedFloatingIP,
}
DEFAULT_DRAIN_TIMEOUT = Snapshot().parting_seconds
"""Drain timeout of a server that does not send one, in seconds."""
STEP = 50
"""Documents loaded into the snapshot before a cooperative yield."""
PROBING = (Kind.LOAD_BALANCER, Kind.LOCAL_IP)
_Key = str | tuple[str, int]


class _ChassisLine(msgspec.Struct, kw_only=True):
    name: str
    host: str = ""
    zones: list[str] = []
    alive: bool = True
    ports: dict[str, bool] = {}


class SliceLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    list: int | None = None
    agents_probe: bool = False
    parting: int = DEFAULT_DRAIN_TIMEOUT
    put: str = ""
    generation: int = 0
    document: msgspec.Raw = msgspec.Raw()
    delete: str = ""
    health: str = ""
    down: tuple[_Key, ...] = ()
    online: tuple[_Key, ...] = ()
    chassis: _ChassisLine | None = None
    covered: dict[str, bool] | None = None
    proxies: dict[str, tuple[int, ...]] | None = None
    addresses: tuple[str, ...] | None = None
    host: str = ""
    at: str = ""
    revision: int = 0


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(SliceLine).decode


def _line(line: SliceLine) -> bytes:
    return _ENCODE(line) + b"\n"


def list_line(snapshot: Snapshot) -> bytes:
    return _line(
        SliceLine(list=snapshot.revision, agents_probe=snapshot.agents_probe, parting=snapshot.parting_seconds)
    )


def put_line(owner: Owner, generation: int | None, document: Aggregate) -> bytes:
    """Serialise a document. A document of an unmanaged network is in no store, so this message defines its format."""
    text = encode(document) if generation else encode_value(document)
    return _line(SliceLine(put=str(owner), generation=generation or 0, document=msgspec.Raw(text)))


def delete_line(owner: Owner) -> bytes:
    return _line(SliceLine(delete=str(owner)))


def health_line(snapshot: Snapshot, owner: Owner) -> bytes:
    down, online = (known.get(owner.id, frozenset()) for known in (snapshot.down, snapshot.online))
    return _line(SliceLine(health=str(owner), down=_in_order(down), online=_in_order(online)))


def _in_order(keys: Iterable[HealthKey]) -> tuple[HealthKey, ...]:
    return tuple(sorted(keys, key=str))


def chassis_line(chassis: Chassis) -> bytes:
    told = _ChassisLine(
        name=chassis.name,
        host=chassis.host,
        zones=sorted(chassis.zones),
        alive=chassis.alive,
        ports=dict(chassis.ports.items()),
    )
    return _line(SliceLine(chassis=told))


def covered_line(covered: Mapping[str, bool]) -> bytes:
    return _line(SliceLine(covered=dict(covered)))


def proxies_line(host: str, proxies: Mapping[str, Proxy]) -> bytes:
    told = {name: tuple(sorted(proxy.serving)) for name, proxy in sorted(proxies.items())}
    return _line(SliceLine(host=host, proxies=told))


def addresses_line(host: str, addresses: Iterable[IPAddress]) -> bytes:
    return _line(SliceLine(host=host, addresses=tuple(sorted(map(str, addresses)))))


def at_line(cursor: str, revision: int) -> bytes:
    return _line(SliceLine(at=cursor, revision=revision))


def read_line(line: bytes) -> SliceLine:
    """Decode a line. Raises ValueError (msgspec's errors are subclasses)."""
    return _DECODE(line)


@dataclass(slots=True)
class SliceBuilder:
    """Slice of one chassis, rebuilt from lines; pure. Lines are buffered until the cursor that ends their batch."""

    name: str
    """Name of the chassis."""
    snapshot: Snapshot = field(default_factory=Snapshot)
    cursor: str = ""
    _lines: list[SliceLine] = field(default_factory=list)
    _documents: dict[int, Aggregate] = field(default_factory=dict)
    """Documents of buffered lines, by index in `_lines`; decoded on arrival, because decoding takes longest."""

    def take(self, line: SliceLine) -> Steps[tuple[Owner, ...]]:
        """Take a line, and return the owners whose rows or probes may differ; empty until the cursor. Raises
        ValueError, StoreError."""
        if not line.at:
            if line.put:
                self._documents[len(self._lines)] = _document(line)
            self._lines.append(line)
            return ()
        lines, documents, before = self._lines, self._documents, self.snapshot
        self.drop_incomplete()
        first = next((index + 1 for index, each in enumerate(lines) if each.list is not None), 0)
        after = before
        if first:
            told = lines[first - 1]
            after = Snapshot(
                agents_probe=told.agents_probe,
                parting_seconds=told.parting,
                proxies=before.proxies,
                own_addresses=before.own_addresses,
            )
        for begin in range(first, len(lines), STEP):
            after = self._with_documents(after, range(begin, min(begin + STEP, len(lines))), lines, documents)
            yield
        for each in lines[first:]:
            after = self._with_facts(after, each)
            yield
        proxies = {each.host: each.proxies for each in lines[first:] if each.proxies is not None}
        news = yield from _proxy_changes(before, proxies)
        after = with_facts(after, PROXIES, news) if news else after
        own = yield from _address_changes(lines[first:])
        after = with_facts(after, OWN_ADDRESSES, own)
        self.snapshot, self.cursor = replace(after, revision=line.revision), line.at
        if first:
            return _all_owners(before, self.snapshot)
        return _affected_owners(before, self.snapshot, lines, news, own)

    def _with_documents(
        self, snapshot: Snapshot, numbers: range, lines: Sequence[SliceLine], documents: Mapping[int, Aggregate]
    ) -> Snapshot:
        puts: list[tuple[Aggregate, int | None]] = []
        for number in numbers:  # consecutive puts make one snapshot
            line = lines[number]
            if line.put:
                puts.append((documents[number], line.generation or None))
            if line.delete:
                snapshot, puts = load_documents(snapshot, puts, snapshot.revision), []
                snapshot = _without(snapshot, Owner.parse(line.delete))
        return load_documents(snapshot, puts, snapshot.revision)

    def drop_incomplete(self) -> None:
        """Drop lines that no cursor has ended; the server sends them again."""
        self._lines, self._documents = [], {}

    def _with_facts(self, snapshot: Snapshot, line: SliceLine) -> Snapshot:
        if line.health:
            return with_health(snapshot, Owner.parse(line.health).id, frozenset(line.down), frozenset(line.online))
        if line.chassis is not None:
            told = line.chassis
            chassis = Chassis(
                name=told.name,
                host=told.host,
                zones=frozenset(told.zones),
                alive=told.alive,
                ports=Map(told.ports),
            )
            plugged = {port: told.host or told.name for port, flows in told.ports.items() if flows}
            return replace(snapshot, chassis=Map({self.name: chassis}), plugged=Map(plugged))
        if line.covered is not None:
            covered = {place: self.name for place, covers in line.covered.items() if covers}
            left = {place: who for place, who in snapshot.covered.items() if place not in line.covered}
            return replace(snapshot, covered=Map({**left, **covered}))
        return snapshot


def _proxy_changes(snapshot: Snapshot, told: Mapping[str, Mapping[str, tuple[int, ...]]]) -> Steps[ProxyUpdate]:
    """Compare the received proxies, which are complete for their hosts, with the known ones, and return the changes."""
    wanted: dict[str, Proxy] = {}
    for host, proxies in told.items():
        wanted |= {f"{name}/{host}": Proxy(serving=frozenset(ports)) for name, ports in proxies.items()}
        yield
    known = [each for each in snapshot.proxies if each.rpartition("/")[2] in told] if told else []
    changed = (each for each in {**dict.fromkeys(known), **wanted} if snapshot.proxies.get(each) != wanted.get(each))
    return {each: wanted.get(each) for each in changed}


def _address_changes(lines: Iterable[SliceLine]) -> Steps[OwnAddressUpdate]:
    """Collect the own addresses of hosts. Raises ValueError."""
    found: dict[str, frozenset[IPAddress]] = {}
    for line in lines:
        if line.addresses is not None:
            found[line.host] = frozenset(map(parse_address, line.addresses))
            yield
    return found


def _document(line: SliceLine) -> Aggregate:
    """Decode a document. Raises ValueError, StoreError."""
    owner = Owner.parse(line.put)
    if line.generation:
        return decode(owner, bytes(line.document))
    if owner.kind not in FOREIGN_CLASSES:
        raise ValueError(f"{owner} has no generation")
    return read_value(msgspec.json.decode(line.document), FOREIGN_CLASSES[owner.kind])


def _without(snapshot: Snapshot, owner: Owner) -> Snapshot:
    snapshot = with_health(snapshot, owner.id, frozenset())
    if is_unmanaged(snapshot.find(owner)):
        return with_unmanaged(snapshot, {owner: None})
    return apply_changes(snapshot, Changes(deletes=(owner,)), snapshot.revision)


def _all_owners(before: Snapshot, after: Snapshot) -> tuple[Owner, ...]:
    return tuple(dict.fromkeys((*owners_with_rows(before), *owners_with_rows(after))))


def _affected_owners(
    before: Snapshot, after: Snapshot, lines: Iterable[SliceLine], news: ProxyUpdate, own: OwnAddressUpdate
) -> tuple[Owner, ...]:
    told = dict.fromkeys(Owner.parse(each.put or each.delete) for each in lines if each.put or each.delete)
    found = dict.fromkeys(find_affected_owners(before, after, told))
    for line in lines:
        if line.health:
            found[Owner.parse(line.health)] = None
        if line.chassis is not None or line.covered is not None:  # local or delegated machines changed
            found.update(dict.fromkeys(Owner(kind, each) for kind in PROBING for each in after.documents(kind)))
    found.update(dict.fromkeys(balancers_of_changed_proxies(before, after, news)))
    found.update(dict.fromkeys(dependents_of_own_addresses(before, after, own)))
    return tuple(owner for owner in found if has_rows(owner.kind))
