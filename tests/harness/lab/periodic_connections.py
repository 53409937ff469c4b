"""Opens a connection to one address per period, from a program of a workload, and reports start and result of each.

    ticker.py ADDRESS PORT FIRST-SOURCE-PORT

A line of JSON reports each connection when it is answered or has timed out. When standard input is closed, the program
reports the remaining connections and exits.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import count
from subprocess import PIPE, Popen
from threading import Thread
from time import time

from fairlead.lab import Lab, Traffic
from fairlead.lab.client import InvalidReply, classify, exchange_line, open_socket
from fairlead.lab.records import allocate_source_ports

OPEN_INTERVAL = 0.1
TIMEOUT = 30.0
MAX_CONNECTIONS = 5000
"""connections per run"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionResult:
    """A connection: start (Unix time), seconds until the answer, and name of the machine, or "" without an answer."""

    started_at: float
    seconds: float
    name: str
    source: int
    """Source port; each connection takes the next one."""
    kind: str = ""


class PeriodicConnections:
    """Client of the program through its pipes. `ticks` grows."""

    def __init__(self, process: "Popen[str]", first: int) -> None:
        """Read the reports in a thread. `first` is the first source port."""
        self._process = process
        self._first = first
        self._reading = Thread(target=self._read, daemon=True)
        self.results: list[ConnectionResult] = []
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout
        self.results.extend(ConnectionResult(**json.loads(line)) for line in self._process.stdout)

    def has_all_results(self, before: float) -> bool:
        """Whether every connection that began before this time has a result."""
        ticks = list(self.results)
        since = min((tick.source for tick in ticks if tick.started_at >= before), default=None)
        return since is not None and sum(tick.source < since for tick in ticks) == since - self._first

    def stop(self) -> None:
        """Stop the program. Returns after the last report."""
        assert self._process.stdin
        self._process.stdin.close()
        self._reading.join()


@contextmanager
def periodic_connections(lab: Lab, place: str, address: str, port: int) -> Iterator[PeriodicConnections]:
    first = allocate_source_ports(lab.layout, place, MAX_CONNECTIONS)
    command = lab.command(place, [sys.executable, __file__, address, str(port), str(first)])
    with Popen(command.argv, env=command.full_environment(), stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield PeriodicConnections(process, first)
        finally:
            process.kill()


async def main(traffic: Traffic, first: int) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), lambda: os.read(0, 1) or ended.set())
    async with asyncio.TaskGroup() as asked:
        for source in count(first):
            if ended.is_set() or source == first + MAX_CONNECTIONS:
                break
            asked.create_task(open_connection(traffic, source))
            with suppress(TimeoutError):
                async with asyncio.timeout(OPEN_INTERVAL):
                    await ended.wait()


async def open_connection(traffic: Traffic, source: int) -> None:
    began, name, kind = time(), "", ""
    try:
        async with asyncio.timeout(TIMEOUT):
            with open_socket(traffic, source) as client:
                await asyncio.get_running_loop().sock_connect(client, (traffic.to, traffic.port))
                name = await exchange_line(b"%d" % source, client)
    except (OSError, InvalidReply) as error:
        kind = classify(error)
    print(
        json.dumps(
            asdict(ConnectionResult(started_at=began, seconds=time() - began, name=name, kind=kind, source=source))
        ),
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main(Traffic(to=sys.argv[1], port=int(sys.argv[2])), int(sys.argv[3])))
