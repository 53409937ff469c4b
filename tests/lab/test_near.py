"""End to end: members on the client's chassis are preferred; connections stay with their member when that changes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from fairlead.lab import Lab, Protocol, central, processes
from fairlead.lab.layout import CENTRAL
from harness.lab.gateway import floating_ip, ping, set_gateway, vip_port
from harness.lab.holder import holding
from harness.lab.members import end_process, start_process
from harness.lab.near import answers, wait_answers
from harness.lab.site import CreatedBalancer, LabSite, open_site
from harness.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = {"one": "chassis1", "two": "chassis2"}
CLIENTS = {"oak1": "one", "oak2": "two", "fir1": "one", "fir2": "two"}
"""The member on the chassis of each client; the first two clients are on the members' own network."""
PROTOCOLS = [Protocol.TCP, Protocol.UDP]
MONITOR = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """A member on each chassis, clients on two networks and outside, and a router between all of them."""
    site = open_site(lab)
    public = site.outside()
    site.network("oaks", "10.0.0.0/24", "fd00:a::/64")
    site.network("firs", "10.0.1.0/24", "fd00:b::/64")
    router = site.router("wood", "oaks-v4", "oaks-v6", "firs-v4", "firs-v6")
    set_gateway(site, router, public, snat=False)
    site.machines("oaks", MEMBERS, serve=[8080])
    site.machines("oaks", {"oak1": "chassis1", "oak2": "chassis2"})
    site.machines("firs", {"fir1": "chassis1", "fir2": "chassis2"})
    for host in ("203.0.113.1", "2001:db8::1"):  # the gateway resolves the host's address
        ping(site, "fir2", host)
    yield site
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


@contextmanager
def near(
    site: LabSite, version: int = 4, protocol: Protocol = Protocol.TCP, **pool: object
) -> Iterator[CreatedBalancer]:
    words = {"protocol": protocol.value.upper(), "version": version, "locality": "CHASSIS", **pool}
    with site.balancer(f"oaks-v{version}", [*MEMBERS], **words) as balancer:  # type: ignore[arg-type]
        yield balancer


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_each_client_is_answered_by_the_member_on_its_chassis(site: LabSite, protocol: Protocol, version: int):
    """A member that calls the VIP reaches itself. External clients, and all without the option, reach all members."""
    with near(site, version, protocol) as balancer:
        for client, member in {**CLIENTS, "one": "one", "two": "two"}.items():
            assert answers(site, client, balancer.vip, protocol) == {member}, client
        ping(site, "outside", balancer.vip)
        assert answers(site, "outside", balancer.vip, protocol) == {*MEMBERS}
        site.cloud.load_balancer.put(f"/lbaas/pools/{balancer.pool}", json={"pool": {"locality": "NONE"}})
        site.settle(balancer.id)
        assert answers(site, "oak1", balancer.vip, protocol) == {*MEMBERS}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_external_network_vip_prefers_the_member_on_the_clients_chassis(
    site: LabSite, version: int, protocol: Protocol
):
    """Internal clients reach the member on their chassis, wherever the gateway is; external ones reach all members."""
    words = {"protocol": protocol.value.upper(), "version": version, "locality": "CHASSIS"}
    with site.balancer(f"public-v{version}", [*MEMBERS], **words) as balancer:  # type: ignore[arg-type]
        for client, member in {**CLIENTS, "one": "one", "two": "two"}.items():
            ping(site, client, balancer.vip)
            assert answers(site, client, balancer.vip, protocol) == {member}, client
        ping(site, "outside", balancer.vip)
        assert answers(site, "outside", balancer.vip, protocol) == {*MEMBERS}
        for name in MEMBERS:
            site.set_member(balancer, name, is_admin_state_up=False)
        for client in ("oak1", "fir2", "outside"):
            assert answers(site, client, balancer.vip, protocol) == {"refused"}, client


def test_floating_ip_prefers_the_local_member_only_for_internal_clients(site: LabSite):
    with near(site) as balancer, floating_ip(site, vip_port(site, balancer)) as address:
        assert answers(site, "oak2", address) == {"two"}
        assert answers(site, "outside", address) == {*MEMBERS}


def test_other_members_serve_while_the_local_member_is_down(site: LabSite):
    with near(site, healthmonitor=MONITOR) as balancer, holding(site.lab, "fir2", balancer.vip, 80) as held:
        wait_answers(site, "oak1", balancer.vip, {"one"})
        before = held.open(10)
        assert {*before.values()} == {"two"}
        end_process(site, "one")
        wait_answers(site, "oak1", balancer.vip, {"two"})
        end_process(site, "two")
        wait_answers(site, "oak1", balancer.vip, {"refused"})
        assert answers(site, "outside", balancer.vip) == {"refused"}
        for name in MEMBERS:
            start_process(site, name)
        wait_answers(site, "oak1", balancer.vip, {"one"})
        wait_answers(site, "oak2", balancer.vip, {"two"})


@pytest.mark.extended
def test_moved_member_serves_clients_on_its_new_chassis(site: LabSite):
    """Open connections stay with their member. Several members on a chassis share its clients."""
    with near(site) as balancer, holding(site.lab, "oak2", balancer.vip, 80) as held:
        before = held.open(20)
        assert {*before.values()} == {"two"}
        moved = site.lab.workload("one")
        site.lab.remove_workload("one")
        wait_answers(site, "oak1", balancer.vip, {"timeout", "two"})
        site.lab.add_workload(replace(moved, chassis="chassis2"))
        site.lab.wait_bound("one")
        for client in ("oak2", "fir2", "oak1"):
            wait_answers(site, client, balancer.vip, {*MEMBERS})
        assert held.exchange_all() == before
        site.lab.remove_workload("one")
        site.lab.add_workload(moved)
        site.lab.wait_bound("one")
        wait_answers(site, "oak1", balancer.vip, {"one"})
        wait_answers(site, "oak2", balancer.vip, {"two"})
        assert held.exchange_all() == before


def test_reregistered_chassis_prefers_its_local_member(site: LabSite):
    """OVN treats a deleted chassis as a new one when it registers again."""
    with near(site) as balancer:
        site.lab.exec("central", ["ovn-sbctl", "chassis-del", "chassis2"])
        site.lab.wait_registered()
        site.lab.wait_bound("two", "oak2")
        wait_answers(site, "oak2", balancer.vip, {"two"})
        assert answers(site, "oak1", balancer.vip) == {"one"}
    left = site.lab.exec("central", ["ovn-nbctl", "--bare", "--columns=variables", "list", "Chassis_Template_Var"])
    assert left.split() == []


@pytest.mark.extended
def test_local_member_preference_survives_kills_of_the_ovn_databases(site: LabSite):
    """An ovn-controller that reads the databases again changes nothing."""
    with near(site) as balancer:
        for base in ("ovnsb_db", "ovnnb_db"):
            kill_database(site.lab, base)
            assert answers(site, "oak1", balancer.vip) == {"one"}, f"while {base} is away"
            central.run_database(site.lab.layout, site.lab.layout.node_directory(CENTRAL) / base)
            site.await_applied()
            assert site.lab.status().is_healthy, "a daemon of the lab ended by itself"
            for client in ("oak1", "oak2"):
                wait_answers(site, client, balancer.vip, {CLIENTS[client]})


def kill_database(lab: Lab, base: str) -> None:
    pid = processes.read_pidfile(lab.layout.node_directory(CENTRAL) / f"{base}.pid")
    assert pid is not None
    assert processes.is_marked(pid, lab.layout.directory), "not the lab's own"
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not processes.is_marked(pid, lab.layout.directory), f"{base} is gone")
