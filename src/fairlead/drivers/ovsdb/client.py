"""OVSDB client: one database, one monitor, one lock, on any suitable remote.

Guarantees for callers:

* Events are delivered in stream order, by calls of `on_event`. A receiver that needs long for a large event returns a
  generator, which yields to the event loop; nothing else is read from the connection until it has finished.

* When `transact` returns, the changes it made have been delivered: ovsdb-server flushes a session's monitors before
  each reply (ovsdb/jsonrpc-server.c, ovsdb_jsonrpc_session_send; tests verify it on the wire).

* A transaction is sent once. After ConnectionLost or TimeoutError the caller has to read the database for the result.

* A callback that raises leaves the replica in an unknown state: the connection is dropped, and the next one starts with
  Contents.

* A schema change ends the connection (the client is not "db change aware", ovsdb-server(7), set_db_change_aware).
"""

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self, TypeAlias, assert_never

from fairlead.drivers.ovsdb.errors import NotConnected, OvsdbError, RequestError
from fairlead.drivers.ovsdb.jsonrpc import JsonRpcConnection, steps_of
from fairlead.drivers.ovsdb.protocol import (
    NO_TXN,
    Notification,
    Reply,
    TableMonitor,
    encode_monitors,
    find_error,
    merge_row,
    read_result,
    read_results,
)
from fairlead.drivers.ovsdb.remotes import Remote, Rotation, SslRemote, TcpRemote, UnixRemote
from fairlead.drivers.ovsdb.values import Json
from fairlead.runtime.steps import Steps

_LOG = logging.getLogger(__name__)
_CLOSED = "closed"  # reason of an intended disconnect
_DATA = "data"  # name of the monitor of the database
_SERVER = "server"  # name of the monitor of `_Server`


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files, read at every connect, so that renewed ones are used."""

    private_key: str
    certificate: str
    ca: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Timing in seconds. A server that sends nothing for twice `probe` is considered dead.

    A server that compacts or writes a large database is unresponsive for many seconds, and a client that reconnects
    makes it send everything again: OVN's own tools wait 120 s (ovn-nb(5), nbctl_probe_interval), Neutron 60 s. A dead
    machine is detected earlier (`link.KEEPALIVE`). The longest pause delays the reconnect to a restarted database; it
    can be short, because there are few servers.
    """

    probe: float = 60.0
    connect: float = 5.0
    min_reconnect_interval: float = 0.25
    max_reconnect_interval: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    remotes: tuple[Remote, ...]
    database: str
    tables: Mapping[str, TableMonitor]
    tls: Tls | None = None
    timing: Timing = field(default_factory=Timing)
    with_schema: bool = False
    """Whether to read the schema at each connect; a schema change ends the connection."""


# Events. `tables` is <table-updates2>: {table: {uuid: {"initial" | "insert" | "modify": columns, or "delete": null}}}
# (ovsdb-server(7) section 4.1.14). A column that a new row lacks has its default value. In a "modify", a set of more
# than one bears the symmetric difference and a map what `patch_map` takes; any other column bears its new value.


