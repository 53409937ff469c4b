"""Driver of the OVN Northbound database.

* Reads are local: a replica of the managed rows, grouped by owner, follows the database. Unmanaged rows are not
  received.

* An owner's diff is one transaction, under the lock: of all servers with the mark, one writes.

* When `apply` returns, the replica has its changes. After Unavailable the result is unknown until the replica is ready
  again.

* Drift of managed rows is detected immediately; after a reconnect, `on_ready` requests a resync.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, cast

from fairlead.dataplane.ovn import (
    OvnRow,
)
from fairlead.dataplane.rows import NO_ROWS, Diff, Key, Rows
from fairlead.drivers.interface import DriverError, MissingReference, Standby, Unavailable, Unreachable
from fairlead.drivers.ovn.northbound.drift import Drift, describe_drift
from fairlead.drivers.ovn.northbound.encoder import Encoder, Transaction
from fairlead.drivers.ovn.northbound.marks import Mark, read_abilities
from fairlead.drivers.ovn.northbound.replica import Replica, Tables
from fairlead.drivers.ovn.northbound.stock import find_places
from fairlead.drivers.ovsdb.client import (
    Client,
    ConnectionClosed,
    ConnectionSynced,
    ContentChanges,
    Event,
    FullContents,
    LockAcquired,
    LockLost,
    SchemaReceived,
    Settings,
    Timing,
    Tls,
)
from fairlead.drivers.ovsdb.errors import ConnectionLost, NotConnected, RequestError, TransactionError
from fairlead.drivers.ovsdb.protocol import assert_lock
from fairlead.drivers.ovsdb.remotes import Remote
from fairlead.drivers.ovsdb.split_message import split_rows
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.owner import Owner, creation_order
from fairlead.model.queries.domain import AttachedObjects
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps

LOG = logging.getLogger(__name__)
DATABASE = "OVN_Northbound"
ROWS_PER_STEP = 50
"""Rows that the replica processes per step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OvnSettings:
    """`mark` identifies managed rows. `lock` is shared by all servers with one mark; "" derives it."""

    remotes: tuple[Remote, ...]
    mark: str
    lock: str = ""
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)
    timeout: float = 10.0
    """Seconds for one transaction."""


