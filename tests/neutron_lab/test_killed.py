"""Operations of the user Alice on load balancers on Neutron's networks, while any process of the cloud is killed.

Afterwards nothing is pending, all services agree, and Neutron's rows are unchanged. NEUTRON_OPERATIONS and NEUTRON_SEED
set the number of operations, and repeat those of a run.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random, randrange
from threading import Event
from typing import Any

import httpx
import pytest

from harness.lab.northbound import Northbound, breaking
from harness.lab.servers import Server
from harness.neutron_lab.cloud import Cloud
from harness.neutron_lab.rows import Rows, differences, of_neutron, without
from harness.octavia_plugin.cloud import Agreement, content_of, is_agent
from harness.octavia_plugin.tenant import BALANCERS, MEMBERS, PAUSES, RETRY, SETTLE_SECONDS, Tenant
from harness.waiting import DEADLINE, pause, wait_equal, wait_until

pytestmark = pytest.mark.neutron
OPERATIONS = int(os.environ.get("NEUTRON_OPERATIONS", "40"))
SEED = int(os.environ.get("NEUTRON_SEED", "0")) or randrange(1, 10**6)
ADDED = ("Octavia", "ovn-lb-hm:distributed")
"""Device owners of ports that are created in Neutron: those of VIPs, and those for probes."""


@dataclass
class Place(Agreement):
    stack: Cloud
    client: httpx.Client

    @property
    def fairlead(self) -> Server:
        return self.stack.server

    def ask(self, method: str, path: str, body: object = None) -> Any:
        return content_of(self.client.request(method, f"/v2/lbaas/{path}", json=body))

    def log(self, name: str) -> str:
        return self.stack.octavia.log(name)[-4000:]


class OnNeutron(Tenant):
    """Tenant whose members are ports of Neutron."""

    def _new_member(self) -> dict[str, Any]:
        return {"address": f"10.43.0.{self.random.choice(MEMBERS)}", "protocol_port": 80}


@dataclass
class Attacker:
    stack: Cloud
    northbound: Northbound
    random: Random
    done: list[str] = field(default_factory=list)

    def strike(self) -> None:
        strikes = {
            "Octavia's API": lambda: self._again(self.stack.octavia, "api"),
            "its driver-agent": lambda: self._again(self.stack.octavia, "agent"),
            "one of the agent's": self._kill_one,
            "Fairlead": self.stack.serve_again,
            "ovsdb-server": self._kill_database,
            "Neutron": lambda: self._again(self.stack.neutron, "api"),
        }
        name = self.random.choice(sorted(strikes))
        self.done.append(name)
        strikes[name]()

    @staticmethod
    def _again(service: Any, name: str) -> None:
        service.kill(name)
        service.start(name)

    def _kill_one(self) -> None:
        group = self.stack.octavia.processes["agent"].pid
        ours = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_agent(pid, group)]
        if ours:
            os.kill(self.random.choice(ours), signal.SIGKILL)

    def _kill_database(self) -> None:
        self.northbound.kill()
        self.northbound.start()


@pytest.fixture
def place(stack: Cloud) -> Iterator[Place]:
    alice = stack.of("alice").network
    network = alice.create_network(name="killed")
    subnet = alice.create_subnet(name="killed4", network_id=network.id, ip_version=4, cidr="10.43.0.0/24")
    for last in MEMBERS:
        alice.create_port(network_id=network.id, fixed_ips=[{"subnet_id": subnet.id, "ip_address": f"10.43.0.{last}"}])
    # creates the default security group: see test_balancers
    stack.openstack("alice", "loadbalancer create --name first --vip-subnet-id killed4 --wait")
    stack.openstack("alice", "loadbalancer delete --wait first")
    headers = {"X-Auth-Token": stack.keystone.token("alice")}
    with httpx.Client(base_url=stack.octavia.url, timeout=DEADLINE, headers=headers) as client:
        yield Place(stack, client)


def neutrons(stack: Cloud) -> Rows:
    """Rows of Neutron, without the ports created on behalf of load balancers."""
    rows = of_neutron(stack.lab)
    added = {
        identity
        for identity, row in rows["Logical_Switch_Port"].items()
        if dict(row.get("external_ids", ["map", []])[1]).get("neutron:device_owner") in ADDED
    }
    return without(rows, added)


def added(stack: Cloud) -> list[Any]:
    return [each for owner in ADDED for each in stack.of("admin").network.ports(device_owner=owner)]


def operate(place: Place, tenant: Tenant, attacker: Attacker) -> None:
    """Run tenant and attacker concurrently, until the number of operations was accepted."""
    ended = Event()

    def work() -> None:
        try:
            while tenant.taken < OPERATIONS and not ended.is_set():
                tenant.act()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
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
    print(f"answers: {tenant.table()}\nkilled: {', '.join(attacker.done)}")


def test_whoever_is_killed_nothing_waits_and_neutrons_rows_are_as_they_were(place: Place):
    stack = place.stack
    print(f"NEUTRON_OPERATIONS={OPERATIONS} NEUTRON_SEED={SEED}")
    before = neutrons(stack)
    subnet = stack.of("alice").network.find_subnet("killed4", ignore_missing=False).id
    tenant = OnNeutron(place.client, subnet, Random(SEED))
    for _ in range(BALANCERS):
        tenant.make()
    with breaking(stack.lab) as northbound:
        operate(place, tenant, Attacker(stack, northbound, Random(SEED)))
    stack.octavia.await_answer()
    stack.neutron.await_answer()
    found = place.settle(SETTLE_SECONDS)
    assert {provisioning for provisioning, _ in found.values()} <= {"ACTIVE", "ERROR"}
    wait_until(place.fairlead.has_nothing_to_do, seconds=SETTLE_SECONDS)
    assert differences(before, neutrons(stack)) == []
    tidy(place)
    assert differences(before, of_neutron(stack.lab)) == []


def tidy(place: Place) -> None:
    """Delete all load balancers. Only the VIP port of one that Octavia lost before its commit may remain."""
    balancers = place.ask("GET", "loadbalancers")["loadbalancers"]
    for each in balancers:
        place.ask("DELETE", f"loadbalancers/{each['id']}?cascade=true")
    wait_equal(lambda: place.ask("GET", "loadbalancers")["loadbalancers"], [])
    wait_until(
        lambda: {each.device_owner for each in added(place.stack)},
        "no ports for probes",
        is_enough=lambda owners: owners <= {"Octavia"},
    )
    forgotten = added(place.stack)
    assert not {each.device_id for each in forgotten} & {f"lb-{each['id']}" for each in balancers}
    for each in forgotten:
        place.stack.of("admin").network.delete_port(each)
    print(f"{len(balancers)} load balancers deleted, {len(forgotten)} ports of VIPs that Octavia forgot")
