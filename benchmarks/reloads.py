#!/usr/bin/env python3
"""Requests lost when HAProxy processes are replaced under load.

It needs HAProxy, and no root. One process on loopback is replaced repeatedly, as an agent replaces it, while threads
send requests without a pause: on HTTP connections that are reused until a response closes them, on a new connection for
each request, or on TCP connections that outlast several processes. A request is lost if its connection ends before the
first byte of the response. The rows are those that the product compiles.
"""

import argparse
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fairlead.model.documents.loadbalancer import ListenerProtocol, PoolProtocol
from harness.machines import as_member, hex_echo_server, machines, served
from harness.ports import free_port
from harness.proxied import RunningProxy, listener, member, pool
from harness.waiting import wait_until

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
CLOSE_HEADER = b"connection: close"
HOLD_SECONDS = 3.0
"""Duration of a long connection in seconds."""
Outcomes: TypeAlias = Counter[str]
ClientLoop: TypeAlias = Callable[[socket.socket, threading.Event, Outcomes], None]
"""Sends on a new connection. Raises OSError if a request is lost."""


class LoadClientThread(threading.Thread):
    def __init__(self, ask: ClientLoop, port: int, ended: threading.Event) -> None:
        super().__init__()
        self._ask, self._port, self._ended = ask, port, ended
        self.seen: Outcomes = Counter()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 5) as client:
                    self.seen["connections"] += 1
                    self._ask(client, self._ended, self.seen)
            except OSError as error:
                self.seen[f"lost: {type(error).__name__}"] += 1


def request_until_closed(client: socket.socket, ended: threading.Event, seen: Outcomes) -> None:
    while not ended.is_set():
        if CLOSE_HEADER in exchange_request(client, REQUEST, b"m1", seen).lower():
            seen["told to come again"] += 1
            return


def request_once(client: socket.socket, ended: threading.Event, seen: Outcomes) -> None:
    exchange_request(client, REQUEST, b"m1", seen)


def hold_connection(client: socket.socket, ended: threading.Event, seen: Outcomes) -> None:
    end = time.monotonic() + HOLD_SECONDS
    while time.monotonic() < end and not ended.is_set():
        exchange_request(client, b"hello", b"hello".hex().encode(), seen)


def exchange_request(client: socket.socket, question: bytes, ending: bytes, seen: Outcomes) -> bytes:
    client.sendall(question)
    answer = b""
    while not answer.endswith(ending):
        more = client.recv(4096)
        if not more:
            raise ConnectionResetError
        answer += more
    seen["answered"] += 1
    return answer


CLIENT_LOOPS: Mapping[str, ClientLoop] = {"kept": request_until_closed, "new": request_once, "long": hold_connection}


@contextmanager
def serving(way: str) -> Iterator[tuple[RunningProxy, int]]:
    """A process, and its port."""
    port = free_port()
    if way == "long":
        with hex_echo_server() as there:
            its = pool("web", member("m1", there), protocol=PoolProtocol.TCP)
            with served(listener("one", port, its, protocol=ListenerProtocol.TCP), its) as (proxy, _):
                yield proxy, port
    else:
        with machines("m1") as [one]:
            its = pool("web", as_member(one))
            with served(listener("one", port, its), its) as (proxy, _):
                yield proxy, port


def replace(proxy: RunningProxy) -> Popen[bytes]:
    """Start a new process that accepts new connections, and return the old one."""
    old = proxy.replace()
    wait_until(lambda: f"Pid: {proxy.process.pid}\n" in proxy.send_command("show info"))
    return old


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests that are lost when an HAProxy is replaced.")
    parser.add_argument("--times", type=int, default=50, help="that it is replaced (50)")
    parser.add_argument("--gap", type=float, default=0.4, help="seconds from one to the next (0.4)")
    parser.add_argument("--clients", type=int, default=8, help="connections at once (8)")
    parser.add_argument(
        "--connections", choices=CLIENT_LOOPS, default="kept", help="HTTP's that are kept, new or TCP's (kept)"
    )
    options = parser.parse_args()
    ended, olds = threading.Event(), list[Popen[bytes]]()
    with serving(options.connections) as (proxy, port):
        asking = [LoadClientThread(CLIENT_LOOPS[options.connections], port, ended) for _ in range(options.clients)]
        for each in asking:
            each.start()
        try:
            for _ in range(options.times):
                time.sleep(options.gap)
                olds.append(replace(proxy))
        finally:
            most = sum(each.poll() is None for each in olds)
            ended.set()
            for each in asking:
                each.join()
            for old in olds:
                old.wait(10)
    seen = sum((each.seen for each in asking), Counter[str]())
    print(json.dumps({"replaced": options.times, "still there at the end": most, **seen}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
