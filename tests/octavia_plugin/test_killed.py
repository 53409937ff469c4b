"""Operations on a real Octavia, while anybody is killed or frozen at any moment: soon nothing waits, and all agree.

make killed                     200 operations, and others in every run; OCTAVIA_SEED=... repeats the operations of one
"""

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random, randrange
from threading import Event
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from harness.octavia_plugin.cloud import SETTLED, Cloud, made_place

pytestmark = pytest.mark.client
OPERATIONS = int(os.environ.get("OCTAVIA_OPERATIONS", "24"))
SEED = int(os.environ.get("OCTAVIA_SEED", "0")) or (7 if OPERATIONS == 24 else randrange(1, 10**6))
BALANCERS = 4
MEMBERS = range(100, 110)
AGAIN = 120.0
"""Seconds after the last of them: then nothing waits any more."""
PAUSES = (1, 5)
"""Operations that Octavia takes between two attacks."""
FROZEN = (0.5, 4.0)
BUSY = 0.02
"""Seconds after which a tenant asks for another thing to whom something was said to be on its way."""
ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RETRY = 0.1
"""Seconds after which a tenant tries again who was not answered."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with made_place(tmp_path_factory) as made:
        yield made


def make_network(place: Cloud) -> str:
    """Its subnet, with a port at each address of a member: a monitor probes ports alone."""
    server = place.fairlead
    network = server.make("/network/v2.0/networks", "network", name="net")["id"]
    subnet = {"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}
    made: str = server.make("/network/v2.0/subnets", "subnet", **subnet)["id"]
    for last in MEMBERS:
        server.make("/network/v2.0/ports", "port", network_id=network, fixed_ips=[{"ip_address": f"10.0.0.{last}"}])
    return made


@dataclass
class Tenant:
    """Asks for one thing after the other, and takes any answer."""

    client: httpx.Client
    subnet: str
    random: Random
    ids: dict[str, list[str]] = field(default_factory=dict)
    answers: list[str] = field(default_factory=list)
    """Codes, with the sentence of a refusal."""
    unanswered: int = 0
    longest: float = 0.0
    """Seconds between two operations that Octavia took, the most."""
    took: float = field(default_factory=monotonic)
    """When it took the last one."""

    @property
    def taken(self) -> int:
        """Operations that Octavia has taken."""
        return sum(answer < "300" for answer in self.answers)

    def table(self) -> str:
        lines = [f"{count} times {answer}" for answer, count in sorted(Counter(self.answers).items())]
        said = [*lines, f"{self.unanswered} times none", f"{self.longest:.0f} s without one that was taken, at most"]
        return "\n  ".join(said)

    def act(self) -> None:
        acts: list[Callable[[], None]] = [self._listener, self._pool, *[self._member] * 4, *[self._batch] * 2]
        acts += [self._monitor, *[self._change] * 6, *[self._delete] * 2]
        if len(self.ids.get("loadbalancers", ())) < BALANCERS or not self.ids.get("pools"):
            acts = [self.make]
        self.random.choice(acts)()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            answer = self.client.request(method, f"/v2/lbaas/{path}", json=body)
        except httpx.TransportError:
            self.unanswered += 1
            sleep(RETRY)
            return {}
        self._count(answer)
        return answer.json() if answer.status_code == 201 else {}

    def _count(self, answer: httpx.Response) -> None:
        code, sentence = answer.status_code, ""
        if code >= 300:
            said = ID.sub("ID", answer.json().get("faultstring", answer.text))
            sentence = " ".join(said.partition("[SQL:")[0].split())
        self.answers.append(f"{code} {sentence}".strip())
        if code < 300:
            self.longest, self.took = max(self.longest, monotonic() - self.took), monotonic()
        elif code == 409:
            sleep(BUSY)

    def one(self, kind: str) -> str:
        """Its path."""
        return self.random.choice(self.ids.get(kind) or [f"{kind}/00000000-0000-4000-8000-000000000000"])

    def _made(self, kind: str, answer: Mapping[str, Mapping[str, Any]], path: str = "") -> None:
        for each in answer.values():
            self.ids.setdefault(kind, []).append(f"{path or kind}/{each['id']}")

    def make(self) -> None:
        """A load balancer with all that it can hold."""
        monitor = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
        pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": [self._new_member()]}
        listener = {"protocol": "TCP", "protocol_port": 80, "default_pool": {**pool, "healthmonitor": monitor}}
        body = {"vip_subnet_id": self.subnet, "provider": "fairlead", "name": "b", "listeners": [listener]}
        answer = self.ask("POST", "loadbalancers", {"loadbalancer": body})
        self._made("loadbalancers", answer)
        for whole in answer.values():
            for part in whole["pools"]:
                self._made("pools", {"pool": part})
                self._made("members", {each["id"]: each for each in part["members"]}, f"pools/{part['id']}/members")
            self._made("listeners", {each["id"]: each for each in whole["listeners"]})

    def _listener(self) -> None:
        protocol, port = self.random.choice(["TCP", "UDP"]), self.random.randrange(1000, 1030)
        body = {"loadbalancer_id": self._id("loadbalancers"), "protocol": protocol, "protocol_port": port}
        self._made("listeners", self.ask("POST", "listeners", {"listener": body}))

    def _pool(self) -> None:
        body = {"loadbalancer_id": self._id("loadbalancers"), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}
        self._made("pools", self.ask("POST", "pools", {"pool": body}))

    def _member(self) -> None:
        path = f"{self.one('pools')}/members"
        self._made("members", self.ask("POST", path, {"member": self._new_member()}), path)

    def _batch(self) -> None:
        members = {each["address"]: each for each in (self._new_member() for _ in range(4))}
        self.ask("PUT", f"{self.one('pools')}/members", {"members": list(members.values())})

    def _monitor(self) -> None:
        body = {"pool_id": self._id("pools"), "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
        self._made("healthmonitors", self.ask("POST", "healthmonitors", {"healthmonitor": body}))

    def _change(self) -> None:
        kind = self.random.choice(["loadbalancers", "listeners", "pools", "members", "healthmonitors"])
        values = {"name": f"n{self.random.randrange(100)}", "admin_state_up": self.random.random() < 0.8}
        more = {
            "members": {"weight": self.random.randrange(10)},
            "healthmonitors": {"delay": self.random.randrange(5, 9)},
        }
        self.ask("PUT", self.one(kind), {kind.removesuffix("s"): {**values, **more.get(kind, {})}})

    def _delete(self) -> None:
        kind = self.random.choice(["loadbalancers", "listeners", *["pools", "members", "healthmonitors"] * 2])
        path = self.one(kind)
        self.ask("DELETE", path + ("?cascade=true" if kind == "loadbalancers" else ""))
        if self.answers[-1] == "204" and path in self.ids.get(kind, ()):
            self.ids[kind].remove(path)

    def _new_member(self) -> dict[str, Any]:
        return {"address": f"10.0.0.{self.random.choice(MEMBERS)}", "protocol_port": 80}

    def _id(self, kind: str) -> str:
        return self.one(kind).rpartition("/")[2]


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
        sleep(self.random.uniform(*FROZEN))
        os.kill(whom, signal.SIGCONT)


def test_whoever_is_killed_nothing_waits_and_all_agree(place: Cloud):
    print(f"OCTAVIA_OPERATIONS={OPERATIONS} OCTAVIA_SEED={SEED}")
    subnet = make_network(place)
    ended, attacker = Event(), Attacker(place, Random(SEED))
    with httpx.Client(base_url=place.octavia.base_url, timeout=SETTLED) as client, ThreadPoolExecutor(1) as threads:
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
                place.wait(lambda more=more: tenant.taken >= more or ended.is_set())
                sleep(attacker.random.uniform(0, RETRY))  # in the middle of the next one
        finally:
            ended.set()
        working.result()
    over = monotonic()
    print(f"answers: {tenant.table()}\nstruck: {', '.join(attacker.done)}")
    found = place.settle(AGAIN)
    assert {provisioning for provisioning, _ in found.values()} <= {"ACTIVE", "ERROR"}
    statuses = monotonic() - over
    while (told := place.sync("--dry-run", "--at-once")[1]["differences"]) and monotonic() - over < AGAIN:
        print(f"values differ {monotonic() - over:.0f} s after it: {told}")
    assert told == [], place.log("agent")
    place.settle(AGAIN)
    print(f"statuses agreed {statuses:.0f} s after it, and values {monotonic() - over:.0f} s")
