"""Metrics of load balancers: the node's agent answers scrapes that arrive at a PROMETHEUS listener.

A tenant's Prometheus connects to the listener's port, and HAProxy forwards the request to the agent. The agent reads
the running process's exporter (`EXPORTER_FRONTEND`), selects the sections of that load balancer, and renders them with
Octavia's metric names. It reads each process at most once a second, whatever the number of scrapes.
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
from fairlead.dataplane.octavia_metrics import AccumulatedMetrics, Scrape, TooManySamples, render_metrics
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.network import ProxyNetwork
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.interface import Unavailable
from fairlead.model.documents.owner import Kind, Owner

EXPORTER = "sockets/exporter"
"""Socket of the process's exporter, relative to the process's folder."""
SOCKET = "metrics"
"""Socket of the agent, next to the folders of the processes."""
SCRAPE_TIMEOUT = 5.0
"""Seconds for one scrape."""
CACHE_SECONDS = 1.0
"""Seconds for which a reading of the process is reused."""
MAX_ATTEMPTS = 5
"""Maximum reads until the current process responds instead of its predecessor."""
LINES_PER_YIELD = 200
"""Lines parsed before the parser yields to the event loop."""
MAX_REQUEST_BYTES = 2**13
_MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
_PATH = re.compile(rb"GET /([^ ?]+) HTTP/1\.[01]\r\n")
Find = Callable[[Owner], ProxyNetwork | None]


@dataclass(slots=True)
class _Scraped:
    meter: AccumulatedMetrics = field(default_factory=AccumulatedMetrics)
    until: float = 0.0
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class MetricsServer:
    def __init__(self, folder: Path, rights: FileOwnership, find: Find) -> None:
        """`find` returns the network with the proxy of a load balancer."""
        self._path = folder / SOCKET
        self._rights = rights
        self._find = find
        self._server: asyncio.Server | None = None
        self._scraped: dict[Path, _Scraped] = {}

    async def save_counters(self, network: ProxyNetwork) -> None:
        """Read the counters of the running process before another one replaces it, so that they are not lost. Drops the
        counters of a network without a PROMETHEUS listener. Raises OSError."""
        if not _balancers_with_metrics(network.state):
            self.forget(network)
            return
        await self._open()
        scraped = self._scraped.get(network.state.folder)
        if scraped is not None and network.running is not None:
            with contextlib.suppress(Unavailable, TooManySamples):
                await _read(network, scraped.meter)

    def forget(self, network: ProxyNetwork) -> None:
        """Drop the counters of a network's processes."""
        self._scraped.pop(network.state.folder, None)

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
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_REQUEST_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(2 * SCRAPE_TIMEOUT):
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
            meter = await self._read_cached(network)
        except (Unavailable, TooManySamples) as error:
            return "503 Service Unavailable", f"{error}\n"
        listeners, backends = _sections(network.state, owner)
        text = await asyncio.to_thread(render_metrics, meter, listeners, backends, _MEMORY)
        return "200 OK", text

    async def _read_cached(self, network: ProxyNetwork) -> AccumulatedMetrics:
        """Return counters of the network's process that are at most `CACHE_SECONDS` seconds old. Raises Unavailable and
        TooMany."""
        if network.running is None:
            raise Unavailable(
                "the proxy is not running"
            )  # after a removal of the network, nothing must be stored for it
        scraped = self._scraped.setdefault(network.state.folder, _Scraped())
        async with scraped.busy:
            if (now := asyncio.get_running_loop().time()) >= scraped.until:
                async with network.busy:  # excludes a replacement of the process
                    await _read(network, scraped.meter)
                scraped.until = now + CACHE_SECONDS
        return scraped.meter


def _balancers_with_metrics(kept: StoredState) -> list[Owner]:
    """Load balancers with a PROMETHEUS listener."""
    return [owner for owner, rows in kept.owners.items() if any(_is_metrics(row) for row in rows.values())]


def _is_metrics(row: object) -> bool:
    return isinstance(row, Frontend) and ("default_backend", METRICS) in row.lines


def _sections(kept: StoredState, owner: Owner) -> tuple[frozenset[str], frozenset[str]]:
    rows = kept.owners.get(owner, {}).values()
    frontends = frozenset(row.name for row in rows if isinstance(row, Frontend))
    return frontends, frozenset(row.name for row in rows if isinstance(row, Backend))


async def _read(network: ProxyNetwork, meter: AccumulatedMetrics) -> None:
    """Read the current process's counters into `meter`. Raises Unavailable and TooMany."""
    running = network.running
    if running is None:
        raise Unavailable("the proxy is not running")
    wanted = frozenset().union(
        *(part for owner in _balancers_with_metrics(network.state) for part in _sections(network.state, owner))
    )
    for _ in range(MAX_ATTEMPTS):
        process, reading = await _scrape(network.state.folder / EXPORTER, wanted)
        if process == running.pid:
            meter.record_scrape(str(running), reading)
            return
    raise Unavailable("the proxy was replaced during the request")


async def _scrape(path: Path, sections: frozenset[str]) -> tuple[int, Scrape]:
    """Return the pid of the process that responded, and its reading. Raises Unavailable and TooMany."""
    try:
        async with asyncio.timeout(SCRAPE_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
                heads = await _heads(reader)
                return int(heads.get(b"x-process", b"0")), await _body(reader, sections)
            finally:
                writer.close()
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        raise Unavailable(f"cannot read the metrics of the proxy: {error}") from None


async def _heads(reader: asyncio.StreamReader) -> Mapping[bytes, bytes]:
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    if b" 200" not in lines[0]:
        raise EOFError("HTTP status is not 200")
    return {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines[1:])}


async def _body(reader: asyncio.StreamReader, sections: frozenset[str]) -> Scrape:
    reading, number = Scrape(), 0
    while line := await reader.readline():
        reading.parse_line(line.decode(errors="replace").rstrip(), sections)
        number += 1
        if number % LINES_PER_YIELD == 0:
            await asyncio.sleep(0)
    return reading


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    heads = f"Content-Type: text/plain; version=0.0.4\r\nCache-Control: no-cache\r\nContent-Length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{heads}\r\nConnection: close\r\n\r\n".encode() + body
