"""An HAProxy driver with real processes on loopback, and HTTP clients."""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Process
from fairlead.dataplane.haproxy_text import HARD_STOP_AFTER
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import Fetch, HAProxy
from fairlead.drivers.haproxy.backoff import CommandPace, ReplacementBackoff
from fairlead.drivers.haproxy.change_queue import REQUEUE_INTERVAL
from fairlead.drivers.haproxy.counters import ProxyCounters
from fairlead.drivers.haproxy.process import Program, read_running
from fairlead.drivers.haproxy.secrets import fetch_nothing
from fairlead.drivers.interface import DriverError, Requeue
from fairlead.model.documents.owner import Kind, Owner
from fairlead.node.listener_counters import CounterSums
from harness.proxied import PROGRAM, WEB, listener, pool, view
from harness.waiting import eventually

NET = Owner(Kind.NETWORK, "net1")


@dataclass
class LoopbackPlaces:
    """Network places without namespaces: the proxies' addresses are on loopback."""

    made: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    remaining_failures: int = 0
    """Number of further calls of `make` that fail."""

    async def make(self, process: Process) -> Sequence[str]:
        if self.remaining_failures:
            self.remaining_failures -= 1
            raise DriverError("the switch is away")
        self.made.append(process.network)
        return ()

    async def remove(self, network_id: str) -> None:
        self.removed.append(network_id)


@dataclass
class HaproxySite:
    """A driver in a folder, with the reports that it makes."""

    folder: Path
    places: LoopbackPlaces = field(default_factory=LoopbackPlaces)
    reported_ports: list[frozenset[int] | None] = field(default_factory=list)
    fetch: Fetch = fetch_nothing
    """Who brings keys."""
    outlives: int = HARD_STOP_AFTER
    """Seconds for which a replaced process goes on."""
    tally: CounterSums = field(default_factory=CounterSums)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the driver reports that a postponed owner may be applied."""
    failed_owners: list[Collection[Owner]] = field(default_factory=list)
    driver: HAProxy = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.new()

    def new(self) -> HAProxy:
        program = Program(path=PROGRAM, user="", hard_stop_after=self.outlives)
        counters = ProxyCounters(lambda process, counted: self.tally.add_process(str(process), counted))
        driver = HAProxy(self.folder, self.places, self._record_ports, program, self.fetch, counters)
        driver.subscribe(lambda _: self.settled.set(), self.failed_owners.append)
        return driver

    def _record_ports(self, _: str, ports: frozenset[int] | None) -> None:
        self.reported_ports.append(ports)

    async def apply_until_done(self, owner: Owner, rows: Rows) -> None:
        """Apply, and retry until it succeeds, as a reconciler does."""
        await eventually(lambda: self.apply_once(owner, rows), f"{owner} is applied", is_enough=lambda wait: not wait)

    async def apply_once(self, owner: Owner, rows: Rows) -> float:
        """Seconds until the next attempt is due, or 0.0 after success.

        Waits for work that the driver finishes by itself.
        """
        while True:
            self.settled.clear()
            try:
                await self.driver.apply(owner, diff(rows, await self.driver.read(owner)))
            except Requeue as later:
                if later.seconds < REQUEUE_INTERVAL:
                    return later.seconds
            else:
                return 0.0
            await self.settled.wait()

    def allow_replacement(self) -> None:
        """Allow the driver to replace any process immediately."""
        self._set_pace(ReplacementBackoff)

    def hold_replacements(self) -> None:
        """Postpone all replacements of processes."""
        self._set_pace(BlockedPace)

    def allow_commands(self) -> None:
        """Allow the driver to check and send any commands immediately."""
        for network in self.driver._networks.values():
            network.command_pace = CommandPace()

    def _set_pace(self, kind: type[ReplacementBackoff]) -> None:
        for network in self.driver._networks.values():
            network.replacement_backoff = kind()

    @property
    def pid(self) -> int:
        [folder] = self.folder.glob("*/")
        running = read_running(folder)
        assert running is not None
        return running.pid


class BlockedPace(ReplacementBackoff):
    def wait(self, _: float) -> float:
        return REQUEUE_INTERVAL / 2


@asynccontextmanager
async def opened(site: HaproxySite) -> AsyncIterator[HaproxySite]:
    """Open the driver of the site. At the end, all its processes have exited."""
    await site.driver.open()
    try:
        yield site
    finally:
        for owner in [WEB, NET]:
            await site.apply_until_done(owner, {})
        await site.driver.close()
    assert not [each for each in site.folder.glob("*") if read_running(each)]


@asynccontextmanager
async def opened_site(outlives: int = HARD_STOP_AFTER) -> AsyncIterator[HaproxySite]:
    """In a folder whose name is short enough for sockets in it (unix(7))."""
    with TemporaryDirectory() as folder:
        async with opened(HaproxySite(Path(folder) / "p", outlives=outlives)) as site:
            yield site


def rows(port: int, *members: Any, more: Sequence[Any] = ()) -> Rows:
    web = pool("web", *members)
    return HAPROXY.compile(view([listener("one", port, web), *more], [web]), WEB)


NETWORK = HAPROXY.compile(view([], []), NET)


def get(port: int, host: str = "127.0.0.1") -> str:
    """Name of the machine that answers, or an empty string if the request fails."""
    try:
        with socket.create_connection((host, port), 30) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(4096), b""))
    except OSError:
        return ""
    head, _, body = answer.decode().partition("\r\n\r\n")
    return body.split()[0] if " 200 " in head.splitlines()[0] + " " and body else ""


def sockets_at(port: int) -> dict[str, list[str]]:
    """Inodes of the sockets that listen on this port, by table of /proc/net (proc(5))."""
    found = dict[str, list[str]]()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.setdefault(table, []).append(fields[9])
    return found


@dataclass
class RepeatingClient:
    """Client that repeats a request in a thread."""

    port: int
    host: str = "127.0.0.1"
    answers: list[str] = field(default_factory=list)
    _ended: Event = field(default_factory=Event)

    def __enter__(self) -> "RepeatingClient":
        self._thread = Thread(target=self._repeat_request)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _repeat_request(self) -> None:
        while not self._ended.is_set():
            self.answers.append(get(self.port, self.host))


def response_on(client: socket.socket) -> bytes:
    """Answer to a request on an open connection, which may be kept alive."""
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    answer = b""
    while not answer.endswith(b"m1"):
        more = client.recv(4096)
        assert more, "it was closed"
        answer += more
    return answer


async def eventually_answers(name: str, port: int, host: str = "127.0.0.1") -> None:
    """Wait until this machine answers on the port."""
    await eventually(
        lambda: asyncio.to_thread(get, port, host), f"an answer of {name}", is_enough=lambda found: found == name
    )


async def await_more_answers(asking: RepeatingClient, count: int = 5) -> None:
    """Wait for more than `count` answers to requests sent after this call, and the answer to the request under way."""
    seen = len(asking.answers)
    await eventually(lambda: len(asking.answers) - seen, f"{count} answers", is_enough=lambda more: more > count)
