"""Two servers on one store become a newer release one by one, under traffic and writes, and one is taken back.

The older release is the program of today, the newer one the same with one format more (`harness.newer_release`): it
shows what servers of two releases do beside each other, and no difference between two real ones.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from fairlead.lab import Lab, Protocol, take_down
from fairlead.lab.load import Load, Target, total
from fairlead.lab.service import Service
from harness.lab.servers import LBS, NETWORKS, Server, serving, until
from harness.lab.site import PORT, Site, connect
from harness.ports import free_port
from lab.conftest import NAME

pytestmark = pytest.mark.lab

OLDER, NEWER = "fairlead.cli", "harness.newer_release"
TESTS = Path(__file__).parents[1]
MEMBERS = {"m0": "chassis1", "m1": "chassis2"}
RATE, HELD, SECONDS = 20, 10, 240


@dataclass
class Place:
    """Where a server is, of whichever release."""

    lab: Lab
    folder: Path
    port: int
    stack: ExitStack = field(default_factory=ExitStack)
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, program: str) -> Server:
        environment = {"PYTHONPATH": str(TESTS), **self.environment}
        server = self.stack.enter_context(
            serving(self.lab, self.folder, port=self.port, program=program, **environment)
        )
        until(lambda: server.client.get("/readyz").text.startswith("ready"), 60)
        return server

    def end(self, server: Server) -> None:
        server.process.terminate()
        server.process.wait(30)
        self.stack.close()

    def replace(self, old: Server, program: str) -> Server:
        self.end(old)
        return self.start(program)


@dataclass
class Writer:
    """Gives a load balancer a name after the other, at the server that answers."""

    urls: list[str]
    balancer: str
    ended: Event = field(default_factory=Event)
    acknowledged: str = ""
    written: int = 0
    wrong: list[str] = field(default_factory=list)

    def run(self) -> None:
        with httpx.Client(timeout=20) as client:
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
        elif answer.status_code != 409:  # what was asked before is not applied yet
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


def goes_on(writer: Writer) -> None:
    before = writer.written
    until(lambda: writer.written > before + 3, 30)


def reads(server: Server) -> str:
    """What /readyz says; nothing between two ways to serve, when nobody listens for a moment."""
    try:
        return server.client.get("/readyz").text
    except httpx.TransportError:
        return ""


def test_servers_are_replaced_one_by_one_and_taken_back(machine: None, tmp_path: Path):
    name = f"{NAME}rolling"
    take_down(name)
    with ExitStack() as stack:
        stack.callback(take_down, name)
        lab = Lab.up(name, chassis=2)
        places = [Place(lab, tmp_path, free_port()) for _ in range(2)]
        for place in places:
            stack.callback(place.stack.close)
        one, other = (place.start(OLDER) for place in places)
        site = Site(lab=lab, service=Service(url=one.url, folder=tmp_path), cloud=connect(one.url), url=one.url)
        stack.callback(site.cloud.close)
        site.network("rolling", "10.0.0.0/24", "fd00:a::/64")
        site.machines("rolling", MEMBERS, serve=[PORT])
        site.machines("rolling", {"client": "chassis1"})
        balancers = [
            stack.enter_context(site.balancer(f"rolling-v{version}", list(MEMBERS), protocol=each, version=version))
            for version in (4, 6)
            for each in ("TCP", "UDP")
        ]
        rows = site.our_rows()
        targets = tuple(
            Target(to=each.vip, port=80, protocol=kind)
            for each, kind in zip(balancers, [Protocol.TCP, Protocol.UDP] * 2, strict=True)
        )
        writer = Writer(urls=[one.url, other.url], balancer=balancers[0].id)
        load = Load(targets=targets, rate=RATE, count=RATE * SECONDS, held=HELD, seconds=SECONDS, period=0.5)
        with lab.load("client", load) as running, writing(writer):
            goes_on(writer)
            other = places[1].replace(other, NEWER)
            goes_on(writer)
            one = places[0].replace(one, NEWER)
            goes_on(writer)
            one = places[0].replace(one, OLDER)  # what the newer ones wrote used nothing new
            goes_on(writer)
            new = other.make(NETWORKS, "network", name="new-feature")["id"]
            until(lambda: "stands by" in reads(one), 30)
            until(other.is_holder, 30)
            assert one.client.get(NETWORKS).status_code == 503
            goes_on(writer)
            assert other.client.delete(f"{NETWORKS}/{new}").status_code == 204
            until(lambda: reads(one).startswith("ready"), 60)
            goes_on(writer)
            result = running.stop()
        for server in (one, other):
            assert server.balancer(balancers[0].id)["name"] == writer.acknowledged
        assert writer.wrong == []
        until(other.has_nothing_to_do, 30)
        assert site.our_rows() == rows
        assert result.broken == []
        print(writer.written, "writes", dict(total([result])), result.again)
        assert total([result])["held"] == HELD
