"""Metrics of load balancers. A tenant's Prometheus asks at the listener's port; HAProxy leads it to this node's agent.

The agent asks the process that serves (`EXPORTER`), keeps what is of that load balancer, answers by Octavia's names.
One process is asked once a second at most, however often and by however many it is scraped.
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
from fairlead.drivers.haproxy.kept import Kept
from fairlead.drivers.haproxy.network import Network
from fairlead.drivers.haproxy.rights import Rights
from fairlead.drivers.interface import Unavailable
from fairlead.model.owner import Kind, Owner

EXPORTER = "sockets/exporter"
"""Of the process, below its folder."""
SOCKET = "metrics"
"""Of the agent, beside the folders of processes."""
PATIENCE = 5.0
"""Seconds for one scrape."""
FRESH = 1.0
"""Seconds for which an answer of the process is good."""
TRIES = 5
"""Until the process that serves answers, and not the one that it follows."""
AT_ONCE = 200
"""Lines that are read without a rest."""
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
        """`find` says whose proxy has the listeners of a load balancer."""
        self._path = folder / SOCKET
        self._rights = rights
        self._find = find
        self._server: asyncio.Server | None = None
        self._scraped: dict[Path, _Scraped] = {}

    async def keep(self, network: Network) -> None:
        """Before another process takes the place of the one that serves: what it has counted is not lost. Where nobody
        asks, nothing is kept. Raises OSError."""
        if not _asking(network.kept):
            self.forget(network)
            return
        await self._open()
        scraped = self._scraped.get(network.kept.folder)
        if scraped is not None and network.running is not None:
            with contextlib.suppress(Unavailable, TooMany):
                await _read(network, scraped.meter)

    def forget(self, network: Network) -> None:
        """What its processes have counted: it has nobody to serve."""
        self._scraped.pop(network.kept.folder, None)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _open(self) -> None:
        """Raises OSError."""
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
            pass  # nobody waits for it any more
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
        """Raises Unavailable and TooMany."""
        if network.running is None:
            raise Unavailable("the proxy does not run")  # its place may have ended: nothing is kept of it
        scraped = self._scraped.setdefault(network.kept.folder, _Scraped())
        async with scraped.busy:
            if (now := asyncio.get_running_loop().time()) >= scraped.until:
                async with network.busy:  # no process is being replaced
                    await _read(network, scraped.meter)
                scraped.until = now + FRESH
        return scraped.meter


def _asking(kept: Kept) -> list[Owner]:
    """Load balancers of which somebody may ask for metrics."""
    return [owner for owner, rows in kept.owners.items() if any(_is_metrics(row) for row in rows.values())]


def _is_metrics(row: object) -> bool:
    return isinstance(row, Frontend) and ("default_backend", METRICS) in row.lines


def _sections(kept: Kept, owner: Owner) -> tuple[frozenset[str], frozenset[str]]:
    rows = kept.owners.get(owner, {}).values()
    frontends = frozenset(row.name for row in rows if isinstance(row, Frontend))
    return frontends, frozenset(row.name for row in rows if isinstance(row, Backend))


async def _read(network: Network, meter: Meter) -> None:
    """Raises Unavailable and TooMany."""
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
    """The number of the process that has answered, and what. Raises Unavailable and TooMany."""
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
