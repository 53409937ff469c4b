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
from harness.machines import as_member, greeted, machines, served
from harness.ports import free_port
from harness.proxied import Running, listener, member, pool
from harness.waiting import wait_until

QUESTION = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
ENDS = b"connection: close"
STAYS = 3.0
"""Duration of a long connection in seconds."""
Seen: TypeAlias = Counter[str]
Ask: TypeAlias = Callable[[socket.socket, threading.Event, Seen], None]
"""Sends on a new connection. Raises OSError if a request is lost."""


class Asking(threading.Thread):
    def __init__(self, ask: Ask, port: int, ended: threading.Event) -> None:
        super().__init__()
        self._ask, self._port, self._ended = ask, port, ended
        self.seen: Seen = Counter()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 5) as client:
                    self.seen["connections"] += 1
                    self._ask(client, self._ended, self.seen)
            except OSError as error:
                self.seen[f"lost: {type(error).__name__}"] += 1


def ask_until_told(client: socket.socket, ended: threading.Event, seen: Seen) -> None:
    while not ended.is_set():
        if ENDS in answered(client, QUESTION, b"m1", seen).lower():
            seen["told to come again"] += 1
            return


def ask_once(client: socket.socket, ended: threading.Event, seen: Seen) -> None:
    answered(client, QUESTION, b"m1", seen)


def stay(client: socket.socket, ended: threading.Event, seen: Seen) -> None:
    end = time.monotonic() + STAYS
    while time.monotonic() < end and not ended.is_set():
        answered(client, b"hello", b"hello".hex().encode(), seen)


def answered(client: socket.socket, question: bytes, ending: bytes, seen: Seen) -> bytes:
    client.sendall(question)
    answer = b""
    while not answer.endswith(ending):
        more = client.recv(4096)
        if not more:
            raise ConnectionResetError
        answer += more
    seen["answered"] += 1
    return answer


WAYS: Mapping[str, Ask] = {"kept": ask_until_told, "new": ask_once, "long": stay}


@contextmanager
def serving(way: str) -> Iterator[tuple[Running, int]]:
    """A process, and its port."""
    port = free_port()
    if way == "long":
        with greeted() as there:
            its = pool("web", member("m1", there), protocol=PoolProtocol.TCP)
            with served(listener("one", port, its, protocol=ListenerProtocol.TCP), its) as (proxy, _):
                yield proxy, port
    else:
        with machines("m1") as [one]:
            its = pool("web", as_member(one))
            with served(listener("one", port, its), its) as (proxy, _):
                yield proxy, port


def replace(proxy: Running) -> Popen[bytes]:
    """Start a new process that accepts new connections, and return the old one."""
    old = proxy.replace()
    wait_until(lambda: f"Pid: {proxy.process.pid}\n" in proxy.tell("show info"))
    return old


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests that are lost when an HAProxy is replaced.")
    parser.add_argument("--times", type=int, default=50, help="that it is replaced (50)")
    parser.add_argument("--gap", type=float, default=0.4, help="seconds from one to the next (0.4)")
    parser.add_argument("--clients", type=int, default=8, help="connections at once (8)")
    parser.add_argument("--connections", choices=WAYS, default="kept", help="HTTP's that are kept, new or TCP's (kept)")
    options = parser.parse_args()
    ended, olds = threading.Event(), list[Popen[bytes]]()
    with serving(options.connections) as (proxy, port):
        asking = [Asking(WAYS[options.connections], port, ended) for _ in range(options.clients)]
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
