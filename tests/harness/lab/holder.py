"""Keeps many connections open while the model changes, in one program of a workload.

Each line of standard input is a number of connections to open, or any other text to send on all open connections. The
response to either is one line of JSON: source port to the name that answered, or "" for a broken connection.
"""

import itertools
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen

from fairlead.lab import Lab, Traffic
from fairlead.lab.client import open_socket
from fairlead.lab.records import allocate_source_ports

TIMEOUT = 3.0
MAX_CONNECTIONS = 100


class ConnectionHolder:
    """Client of the program through its pipes."""

    def __init__(self, process: "Popen[str]") -> None:
        self.process = process

    def open(self, count: int) -> dict[int, str]:
        """Open connections, and return the member of each, including the older ones."""
        return self._send_command(str(count))

    def exchange_all(self) -> dict[int, str]:
        return self._send_command("still there?")

    def _send_command(self, line: str) -> dict[int, str]:
        assert self.process.stdin
        assert self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        return {int(port): name for port, name in json.loads(self.process.stdout.readline()).items()}


@contextmanager
def holding(lab: Lab, place: str, address: str, port: int) -> Iterator[ConnectionHolder]:
    """Run the program, with source ports that no test of the lab used recently, for at most `MOST` connections."""
    first = allocate_source_ports(lab.layout, place, MAX_CONNECTIONS)
    command = lab.command(place, [sys.executable, __file__, address, str(port), str(first)])
    with Popen(command.argv, env=command.full_environment(), stdin=PIPE, stdout=PIPE, text=True) as process:
        try:
            yield ConnectionHolder(process)
        finally:
            process.kill()


def main() -> None:
    target, sources = Traffic(to=sys.argv[1], port=int(sys.argv[2])), itertools.count(int(sys.argv[3]))
    held: dict[int, socket.socket] = {}
    for line in sys.stdin:
        for _ in range(int(line) if line.strip().isdigit() else 0):
            source, client = open_next(target, sources)
            held[source] = client
            client.settimeout(TIMEOUT)
            with suppress(OSError):
                client.connect((target.to, target.port))
        print(json.dumps({port: answer(client) for port, client in held.items()}), flush=True)


def open_next(target: Traffic, sources: Iterator[int]) -> tuple[int, socket.socket]:
    """Open a connection from the next source port that is free on the machine."""
    for source in itertools.islice(sources, MAX_CONNECTIONS):
        with suppress(OSError):
            return source, open_socket(target, source)
    raise OSError("no port is free")


def answer(client: socket.socket) -> str:
    with suppress(OSError):
        client.sendall(b"?\n")
        return client.makefile().readline().partition(" ")[0]
    return ""


if __name__ == "__main__":
    main()
