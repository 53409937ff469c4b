"""End to end: members on a node without power are down, and those on a node that lost only its agent are not.

Two tenants have identical addresses. Heartbeats are sent every second, so a node is unresponsive after a short time.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from fairlead.lab import Lab, Protocol, Traffic, agents, processes
from fairlead.lab.chassis import UPLINK
from fairlead.lab.load import Load, LoadResult, LoadTarget, RunningLoad
from harness.lab.members import end_process, start_process, wait_members
from harness.lab.site import CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

HEARTBEAT = 1
MONITOR = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}
OVER_TCP = {**MONITOR, "type": "TCP"}
KINDS = (
    ("cedar", 4, Protocol.TCP, MONITOR),
    ("cedar", 6, Protocol.TCP, MONITOR),
    ("yew", 4, Protocol.UDP, OVER_TCP),
    ("yew", 6, Protocol.UDP, OVER_TCP),
)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    for tenant in ("cedar", "yew"):
        site.network(tenant, "10.0.0.0/24", "fd00:a::/64")
        at = {f"{tenant}{each}": (f"10.0.0.1{each}", f"fd00:a::1{each}") for each in (1, 2, 3)}
        site.machines(tenant, {f"{tenant}1": "chassis2", f"{tenant}2": "chassis1"}, serve=[8080], at=at)
        site.machines(tenant, {f"{tenant}3": "chassis1"}, at=at)
    yield site
    for tenant in ("cedar", "yew"):
        for each in (1, 2, 3):
            lab.remove_workload(f"{tenant}{each}")
    site.close()


@pytest.fixture(scope="module")
def nodes(site: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    started = {
        each.chassis: each for each in agents.start(site.lab.layout, site.url, agents.settings(heartbeat=HEARTBEAT))
    }
    yield started
    for each in started.values():
        each.stop()


@pytest.fixture(scope="module")
def balancers(site: LabSite, nodes: object) -> Iterator[tuple[CreatedBalancer, ...]]:
    with ExitStack() as stack:
        found = [
            stack.enter_context(
                site.balancer(
                    f"{tenant}-v{version}",
                    (f"{tenant}1", f"{tenant}2"),
                    protocol=protocol.value.upper(),
                    version=version,
                    healthmonitor=monitor,
                )
            )
            for tenant, version, protocol, monitor in KINDS
        ]
        wait_members(site, ONLINE=8)
        site.lab.wait_synced()
        yield tuple(found)


@contextmanager
def asking(site: LabSite, balancers: tuple[CreatedBalancer, ...], seconds: float) -> Iterator[list[RunningLoad]]:
    """Clients of both tenants that open connections to their own load balancers, on both chassis."""
    with ExitStack() as stack:
        running = []
        for tenant in ("cedar", "yew"):
            own = [(kind, each) for kind, each in zip(KINDS, balancers, strict=True) if kind[0] == tenant]
            to = tuple(LoadTarget(to=each.vip, port=80, protocol=protocol) for (_, _, protocol, _), each in own)
            load = Load(targets=to, rate=20, count=int(20 * seconds), held=0, seconds=seconds, timeout=30)
            running.append(stack.enter_context(site.lab.load(f"{tenant}3", load)))
        yield running


def wait_served(site: LabSite, balancers: tuple[CreatedBalancer, ...]) -> None:
    """Wait until each tenant's client reaches only the second machine, by the flows of its own chassis."""
    for (tenant, _, protocol, _), each in zip(KINDS, balancers, strict=True):
        traffic = Traffic(to=each.vip, port=80, protocol=protocol, count=24, concurrency=12, timeout=3)
        wait_until(
            lambda tenant=tenant, traffic=traffic: site.lab.traffic(f"{tenant}3", traffic),
            f"{tenant}2 answers alone at {each.vip}",
            is_enough=lambda found, name=f"{tenant}2": found.answers == {name: 24},
        )


def results(running: list[RunningLoad]) -> list[LoadResult]:
    return [each.stop() for each in running]


def table(site: LabSite) -> dict[tuple[str, str], Mapping[str, Any]]:
    rows = httpx.get(f"{site.url}/operator/health").json()["health"]
    return {(row["owner"], row["member"]): row for row in rows}


def seen_by(site: LabSite, chassis: str, status: str, *names: str) -> bool:
    rows = [row for (_, member), row in table(site).items() if member in names]
    return bool(rows) and all((row["prober"], row["status"]) == (chassis, status) for row in rows)


def turns(site: LabSite, since: int) -> int:
    """Number of changes between up and down in the server's log."""
    return site.service.log.read_text()[since:].count("that are down: ")


def mark(site: LabSite) -> int:
    return len(site.service.log.read_text())


def cover_ports(site: LabSite) -> list[str]:
    names = site.lab.exec("central", ["ovn-nbctl", "--bare", "--columns=name", "list", "Logical_Switch_Port"])
    return [each for each in names.split() if each.startswith("cover-")]


