"""End to end: agents and server are killed and stopped at random, alone and together, under traffic on two nodes.

The test suite runs it for a minute, `make killed-nodes` for KILLED_SECONDS.
"""

import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from fairlead.lab import Lab, Protocol, Traffic, agents
from fairlead.lab.layout import CENTRAL
from fairlead.lab.load import Load, LoadTarget
from fairlead.lab.server import ServerProcess, start, stop
from fairlead.model.documents.addresses import derive_mac
from harness.lab.members import HTTP, end_process, start_process, wait_members
from harness.lab.site import ACTIVE_TIMEOUT, PORT, CreatedBalancer, LabSite, open_site
from harness.waiting import pause, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

SECONDS = float(os.environ.get("KILLED_SECONDS", "20"))
SEED = int(os.environ.get("KILLED_SEED", "0")) or random.randrange(1, 10_000)
LIVE, DEAD = ("k1", "k2", "k3"), "k4"
CLIENTS = {"near": "chassis1", "far": "chassis2"}
BY_AGENTS = {"FAIRLEAD_HEALTH_PROBER": "agents"}
MAX_FREEZE = 4.0
"""Seconds."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and a client on each node; the last member is down from the beginning."""
    site = open_site(lab, **BY_AGENTS)
    site.network("aspen", "10.0.0.0/24", "fd00:a::/64")
    site.machines("aspen", {"k1": "chassis1", "k2": "chassis2", "k3": "chassis2", DEAD: "chassis1"}, serve=[PORT])
    site.machines("aspen", {**CLIENTS, "keeper": "chassis2"}, serve=[PORT])
    end_process(site, DEAD)
    yield site
    for name in (*LIVE, DEAD, *CLIENTS, "keeper"):
        lab.remove_workload(name)
    site.close()


@dataclass
class KilledNodes:
    """Current processes by name."""

    site: LabSite
    processes: dict[str, "subprocess.Popen[bytes]"]
    service: ServerProcess
    told: list[str] = field(default_factory=list)

    def freeze(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.processes[name].send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def start_agents(self, name: str) -> None:
        """Start a process again after a kill."""
        layout = self.site.lab.layout
        if name == "server":
            self.service = start(layout, self.site.url.removeprefix("http://"), BY_AGENTS)
            assert self.service.process is not None
            self.processes[name] = self.service.process
        else:
            self.processes[name] = agents.start_one(layout, self.site.url, name).process

    def disturb(self, chance: random.Random, seconds: float) -> None:
        """Kill or stop one process or all of them repeatedly, for this time without that of restarts."""
        while seconds > 0:
            victims = chance.choice([[name] for name in self.processes] + [list(self.processes)])
            how, while_ = chance.choice(("killed", "frozen")), chance.uniform(0.1, MAX_FREEZE)
            self.told.append(f"{'+'.join(victims)} {how} {while_:.1f} s")
            hurt, heal = (self.kill, self.start_agents) if how == "killed" else (self.freeze, self.thaw)
            for name in victims:
                hurt(name)
            pause(while_)
            for name in victims:
                heal(name)
            rest = chance.uniform(0.0, 1.0)
            pause(rest)
            seconds -= while_ + rest


@pytest.fixture
def nodes(site: LabSite) -> Iterator[KilledNodes]:
    started = {agent.chassis: agent.process for agent in agents.start(site.lab.layout, site.url)}
    assert site.service.process is not None
    nodes = KilledNodes(site, {"server": site.service.process, **started}, site.service)
    yield nodes
    for name, process in nodes.processes.items():
        if name != "server":
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
    if nodes.service is not site.service:
        stop(site.lab.layout, nodes.service)


@contextmanager
def rows_watched(lab: Lab) -> Iterator[Callable[[], list[str]]]:
    """Observed changes of OVN's load balancers, because the removal of a working member would fail no connection."""
    columns = ("OVN_Northbound", "Load_Balancer", "vips")
    with subprocess.Popen(
        lab.command(CENTRAL, ["ovsdb-client", "monitor", "--format=csv", lab.layout.northbound, *columns]).argv,
        stdout=subprocess.PIPE,
        text=True,
    ) as watching:
        lines: list[str] = []
        assert watching.stdout is not None
        stream = watching.stdout
        reading = threading.Thread(target=lambda: lines.extend(stream), daemon=True)
        reading.start()

        def changes() -> list[str]:
            watching.terminate()
            reading.join()
            return [line for line in lines if ",old," in line or ",new," in line or ",delete," in line]

        try:
            yield changes
        finally:
            watching.kill()


@contextmanager
def statuses_watched(site: LabSite, balancers: list[CreatedBalancer]) -> Iterator[list[str]]:
    """Wrong statuses of members in the API; times without a response are ignored."""
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=site.url, timeout=ACTIVE_TIMEOUT) as client:
            while not over.wait(0.2):
                for balancer in balancers:
                    try:
                        answer = client.get(f"/load-balancer/v2/lbaas/pools/{balancer.pool}/members")
                    except httpx.HTTPError:
                        continue
                    if answer.status_code == 200:
                        found = {each["name"]: each["operating_status"] for each in answer.json()["members"]}
                        expected = {**dict.fromkeys(LIVE, "ERROR"), DEAD: "ONLINE"}
                        wrong.extend(f"{name} {found[name]}" for name in found if found[name] == expected[name])

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield wrong
    finally:
        over.set()
        watching.join()


