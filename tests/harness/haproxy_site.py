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
from fairlead.dataplane.haproxy_text import OUTLIVES
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import Fetch, HAProxy
from fairlead.drivers.haproxy.backoff import CommandPace, Pace
from fairlead.drivers.haproxy.change_queue import LONGEST
from fairlead.drivers.haproxy.counters import Counters
from fairlead.drivers.haproxy.process import Program, read_running
from fairlead.drivers.haproxy.secrets import nobody_lends
from fairlead.drivers.interface import DriverError, Later
from fairlead.model.documents.owner import Kind, Owner
from fairlead.node.listener_counters import Tally
from harness.proxied import PROGRAM, WEB, listener, pool, view
from harness.waiting import eventually

NET = Owner(Kind.NETWORK, "net1")


@dataclass
class Here:
    """Network places without namespaces: the proxies' addresses are on loopback."""

    made: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    refusals: int = 0
    """Number of further calls of `make` that fail."""

    async def make(self, process: Process) -> Sequence[str]:
        if self.refusals:
            self.refusals -= 1
            raise DriverError("the switch is away")
        self.made.append(process.network)
        return ()

    async def remove(self, network_id: str) -> None:
        self.removed.append(network_id)


@dataclass
class Site:
    """A driver in a folder, with the reports that it makes."""

    folder: Path
    places: Here = field(default_factory=Here)
    said: list[frozenset[int] | None] = field(default_factory=list)
    fetch: Fetch = nobody_lends
    """Who brings keys."""
    outlives: int = OUTLIVES
    """Seconds for which a replaced process goes on."""
    tally: Tally = field(default_factory=Tally)
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the driver reports that a postponed owner may be applied."""
    failing: list[Collection[Owner]] = field(default_factory=list)
    driver: HAProxy = field(init=False)

    def __post_init__(self) -> None:
        self.driver = self.new()

    def new(self) -> HAProxy:
        program = Program(path=PROGRAM, user="", outlives=self.outlives)
        counters = Counters(lambda process, counted: self.tally.take_process(str(process), counted))
        driver = HAProxy(self.folder, self.places, self._hear, program, self.fetch, counters)
        driver.follow(lambda _: self.settled.set(), self.failing.append)
        return driver

    def _hear(self, _: str, ports: frozenset[int] | None) -> None:
        self.said.append(ports)

    async def put(self, owner: Owner, rows: Rows) -> None:
        """Apply, and retry until it succeeds, as a reconciler does."""
        await eventually(lambda: self.try_(owner, rows), f"{owner} is applied", is_enough=lambda wait: not wait)

    async def try_(self, owner: Owner, rows: Rows) -> float:
        """Seconds until the next attempt is due, or 0.0 after success.

        Waits for work that the driver finishes by itself.
        """
        while True:
            self.settled.clear()
            try:
                await self.driver.apply(owner, diff(rows, await self.driver.read(owner)))
            except Later as later:
                if later.seconds < LONGEST:
                    return later.seconds
            else:
                return 0.0
            await self.settled.wait()

    def allow_replacement(self) -> None:
        """Allow the driver to replace any process immediately."""
        self._set_pace(Pace)

    def hold_replacements(self) -> None:
        """Postpone all replacements of processes."""
        self._set_pace(_Held)

    def allow_commands(self) -> None:
        """Allow the driver to check and send any commands immediately."""
        for network in self.driver._networks.values():
            network.command_pace = CommandPace()

    def _set_pace(self, kind: type[Pace]) -> None:
        for network in self.driver._networks.values():
            network.pace = kind()

    @property
    def pid(self) -> int:
        [folder] = self.folder.glob("*/")
        running = read_running(folder)
        assert running is not None
        return running.pid


class _Held(Pace):
    def wait(self, _: float) -> float:
        return LONGEST / 2


@asynccontextmanager
async def opened(site: Site) -> AsyncIterator[Site]:
    """Open the driver of the site. At the end, all its processes have exited."""
    await site.driver.open()
    try:
        yield site
    finally:
        for owner in [WEB, NET]:
            await site.put(owner, {})
        await site.driver.close()
    assert not [each for each in site.folder.glob("*") if read_running(each)]


@asynccontextmanager
async def opened_site(outlives: int = OUTLIVES) -> AsyncIterator[Site]:
    """In a folder whose name is short enough for sockets in it (unix(7))."""
    with TemporaryDirectory() as folder:
        async with opened(Site(Path(folder) / "p", outlives=outlives)) as site:
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
class Asking:
    """Client that repeats a request in a thread."""

    port: int
    host: str = "127.0.0.1"
    answers: list[str] = field(default_factory=list)
    _ended: Event = field(default_factory=Event)

    def __enter__(self) -> "Asking":
        self._thread = Thread(target=self._ask)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._ended.is_set():
            self.answers.append(get(self.port, self.host))


def asked(client: socket.socket) -> bytes:
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


async def more_answers(asking: Asking, count: int = 5) -> None:
    """Wait for more than `count` answers to requests sent after this call, and the answer to the request under way."""
    seen = len(asking.answers)
    await eventually(lambda: len(asking.answers) - seen, f"{count} answers", is_enough=lambda more: more > count)
