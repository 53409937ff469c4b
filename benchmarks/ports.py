"""Many members in one workload: a server that answers on each of its ports with the port's number, and a client.

    python benchmarks/ports.py serve --first 9001 --count 100
    python benchmarks/ports.py ask --to 10.0.0.10 --port 80 --protocol udp --connections 10000

The client opens each connection from a different source port, several concurrently, and prints as JSON the number of
answers by port, and of failures. A connection is closed by a reset, so no TIME_WAIT remains.
"""

import argparse
import json
import selectors
import socket
import struct
import sys
from collections import Counter
from contextlib import suppress
from time import monotonic

RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger, socket(7)
FIRST_SOURCE_PORT = 20_000
MAX_CONCURRENT = 64
CONNECT_TIMEOUT = 60.0
BACKLOG = 4096
KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def main() -> int:
    arguments = parse_arguments()
    if arguments.role == "serve":
        serve(range(arguments.first, arguments.first + arguments.count))
    else:
        answers = ask((arguments.to, arguments.port), KINDS[arguments.protocol], arguments.connections)
        print(json.dumps({"answers": dict(sorted(answers.items())), "failed": arguments.connections - answers.total()}))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Many members in one workload, and their client.")
    roles = parser.add_subparsers(dest="role", required=True)
    server = roles.add_parser("serve")
    server.add_argument("--first", type=int, required=True)
    server.add_argument("--count", type=int, required=True)
    client = roles.add_parser("ask")
    client.add_argument("--to", required=True)
    client.add_argument("--port", type=int, required=True)
    client.add_argument("--protocol", choices=KINDS, default="tcp")
    client.add_argument("--connections", type=int, required=True)
    return parser.parse_args()


def serve(ports: range) -> None:
    """Serve until the process is terminated, on IPv6 sockets that accept IPv4 too."""
    selector = selectors.DefaultSelector()
    for port in ports:
        answer = b"%d" % port
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        receiver.bind(("::", port))
        for each in (listener, receiver):
            each.setblocking(False)
            selector.register(each, selectors.EVENT_READ, answer)
    while True:
        for key, _ in selector.select():
            ready = key.fileobj
            assert isinstance(ready, socket.socket)
            with suppress(OSError):  # the client has closed the connection
                if ready.type == socket.SOCK_STREAM:
                    with ready.accept()[0] as connection:
                        connection.send(key.data)
                else:
                    ready.sendto(key.data, ready.recvfrom(64)[1])


def ask(target: tuple[str, int], kind: int, connections: int) -> Counter[int]:
    """Number of connections that each port answered."""
    deadline = monotonic() + CONNECT_TIMEOUT
    sources = iter(range(FIRST_SOURCE_PORT, FIRST_SOURCE_PORT + connections))
    answers: Counter[int] = Counter()
    with selectors.DefaultSelector() as selector:
        for _, source in zip(range(MAX_CONCURRENT), sources, strict=False):
            start_connecting(selector, target, kind, source)
        while selector.get_map() and monotonic() < deadline:
            for key, _ in selector.select(1):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                selector.unregister(client)
                with suppress(OSError, ValueError), client:
                    answers[int(client.recv(16))] += 1
                if (source := next(sources, None)) is not None:
                    start_connecting(selector, target, kind, source)
    return answers


def start_connecting(selector: selectors.BaseSelector, target: tuple[str, int], kind: int, source: int) -> None:
    client = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET, kind)
    client.setblocking(False)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("", source))
    if kind == socket.SOCK_STREAM:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    with suppress(BlockingIOError):
        client.connect(target)
    if kind == socket.SOCK_DGRAM:
        client.send(b"?")
    selector.register(client, selectors.EVENT_READ)


if __name__ == "__main__":
    sys.exit(main())
