#!/usr/bin/env python3
"""Requests that are lost when an HAProxy is replaced under clients that keep their connections.

Needs HAProxy, and no root: one process on loopback, which is replaced again and again as an agent does it, under
threads that ask as fast as they are answered, each on a connection that stays until an answer says that it ends. A
request is lost if its connection ends before a byte of the answer. The rows are those that the product compiles.
"""

import argparse
import json
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.machines import as_member, machines, served
from harness.ports import free_port
from harness.proxied import listener, pool

QUESTION = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
ENDS = b"connection: close"


class Asking(threading.Thread):
    def __init__(self, port: int, ended: threading.Event) -> None:
        super().__init__()
        self._port, self._ended = port, ended
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                with socket.create_connection(("127.0.0.1", self._port), 5) as client:
                    self._ask(client)
            except OSError as error:
                self.seen[f"lost: {type(error).__name__}"] += 1

    def _ask(self, client: socket.socket) -> None:
        """Until an answer says that the connection ends. Raises OSError."""
        while not self._ended.is_set():
            client.sendall(QUESTION)
            answer = b""
            while not answer.endswith(b"m1"):
                more = client.recv(4096)
                if not more:
                    raise ConnectionResetError
                answer += more
            self.seen["answered"] += 1
            if ENDS in answer.lower():
                self.seen["told to come again"] += 1
                return


def main() -> int:
    parser = argparse.ArgumentParser(description="Requests that are lost when an HAProxy is replaced.")
    parser.add_argument("--times", type=int, default=50, help="that it is replaced (50)")
    parser.add_argument("--gap", type=float, default=0.4, help="seconds from one to the next (0.4)")
    parser.add_argument("--clients", type=int, default=8, help="connections at once (8)")
    options = parser.parse_args()
    port, ended = free_port(), threading.Event()
    with machines("m1") as [one]:
        web = pool("web", as_member(one))
        with served(listener("one", port, web), web) as (proxy, _):
            asking = [Asking(port, ended) for _ in range(options.clients)]
            for each in asking:
                each.start()
            try:
                for _ in range(options.times):
                    time.sleep(options.gap)
                    proxy.reload()
            finally:
                ended.set()
                for each in asking:
                    each.join()
    print(json.dumps({"replaced": options.times, **sum((each.seen for each in asking), Counter())}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
