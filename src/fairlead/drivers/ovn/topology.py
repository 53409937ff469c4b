"""Networks that others wrote into the Northbound database (Neutron by ML2/OVN, LXD, Incus), followed as facts.

* Nothing is written and no lock is needed: every server follows by itself, over a connection of its own. Rows that
  bear our mark are not even sent.
* While the database is away, what was known last holds. After that, what is gone is told as gone.
* It is told what differs from what was told before, a transaction of the database as a whole, in parts in which nothing
  refers to what was not told yet.
* Rows that cannot be read are left out, and counted: anybody may write there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.drivers.ovn.foreign_registry import Registry
from fairlead.drivers.ovn.foreign_rows import TABLES
from fairlead.drivers.ovn.foreign_tables import ForeignTables
from fairlead.drivers.ovn.marks import Mark
from fairlead.drivers.ovn.reader import Observe, Reader
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
from fairlead.model.addresses import IPAddress
from fairlead.model.facts import FOREIGN, GIVEN_ELSEWHERE
from fairlead.model.foreign import Foreign, ForeignRouter, Writer
from fairlead.model.owner import Kind, Owner
from fairlead.model.steps import Steps

DATABASE = "OVN_Northbound"
PART, SOME = 200, 100
"""Rows that are taken, and documents that are told of, at once."""
_KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    remotes: tuple[Remote, ...]
    mark: str
    """Of our rows: they are left out."""
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)


class TopologyReader(Reader):
    """`start` and `close`. `observe` gets news of the facts `FOREIGN` and `GIVEN_ELSEWHERE`."""

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
        """Addresses that others gave out, as they were told."""
        self._given_before: set[IPAddress] = set()
        """Those of an earlier connection."""
        self._half_told: set[Owner] = set()
        """Whose news the observer is taking in, or had taken in by half when the connection ended: told again then."""
        self.has_told_all = False
        """Whether all that others have was told once since the start."""

    @property
    def figures(self) -> Mapping[tuple[str, str], int]:
        """Writer and kind -> how many of these there are."""
        counts = self._tables.registry.counts
        return {(writer.value, kind.value): number for (writer, kind), number in counts.items() if number}

    @property
    def unreadable(self) -> int:
        """How many rows cannot be read."""
        return len(self._tables.unreadable)

    @property
    def answers_for_unplugged(self) -> bool:
        """Whether OVN answers for ports of VIPs that Neutron made, so that nobody on a VIP's own network reaches it."""
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
        """What is true after a transaction is told, and nothing that is true in the middle of it."""
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
        """News of addresses that others gave out."""
        given = self._tables.given
        differing = [each for each in addresses if (each in given) != (each in self._given)]
        for first in range(0, len(differing), SOME):
            some = differing[first : first + SOME]
            self._given.symmetric_difference_update(some)
            yield from self._observe(GIVEN_ELSEWHERE, {each: True if each in given else None for each in some}) or ()
            yield

    def _tell(self, news: Mapping[Owner, Foreign | None]) -> Steps[None]:
        self._half_told.update(news)  # whoever lets go of this work in the middle does not say so before it looks again
        for owner, document in news.items():
            if document is None:
                self._told.pop(owner, None)
            else:
                self._told[owner] = document
        yield from self._observe(FOREIGN, news) or ()
        self._half_told.difference_update(news)
        yield


class _News:
    """What is to be told, by kind; what is gone apart."""

    def __init__(self) -> None:
        self._puts: dict[Kind, dict[Owner, Foreign]] = {kind: {} for kind in _KINDS}
        self._gone: dict[Kind, list[Owner]] = {kind: [] for kind in _KINDS}

    def add(self, owner: Owner, document: Foreign | None) -> None:
        if document is None:
            self._gone[owner.kind].append(owner)
        else:
            self._puts[owner.kind][owner] = document

    def parts(self) -> Iterator[dict[Owner, Foreign | None]]:
        """First what goes from networks, then what comes, each after what it refers to; at last the networks that go. A
        router and the port of its gateway refer to each other."""
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
    """What is watched: the rows that do not bear our mark."""
    not_ours = (["external_ids", "excludes", ["map", [list(each) for each in mark.of_the_row.items()]]],)
    return {
        name: TableMonitor(columns=(*{*table.columns, *table.holds, "external_ids"},), where=not_ours)
        for name, table in TABLES.items()
    }
