"""Of two servers the one that writes is frozen: the other takes its place, whatever they are connected by.

Over a unix socket nobody ever asks whether a client lives, so its lock stays with it.
"""

import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import pytest

from drivers.conftest import Server as Database
from harness.ports import free_port
from lab.servers import LBS, NETWORKS, SUBNETS, Server, holder_first, serving, until

pytestmark = pytest.mark.slow
REPLACED_WITHIN = 5.0


@dataclass(frozen=True)
class Remote:
    northbound: str


def build(server: Server, name: str) -> str:
    """A network with a load balancer on it, as soon as OVN has it."""
    network = server.make(NETWORKS, "network", name=name)
    subnet = server.make(SUBNETS, "subnet", network_id=network["id"], cidr="10.0.0.0/24", ip_version=4)
    identity: str = server.make(LBS, "loadbalancer", name=name, vip_subnet_id=subnet["id"])["id"]
    server.wait_for(identity, "ACTIVE", 30)
    return identity


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_frozen_writer_is_replaced_and_writes_nothing_when_it_thaws(server: Database, tmp_path: Path, kind: str):
    remote = server.remote
    if kind == "tcp":
        port = free_port()
        server.control("ovsdb-server/add-remote", f"ptcp:{port}:127.0.0.1")
        remote = f"tcp:127.0.0.1:{port}"
    with ExitStack() as stack:
        first = stack.enter_context(serving(Remote(remote), tmp_path))
        second = stack.enter_context(serving(Remote(remote), tmp_path))
        balancer = build(first, "before")
        until(lambda: second.client.get(f"{LBS}/{balancer}").status_code == 200)
        second.wait_for(balancer, "ACTIVE")
        holder, other = holder_first(first, second)
        holder.process.send_signal(signal.SIGSTOP)
        frozen = monotonic()
        made = build(other, "meanwhile")
        seconds = monotonic() - frozen
        print(f"\nserver: a frozen writer on {kind} was replaced after {seconds:.1f} s")
        assert seconds < REPLACED_WITHIN
        holder.process.send_signal(signal.SIGCONT)
        until(lambda: holder.client.get("/readyz").text == "ready: another server writes\n")
        until(lambda: holder.client.get(f"{LBS}/{made}").status_code == 200)
        holder.wait_for(made, "ACTIVE")
        until(holder.has_nothing_to_do)
        assert "taking its place" not in holder.log.read_text()
        assert other.client.get("/readyz").text == "ready\n"