class OvnDriver:
    """Driver of the Northbound database. Use `async with OvnDriver(settings) as driver:`, or `start` and `close`.

    Only one apply of an owner may run at a time. Callbacks:

    - `on_foreign_change`: drift of an owner's rows, with a description; "" while another server is the leader and may
      have written them.
    - `on_abilities`: abilities of the connected OVN.
    - `on_connected`: the replica is in sync.
    - `on_ready`: this server is also the leader.
    - `on_unavailable`: no longer ready.
    """

    def __init__(
        self,
        settings: OvnSettings,
        *,
        on_foreign_change: Callable[[Owner, str], None] = lambda owner, what: None,
        on_abilities: Callable[[frozenset[str]], None] = lambda abilities: None,
        on_connected: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
        on_unavailable: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._mark = Mark(settings.mark)
        self._lock = settings.lock or self._mark.default_lock
        self._timeout = settings.timeout
        self._on_drift = on_foreign_change
        self._on_abilities = on_abilities
        self._on_connected = on_connected
        self._on_ready = on_ready
        self._on_unavailable = on_unavailable
        self._replica = Replica(self._mark)
        self._expected: dict[Owner, Mapping[Key, OvnRow | None]] = {}
        self._unreported: dict[Owner, list[Drift]] = {}
        self.drift_counts: Counter[tuple[str, str]] = Counter()
        """(table, column) -> drift in managed rows while this server was the leader."""
        self._ready = asyncio.Event()
        monitors = self._mark.monitors()
        ovsdb = Settings(
            remotes=settings.remotes,
            database=DATABASE,
            tables=monitors,
            tls=settings.tls,
            timing=settings.timing,
            with_schema=True,
        )
        self._client = Client(ovsdb, self._handle_event)
        self._client.lock(self._lock)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        """Whether the replica is in sync, so that `read` and `read_all` work."""
        return self._client.connected

    @property
    def has_lock(self) -> bool:
        return self._client.has_lock

    @property
    def ready(self) -> bool:
        """Whether `apply` works."""
        return self._ready.is_set()

    def start(self) -> None:
        """Connect and reconnect, in a task of the running loop."""
        self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def wait_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Wait until `apply` works. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._ready.wait()

    async def read_all(self) -> Mapping[Owner, Rows]:
        self._require_connection()
        return {owner: dict(rows) for owner, rows in self._replica.rows.items()}

    async def read(self, owner: Owner) -> Rows:
        self._require_connection()
        return dict(self._replica.rows.get(owner, NO_ROWS))

    async def apply(self, owner: Owner, diff: Diff) -> None:
        if not diff:
            return
        self._require_connection()
        if not self.ready:
            raise Standby("another server holds the lock of the OVN Northbound database")
        self._replica.check(owner, diff)
        uuid_of = self._replica.uuids(owner)
        encoder = Encoder(
            mark=self._mark, lock=self._lock, owner=owner, uuid_of=uuid_of, known_chassis=self._replica.variables
        )
        transaction = await run_in_steps(encoder.encode_in_steps(diff))
        self._expected[owner] = _outcome(diff)
        try:
            with _translated():
                await self._client.transact(transaction.operations, self._timeout)
        except TransactionError as error:
            raise _translate(error, transaction) from error
        finally:
            del self._expected[owner]
            self._report_delayed(owner)

    async def ping(self) -> None:
        """Return when the database has answered and all earlier updates are processed. Raises DriverError."""
        self._require_connection()
        with _translated():
            await self._client.transact([], self._timeout)

    async def bump_nb_cfg(self) -> None:
        """Increment NB_Global:nb_cfg (ovn-nb(5)), which each live chassis then confirms.

        Raises DriverError.
        """
        self._require_connection()
        count = {"op": "mutate", "table": "NB_Global", "where": [], "mutations": [["nb_cfg", "+=", 1]]}
        try:
            with _translated():
                await self._client.transact([assert_lock(self._lock), count], self._timeout)
        except TransactionError as error:
            raise DriverError(str(error)) from error

    async def find_stock_rows(self, balancer_id: str) -> AttachedObjects:
        """Return where Octavia's stock provider has rows of a load balancer. Raises DriverError."""
        self._require_connection()
        try:
            with _translated():
                return await find_places(self._transact, self._mark, balancer_id)
        except TransactionError as error:
            raise DriverError(str(error)) from error

    async def _transact(self, operations: Sequence[Json]) -> list[Json]:
        return await self._client.transact(operations, self._timeout)

    async def take_lock(self) -> None:
        """Steal the lock. Raises DriverError."""
        self._require_connection()
        with _translated():
            await self._client.steal(self._timeout)

    def _require_connection(self) -> None:
        if not self.connected:
            raise Unreachable("not connected to the OVN Northbound database")

    def _handle_event(self, event: Event) -> Steps[None] | None:
        match event:
            case SchemaReceived(schema=schema):
                self._on_abilities(read_abilities(schema))
            case FullContents(tables=tables):
                return self._replace_all(tables)
            case ContentChanges(tables=tables):
                return self._apply_changes(tables)
            case LockAcquired():
                self._become_ready()
            case LockLost(name=name):
                if self.connected:
                    self._become_unavailable(f"lost the lock {name}")
            case ConnectionClosed(reason=reason):
                self._become_unavailable(reason)
            case ConnectionSynced():
                self._on_connected()  # the lock follows
        return None

    def _replace_all(self, tables: Tables) -> Steps[None]:
        """Replace the replica. It is not read before it is complete, because the client is not connected yet."""
        self._replica = Replica(self._mark)
        for part in split_rows(tables, ROWS_PER_STEP):
            self._replica.change(part, {})
            yield

    def _apply_changes(self, tables: Tables) -> Steps[None]:
        """Apply changes. An own change is one transaction and processed whole; a larger one is another writer's."""
        for part in split_rows(tables, ROWS_PER_STEP) if not self._expected else [tables]:
            found = self._replica.change(part, self._expected)
            for owner in sorted(found, key=creation_order):
                self._report(owner, found[owner])
            yield

    def _report(self, owner: Owner, changes: Sequence[Drift]) -> None:
        """Report drift. Without the lock the change may be the leader's. Changes before `on_connected` are not
        reported.

        While the owner is being applied, the report is delayed, because the success of the apply would hide it.
        """
        if owner in self._expected:
            self._unreported.setdefault(owner, []).extend(changes)
        elif self.connected:
            if self.ready:
                self.drift_counts.update((change.table, change.column) for change in changes)
            self._on_drift(owner, describe_drift(changes) if self.ready else "")

    def _report_delayed(self, owner: Owner) -> None:
        """Report delayed drift in the next turn of the loop, after the caller of `apply` has handled its result."""
        changes = self._unreported.pop(owner, None)
        if changes is not None:
            asyncio.get_running_loop().call_soon(self._report, owner, changes)

    def _become_ready(self) -> None:
        LOG.info("OVN Northbound: ready, with rows of %d owners", len(self._replica.rows))
        self._ready.set()
        self._on_ready()

    def _become_unavailable(self, reason: str) -> None:
        if self.ready:
            self._ready.clear()
            self._on_unavailable(reason)


@contextmanager
def _translated() -> Iterator[None]:
    """Convert connection errors to driver errors. A rejected transaction is handled by the caller."""
    try:
        yield
    except TransactionError:
        raise
    except (NotConnected, ConnectionLost) as error:
        raise Unavailable(f"OVN Northbound database: {error}") from error
    except RequestError as error:
        raise DriverError(f"OVN Northbound database: {error}") from error
    except TimeoutError as error:
        raise Unavailable("OVN Northbound database: request timed out") from error


def _outcome(diff: Diff) -> dict[Key, OvnRow | None]:
    """Return the rows of the diff after its application."""
    after = {key: update.after for key, update in diff.updates.items()}
    return cast(dict[Key, OvnRow | None], {**diff.creates, **after, **dict.fromkeys(diff.deletes)})


def _translate(error: TransactionError, transaction: Transaction) -> DriverError:
    """Convert an error. `timed out` means a failed wait condition. Other errors keep the server's message."""
    match error.error:
        case "not owner":
            return Standby("another server holds the lock of the OVN Northbound database")
        case "timed out" | "duplicate uuid" if error.index in transaction.errors:
            return transaction.errors[error.index]()
        case "referential integrity violation":
            return MissingReference(str(error))
        case _:
            return DriverError(str(error))
