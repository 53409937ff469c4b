"""Unmanaged networks in the Northbound database (Neutron by ML2/OVN, LXD, Incus), imported as facts.

* Read-only and without a lock: every server has a connection of its own. Managed rows are not received.

* While the database is disconnected, the last known state is kept. Deletions in that time are reported afterwards.

* Reports contain only differences, one database transaction as a whole, in parts without references to unreported
  documents.

* Rows that cannot be parsed are skipped and counted, because any client may write there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.drivers.ovn.northbound.marks import Mark
from fairlead.drivers.ovn.southbound.reader import Observe, Reader
from fairlead.drivers.ovn.unmanaged.registry import Registry
from fairlead.drivers.ovn.unmanaged.rows import TABLES
from fairlead.drivers.ovn.unmanaged.tables import ForeignTables
from fairlead.drivers.ovsdb.client import (
    Changes,
    Connected,
    Contents,
    Event,
    Settings,
    Timing,
    Tls,
)
from fairlead.drivers.ovsdb.large import in_parts
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import Foreign, ForeignRouter, Writer
from fairlead.model.registry.facts import FOREIGN, GIVEN_ELSEWHERE
from fairlead.runtime.steps import Steps

DATABASE = "OVN_Northbound"
PART, SOME = 200, 100
"""Rows per step, and documents per report."""
_KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    remotes: tuple[Remote, ...]
    mark: str
    """Mark of managed rows, which are excluded."""
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)


class TopologyReader(Reader):
    """Reader of unmanaged networks. Use `start` and `close`. Reports the facts `FOREIGN` and `GIVEN_ELSEWHERE`."""

    def __init__(self, settings: TopologySettings, observe: Observe) -> None:
        super().__init__(
            Settings(
                remotes=settings.remotes,
                database=DATABASE,
                tables=monitors(Mark(settings.mark)),
                tls=settings.tls,
                timing=settings.timing,
            )
        )
        self._observe = observe
        self._tables = ForeignTables()
        self._told: dict[Owner, Foreign] = {}
        self._given: set[IPAddress] = set()
        """Reported external addresses of other writers."""
        self._given_before: set[IPAddress] = set()
        """Reported addresses from before the last reconnect."""
        self._half_told: set[Owner] = set()
        """Owners with a report in progress, or interrupted by the end of the connection, which is then repeated."""
        self.has_told_all = False
        """Whether the complete contents have been reported once since the start."""

    @property
    def figures(self) -> Mapping[tuple[str, str], int]:
        """(writer, kind) -> number of documents."""
        counts = self._tables.registry.counts
        return {(writer.value, kind.value): number for (writer, kind), number in counts.items() if number}

    @property
    def unreadable(self) -> int:
        """Number of rows that cannot be parsed."""
        return len(self._tables.unreadable)

    @property
    def answers_for_unplugged(self) -> bool:
        """Whether OVN answers ARP for VIP ports of Neutron, so that clients on a VIP's own network cannot reach it."""
        is_neutron = self._tables.registry.counts[Writer.NEUTRON, Kind.NETWORK] > 0
        return is_neutron and self._tables.answers_for_unplugged

    def _see(self, event: Event) -> Steps[None] | None:
        match event:
            case Contents(tables=tables):
                self._tables, self._given_before = ForeignTables(), {*self._given}
                return self._take(tables, {*self._told, *self._half_told})
            case Changes(tables=tables):
                return self._take(tables, ())
            case Connected():
                self.has_told_all = True
            case _:
                pass
        return None

    def _take(self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]], told: Iterable[Owner]) -> Steps[None]:
        """Process a transaction and report the state after it, never a state in its middle."""
        for part in in_parts(tables, PART):
            yield from self._tables.take(part)
            yield
        yield from self._tables.settle()
        registry = self._tables.registry
        touched, registry.changed = registry.changed.union(told), set()
        given, self._tables.given.changed = self._tables.given.changed | self._given_before, set()
        self._given_before = set()
        yield from self._tell_all(registry, touched)
        yield from self._tell_given(given)
        self._complain("others", self._tables.reasons)

    def _tell_all(self, registry: Registry, touched: Iterable[Owner]) -> Steps[None]:
        news = _News()
        for owner in touched:
            document = registry.documents.get(owner)
            if document != self._told.get(owner) or owner in self._half_told:
                news.add(owner, document)
            yield
        for part in news.parts():
            yield from self._tell(part)

    def _tell_given(self, addresses: set[IPAddress]) -> Steps[None]:
        """Report external addresses of other writers."""
        given = self._tables.given
        differing = [each for each in addresses if (each in given) != (each in self._given)]
        for first in range(0, len(differing), SOME):
            some = differing[first : first + SOME]
            self._given.symmetric_difference_update(some)
            yield from self._observe(GIVEN_ELSEWHERE, {each: True if each in given else None for each in some}) or ()
            yield

    def _tell(self, news: Mapping[Owner, Foreign | None]) -> Steps[None]:
        self._half_told.update(news)  # interrupted work gives no notice before the next evaluation
        for owner, document in news.items():
            if document is None:
                self._told.pop(owner, None)
            else:
                self._told[owner] = document
        yield from self._observe(FOREIGN, news) or ()
        self._half_told.difference_update(news)
        yield


class _News:
    """Documents to report, by kind; deletions are separate."""

    def __init__(self) -> None:
        self._puts: dict[Kind, dict[Owner, Foreign]] = {kind: {} for kind in _KINDS}
        self._gone: dict[Kind, list[Owner]] = {kind: [] for kind in _KINDS}

    def add(self, owner: Owner, document: Foreign | None) -> None:
        if document is None:
            self._gone[owner.kind].append(owner)
        else:
            self._puts[owner.kind][owner] = document

    def parts(self) -> Iterator[dict[Owner, Foreign | None]]:
        """Yield reports in reference order: deletions within networks, then additions after the documents they refer
        to, then deleted networks. A router and its gateway port refer to each other, so they are reported together."""
        part: dict[Owner, Foreign | None] = {}
        for together in self._in_order():
            part.update(together)
            if len(part) >= SOME:
                yield part
                part = {}
        if part:
            yield part

    def _in_order(self) -> Iterator[Mapping[Owner, Foreign | None]]:
        ports = self._puts[Kind.PORT]
        for kind in (Kind.FLOATING_IP, Kind.PORT):
            yield from ({owner: None} for owner in self._gone[kind])
        yield from ({owner: network} for owner, network in self._puts[Kind.NETWORK].items())
        for owner, router in self._puts[Kind.ROUTER].items():
            gateway = (
                Owner(Kind.PORT, router.gateway.port_id)
                if isinstance(router, ForeignRouter) and router.gateway
                else None
            )
            yield (
                {owner: router}
                if gateway is None or gateway not in ports
                else {owner: router, gateway: ports.pop(gateway)}
            )
        yield from ({owner: port} for owner, port in ports.items())
        yield from ({owner: each} for owner, each in self._puts[Kind.FLOATING_IP].items())
        for kind in (Kind.ROUTER, Kind.NETWORK):
            yield from ({owner: None} for owner in self._gone[kind])


def monitors(mark: Mark) -> dict[str, TableMonitor]:
    """Return the monitored tables: rows without the mark."""
    not_ours = (["external_ids", "excludes", ["map", [list(each) for each in mark.of_the_row.items()]]],)
    return {
        name: TableMonitor(columns=(*{*table.columns, *table.holds, "external_ids"},), where=not_ours)
        for name, table in TABLES.items()
    }
