"""End to end: a compute node fails with everything on it, and its members get no new connections.

The node no longer probes them, and their last probe result was good.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairlead.lab import Lab, Protocol, processes
from harness.lab.members import ask, members, wait_members
from harness.lab.site import LabSite, open_site
from harness.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]
INTERVAL, TIMEOUT = 2, 5
"""Seconds."""
MONITOR = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRLEAD_OVN_CHASSIS_PROBE_INTERVAL", os.environ.get("PROBE_INTERVAL", str(INTERVAL)))
        patch.setenv("FAIRLEAD_OVN_CHASSIS_TIMEOUT", str(TIMEOUT))
        site = open_site(lab)
    site.network("ash", "10.0.0.0/24")
    site.network("elm", "10.0.1.0/24")
    site.router("forest", "ash-v4", "elm-v4")
    site.machines("ash", {"here": "chassis1", "there": "chassis2"}, serve=[8080])
    site.machines("elm", {"across": "chassis1"}, serve=[8080])
    site.machines("ash", {"client": "chassis1"})
    yield site
    for name in ("here", "there", "across", "client"):
        lab.remove_workload(name)
    site.close()


@contextmanager
def frozen(lab: Lab, chassis: str) -> Iterator[None]:
    """Stop all processes of OVN and Open vSwitch on the chassis, as a power failure does."""
    folder = lab.layout.node_directory(chassis)
    pids = [processes.read_pidfile(folder / f"{name}.pid") for name in ("ovn-controller", "ovs-vswitchd")]
    assert all(pid is not None and processes.is_marked(pid, lab.layout.directory) for pid in pids), pids
    for pid in pids:
        os.kill(pid or 0, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid or 0, signal.SIGCONT)


def test_members_on_a_dead_chassis_are_down_until_the_chassis_recovers(site: LabSite):
    with site.balancer("ash-v4", ("here", "there"), healthmonitor=MONITOR) as balancer:
        wait_members(site, ONLINE=2)
        assert set(ask(site, "client", balancer, Protocol.TCP).answers) == {"here", "there"}
        with frozen(site.lab, "chassis2"):
            wait_members(site, ONLINE=1, ERROR=1)
            wait_until(
                lambda: ask(site, "client", balancer, Protocol.TCP),
                "the one that lives serves alone",
                is_enough=lambda found: set(found.answers) == {"here"} and not found.errors,
            )
            log = site.service.log.read_text()
        wait_members(site, ONLINE=2)
        site.lab.wait_synced()
        assert set(ask(site, "client", balancer, Protocol.TCP).answers) == {"here", "there"}
    assert "its node is dead" in log


def test_member_is_down_while_its_network_is_detached_from_the_router(site: LabSite):
    """Its probes still succeed, because they are sent from the member's own chassis."""
    with site.balancer("ash-v4", ("here",), healthmonitor=MONITOR) as balancer:
        pool = site.cloud.load_balancer.get_pool(balancer.pool)
        site.cloud.load_balancer.create_member(
            pool, name="across", address=site.address("across"), protocol_port=8080, subnet_id=site.subnet("elm-v4").id
        )
        wait_members(site, ONLINE=2)
        router = site.cloud.network.find_router("forest")
        site.remove_interface(router, "elm-v4")
        wait_members(site, ONLINE=1, ERROR=1)
        site.lab.wait_synced()
        assert ask(site, "client", balancer, Protocol.TCP).errors == {}
        site.add_interface(router, "elm-v4")
        wait_members(site, ONLINE=2)
        assert members(site) == {"ONLINE": 2}
