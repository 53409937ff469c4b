"""Failover when the leader of two servers is frozen, over every transport and every store.

Over a unix socket ovsdb-server sends no inactivity probes, so a frozen client keeps its lock.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from harness.etcd import EtcdCluster, etcd_cluster
from harness.lab.servers import LBS, NETWORKS, SUBNETS, FairleadProcess, holder_first, serving
from harness.ovsdb_server import OvsdbServer as Database
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.extended]


@dataclass(frozen=True)
class WriterProcess:
    northbound: str


def build(server: FairleadProcess, name: str) -> str:
    """Create a network with a load balancer, and wait until OVN has it."""
    network = server.create(NETWORKS, "network", name=name)
    subnet = server.create(SUBNETS, "subnet", network_id=network["id"], cidr="10.0.0.0/24", ip_version=4)
    identity: str = server.create(LBS, "loadbalancer", name=name, vip_subnet_id=subnet["id"])["id"]
    server.wait_for(identity, "ACTIVE")
    return identity


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdCluster]:
    with etcd_cluster() as cluster:
        yield cluster


@contextmanager
def renaming(server: FairleadProcess, balancer: str) -> Iterator[list[int]]:
    """Rename the load balancer repeatedly through one server until the block ends; yield the status codes."""
    answered: list[int] = []
    ended = Event()

    def rename() -> None:
        with httpx.Client(base_url=server.url, timeout=DEADLINE) as client:
            while not ended.is_set():
                answer = client.put(f"{LBS}/{balancer}", json={"loadbalancer": {"name": f"n{len(answered)}"}})
                answered.append(answer.status_code)

    thread = Thread(target=rename)
    thread.start()
    try:
        yield answered
    finally:
        ended.set()
        thread.join()


def written_by_others(server: FairleadProcess) -> list[str]:
    """Return the leader's count of drift in Fairlead's rows."""
    lines = server.client.get("/metrics").text.splitlines()
    return [line for line in lines if line.startswith("fairlead_drift_total")]


def test_leader_frozen_during_writes_is_fenced_when_resumed(server: Database, tmp_path: Path, etcd: EtcdCluster):
    """The frozen leader has lost the lock without notice: each of its transactions is rejected and has no effect."""
    where = {"FAIRLEAD_STORE_URL": f"{etcd.url}/fenced"}
    with ExitStack() as stack:
        first = stack.enter_context(serving(WriterProcess(server.remote), tmp_path, **where))
        second = stack.enter_context(serving(WriterProcess(server.remote), tmp_path, **where))
        balancer = build(first, "before")
        holder, other = holder_first(first, second)
        with renaming(holder, balancer) as answered:
            wait_until(lambda: len(answered) > 20)
            holder.process.send_signal(signal.SIGSTOP)
            build(other, "meanwhile")
            renamed = other.client.put(f"{LBS}/{balancer}", json={"loadbalancer": {"name": "newest"}})
            assert renamed.status_code == 200, renamed.text
            other.wait_for(balancer, "ACTIVE")
            seen = written_by_others(other)
            holder.process.send_signal(signal.SIGCONT)
            before = len(answered)
            wait_until(lambda: len(answered) > before + 20)
        assert set(answered) <= {200, 409}
        assert holder.balancer(balancer)["name"] == other.balancer(balancer)["name"]
        for each in (holder, other):
            each.wait_for(balancer, "ACTIVE")
            wait_until(each.is_idle)
        assert other.is_holder()
        assert written_by_others(other) == seen


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_frozen_leader_is_replaced_and_writes_nothing_when_resumed(server: Database, tmp_path: Path, kind: str):
    remote = server.remote
    if kind == "tcp":
        port = free_port()
        server.control("ovsdb-server/add-remote", f"ptcp:{port}:127.0.0.1")
        remote = f"tcp:127.0.0.1:{port}"
    with ExitStack() as stack:
        first = stack.enter_context(serving(WriterProcess(remote), tmp_path))
        second = stack.enter_context(serving(WriterProcess(remote), tmp_path))
        balancer = build(first, "before")
        assert second.client.get(f"{LBS}/{balancer}").status_code == 200
        second.wait_for(balancer, "ACTIVE")
        holder, other = holder_first(first, second)
        holder.process.send_signal(signal.SIGSTOP)
        made = build(other, "meanwhile")
        holder.process.send_signal(signal.SIGCONT)
        wait_equal(lambda: holder.client.get("/readyz").text, "ready: another server is the leader\n")
        assert holder.client.get(f"{LBS}/{made}").status_code == 200
        holder.wait_for(made, "ACTIVE")
        wait_until(holder.is_idle)
        assert "taking its lock" not in holder.log.read_text()
        assert other.client.get("/readyz").text == "ready\n"