@contextmanager
def without_power(lab: Lab, chassis: str) -> Iterator[None]:
    """Stop everything on the chassis and its network at the same time."""
    folder = lab.layout.node_directory(chassis)
    pids = [processes.read_pidfile(folder / f"{name}.pid") or 0 for name in ("ovn-controller", "ovs-vswitchd")]
    assert all(processes.is_marked(pid, lab.layout.directory) for pid in pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    lab.exec(chassis, ["ip", "link", "set", UPLINK, "down"])
    try:
        yield
    finally:
        lab.exec(chassis, ["ip", "link", "set", UPLINK, "up"])
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_members_on_a_node_without_power_are_down_until_the_node_returns(
    site: LabSite, nodes: dict[str, agents.LabAgent], balancers: tuple[CreatedBalancer, ...]
):
    begun = mark(site)
    with without_power(site.lab, "chassis2"):
        nodes["chassis2"].process.kill()
        nodes["chassis2"].process.wait()
        wait_members(site, ONLINE=4, ERROR=4)
        wait_until(lambda: seen_by(site, "chassis1", "ERROR", "cedar1", "yew1"), "chassis1 covers")
        wait_served(site, balancers)
        with asking(site, balancers, 6) as running:
            after = [each.finish() for each in running]
    assert turns(site, begun) == 4
    nodes["chassis2"] = agents.start_one(site.lab.layout, site.url, "chassis2", agents.settings(heartbeat=HEARTBEAT))
    wait_members(site, ONLINE=8)
    wait_until(lambda: seen_by(site, "chassis2", "ONLINE", "cedar1", "yew1"), "the node has its own")
    wait_until(lambda: not cover_ports(site), "the ports of covers go")
    assert turns(site, begun) == 8, "somebody came or went twice"
    failed = [each for found in after for each in found.failed]
    assert failed == []


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_killed_or_frozen_agent_marks_no_member_down(
    site: LabSite, nodes: dict[str, agents.LabAgent], balancers: tuple[CreatedBalancer, ...], how: str
):
    agent, begun = nodes["chassis2"], mark(site)
    with asking(site, balancers, 300) as running:
        os.kill(agent.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        if how == "killed":
            agent.process.wait()
        wait_until(lambda: seen_by(site, "chassis1", "ONLINE", "cedar1", "yew1"), "the other one covers")
        assert len(cover_ports(site)) == 2
        broken = [each for found in results(running) for each in found.failed]
    assert turns(site, begun) == 0
    assert broken == []
    end_process(site, "cedar1")
    wait_members(site, ONLINE=6, ERROR=2)
    assert {row["error"] for (_, member), row in table(site).items() if member == "cedar1"} == {"connection refused"}
    if how == "killed":
        nodes["chassis2"] = agents.start_one(
            site.lab.layout, site.url, "chassis2", agents.settings(heartbeat=HEARTBEAT)
        )
    else:
        os.kill(agent.process.pid, signal.SIGCONT)
    wait_until(lambda: seen_by(site, "chassis2", "ONLINE", "yew1"), "the node has its own")
    wait_until(lambda: not cover_ports(site), "the ports of covers go")
    assert turns(site, begun) == 2, "who was dead served again for a moment"
    start_process(site, "cedar1")
    wait_members(site, ONLINE=8)
    site.lab.wait_synced()


def test_member_address_without_an_ovn_port_is_probed_by_one_node(site: LabSite, nodes: dict[str, agents.LabAgent]):
    """A machine has a second address without a port in OVN."""
    network = site.cloud.network.find_network("cedar", ignore_missing=False)
    port = site.cloud.network.find_port("cedar2", network_id=network.id)
    site.cloud.network.update_port(port, port_security_enabled=False)
    before = dict(wait_for_members(site))
    with ExitStack() as stack:
        for version, address, prefix in ((4, "10.0.0.77", 24), (6, "fd00:a::77", 64)):
            there = f"{address}/{prefix}"
            site.lab.exec(
                "cedar2", ["ip", "address", "add", there, "dev", "eth0", *(["nodad"] if version == 6 else [])]
            )
            stack.callback(site.lab.exec, "cedar2", ["ip", "address", "del", there, "dev", "eth0"])
            balancer = stack.enter_context(
                site.balancer(f"cedar-v{version}", (), version=version, healthmonitor=MONITOR)
            )
            site.cloud.load_balancer.create_member(
                balancer.pool, name=f"second{version}", address=address, protocol_port=8080
            )
            name = f"second{version}"
            wait_equal(lambda name=name: state(site, name), "ONLINE")
        assert len({row["chassis"] for (_, member), row in table(site).items() if member.startswith("second")}) == 1
        assert len(cover_ports(site)) == 1
        site.lab.exec("cedar2", ["ip", "address", "del", "10.0.0.77/24", "dev", "eth0"])
        wait_equal(lambda: state(site, "second4"), "ERROR")
        assert state(site, "second6") == "ONLINE"
        site.lab.exec("cedar2", ["ip", "address", "add", "10.0.0.77/24", "dev", "eth0"])
        wait_equal(lambda: state(site, "second4"), "ONLINE")
    wait_until(lambda: not cover_ports(site), "the port of the cover goes")
    assert wait_for_members(site) == before
    site.cloud.network.update_port(port, port_security_enabled=True)


def state(site: LabSite, member: str) -> str:
    return next((row["status"] for (_, name), row in table(site).items() if name == member), "")


def wait_for_members(site: LabSite) -> dict[str, str]:
    return {f"{owner} {member}": row["status"] for (owner, member), row in table(site).items()}
