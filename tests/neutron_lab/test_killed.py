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

from harness.lab.northbound import NorthboundServer, unreliable_northbound
from harness.lab.servers import FairleadProcess
from harness.neutron_lab.cloud import OpenStackOnLab
from harness.neutron_lab.rows import Rows, differences, read_neutron_rows, without
from harness.octavia_plugin.cloud import StatusComparison, content_of, is_agent
from harness.octavia_plugin.tenant import BALANCERS, MEMBERS, PAUSE_RANGE, RETRY_INTERVAL, SETTLE_SECONDS, RandomTenant
from harness.waiting import DEADLINE, pause, wait_equal, wait_until

pytestmark = pytest.mark.neutron
OPERATIONS = int(os.environ.get("NEUTRON_OPERATIONS", "40"))
SEED = int(os.environ.get("NEUTRON_SEED", "0")) or randrange(1, 10**6)
ADDED = ("Octavia", "ovn-lb-hm:distributed")
"""Device owners of ports that are created in Neutron: those of VIPs, and those for probes."""


@dataclass
class NeutronStatuses(StatusComparison):
    stack: OpenStackOnLab
    client: httpx.Client

    @property
    def fairlead(self) -> FairleadProcess:
        return self.stack.server

    def request(self, method: str, path: str, body: object = None) -> Any:
        return content_of(self.client.request(method, f"/v2/lbaas/{path}", json=body))

    def log(self, name: str) -> str:
        return self.stack.octavia.log(name)[-4000:]


class NeutronTenant(RandomTenant):
    """Tenant whose members are ports of Neutron."""

    def _new_member(self) -> dict[str, Any]:
        return {"address": f"10.43.0.{self.random.choice(MEMBERS)}", "protocol_port": 80}


@dataclass
class ProcessKiller:
    stack: OpenStackOnLab
    northbound: NorthboundServer
    random: Random
    done: list[str] = field(default_factory=list)

    def kill_random(self) -> None:
        strikes = {
            "Octavia's API": lambda: self._restart(self.stack.octavia, "api"),
            "its driver-agent": lambda: self._restart(self.stack.octavia, "agent"),
            "one of the agent's": self._kill_one,
            "Fairlead": self.stack.restart_server,
            "ovsdb-server": self._kill_database,
            "Neutron": lambda: self._restart(self.stack.neutron, "api"),
        }
        name = self.random.choice(sorted(strikes))
        self.done.append(name)
        strikes[name]()

    @staticmethod
    def _restart(service: Any, name: str) -> None:
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
def place(stack: OpenStackOnLab) -> Iterator[NeutronStatuses]:
    alice = stack.connection_of("alice").network
    network = alice.create_network(name="killed")
    subnet = alice.create_subnet(name="killed4", network_id=network.id, ip_version=4, cidr="10.43.0.0/24")
    for last in MEMBERS:
        alice.create_port(network_id=network.id, fixed_ips=[{"subnet_id": subnet.id, "ip_address": f"10.43.0.{last}"}])
    # creates the default security group: see test_balancers
    stack.openstack("alice", "loadbalancer create --name first --vip-subnet-id killed4 --wait")
    stack.openstack("alice", "loadbalancer delete --wait first")
    headers = {"X-Auth-Token": stack.keystone.token("alice")}
    with httpx.Client(base_url=stack.octavia.url, timeout=DEADLINE, headers=headers) as client:
        yield NeutronStatuses(stack, client)


def neutrons(stack: OpenStackOnLab) -> Rows:
    """Rows of Neutron, without the ports created on behalf of load balancers."""
    rows = read_neutron_rows(stack.lab)
    added = {
        identity
        for identity, row in rows["Logical_Switch_Port"].items()
        if dict(row.get("external_ids", ["map", []])[1]).get("neutron:device_owner") in ADDED
    }
    return without(rows, added)


def added(stack: OpenStackOnLab) -> list[Any]:
    return [each for owner in ADDED for each in stack.connection_of("admin").network.ports(device_owner=owner)]


def operate(place: NeutronStatuses, tenant: RandomTenant, attacker: ProcessKiller) -> None:
    """Run tenant and attacker concurrently, until the number of operations was accepted."""
    ended = Event()

    def work() -> None:
        try:
            while tenant.accepted_count < OPERATIONS and not ended.is_set():
                tenant.send_random_request()
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
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
    print(f"answers: {tenant.table()}\nkilled: {', '.join(attacker.done)}")


def test_process_kills_leave_nothing_pending_and_neutron_rows_unchanged(place: NeutronStatuses):
    stack = place.stack
    print(f"NEUTRON_OPERATIONS={OPERATIONS} NEUTRON_SEED={SEED}")
    before = neutrons(stack)
    subnet = stack.connection_of("alice").network.find_subnet("killed4", ignore_missing=False).id
    tenant = NeutronTenant(place.client, subnet, Random(SEED))
    for _ in range(BALANCERS):
        tenant.make()
    with unreliable_northbound(stack.lab) as northbound:
        operate(place, tenant, ProcessKiller(stack, northbound, Random(SEED)))
    stack.octavia.await_answer()
    stack.neutron.await_answer()
    found = place.settle(SETTLE_SECONDS)
    assert {provisioning for provisioning, _ in found.values()} <= {"ACTIVE", "ERROR"}
    wait_until(place.fairlead.is_idle, seconds=SETTLE_SECONDS)
    assert differences(before, neutrons(stack)) == []
    tidy(place)
    assert differences(before, read_neutron_rows(stack.lab)) == []


def tidy(place: NeutronStatuses) -> None:
    """Delete all load balancers. Only the VIP port of one that Octavia lost before its commit may remain."""
    balancers = place.request("GET", "loadbalancers")["loadbalancers"]
    for each in balancers:
        place.request("DELETE", f"loadbalancers/{each['id']}?cascade=true")
    wait_equal(lambda: place.request("GET", "loadbalancers")["loadbalancers"], [])
    wait_until(
        lambda: {each.device_owner for each in added(place.stack)},
        "no ports for probes",
        is_enough=lambda owners: owners <= {"Octavia"},
    )
    forgotten = added(place.stack)
    assert not {each.device_id for each in forgotten} & {f"lb-{each['id']}" for each in balancers}
    for each in forgotten:
        place.stack.connection_of("admin").network.delete_port(each)
    print(f"{len(balancers)} load balancers deleted, {len(forgotten)} ports of VIPs that Octavia forgot")
