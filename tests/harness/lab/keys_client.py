"""A client in a workload that lives as long as its test: which member answers each source port, and held connections.

Each line of standard input is a JSON list whose first item is a command; each answer is a line of JSON.
"""

import json
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import Any

from fairlead.lab import Lab
from fairlead.lab.client import Protocol, Traffic, open_socket, send

COMMAND_TIMEOUT = 60.0  # seconds for one exchange: an emulated machine is slow, and what is lost stays so
HELD_TIMEOUT = 10.0  # seconds until a held connection counts as broken
CONCURRENCY = 4

Kind = tuple[str, int]
"""What a test calls the connections that it holds at the same time."""


class KeysClient:
    """The other end of the program's pipes."""

    def __init__(self, process: "Popen[str]") -> None:
        self._process = process

    def keys(self, to: str, protocol: Protocol, first: int, count: int, port: int = 80) -> dict[int, str]:
        """The member that answers each source port. Raises AssertionError if one is not answered."""
        answers, errors = self._call("keys", to, port, protocol.value, first, count)
        assert not errors, f"{to} {protocol}: {errors}"
        return {int(source): name for source, name in answers.items()}

    def hold(self, kind: Kind, to: str, first: int, count: int, port: int = 80) -> None:
        """Open connections of a kind, beside those that are open."""
        assert self._call("hold", str(kind), to, port, first, count) == count

    def send_unanswered(self, kind: Kind, to: str, first: int, count: int, port: int = 80) -> None:
        """Send the first packets of connections, and wait for no answer."""
        assert self._call("attempt", str(kind), to, port, first, count) == count

    def release(self, kind: Kind) -> int:
        """Send once on all of a kind that are held, close them, and count those that were broken."""
        return int(self._call("release", str(kind)))

    def _call(self, *words: object) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


@contextmanager
def keys_client(lab: Lab, place: str) -> Iterator[KeysClient]:
    command = lab.command(place, [sys.executable, __file__])
    with Popen(command.argv, env=command.full_environment(), stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield KeysClient(process)
        finally:
            process.kill()


# In the workload


def main() -> None:
    held: dict[str, list[socket.socket]] = {}
    for line in sys.stdin:
        match json.loads(line):
            case ["keys", to, port, protocol, first, count]:
                answer: object = query_sources(to, port, Protocol(protocol), first, count)
            case ["hold", kind, to, port, first, count]:
                held[kind] = [connect(to, port, first + number) for number in range(count)]
                answer = len(held[kind])
            case ["attempt", kind, to, port, first, count]:
                held[kind] = [start_connecting(to, port, first + number) for number in range(count)]
                answer = len(held[kind])
            case ["release", kind]:
                answer = sum(not is_answered(client) for client in held.pop(kind))
            case other:
                raise ValueError(other)
        print(json.dumps(answer), flush=True)


def query_sources(
    to: str, port: int, protocol: Protocol, first: int, count: int
) -> tuple[Mapping[int, str], Mapping[str, int]]:
    result = send(
        Traffic(
            to=to,
            port=port,
            protocol=protocol,
            count=count,
            source_port_from=first,
            concurrency=CONCURRENCY,
            timeout=COMMAND_TIMEOUT,
        )
    )
    return result.keys, result.errors


def connect(to: str, port: int, source: int) -> socket.socket:
    client = open_socket(Traffic(to=to, port=port), source)
    client.settimeout(COMMAND_TIMEOUT)
    client.connect((to, port))
    client.sendall(b"?\n")
    client.recv(100)
    return client


def start_connecting(to: str, port: int, source: int) -> socket.socket:
    client = open_socket(Traffic(to=to, port=port), source)
    client.connect_ex((to, port))
    return client


def is_answered(client: socket.socket) -> bool:
    """Whether it is answered once more; it is closed afterwards."""
    with client, suppress(OSError):
        client.getpeername()
        client.settimeout(HELD_TIMEOUT)
        client.sendall(b"?\n")
        return bool(client.recv(100))
    return False


if __name__ == "__main__":
    main()
