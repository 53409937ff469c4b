"""End to end, with an agent on each chassis: members that die under traffic, and agents and servers that do."""

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from fairlead.lab import Lab, Protocol, agents
from fairlead.lab.databases import until
from fairlead.lab.load import Broken, Load, Target
from fairlead.lab.service import start, stop
from harness.lab.site import Site, open_site
from lab.test_health import ask, cut_cable, end_process, mend_cable, start_process, wait_members

pytestmark = pytest.mark.lab

CLIENT_PATIENCE = 0.9
MEMBERS = ("p1", "p2", "p3")
HTTP = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}
QUICK = {"type": "TCP", "delay": 1, "delay_ms": 100, "timeout": 1, "max_retries": 1, "max_retries_down": 1}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    site = open_site(lab, FAIRLEAD_PROBES_BY="agents")
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
def nodes(site: Site) -> Iterator[dict[str, agents.Agent]]:
    """The agents by their chassis; a test may put others in their places."""
    started = {agent.chassis: agent for agent in agents.start(site.lab.layout, site.url)}
    yield started
    for agent in started.values():
        agent.stop()


def load_to(vip: str, seconds: float) -> Load:
    target = Target(to=vip, port=80, protocol=Protocol.TCP)
    return Load(targets=(target,), rate=40, count=int(40 * seconds), held=0, seconds=seconds, timeout=CLIENT_PATIENCE)


def last_begun(broken: Iterable[Broken]) -> float:
    """When the last of these connections began; 0.0 for none."""
    return max((each.at - (CLIENT_PATIENCE if each.kind == "timeout" else 0.0) for each in broken), default=0.0)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("death", ["its process ends", "it is cut off"])
def test_a_dead_member_gets_its_last_connection_soon(site: Site, death: str, version: int):
    die, revive = {"its process ends": (end_process, start_process), "it is cut off": (cut_cable, mend_cable)}[death]
    with site.balancer(f"pine-v{version}", MEMBERS, version=version, healthmonitor=HTTP) as balancer:
        wait_members(site, ONLINE=3)
        with site.lab.load("near", load_to(balancer.vip, 8)) as running:
            died = time.time()
            die(site, "p1")
            try:
                wait_members(site, ONLINE=2, ERROR=1)
                site.lab.wait_synced()
                anybody = ask(site, "far", balancer, Protocol.TCP)
                broken = running.stop().broken
            finally:
                revive(site, "p1")
        wait_members(site, ONLINE=3)
        assert set(anybody.answers) == {"p2", "p3"}
        last = last_begun(broken) - died
        due = HTTP["delay"] * HTTP["max_retries_down"] + 1  # type: ignore[operator]
        print(f"\nagents: {death}, IPv{version}: last connection that went to it after {last:.2f} s; {due} s are due")
        assert last <= due + HTTP["timeout"]  # a busy node may doubt a silence, and asks again at once


@pytest.mark.parametrize("death", ["its process ends", "it is cut off"])
def test_with_quick_probes_it_is_a_matter_of_tenths_of_a_second(site: Site, death: str):
    die, revive = {"its process ends": (end_process, start_process), "it is cut off": (cut_cable, mend_cable)}[death]
    with site.balancer("pine-v4", MEMBERS, healthmonitor=QUICK) as balancer:
        wait_members(site, ONLINE=3)
        lasts = list[float]()
        for _ in range(3):
            with site.lab.load("near", load_to(balancer.vip, 4)) as running:
                died = time.time()
                die(site, "p1")
                try:
                    wait_members(site, ONLINE=2, ERROR=1)
                    site.lab.wait_synced()
                    broken = running.stop().broken
                finally:
                    revive(site, "p1")
            wait_members(site, ONLINE=3)
            site.lab.wait_synced()
            lasts.append(max(0.0, last_begun(broken) - died))
        told = " ".join(f"{each:.2f}" for each in lasts)
        print(f"\nagents, 100 ms: {death}: last connection that went to it after {told} s")
        assert sorted(lasts)[1] < 0.3


def test_who_is_probed_and_what_was_seen_can_be_read(site: Site):
    with site.balancer("pine-v4", MEMBERS, healthmonitor={**HTTP, "url_path": "/"}):
        wait_members(site, ONLINE=3)
        rows = httpx.get(f"{site.url}/operator/health").json()["health"]
        assert {(row["member"], row["chassis"], row["status"]) for row in rows} == {
            ("p1", "chassis2", "ONLINE"),
            ("p2", "chassis1", "ONLINE"),
            ("p3", "chassis2", "ONLINE"),
        }
        until(15, "a latency", lambda: httpx.get(f"{site.url}/operator/health").json()["health"][0]["latency"])


def test_agents_and_servers_that_end_or_freeze_cost_no_connection(site: Site, nodes: dict[str, agents.Agent]):
    """A member is dead all the time: nobody may be led to it for a moment."""
    layout, listen = site.lab.layout, site.url.removeprefix("http://")
    with site.balancer("pine-v4", MEMBERS, healthmonitor=HTTP) as balancer:
        wait_members(site, ONLINE=3)
        end_process(site, "p3")
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        with site.lab.load("near", load_to(balancer.vip, 40)) as running:
            nodes["chassis2"].stop()
            nodes["chassis2"] = agents.start_one(layout, site.url, "chassis2")
            with frozen(nodes["chassis1"].process.pid):
                time.sleep(3)
            assert site.service.process is not None
            with frozen(site.service.process.pid):
                time.sleep(3)
            site.service.process.kill()
            site.service.process.wait()
            again = start(layout, listen, {"FAIRLEAD_PROBES_BY": "agents"})
            wait_members(site, ONLINE=2, ERROR=1)
            site.lab.wait_synced()
            broken = running.stop().broken
        start_process(site, "p3")
        wait_members(site, ONLINE=3)
    stop(layout, again)
    print(f"\nagents: one killed, one frozen, the server frozen and killed: {len(broken)} connections failed")
    assert list(broken) == []


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
