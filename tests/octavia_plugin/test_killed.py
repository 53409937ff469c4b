"""Operations on a real Octavia while any process is killed or stopped: afterwards nothing is pending, and all agree.

`make killed` runs 200 operations, with another seed in each run; OCTAVIA_SEED repeats those of a run.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random, randrange
from threading import Event

import httpx
import pytest

from harness.octavia_plugin.cloud import Cloud, made_place
from harness.octavia_plugin.tenant import BALANCERS, MEMBERS, PAUSES, RETRY, SETTLE_SECONDS, Tenant
from harness.waiting import DEADLINE, pause, wait_equal, wait_until

pytestmark = pytest.mark.octavia
OPERATIONS = int(os.environ.get("OCTAVIA_OPERATIONS", "24"))
SEED = int(os.environ.get("OCTAVIA_SEED", "0")) or (7 if OPERATIONS == 24 else randrange(1, 10**6))
FROZEN = (0.5, 4.0)  # seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with made_place(tmp_path_factory) as made:
        yield made


def make_network(place: Cloud) -> str:
    """Create a network with a port at each member's address, because members without a port are not probed.

    Returns its subnet.
    """
    server = place.fairlead
    network = server.make("/network/v2.0/networks", "network", name="net")["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}
    made: str = server.make("/network/v2.0/subnets", "subnet", **subnet)["id"]
    for last in MEMBERS:
        server.make("/network/v2.0/ports", "port", network_id=network, fixed_ips=[{"ip_address": f"10.0.0.{last}"}])
    return made


@dataclass
class Attacker:
    place: Cloud
    random: Random
    done: list[str] = field(default_factory=list)

    def strike(self) -> None:
        name, strike = self.random.choice(
            [
                ("api", lambda: self._again("api")),
                ("agent", lambda: self._again("agent")),
                ("one of the agent's", self._kill_one),
                ("one of the agent's", self._kill_one),
                ("fairlead", self.place.restart_fairlead),
                ("ovsdb-server", self.place.database.restart),
                ("freeze", self._freeze),
                ("freeze", self._freeze),
            ]
        )
        self.done.append(name)
        strike()

    def _again(self, name: str) -> None:
        self.place.kill(name)
        self.place.start(name)

    def _kill_one(self) -> None:
        ours = self.place.agents()
        if ours:
            os.kill(self.random.choice(ours), signal.SIGKILL)

    def _freeze(self) -> None:
        api, fairlead = self.place.processes["api"].pid, self.place.fairlead.process.pid
        whom = self.random.choice([api, fairlead, self.place.database.pid, *self.place.agents()[-1:]])
        os.kill(whom, signal.SIGSTOP)
        pause(self.random.uniform(*FROZEN))
        os.kill(whom, signal.SIGCONT)


def test_whoever_is_killed_nothing_waits_and_all_agree(place: Cloud):
    print(f"OCTAVIA_OPERATIONS={OPERATIONS} OCTAVIA_SEED={SEED}")
    subnet = make_network(place)
    ended, attacker = Event(), Attacker(place, Random(SEED))
    with httpx.Client(base_url=place.octavia.base_url, timeout=DEADLINE) as client, ThreadPoolExecutor(1) as threads:
        tenant = Tenant(client, subnet, Random(SEED))

        def operate() -> None:
            try:
                while tenant.taken < OPERATIONS and not ended.is_set():
                    tenant.act()
            finally:
                ended.set()

        for _ in range(BALANCERS):
            tenant.make()
        working = threads.submit(operate)
        try:
            while not ended.is_set():
                attacker.strike()
                more = tenant.taken + attacker.random.randint(*PAUSES)
                wait_until(
                    lambda more=more: tenant.taken >= more or ended.is_set(),
                    f"{more} operations",
                    seconds=SETTLE_SECONDS,
                )
                pause(attacker.random.uniform(0, RETRY))  # during the next operation
        finally:
            ended.set()
        working.result()
    print(f"answers: {tenant.table()}\nstruck: {', '.join(attacker.done)}")
    found = place.settle(SETTLE_SECONDS)
    assert {provisioning for provisioning, _ in found.values()} <= {"ACTIVE", "ERROR"}
    wait_equal(lambda: place.sync("--dry-run", "--at-once")[1]["differences"], [], seconds=SETTLE_SECONDS)
    place.settle(SETTLE_SECONDS)
