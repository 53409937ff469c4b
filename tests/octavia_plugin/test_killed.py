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

from harness.octavia_plugin.cloud import OctaviaCloud, cloud_or_skip
from harness.octavia_plugin.tenant import BALANCERS, MEMBERS, PAUSE_RANGE, RETRY_INTERVAL, SETTLE_SECONDS, RandomTenant
from harness.waiting import DEADLINE, pause, wait_equal, wait_until

pytestmark = pytest.mark.octavia
OPERATIONS = int(os.environ.get("OCTAVIA_OPERATIONS", "24"))
SEED = int(os.environ.get("OCTAVIA_SEED", "0")) or (7 if OPERATIONS == 24 else randrange(1, 10**6))
FROZEN = (0.5, 4.0)  # seconds


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OctaviaCloud]:
    with cloud_or_skip(tmp_path_factory) as made:
        yield made


def make_network(place: OctaviaCloud) -> str:
    """Create a network with a port at each member's address, because members without a port are not probed.

    Returns its subnet.
    """
    server = place.fairlead
    network = server.create("/network/v2.0/networks", "network", name="net")["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}
    made: str = server.create("/network/v2.0/subnets", "subnet", **subnet)["id"]
    for last in MEMBERS:
        server.create("/network/v2.0/ports", "port", network_id=network, fixed_ips=[{"ip_address": f"10.0.0.{last}"}])
    return made


@dataclass
class OctaviaProcessKiller:
    place: OctaviaCloud
    random: Random
    done: list[str] = field(default_factory=list)

    def kill_random(self) -> None:
        name, strike = self.random.choice(
            [
                ("api", lambda: self._restart("api")),
                ("agent", lambda: self._restart("agent")),
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

    def _restart(self, name: str) -> None:
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


def test_octavia_and_fairlead_agree_after_random_process_kills(place: OctaviaCloud):
    print(f"OCTAVIA_OPERATIONS={OPERATIONS} OCTAVIA_SEED={SEED}")
    subnet = make_network(place)
    ended, attacker = Event(), OctaviaProcessKiller(place, Random(SEED))
    with httpx.Client(base_url=place.octavia.base_url, timeout=DEADLINE) as client, ThreadPoolExecutor(1) as threads:
        tenant = RandomTenant(client, subnet, Random(SEED))

        def operate() -> None:
            try:
                while tenant.accepted_count < OPERATIONS and not ended.is_set():
                    tenant.send_random_request()
            finally:
                ended.set()

        for _ in range(BALANCERS):
            tenant.make()
        working = threads.submit(operate)
        try:
            while not ended.is_set():
                attacker.kill_random()
                more = tenant.accepted_count + attacker.random.randint(*PAUSE_RANGE)
                wait_until(
                    lambda more=more: tenant.accepted_count >= more or ended.is_set(),
                    f"{more} operations",
                    seconds=SETTLE_SECONDS,
                )
                pause(attacker.random.uniform(0, RETRY_INTERVAL))  # during the next operation
        finally:
            ended.set()
        working.result()
    print(f"answers: {tenant.table()}\nstruck: {', '.join(attacker.done)}")
    found = place.settle(SETTLE_SECONDS)
    assert {provisioning for provisioning, _ in found.values()} <= {"ACTIVE", "ERROR"}
    wait_equal(lambda: place.sync("--dry-run", "--at-once")[1]["differences"], [], seconds=SETTLE_SECONDS)
    place.settle(SETTLE_SECONDS)
