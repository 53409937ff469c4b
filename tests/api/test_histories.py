"""Random operations of several clients on two servers, while members of their etcd are killed and paused.

All responses must fit one sequential order (`harness/linearizability.py`): no acknowledged write is lost, no read
returns data older than its start, and an address is claimed once. The number of operations is bounded. A failure prints
the seed, and `HISTORIES_SEED` repeats it.
"""

import asyncio
import math
import os
import signal
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random

import httpx
import pytest

from harness.address_specification import apply_claim
from harness.etcd import MEMBER_COUNT, EtcdCluster, etcd_cluster
from harness.front_ends.two_servers import LBS, ApplicationServer, two_servers
from harness.linearizability import UNKNOWN, Operation, contradictions
from harness.waiting import eventually, pause_loop

SEED = int(os.environ.get("HISTORIES_SEED", "0")) or Random().randrange(10**6)
STEPS = int(os.environ.get("HISTORIES_STEPS", "6"))
"""Number of members killed or paused, one after another."""
ANSWERS = range(20, 100)
"""Range of the number of operations answered while one member is away."""
CLIENTS, ADDRESSES = 4, [f"10.0.0.{number}" for number in (50, 51, 52)]
WITHOUT_EFFECT = {404: "gone", 409: "on its way"}
"""Status code -> state of the load balancer: it does not exist, or its last change is not in OVN yet."""
PAUSE = 0.02
"""Maximum seconds between a client's response and its next request."""


@dataclass
class HistoryRecorder:
    servers: tuple[ApplicationServer, ...]
    subnet: str
    random: Random
    history: list[Operation] = field(default_factory=list)
    ended: bool = False
    number: int = 0
    order: Iterator[int] = field(default_factory=count)
    """Numbers requests and responses. All of them are in this process, so this is their order in time."""

    @property
    def known_objects(self) -> list[Operation]:
        return [each for each in self.history if not math.isinf(each.returned_at)]

    async def client(self) -> None:
        while not self.ended:
            server, address = self.random.choice(self.servers), self.random.choice(ADDRESSES)
            await self.random.choice((self.create, self.change, self.delete, self.read))(server, address)
            await pause_loop(self.random.random() * PAUSE)

    async def create(self, server: ApplicationServer, address: str) -> None:
        self.number += 1
        name, asked = f"lb{self.number}", next(self.order)
        body = {"vip_subnet_id": self.subnet, "vip_address": address, "name": name}
        answer = await server.request("POST", LBS, {"loadbalancer": body})
        assert answer.status_code in (201, 409, 503), answer.text
        self.record(address, "refused" if answer.status_code == 409 else "create", name, asked, answer)

    async def read(self, server: ApplicationServer, address: str) -> tuple[str, str] | None:
        """Return the id and the name of the load balancer with this address."""
        asked = next(self.order)
        answer = await server.request("GET", f"{LBS}?vip_address={address}")
        if answer.status_code == 503:
            return None
        found = answer.json()["loadbalancers"]
        assert len(found) < 2, f"{address} is claimed twice"
        value = (found[0]["name"], found[0]["description"]) if found else None
        self.record(address, "read", value, asked, answer)
        return (found[0]["id"], found[0]["name"]) if found else None

    async def change(self, server: ApplicationServer, address: str) -> None:
        if (known := await self.read(self.random.choice(self.servers), address)) is None:
            return
        self.number += 1
        text, asked = f"text {self.number}", next(self.order)
        answer = await server.request("PUT", f"{LBS}/{known[0]}", {"loadbalancer": {"description": text}})
        if (why := WITHOUT_EFFECT.get(answer.status_code)) is not None:
            self.record(address, why, known[1], asked, answer)
            return
        assert answer.status_code in (200, 503), answer.text
        self.record(address, "change", (known[1], text), asked, answer)

    async def delete(self, server: ApplicationServer, address: str) -> None:
        if (known := await self.read(self.random.choice(self.servers), address)) is None:
            return
        asked = next(self.order)
        answer = await server.request("DELETE", f"{LBS}/{known[0]}")
        assert answer.status_code in (204, 503, *WITHOUT_EFFECT), answer.text
        self.record(address, WITHOUT_EFFECT.get(answer.status_code, "delete"), known[1], asked, answer)

    def record(self, address: str, action: str, value: Hashable, asked: float, answer: httpx.Response) -> None:
        """Record an operation. A write answered with 503 may have been done."""
        answered = UNKNOWN if answer.status_code == 503 else next(self.order)
        self.history.append(Operation(key=address, action=action, value=value, called_at=asked, returned_at=answered))


async def inject_faults(town: HistoryRecorder, etcd: EtcdCluster) -> None:
    """Stop one member at a time: two of three continue."""
    for _ in range(STEPS):
        member, enough = town.random.randrange(MEMBER_COUNT), len(town.known_objects) + town.random.choice(ANSWERS)
        how = town.random.choice((signal.SIGSTOP, signal.SIGKILL))
        etcd.signal(member, how)
        await eventually(lambda enough=enough: len(town.known_objects) >= enough, f"{enough} answers")
        if how is signal.SIGKILL:
            etcd.start(member)
        else:
            etcd.signal(member, signal.SIGCONT)
        await asyncio.to_thread(etcd.wait)


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@pytest.mark.slow
async def test_responses_of_two_servers_are_linearizable(etcd: EtcdCluster):
    async with two_servers(f"{etcd.url}/histories") as (one, two):
        balancer = await one.build()
        town = HistoryRecorder((one, two), balancer["vip_subnet_id"], Random(SEED))
        clients = [asyncio.ensure_future(town.client()) for _ in range(CLIENTS)]
        try:
            await inject_faults(town, etcd)
        finally:
            town.ended = True
            await asyncio.gather(*clients)
        for address in ADDRESSES:
            for server in (one, two):
                await town.read(server, address)
        assert contradictions(town.history, None, apply_claim) == [], f"with seed {SEED}"
        for server in (one, two):
            await server.server.reconcile()
        assert one.server.driver.rows == two.server.driver.rows