def test_random_kills_and_freezes_of_agents_and_server_break_no_connection(site: LabSite, nodes: KilledNodes):
    chance = random.Random(SEED)
    with ExitStack() as stack:
        balancers = [
            stack.enter_context(site.balancer(f"aspen-v{version}", (*LIVE, DEAD), version=version, healthmonitor=HTTP))
            for version in (4, 6)
        ]
        wait_members(site, ONLINE=2 * len(LIVE), ERROR=2)
        site.lab.wait_synced()
        targets = tuple(LoadTarget(to=each.vip, port=80, protocol=Protocol.TCP) for each in balancers)
        load = Load(targets=targets, rate=30, count=int(90 * SECONDS), held=6, seconds=10 * SECONDS + 300, timeout=30)
        running = [stack.enter_context(site.lab.load(name, load)) for name in CLIENTS]
        wrong = stack.enter_context(statuses_watched(site, balancers))
        changes = stack.enter_context(rows_watched(site.lab))
        nodes.disturb(chance, SECONDS)
        changed, seen = changes(), [each.stop() for each in running]
        told = f"seed {SEED}: {'; '.join(nodes.told)}"
        broken = [each for result in seen for each in result.failed]
        opened = sum(result.opened for result in seen)
        print(
            f"\n{told}: {opened} connections, {sum(result.exchanges for result in seen)} exchanges on kept ones,"
            f" {len(broken)} failed, {len(changed)} rows changed",
            *changed,
            sep="\n",
        )
        assert (broken, wrong, changed) == ([], [], []), told
        assert opened > SECONDS * 10
        assert {name for result in seen for name in result.answers} == set(LIVE), told
        goes_on(site, balancers[0])


def goes_on(site: LabSite, balancer: CreatedBalancer) -> None:
    """Assert that agents still do all their work: detect failures and recoveries, count, and announce."""
    start_process(site, DEAD)
    wait_members(site, ONLINE=2 * (len(LIVE) + 1))
    before = counted(site, balancer)
    address = site.address("keeper")
    for client in CLIENTS:
        site.lab.exec(client, ["ip", "neigh", "flush", "to", address])
        assert not site.lab.traffic(client, Traffic(to=address, port=PORT)).errors
    wait_until(lambda: ask_once(site, balancer) and counted(site, balancer) > before, "it is counted")
    keeper = site.cloud.network.find_port("keeper", ignore_missing=False)
    made = site.cloud.network.create_local_ip(local_port_id=keeper.id, local_ip_address=address)
    for client in CLIENTS:
        wait_until(lambda client=client: knows(site, client, address, keeper.network_id), f"{client} is told")
    site.cloud.network.delete_local_ip(made)
    end_process(site, DEAD)
    wait_members(site, ONLINE=2 * len(LIVE), ERROR=2)


def knows(site: LabSite, client: str, address: str, network_id: str) -> bool:
    """Whether the client has the MAC address of the Local IP for the address, which is the network's."""
    return derive_mac(network_id) in site.lab.exec(client, ["ip", "neigh", "show", "to", address])


def counted(site: LabSite, balancer: CreatedBalancer) -> int:
    answer = httpx.get(f"{site.url}/load-balancer/v2/lbaas/loadbalancers/{balancer.id}/stats", timeout=ACTIVE_TIMEOUT)
    return int(answer.json()["stats"]["total_connections"]) if answer.status_code == 200 else 0


def ask_once(site: LabSite, balancer: CreatedBalancer) -> bool:
    return not site.lab.traffic("near", Traffic(to=balancer.vip, port=80)).errors
