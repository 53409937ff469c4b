"""Servers of two releases with one store, replaced one by one while a client writes.

The older release is the current program; the newer one is the same with one more format (`harness.newer_release`).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import httpx

from fairlead.lab import Lab
from fairlead.lab.load import Load, LoadTarget
from harness.lab.servers import LBS, FairleadProcess, serving
from harness.rules import TESTS
from harness.waiting import DEADLINE, wait_until

OLDER, NEWER = "fairlead.cli.main", "harness.newer_release"

MEMBERS = {"m0": "chassis1", "m1": "chassis2"}

RATE, HELD, SECONDS = 20, 10, 240


@dataclass
class ReleaseServers:
    """Environment of a server of either release."""

    lab: Lab
    folder: Path
    port: int
    stack: ExitStack = field(default_factory=ExitStack)
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, program: str) -> FairleadProcess:
        environment = {"PYTHONPATH": str(TESTS), **self.environment}
        server = self.stack.enter_context(
            serving(self.lab, self.folder, port=self.port, program=program, **environment)
        )
        wait_until(lambda: server.client.get("/readyz").text.startswith("ready"))
        return server

    def end(self, server: FairleadProcess) -> None:
        server.process.terminate()
        server.process.wait(DEADLINE)
        self.stack.close()

    def replace(self, old: FairleadProcess, program: str) -> FairleadProcess:
        self.end(old)
        return self.start(program)


@dataclass
class Writer:
    """Client that renames a load balancer continuously, through the server that accepts writes."""

    urls: list[str]
    balancer: str
    ended: Event = field(default_factory=Event)
    acknowledged: str = ""
    written: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.ended.wait(0.05):
                self._write(client, f"n{self.written}")

    def _write(self, client: httpx.Client, name: str) -> None:
        try:
            answer = client.put(f"{self.urls[0]}{LBS}/{self.balancer}", json={"loadbalancer": {"name": name}})
        except httpx.TransportError:
            self.urls.reverse()
            return
        if answer.status_code == 200:
            self.acknowledged, self.written = name, self.written + 1
        elif answer.status_code == 503:
            self.urls.reverse()
        elif answer.status_code != 409:  # the previous change is not applied yet
            self.wrong.append(answer.text)


@contextmanager
def writing(writer: Writer) -> Iterator[None]:
    thread = Thread(target=writer.run)
    thread.start()
    try:
        yield
    finally:
        writer.ended.set()
        thread.join()


def await_more_writes(writer: Writer) -> None:
    before = writer.written
    wait_until(lambda: writer.written > before + 3)


def load_of(targets: Sequence[LoadTarget]) -> Load:
    return Load(
        targets=tuple(targets), rate=RATE, count=RATE * SECONDS, held=HELD, seconds=SECONDS, period=0.5, timeout=30
    )
