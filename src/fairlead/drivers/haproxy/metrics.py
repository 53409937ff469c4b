"""Metrics of load balancers: the node's agent answers scrapes that arrive at a PROMETHEUS listener.

A tenant's Prometheus connects to the listener's port, and HAProxy forwards the request to the agent. The agent reads
the running process's exporter (`EXPORTER`), selects the sections of that load balancer, and renders them with Octavia's
metric names. It reads each process at most once a second, whatever the number of scrapes.
"""

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.dataplane.haproxy import METRICS, Backend, Frontend
from fairlead.dataplane.octavia_metrics import Meter, Reading, TooMany, rendered
from fairlead.drivers.haproxy.file_ownership import Rights
from fairlead.drivers.haproxy.network import Network
from fairlead.drivers.haproxy.state import Kept
from fairlead.drivers.interface import Unavailable
from fairlead.model.documents.owner import Kind, Owner

EXPORTER = "sockets/exporter"
"""Socket of the process's exporter, relative to the process's folder."""
SOCKET = "metrics"
"""Socket of the agent, next to the folders of the processes."""
PATIENCE = 5.0
"""Seconds for one scrape."""
FRESH = 1.0
"""Seconds for which a reading of the process is reused."""
TRIES = 5
"""Maximum reads until the current process responds instead of its predecessor."""
AT_ONCE = 200
"""Lines parsed before the parser yields to the event loop."""
LONGEST_QUESTION = 2**13
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_PATH = re.compile(rb"GET /([^ ?]+) HTTP/1\.[01]\r\n")
Find = Callable[[Owner], Network | None]


@dataclass(slots=True)
class _Scraped:
    meter: Meter = field(default_factory=Meter)
    until: float = 0.0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class Metrics:
    def __init__(self, folder: Path, rights: Rights, find: Find) -> None:
        """`find` returns the network with the proxy of a load balancer."""
        self._path = folder / SOCKET
        self._rights = rights
        self._find = find
        self._server: asyncio.Server | None = None
        self._scraped: dict[Path, _Scraped] = {}

    async def keep(self, network: Network) -> None:
        """Read the counters of the running process before another one replaces it, so that they are not lost. Drops the
        counters of a network without a PROMETHEUS listener. Raises OSError."""
        if not _asking(network.kept):
            self.forget(network)
            return
        await self._open()
        scraped = self._scraped.get(network.kept.folder)
        if scraped is not None and network.running is not None:
            with contextlib.suppress(Unavailable, TooMany):
                await _read(network, scraped.meter)

    def forget(self, network: Network) -> None:
        """Drop the counters of a network's processes."""
        self._scraped.pop(network.kept.folder, None)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _open(self) -> None:
        """Listen on the agent's socket. Raises OSError."""
        if self._server is not None:
            return
        self._path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(self._path))
        self._rights.share(self._path)
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=LONGEST_QUESTION)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * PATIENCE):
                status, text = await self._answer(await reader.readuntil(b"\r\n\r\n"))
                writer.write(_response(status, text))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    async def _answer(self, question: bytes) -> tuple[str, str]:
        found = _PATH.match(question)
        owner = Owner(Kind.LOAD_BALANCER, found[1].decode(errors="replace")) if found is not None else None
        network = self._find(owner) if owner is not None else None
        if owner is None or network is None:
            return "404 Not Found", "no such load balancer\n"
        try:
            meter = await self._look(network)
        except (Unavailable, TooMany) as error:
            return "503 Service Unavailable", f"{error}\n"
        listeners, backends = _sections(network.kept, owner)
        text = await asyncio.to_thread(rendered, meter, listeners, backends, _MEMORY)
        return "200 OK", text

    async def _look(self, network: Network) -> Meter:
        """Return counters of the network's process that are at most `FRESH` seconds old. Raises Unavailable and
        TooMany."""
        if network.running is None:
            raise Unavailable("the proxy does not run")  # after a removal of the network, nothing must be stored for it
        scraped = self._scraped.setdefault(network.kept.folder, _Scraped())
        async with scraped.busy:
            if (now := asyncio.get_running_loop().time()) >= scraped.until:
                async with network.busy:  # excludes a replacement of the process
                    await _read(network, scraped.meter)
                scraped.until = now + FRESH
        return scraped.meter


def _asking(kept: Kept) -> list[Owner]:
    """Load balancers with a PROMETHEUS listener."""
    return [owner for owner, rows in kept.owners.items() if any(_is_metrics(row) for row in rows.values())]


def _is_metrics(row: object) -> bool:
    return isinstance(row, Frontend) and ("default_backend", METRICS) in row.lines


def _sections(kept: Kept, owner: Owner) -> tuple[frozenset[str], frozenset[str]]:
    rows = kept.owners.get(owner, {}).values()
    frontends = frozenset(row.name for row in rows if isinstance(row, Frontend))
    return frontends, frozenset(row.name for row in rows if isinstance(row, Backend))


async def _read(network: Network, meter: Meter) -> None:
    """Read the current process's counters into `meter`. Raises Unavailable and TooMany."""
    running = network.running
    if running is None:
        raise Unavailable("the proxy does not run")
    wanted = frozenset().union(*(part for owner in _asking(network.kept) for part in _sections(network.kept, owner)))
    for _ in range(TRIES):
        process, reading = await _scrape(network.kept.folder / EXPORTER, wanted)
        if process == running.pid:
            meter.take(str(running), reading)
            return
    raise Unavailable("the proxy has just been replaced")


async def _scrape(path: Path, sections: frozenset[str]) -> tuple[int, Reading]:
    """Return the pid of the process that responded, and its reading. Raises Unavailable and TooMany."""
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                heads = await _heads(reader)
                return int(heads.get(b"x-process", b"0")), await _body(reader, sections)
            finally:
                writer.close()
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        raise Unavailable(f"the proxy does not tell its metrics: {error}") from None


async def _heads(reader: asyncio.StreamReader) -> Mapping[bytes, bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    if b" 200" not in lines[0]:
        raise EOFError("it refuses")
    return {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines[1:])}


async def _body(reader: asyncio.StreamReader, sections: frozenset[str]) -> Reading:
    reading, number = Reading(), 0
    while line := await reader.readline():
        reading.take(line.decode(errors="replace").rstrip(), sections)
        number += 1
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
    return reading


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    heads = f"Content-Type: text/plain; version=0.0.4\r\nCache-Control: no-cache\r\nContent-Length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{heads}\r\nConnection: close\r\n\r\n".encode() + body
