"""End to end, with an agent on each chassis: members, agents and servers that fail under traffic."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from fairlead.lab import Lab, Protocol, agents
from fairlead.lab.load import Load, LoadTarget
from fairlead.lab.server import start, stop
from harness.lab.members import (
    HTTP,
    ask,
    cut_cable,
    end_process,
    frozen_process,
    mend_cable,
    start_process,
    wait_members,
)
from harness.lab.site import LabSite, open_site
from harness.waiting import pause, wait_until

pytestmark = pytest.mark.lab

MEMBERS = ("p1", "p2", "p3")
DEATHS = {"its process ends": (end_process, start_process), "it is cut off": (cut_cable, mend_cable)}
QUICK = {"type": "TCP", "delay": 1, "delay_ms": 100, "timeout": 1, "max_retries": 1, "max_retries_down": 1}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    site.network("pine", "10.0.0.0/24", "fd00:a::/64")
    site.network("larch", "10.0.1.0/24", "fd00:b::/64")
    site.router("probed", "pine-v4", "pine-v6", "larch-v4", "larch-v6")
    site.machines("pine", {"p1": "chassis2", "p2": "chassis1", "p3": "chassis2"}, serve=[8080])
    site.machines("pine", {"near": "chassis1"})
    site.machines("larch", {"far": "chassis1"})
    yield site
    for name in (*MEMBERS, "near", "far"):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    """Agents by chassis; a test may replace them."""
    started = {agent.chassis: agent for agent in agents.start(site.lab.layout, site.url)}
    yield started
    for agent in started.values():
        agent.stop()


def load_to(vip: str) -> Load:
    target = LoadTarget(to=vip, port=80, protocol=Protocol.TCP)
    return Load(targets=(target,), rate=40, count=12000, held=0, seconds=300, timeout=30)


@contextmanager
def dead(site: LabSite, name: str, death: str) -> Iterator[None]:
    """Make one of three members fail, wait until no chassis has flows to it, and restore it at the end."""
    die, revive = DEATHS[death]
    die(site, name)
    try:
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        yield
    finally:
        revive(site, name)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("death", DEATHS)
def test_no_connection_fails_once_a_dead_member_is_detected(site: LabSite, death: str, version: int):
    """No connection fails after the failure was detected, nor after the recovery."""
    with (
        site.balancer(f"pine-v{version}", MEMBERS, version=version, healthmonitor=HTTP) as balancer,
        ExitStack() as load,
    ):
        wait_members(site, ONLINE=3)
        with dead(site, "p1", death):
            running = load.enter_context(site.lab.load("near", load_to(balancer.vip)))
            assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"p2", "p3"}
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert running.stop().failed == []


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.extended
def test_quick_probes_protect_connections_through_repeated_member_failures(site: LabSite, death: str):
    with site.balancer("pine-v4", MEMBERS, healthmonitor=QUICK) as balancer:
        for _ in range(3):
            wait_members(site, ONLINE=3)
            site.lab.wait_synced()
            with dead(site, "p1", death), site.lab.load("near", load_to(balancer.vip)) as running:
                assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"p2", "p3"}
                assert running.stop().failed == []


def test_operator_api_lists_members_with_chassis_and_probe_result(site: LabSite):
    with site.balancer("pine-v4", MEMBERS, healthmonitor={**HTTP, "url_path": "/"}):
        wait_members(site, ONLINE=3)
        rows = httpx.get(f"{site.url}/operator/health").json()["health"]
        assert {(row["member"], row["chassis"], row["status"]) for row in rows} == {
            ("p1", "chassis2", "ONLINE"),
            ("p2", "chassis1", "ONLINE"),
            ("p3", "chassis2", "ONLINE"),
        }
        wait_until(lambda: httpx.get(f"{site.url}/operator/health").json()["health"][0]["latency"], "a latency")


@pytest.mark.extended
def test_stopped_or_frozen_agents_and_servers_break_no_connection(site: LabSite, nodes: dict[str, agents.LabAgent]):
    """A member is down all the time, and must never receive a connection."""
    layout, listen = site.lab.layout, site.url.removeprefix("http://")
    with site.balancer("pine-v4", MEMBERS, healthmonitor=HTTP) as balancer:
        wait_members(site, ONLINE=3)
        end_process(site, "p3")
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        with site.lab.load("near", load_to(balancer.vip)) as running:
            nodes["chassis2"].stop()
            nodes["chassis2"] = agents.start_one(layout, site.url, "chassis2")
            with frozen_process(nodes["chassis1"].process.pid):
                pause(3)
            assert site.service.process is not None
            with frozen_process(site.service.process.pid):
                pause(3)
            site.service.process.kill()
            site.service.process.wait()
            again = start(layout, listen, {"FAIRLEAD_HEALTH_PROBER": "agents"})
            wait_members(site, ONLINE=2, ERROR=1)
            site.lab.wait_synced()
            broken = running.stop().failed
        start_process(site, "p3")
        wait_members(site, ONLINE=3)
    stop(layout, again)
    print(f"\nagents: one killed, one frozen, the server frozen and killed: {len(broken)} connections failed")
    assert list(broken) == []
