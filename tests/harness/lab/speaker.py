"""Sends on connections continuously, from one program of a workload, and records which members answer.

    speaker.py ADDRESS PORT PROTOCOL FIRST-SOURCE-PORT

Each line of standard input is a number of additional connections to open. The response is a line of JSON that maps each
source port to the record of its connection: the first and last member, the number of answers, and whether it broke.
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

from fairlead.lab import Lab, Protocol, Traffic
from fairlead.lab.clients import open_socket
from fairlead.lab.records import take_source_ports
from harness.rules import TESTS
from harness.waiting import pause_loop

PERIOD = 0.05
MOST = 100


@dataclass(slots=True)
class Speech:
    first: str = ""
    last: str = ""
    """Names of members."""
    answers: int = 0
    changed: bool = False
    """Whether the answering member changed."""
    broke: bool = False
    """Whether the connection was reset or refused."""


class Speaker:
    """Client of the program through its pipes."""

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
    environment = {**command.full_environment(), "PYTHONPATH": str(TESTS)}
    with Popen(command.argv, env=environment, stdin=PIPE, stdout=PIPE, text=True) as process:
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
            except OSError:  # for UDP, the ICMP error of the previous datagram
                speech.broke = True
            await pause_loop(PERIOD)
        await hearing


async def hear(client: socket.socket, speech: Speech) -> None:
    while True:
        try:
            answer = await asyncio.get_running_loop().sock_recv(client, 65536)
        except OSError:
            speech.broke = True
            if client.type == socket.SOCK_STREAM:
                return
            continue
        if not answer:
            return
        name = answer.split(b" ")[0].decode()
        speech.changed = speech.changed or speech.last not in ("", name)
        speech.first, speech.last, speech.answers = speech.first or name, name, speech.answers + 1


if __name__ == "__main__":
    traffic = Traffic(to=sys.argv[1], port=int(sys.argv[2]), protocol=Protocol(sys.argv[3]))
    asyncio.run(main(traffic, int(sys.argv[4])))
