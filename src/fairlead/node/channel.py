"""Slice of the model for this node, in memory and in a file, received over the push channel.

Any server can send it (`agent_protocol/slice_lines.py`). While no server is available the slice is unchanged; after a
restart of the agent it is read from the file. The agent reconnects with its cursor.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from fairlead.agent_protocol import slice_lines
from fairlead.agent_protocol.slice_lines import read_line
from fairlead.api.agents.push_channel import HEARTBEAT_INTERVAL
from fairlead.http.server_client import ServerError
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.host_proxies import proxies_by_host
from fairlead.model.registry.slices import PLACES
from fairlead.model.snapshot import Snapshot
from fairlead.node.connection import Connection, Remote
from fairlead.node.log_once import LogOnce
from fairlead.node.threads import run_in_daemon_thread
from fairlead.runtime.atomic_file import write_atomic
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import run_to_completion
from fairlead.store.interface import StoreError

LOG = logging.getLogger(__name__)
HEARTBEAT_TIMEOUT = 3 * HEARTBEAT_INTERVAL
"""Maximum seconds without a line from a server; then the agent connects to another one."""
MIN_RECONNECT_INTERVAL, MAX_RECONNECT_INTERVAL = 0.1, 10.0
"""Minimum and maximum reconnect interval in seconds. It doubles each time and has full jitter, so that a thousand
agents do not reconnect together."""
WRITE_INTERVAL = 2.0
"""Seconds between two writes of the file."""
RESPONSE_TIMEOUT = 10.0


def slice_path(path: Path) -> Path:
    """Return the path of the slice file, beside the file of the counters."""
    return path.with_name(f"{path.stem}.slice.jsonl")


class NodeSlice:
    def __init__(self, name: str, path: Path) -> None:
        """`name` is the chassis' name in OVN; `path` is the file."""
        self.ready = asyncio.Event()
        """Set when there is a slice, possibly only from the file."""
        self.synced = asyncio.Event()
        """Set when a server has sent the slice."""
        self._path = path
        self._slice = slice_lines.SliceBuilder(name)
        self._subscribers: list[Callable[[tuple[Owner, ...]], None]] = []
        self._written_cursor = ""
        self._read()

    @property
    def name(self) -> str:
        return self._slice.name

    @property
    def snapshot(self) -> Snapshot:
        return self._slice.snapshot

    @property
    def cursor(self) -> str:
        return self._slice.cursor

    def subscribe(self, call: Callable[[tuple[Owner, ...]], None]) -> None:
        """Register a callback for changed owners: a superset of those affected. It must not block."""
        self._subscribers.append(call)

    async def apply_line(self, text: bytes) -> None:
        """Parse a line of a server's stream and apply it to the slice. Raises ValueError, StoreError."""
        line = read_line(text)
        concerned = await run_in_steps(self._slice.take(line))
        if line.at:
            self.ready.set()
            self.synced.set()
        if concerned:
            for call in self._subscribers:
                call(concerned)

    def drop_incomplete(self) -> None:
        self._slice.drop_incomplete()

    async def write(self) -> None:
        """Write the file in a thread if the slice has changed. Raises OSError."""
        cursor, snapshot = self.cursor, self.snapshot
        if cursor != self._written_cursor:
            await run_in_daemon_thread(lambda: write_atomic(self._path, b"".join(_lines(snapshot, cursor))))
            self._written_cursor = cursor

    def _read(self) -> None:
        try:
            for text in self._path.read_bytes().splitlines():
                run_to_completion(self._slice.take(read_line(text)))
        except FileNotFoundError:
            return
        except (OSError, ValueError, StoreError) as error:
            LOG.warning("cannot read %s (%s); requesting the complete slice", self._path, error)
            self._slice = slice_lines.SliceBuilder(self.name)
        self._written_cursor = self.cursor
        if self.cursor:
            self.ready.set()


def _lines(snapshot: Snapshot, cursor: str) -> Iterator[bytes]:
    """Yield the lines of the slice file: a complete slice, in the format that servers send."""
    yield slice_lines.list_line(snapshot)
    for chassis in snapshot.chassis.values():
        yield slice_lines.chassis_line(chassis)
    if snapshot.covered:
        yield slice_lines.covered_line(dict.fromkeys(snapshot.covered, True))
    for host, proxies in proxies_by_host(snapshot).items():
        yield slice_lines.proxies_line(host, proxies)
    for host, addresses in snapshot.own_addresses.items():
        yield slice_lines.addresses_line(host, addresses)
    for kind in PLACES:
        for identity, document in snapshot.documents(kind).items():
            owner = Owner(kind, identity)
            yield slice_lines.put_line(owner, snapshot.generations.get(owner), document)
            if identity in snapshot.down or identity in snapshot.online:
                yield slice_lines.health_line(snapshot, owner)
    yield slice_lines.at_line(cursor, snapshot.revision)


class SliceReceiver:
    """Connection that keeps a slice up to date."""

    def __init__(self, taken: NodeSlice, remotes: Callable[[], Sequence[Remote]]) -> None:
        """`remotes` is called for each connection, because certificates are renewed."""
        self._slice = taken
        self._remotes = remotes
        self._preferred = 0
        """Index of the server to try first: the last one that sent anything."""
        self._reconnect_interval = MIN_RECONNECT_INTERVAL
        self._failure_log = LogOnce("listening")

    async def run(self) -> None:
        """Receive until cancelled."""
        keeping = asyncio.ensure_future(self._write_periodically())
        try:
            while True:
                await self._receive_from_any()
        finally:
            keeping.cancel()

    async def _receive_from_any(self) -> None:
        """Connect to the servers in turn, and receive from the first one that answers until it fails."""
        remotes = self._remotes()
        for turn in range(len(remotes)):
            self._preferred %= len(remotes)
            try:
                await self.receive(remotes[self._preferred])
            except (ServerError, ValueError, StoreError) as error:
                self._slice.drop_incomplete()
                self._preferred += 1
                self._failure_log.report(error, self._reconnect_interval)
            if self._reconnect_interval == MIN_RECONNECT_INTERVAL and turn == 0:
                break
        await asyncio.sleep(random.uniform(0, self._reconnect_interval))  # noqa: S311 - nobody gains by guessing it
        self._reconnect_interval = min(2 * self._reconnect_interval, MAX_RECONNECT_INTERVAL)

    async def receive(self, remote: Remote) -> None:
        """Receive from one server. Raises ServerError; ValueError and StoreError for invalid lines."""
        connection = Connection(remote, RESPONSE_TIMEOUT)
        path = f"/agent/chassis/{quote(self._slice.name, safe='')}/slice?after={quote(self._slice.cursor)}"
        try:
            async for text in connection.lines(path, HEARTBEAT_TIMEOUT):
                await self._slice.apply_line(text)
                self._reconnect_interval = MIN_RECONNECT_INTERVAL
                self._failure_log.report_recovery()
        finally:
            connection.close()

    async def _write_periodically(self) -> None:
        complaints = LogOnce("writing the slice file")
        while True:
            await asyncio.sleep(WRITE_INTERVAL)
            try:
                await self._slice.write()
            except OSError as error:
                complaints.report(error, WRITE_INTERVAL)
            else:
                complaints.report_recovery()