@dataclass(frozen=True, slots=True, kw_only=True)
class FullContents:
    """Complete contents of the database: replace the replica with these."""

    tables: Mapping[str, Mapping[str, Mapping[str, Json]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentChanges:
    """Changes since the last Contents or Changes, also across a reconnect."""

    tables: Mapping[str, Mapping[str, Mapping[str, Json]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReceived:
    """Schema of the database (RFC 7047 section 3.2), delivered before its contents."""

    schema: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSynced:
    """The replica is in sync, and `transact` works."""

    remote: Remote


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockAcquired:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLost:
    """The lock was stolen or lost with the connection. The event may be late; only `assert_lock` is proof."""

    name: str


Event = FullContents | ContentChanges | SchemaReceived | ConnectionSynced | ConnectionClosed | LockAcquired | LockLost
OnEvent: TypeAlias = Callable[[Event], Steps[None] | None]


class Client:
    """OVSDB client. Use `async with Client(settings, on_event) as client:`, or `start` and `close`."""

    def __init__(self, settings: Settings, on_event: OnEvent) -> None:
        timing = settings.timing
        self._settings = settings
        self._on_event = on_event
        self._rotation = Rotation(settings.remotes, timing.min_reconnect_interval, timing.max_reconnect_interval)
        self._task: asyncio.Task[None] | None = None
        self._link: JsonRpcConnection | None = None  # set only while in sync
        self._connected = asyncio.Event()
        self._since = math.inf  # start of the present sync
        self._last_txn = NO_TXN
        self._server_rows: dict[str, Mapping[str, Json]] = {}
        self._lock: str | None = None
        self._has_lock = False
        self._connect_error = "not started"
        self._logged_reasons: set[str] = set()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    @property
    def has_lock(self) -> bool:
        return self._has_lock

    def start(self) -> None:
        """Connect and reconnect, in a task of the running loop."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"ovsdb {self._settings.database}")

    async def close(self) -> None:
        """Disconnect, which frees the lock, and end the task. Re-raises an error that ended the task."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Wait until the monitor is in sync. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            await self._connected.wait()

    async def transact(
        self,
        operations: Sequence[Json],
        timeout: float | None = None,  # noqa: ASYNC109  # what callers expect
    ) -> list[Json]:
        """Run the operations in one transaction (RFC 7047 section 4.1.3). Concurrent calls are sent in order.

        TransactionError: nothing was done. NotConnected: nothing was sent. ConnectionLost, TimeoutError or
        cancellation: the result is unknown.
        """
        if self._link is None:
            raise NotConnected(self._connect_error)
        async with asyncio.timeout(timeout):
            reply = await self._link.request("transact", [self._settings.database, *operations])
        return read_results(reply, len(operations))

    def lock(self, name: str) -> None:
        """Request a lock, also after each reconnect, until it is granted (RFC 7047 section 4.1.8)."""
        if self._lock not in {None, name}:
            raise ValueError(f"lock {self._lock} is already requested")
        if self._lock is None:
            self._lock = name
            if self._link is not None:
                self._request_lock(self._link, name)

    async def steal(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # what callers expect
        """Steal the requested lock from its holder (RFC 7047 section 4.1.9). The holder is notified and queued for it.

        Raises NotConnected, ConnectionLost, RequestError and TimeoutError. A client may not request a lock twice, so
        its pending request is withdrawn first.
        """
        if self._link is None or self._lock is None:
            raise NotConnected(self._connect_error)
        async with asyncio.timeout(timeout):
            self._link.request("unlock", [self._lock])
            reply = await self._link.request("steal", [self._lock], self._begin_lock)
        if reply.error is not None:
            read_result(reply)

    # Connection lifecycle

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            remote = self._rotation.remote
            self._since = math.inf
            try:
                await self._use(remote)
            except (OSError, OvsdbError) as error:
                self._log_once(f"{remote}: {str(error) or type(error).__name__}")
            await asyncio.sleep(self._rotation.failed(loop.time() - self._since))

    async def _use(self, remote: Remote) -> None:
        link = await self._connect(remote)
        try:
            await self._check_server(link)
            if self._settings.with_schema:
                read_result(await link.request("get_schema", [self._settings.database], self._describe))
            await self._follow(link, remote)
            await link.ended.wait()
        finally:
            link.disconnect(_CLOSED)
            await link.ended.wait()

    async def _connect(self, remote: Remote) -> JsonRpcConnection:
        loop = asyncio.get_running_loop()
        timing = self._settings.timing
        make = partial(JsonRpcConnection, timing.probe, self._receive, self._lost)
        async with asyncio.timeout(timing.connect):
            match remote:
                case UnixRemote():
                    return (await loop.create_unix_connection(make, remote.path))[1]
                case TcpRemote():
                    return (await loop.create_connection(make, remote.host, remote.port))[1]
                case SslRemote():
                    context = _read_tls(self._settings.tls)
                    return (await loop.create_connection(make, remote.host, remote.port, ssl=context))[1]
                case _:
                    assert_never(remote)

    async def _check_server(self, link: JsonRpcConnection) -> None:
        """Monitor the server's own state (ovsdb-server(5)). A server without `_Server` is accepted."""
        self._server_rows = {}
        columns = ["connected", "leader", "model", "name"]
        where = [["name", "==", self._settings.database]]
        request = {"Database": [{"columns": columns, "where": where}]}
        await link.request("monitor_cond", ["_Server", _SERVER, request], partial(self._begin_server, link))

    def _begin_server(self, link: JsonRpcConnection, reply: Reply) -> None:
        if reply.error is None:
            self._see_server(link, reply.result)

    def _see_server(self, link: JsonRpcConnection, tables: Mapping[str, Mapping[str, Mapping[str, Json]]]) -> None:
        for uuid, change in tables.get("Database", {}).items():
            row = merge_row(self._server_rows.pop(uuid, None), change)
            if row is not None:
                self._server_rows[uuid] = row
        refusal = find_error(next(iter(self._server_rows.values()), None))
        if refusal is not None:
            link.disconnect(refusal)

    def _describe(self, reply: Reply) -> None:
        if reply.error is None:
            self._on_event(SchemaReceived(schema=reply.result))

    async def _follow(self, link: JsonRpcConnection, remote: Remote) -> None:
        """Synchronise from the last seen transaction if the server supports it, otherwise from the beginning."""
        params = [self._settings.database, _DATA, encode_monitors(self._settings.tables)]
        since = [*params, self._last_txn]
        try:
            read_result(await link.request("monitor_cond_since", since, partial(self._begin_since, link, remote)))
        except RequestError as error:
            if error.error != "unknown method":
                raise
            read_result(await link.request("monitor_cond", params, partial(self._begin_cond, link, remote)))

    def _begin_since(self, link: JsonRpcConnection, remote: Remote, reply: Reply) -> Steps[None]:
        if reply.error is None:
            found, txn, tables = reply.result
            yield from self._deliver(ContentChanges(tables=tables) if found else FullContents(tables=tables), txn)
            self._settle(link, remote)

    def _begin_cond(self, link: JsonRpcConnection, remote: Remote, reply: Reply) -> Steps[None]:
        if reply.error is None:
            yield from self._deliver(FullContents(tables=reply.result), NO_TXN)
            self._settle(link, remote)

    def _settle(self, link: JsonRpcConnection, remote: Remote) -> None:
        _LOG.info("%s: connected to %s", self._settings.database, remote)
        self._link = link
        self._since = asyncio.get_running_loop().time()
        self._logged_reasons.clear()
        self._connected.set()
        self._on_event(ConnectionSynced(remote=remote))
        if self._lock is not None:
            self._request_lock(link, self._lock)

    def _lost(self, link: JsonRpcConnection, reason: str) -> None:
        if link is not self._link:
            return
        level = logging.INFO if reason == _CLOSED else logging.WARNING
        _LOG.log(level, "%s: disconnected: %s", self._settings.database, reason)
        self._link = None
        self._connect_error = reason
        self._connected.clear()
        self._lose_lock()
        self._on_event(ConnectionClosed(reason=reason))

    def _log_once(self, complaint: str) -> None:
        """Log each reason once, not at every attempt."""
        level = logging.DEBUG if complaint in self._logged_reasons else logging.WARNING
        self._logged_reasons.add(complaint)
        self._connect_error = complaint
        _LOG.log(level, "%s: cannot use %s", self._settings.database, complaint)

    # Messages of the server

    def _receive(self, link: JsonRpcConnection, notification: Notification) -> Steps[None] | None:
        match notification.method, notification.params:
            case "update3", [str(name), str(txn), tables] if name == _DATA:
                return self._deliver(ContentChanges(tables=tables), txn)
            case "update2", [str(name), tables] if name == _DATA:
                return self._deliver(ContentChanges(tables=tables), NO_TXN)
            case "update2", [str(name), tables] if name == _SERVER:
                self._see_server(link, tables)
            case "locked", [str(name)] if name == self._lock:
                self._win_lock()
            case "stolen", [str(name)] if name == self._lock:
                self._lose_lock()
            case "monitor_canceled", _:
                link.disconnect("the server cancelled the monitor")
            case _:
                pass  # RFC 7047 allows others
        return None

    def _deliver(self, event: FullContents | ContentChanges, txn: str) -> Steps[None]:
        """Deliver an event. Until it is delivered completely, a reconnect has to start from the beginning."""
        self._last_txn = NO_TXN
        yield from steps_of(self._on_event(event))
        self._last_txn = txn

    def _request_lock(self, link: JsonRpcConnection, name: str) -> None:
        link.request("lock", [name], self._begin_lock)

    def _begin_lock(self, reply: Reply) -> None:
        """Handle the reply to a lock request. A queued client gets a "locked" notification later."""
        try:
            if read_result(reply)["locked"]:
                self._win_lock()
        except RequestError as error:
            self._log_once(f"lock {self._lock}: {error}")

    def _win_lock(self) -> None:
        if self._lock is not None and not self._has_lock:
            _LOG.info("%s: lock %s acquired", self._settings.database, self._lock)
            self._has_lock = True
            self._on_event(LockAcquired(name=self._lock))

    def _lose_lock(self) -> None:
        if self._lock is not None and self._has_lock:
            level = logging.INFO if self._link is None else logging.WARNING  # a lost connection has been logged
            _LOG.log(level, "%s: lock %s lost", self._settings.database, self._lock)
            self._has_lock = False
            self._on_event(LockLost(name=self._lock))


def _read_tls(tls: Tls | None) -> ssl.SSLContext:
    """Build the TLS context. Both ends present a certificate of the CA; names are not checked (ovsdb(7), SSL)."""
    if tls is None:
        raise NotConnected("a remote of kind ssl needs a private key, a certificate and a CA")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.ca)
    context.load_cert_chain(tls.certificate, tls.private_key)
    return context
