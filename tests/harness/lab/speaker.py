"""Connections that speak all the time, from one program of a workload: who answered each first and last, and when it
broke.

    speaker.py ADDRESS PORT PROTOCOL FIRST-SOURCE-PORT

Each line of standard input is a number of connections to open besides; each is answered by a line of JSON: source port
to what is known of the connection.
"""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from subprocess import PIPE, Popen
from time import time

from fairlead.lab import Lab, Protocol, Traffic
from fairlead.lab.clients import open_socket
from fairlead.lab.records import take_source_ports

PERIOD = 0.05
MOST = 100


@dataclass(slots=True)
class Speech:
    first: str = ""
    last: str = ""
    """Who answered."""
    heard: float = 0.0
    """When anybody answered last (Unix time)."""
    changed: float = 0.0
    """When another one than before answered first; 0.0 for never."""
    broke: float = 0.0
    """When the connection was reset or refused; 0.0 for not."""


class Speaker:
    """The other end of the program's pipes."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process

    def open(self, number: int) -> Mapping[int, Speech]:
        assert self._process.stdin
        assert self._process.stdout
        print(number, file=self._process.stdin, flush=True)
        told = json.loads(self._process.stdout.readline())
        return {int(port): Speech(**said) for port, said in told.items()}

    def look(self) -> Mapping[int, Speech]:
        return self.open(0)


@contextmanager
def speaking(lab: Lab, place: str, address: str, protocol: Protocol) -> Iterator[Speaker]:
    first = take_source_ports(lab.layout, place, MOST)
    command = lab.command(place, [sys.executable, __file__, address, "80", protocol.value, str(first)])
    with Popen(command.argv, env=command.full_environment(), stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield Speaker(process)
        finally:
            process.kill()


async def main(target: Traffic, first: int) -> None:
    loop, sources, speeches = asyncio.get_running_loop(), count(first), dict[int, Speech]()
    speaking_ = set[asyncio.Task[None]]()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for source in (next(sources) for _ in range(int(line))):
            speeches[source] = Speech()
            speaking_.add(asyncio.create_task(speak(target, source, speeches[source])))
        print(json.dumps({source: asdict(speech) for source, speech in speeches.items()}), flush=True)


async def speak(target: Traffic, source: int, speech: Speech) -> None:
    loop = asyncio.get_running_loop()
    with open_socket(target, source) as client:
        client.setblocking(False)
        await loop.sock_connect(client, (target.to, target.port))
        hearing = asyncio.create_task(hear(client, speech))
        while not hearing.done():
            try:
                await loop.sock_sendall(client, b"?\n")
            except OSError:  # of UDP it is the last datagram that was refused
                speech.broke = speech.broke or time()
            await asyncio.sleep(PERIOD)
        await hearing


async def hear(client: socket.socket, speech: Speech) -> None:
    while True:
        try:
            answer = await asyncio.get_running_loop().sock_recv(client, 65536)
        except OSError:
            speech.broke = speech.broke or time()
            if client.type == socket.SOCK_STREAM:
                return
            continue
        if not answer:
            return
        name, now = answer.split(b" ")[0].decode(), time()
        if speech.last and name != speech.last:
            speech.changed = speech.changed or now
        speech.first, speech.last, speech.heard = speech.first or name, name, now


if __name__ == "__main__":
    traffic = Traffic(to=sys.argv[1], port=int(sys.argv[2]), protocol=Protocol(sys.argv[3]))
    asyncio.run(main(traffic, int(sys.argv[4])))
