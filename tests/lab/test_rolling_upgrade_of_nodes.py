"""Rolling upgrade of servers with an etcd of three members, and of the agents of both nodes, under traffic.

In every combination of releases each node probes its targets, and both servers report its probe results and counters.
The newer release is the current program with additional fields in each part of its messages (`harness.newer_release`).
At the end a node becomes unresponsive, and a server without its reports returns the same as the other one.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from fairlead.lab import Lab, Protocol, agents
from fairlead.lab.load import LoadTarget, sum_results
from fairlead.lab.server import ServerProcess
from harness.etcd import etcd_cluster
from harness.lab.labs import lab_of
from harness.lab.rolling import HELD, MEMBERS, NEWER, OLDER, ReleaseServers, Writer, await_more_writes, load_of, writing
from harness.lab.servers import LBS, POOLS, FairleadProcess
from harness.lab.site import PORT, CreatedBalancer, LabSite, connect
from harness.ports import free_port
from harness.rules import TESTS
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

KINDS = [("TCP", 4), ("UDP", 4), ("UDP", 6), ("TCP", 6)]
PROTOCOLS = {"TCP": Protocol.TCP, "UDP": Protocol.UDP}
CLIENTS = {"near": "chassis1", "far": "chassis2"}
"""Clients of the first and the last of these load balancers, whose own nodes count the connections."""
QUICK = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}


@dataclass
class Nodes:
    """The agents, each of either release, and checks of their exchange with the servers."""

    site: LabSite
    servers: list[FairleadProcess]
    probed: CreatedBalancer
    counted: list[CreatedBalancer]
    closed: Iterator[int] = field(default_factory=lambda: count(9000))
    """Ports of members without a listening process."""
    running: dict[str, agents.LabAgent] = field(default_factory=dict)

    def replace(self, chassis: str, program: str) -> None:
        urls, path = ",".join(each.url for each in self.servers), {"PYTHONPATH": str(TESTS)}
        if chassis in self.running:
            self.running[chassis].stop()
        self.running[chassis] = agents.start_one(self.site.lab.layout, urls, chassis, path, program=program)

    def stop(self) -> None:
        for agent in self.running.values():
            agent.stop()

    def work(self) -> None:
        """Assert that both agents probe a new member, report it down, and count, and that both servers have both."""
        counted = [max(_connections(server, each) for server in self.servers) for each in self.counted]
        made = [self._add(machine) for machine in MEMBERS]
        for server in self.servers:
            wait_equal(lambda server=server: {_standing(server, self.probed, each) for each in made}, {"ERROR"})
            for each, before in zip(self.counted, counted, strict=True):
                wait_until(lambda server=server, each=each, before=before: _connections(server, each) > before)

    def _add(self, machine: str) -> str:
        body = {"address": self.site.address(machine), "protocol_port": next(self.closed)}
        made: str = self.servers[0].create(f"{POOLS}/{self.probed.pool}/members", "member", **body)["id"]
        return made


def _standing(server: FairleadProcess, balancer: CreatedBalancer, member: str) -> str:
    path = f"{POOLS}/{balancer.pool}/members/{member}"
    return str(server.client.get(path).json()["member"]["operating_status"])


def _connections(server: FairleadProcess, balancer: CreatedBalancer) -> int:
    """Connections on all nodes, or -1 while no node has reported."""
    stats = server.client.get(f"{LBS}/{balancer.id}/stats").json().get("stats", {})
    return int(stats.get("total_connections", -1))


def test_servers_and_agents_are_upgraded_without_broken_connections(machine: None, tmp_path: Path):
    with ExitStack() as stack:
        etcd = stack.enter_context(etcd_cluster())
        lab = stack.enter_context(lab_of("nodes", chassis=2))
        environment = {
            "FAIRLEAD_STORE_URL": f"{etcd.url}/rolling",
            "FAIRLEAD_OVN_SOUTHBOUND": lab.southbound,
            "FAIRLEAD_HEALTH_PROBER": "agents",
        }
        places = [_place(lab, tmp_path / str(number), environment) for number in range(2)]
        later = _place(lab, tmp_path / "2", environment, places[0].port)  # another host, without data
        for place in (later, *places):
            stack.callback(place.stack.close)
        one, other = (place.start(OLDER) for place in places)
        site = LabSite(
            lab=lab, service=ServerProcess(url=one.url, folder=tmp_path), cloud=connect(one.url), url=one.url
        )
        stack.callback(site.cloud.close)
        site.network("nodes", "10.0.0.0/24", "fd00:a::/64")
        site.machines("nodes", MEMBERS, serve=[PORT])
        site.machines("nodes", CLIENTS)
        balancers = [
            stack.enter_context(site.balancer(f"nodes-v{version}", list(MEMBERS), protocol=each, version=version))
            for each, version in KINDS
        ]
        probed = stack.enter_context(site.balancer("nodes-v4", list(MEMBERS), healthmonitor=QUICK))
        nodes = Nodes(site=site, servers=[one, other], probed=probed, counted=[balancers[0], balancers[-1]])
        stack.callback(nodes.stop)
        for chassis in MEMBERS.values():
            nodes.replace(chassis, OLDER)
        targets = [
            LoadTarget(to=each.vip, port=80, protocol=PROTOCOLS[kind])
            for each, (kind, _) in zip(balancers, KINDS, strict=True)
        ]
        writer = Writer(urls=[one.url, other.url], balancer=balancers[0].id)
        with (
            lab.load("near", load_of(targets[:-1])) as near,
            lab.load("far", load_of(targets[-1:])) as far,
            writing(writer),
        ):
            nodes.replace("chassis1", NEWER)
            nodes.work()
            other = nodes.servers[1] = places[1].replace(other, NEWER)
            nodes.work()
            one = nodes.servers[0] = places[0].replace(one, NEWER)
            nodes.work()
            nodes.replace("chassis2", NEWER)
            one = nodes.servers[0] = places[0].replace(one, OLDER)  # downgrade
            nodes.work()
            await_more_writes(writer)
            results = [near.stop(), far.stop()]
        assert writer.wrong == []
        wait_equal(lambda: {each.balancer(balancers[0].id)["name"] for each in (one, other)}, {writer.acknowledged})
        assert [each for result in results for each in result.failed] == []
        print(writer.written, "writes", dict(sum_results(results)))
        assert [sum_results([each])["held"] for each in results] == [HELD, HELD]
        nodes.running.pop("chassis2").stop()
        wait_until(lambda: "silent-node/chassis2" in etcd.ctl("get", "rolling/doc/", "--prefix", "--keys-only"))
        places[0].end(one)
        began = later.start(OLDER)
        assert min(_said(other, nodes)[1]) > 0
        wait_until(lambda: _said(began, nodes) == _said(other, nodes))


def _place(lab: Lab, folder: Path, environment: dict[str, str], port: int = 0) -> ReleaseServers:
    folder.mkdir()
    return ReleaseServers(lab, folder, port or free_port(), environment=environment)


def _said(server: FairleadProcess, nodes: Nodes) -> tuple[object, list[int]]:
    """Statuses of the members, and the counters."""
    tree = server.client.get(f"{LBS}/{nodes.probed.id}/status").json()
    return tree, [_connections(server, each) for each in nodes.counted]
