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
from fairlead.drivers.ovn.unmanaged.tables import UnmanagedTables
from fairlead.drivers.ovsdb.client import (
    ConnectionSynced,
    ContentChanges,
    Event,
    FullContents,
    Settings,
    Timing,
    Tls,
)
from fairlead.drivers.ovsdb.protocol import TableMonitor
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.split_message import split_rows
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedObject, UnmanagedRouter, Writer
from fairlead.model.registry.facts import EXTERNAL_ALLOCATIONS, UNMANAGED
from fairlead.runtime.steps import Steps

DATABASE = "OVN_Northbound"
ROWS_PER_STEP, REPORT_SIZE = 200, 100
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
    """Reader of unmanaged networks. Use `start` and `close`. Reports the facts `FOREIGN` and `EXTERNAL_ALLOCATIONS`."""

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
        self._tables = UnmanagedTables()
        self._reported: dict[Owner, UnmanagedObject] = {}
        self._external_addresses: set[IPAddress] = set()
        """Reported external addresses of other writers."""
        self._previous_external_addresses: set[IPAddress] = set()
        """Reported addresses from before the last reconnect."""
        self._in_progress: set[Owner] = set()
        """Owners with a report in progress, or interrupted by the end of the connection, which is then repeated."""
        self.has_reported_all = False
        """Whether the complete contents have been reported once since the start."""

    @property
    def document_counts(self) -> Mapping[tuple[str, str], int]:
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

    def _handle_event(self, event: Event) -> Steps[None] | None:
        match event:
            case FullContents(tables=tables):
                self._tables, self._previous_external_addresses = UnmanagedTables(), {*self._external_addresses}
                return self._apply_changes(tables, {*self._reported, *self._in_progress})
            case ContentChanges(tables=tables):
                return self._apply_changes(tables, ())
            case ConnectionSynced():
                self.has_reported_all = True
            case _:
                pass
        return None

    def _apply_changes(
        self, tables: Mapping[str, Mapping[str, Mapping[str, Json]]], told: Iterable[Owner]
    ) -> Steps[None]:
        """Process a transaction and report the state after it, never a state in its middle."""
        for part in split_rows(tables, ROWS_PER_STEP):
            yield from self._tables.take(part)
            yield
        yield from self._tables.settle()
        registry = self._tables.registry
        touched, registry.changed = registry.changed.union(told), set()
        given, self._tables.external_addresses.changed = (
            self._tables.external_addresses.changed | self._previous_external_addresses,
            set(),
        )
        self._previous_external_addresses = set()
        yield from self._report_all(registry, touched)
        yield from self._report_external_addresses(given)
        self._log_reasons("others", self._tables.reasons)

    def _report_all(self, registry: Registry, touched: Iterable[Owner]) -> Steps[None]:
        news = _DocumentReports()
        for owner in touched:
            document = registry.documents.get(owner)
            if document != self._reported.get(owner) or owner in self._in_progress:
                news.add(owner, document)
            yield
        for part in news.parts():
            yield from self._report(part)

    def _report_external_addresses(self, addresses: set[IPAddress]) -> Steps[None]:
        """Report external addresses of other writers."""
        given = self._tables.external_addresses
        differing = [each for each in addresses if (each in given) != (each in self._external_addresses)]
        for first in range(0, len(differing), REPORT_SIZE):
            some = differing[first : first + REPORT_SIZE]
            self._external_addresses.symmetric_difference_update(some)
            yield from (
                self._observe(EXTERNAL_ALLOCATIONS, {each: True if each in given else None for each in some}) or ()
            )
            yield

    def _report(self, news: Mapping[Owner, UnmanagedObject | None]) -> Steps[None]:
        self._in_progress.update(news)  # interrupted work gives no notice before the next evaluation
        for owner, document in news.items():
            if document is None:
                self._reported.pop(owner, None)
            else:
                self._reported[owner] = document
        yield from self._observe(UNMANAGED, news) or ()
        self._in_progress.difference_update(news)
        yield


class _DocumentReports:
    """Changed documents of unmanaged networks to report to the model, by kind; deleted ones are apart."""

    def __init__(self) -> None:
        self._puts: dict[Kind, dict[Owner, UnmanagedObject]] = {kind: {} for kind in _KINDS}
        self._gone: dict[Kind, list[Owner]] = {kind: [] for kind in _KINDS}

    def add(self, owner: Owner, document: UnmanagedObject | None) -> None:
        if document is None:
            self._gone[owner.kind].append(owner)
        else:
            self._puts[owner.kind][owner] = document

    def parts(self) -> Iterator[dict[Owner, UnmanagedObject | None]]:
        """Yield reports in reference order: deletions within networks, then additions after the documents they refer
        to, then deleted networks. A router and its gateway port refer to each other, so they are reported together."""
        part: dict[Owner, UnmanagedObject | None] = {}
        for together in self._in_order():
            part.update(together)
            if len(part) >= REPORT_SIZE:
                yield part
                part = {}
        if part:
            yield part

    def _in_order(self) -> Iterator[Mapping[Owner, UnmanagedObject | None]]:
        ports = self._puts[Kind.PORT]
        for kind in (Kind.FLOATING_IP, Kind.PORT):
            yield from ({owner: None} for owner in self._gone[kind])
        yield from ({owner: network} for owner, network in self._puts[Kind.NETWORK].items())
        for owner, router in self._puts[Kind.ROUTER].items():
            gateway = (
                Owner(Kind.PORT, router.gateway.port_id)
                if isinstance(router, UnmanagedRouter) and router.gateway
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
    not_ours = (["external_ids", "excludes", ["map", [list(each) for each in mark.shared_row_ids.items()]]],)
    return {
        name: TableMonitor(columns=(*{*table.columns, *table.holds, "external_ids"},), where=not_ours)
        for name, table in TABLES.items()
    }
