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
from fairlead.lab.client import open_socket
from fairlead.lab.records import allocate_source_ports
from harness.rules import TESTS
from harness.waiting import pause_loop

SEND_INTERVAL = 0.05
MAX_CONNECTIONS = 100


@dataclass(slots=True)
class ConnectionRecord:
    first: str = ""
    last: str = ""
    """Names of members."""
    answers: int = 0
    has_changed_member: bool = False
    """Whether the answering member changed."""
    is_broken: bool = False
    """Whether the connection was reset or refused."""


class BusyConnections:
    """Client of the program through its pipes."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process

    def open(self, number: int) -> Mapping[int, ConnectionRecord]:
        assert self._process.stdin
        assert self._process.stdout
        print(number, file=self._process.stdin, flush=True)
        told = json.loads(self._process.stdout.readline())
        return {int(port): ConnectionRecord(**said) for port, said in told.items()}

    def read_records(self) -> Mapping[int, ConnectionRecord]:
        return self.open(0)


@contextmanager
def busy_connections(lab: Lab, place: str, address: str, protocol: Protocol) -> Iterator[BusyConnections]:
    first = allocate_source_ports(lab.layout, place, MAX_CONNECTIONS)
    command = lab.command(place, [sys.executable, __file__, address, "80", protocol.value, str(first)])
    environment = {**command.full_environment(), "PYTHONPATH": str(TESTS)}
    with Popen(command.argv, env=environment, stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield BusyConnections(process)
        finally:
            process.kill()


async def main(target: Traffic, first: int) -> None:
    loop, sources, speeches = asyncio.get_running_loop(), count(first), dict[int, ConnectionRecord]()
    speaking_ = set[asyncio.Task[None]]()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        for source in (next(sources) for _ in range(int(line))):
            speeches[source] = ConnectionRecord()
            speaking_.add(asyncio.create_task(send_continuously(target, source, speeches[source])))
        print(json.dumps({source: asdict(speech) for source, speech in speeches.items()}), flush=True)


async def send_continuously(target: Traffic, source: int, speech: ConnectionRecord) -> None:
    loop = asyncio.get_running_loop()
    with open_socket(target, source) as client:
        client.setblocking(False)
        await loop.sock_connect(client, (target.to, target.port))
        hearing = asyncio.create_task(receive_replies(client, speech))
        while not hearing.done():
            try:
                await loop.sock_sendall(client, b"?\n")
            except OSError:  # for UDP, the ICMP error of the previous datagram
                speech.is_broken = True
            await pause_loop(SEND_INTERVAL)
        await hearing


async def receive_replies(client: socket.socket, speech: ConnectionRecord) -> None:
    while True:
        try:
            answer = await asyncio.get_running_loop().sock_recv(client, 65536)
        except OSError:
            speech.is_broken = True
            if client.type == socket.SOCK_STREAM:
                return
            continue
        if not answer:
            return
        name = answer.split(b" ")[0].decode()
        speech.has_changed_member = speech.has_changed_member or speech.last not in ("", name)
        speech.first, speech.last, speech.answers = speech.first or name, name, speech.answers + 1


if __name__ == "__main__":
    traffic = Traffic(to=sys.argv[1], port=int(sys.argv[2]), protocol=Protocol(sys.argv[3]))
    asyncio.run(main(traffic, int(sys.argv[4])))
