"""Flows through plain hosts while the fabric breaks: rows of each host as an agent would write them, routes of FRR.

Routers distribute flows arbitrarily. Every host that receives a packet forwards it to the right member.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fairlead.lab import Protocol, Traffic
from fairlead.lab.load import Load, LoadTarget
from fairlead.lab.native import NativeLab
from harness.lab.native_hosts import HOSTS, ROUTERS, await_routes, machine
from harness.lab.native_rows import MEMBER_PORT, NUMBER, PORT, VIPS, write_host_rows
from harness.waiting import wait_until

pytestmark = pytest.mark.lab

EVEN = [slot % 3 + 1 for slot in range(256)]
TARGETS = tuple(LoadTarget(to=vip, port=PORT, protocol=protocol) for vip in VIPS for protocol in Protocol)
STEADY = Load(targets=TARGETS, rate=40, count=2000, held=120, seconds=300, period=0.3, timeout=30)
"""120 persistent flows, 30 of each IP version and protocol, with three requests per second; 40 new ones per second."""


@pytest.fixture(scope="module")
def site(native: NativeLab) -> Iterator[NativeLab]:
    added = [machine(native, "asker", "outside", 20), machine(native, "within", "host1", 20)]
    added += [machine(native, f"m{host[-1]}", host, NUMBER, MEMBER_PORT) for host in HOSTS]
    for each in added:
        native.add_workload(each)
    for host in HOSTS:
        write_host_rows(native, host, EVEN)
    for vip in VIPS:
        await_routes(native, vip, *HOSTS)
    yield native
    for host in HOSTS:
        write_host_rows(native, host, [])
    for each in added:
        native.remove_workload(each.name)


@pytest.mark.parametrize("client", ["asker", "within"])
def test_all_members_answer_clients_outside_and_behind_hosts(site: NativeLab, client: str) -> None:
    for target in TARGETS:
        asked = Traffic(to=target.to, port=PORT, protocol=target.protocol, count=60, concurrency=10)
        result = site.traffic(client, asked)
        assert (result.errors, set(result.answers)) == ({}, {"m1", "m2", "m3"}), target


def test_router_rehash_failure_and_recovery_break_no_flow(site: NativeLab) -> None:
    with site.load("asker", STEADY) as load:
        await_held(site)
        for seed in (101, 102):
            for router in ROUTERS:
                site.rehash(router, seed)
        site.end_session("router1", "host2")
        await_router(site, "router1", "host1", "host3")
        site.begin_session("router1", "host2")
        site.cut("router2", "host1")
        await_router(site, "router2", "host2", "host3")
        site.mend("router2", "host1")
        site.stop_routing("host3")
        for router in ROUTERS:
            site.wait_next_hops(router, VIPS[0], "host1", "host2")
        site.start_routing("host3")
        site.wait_routed()
        site.power_off("router1")
        site.wait_next_hops("outside", VIPS[1], "router2")
        site.power_on("router1")
        site.wait_routed()
        seen = load.stop()
    assert seen.failed == []
    assert sum(seen.held.values()) == STEADY.held
    assert seen.opened > 100


def await_held(lab: NativeLab) -> None:
    """Wait until the load's flows exist: those of TCP are established, and those of UDP have been answered by then."""
    opened = ("ss", "-Htn", "state", "established", f"dport = :{PORT}")
    wait_until(lambda: len(lab.exec("asker", opened).splitlines()), is_enough=lambda found: found >= STEADY.held // 2)
    lab.traffic("asker", Traffic(to=VIPS[0], port=PORT, count=100))


def await_router(lab: NativeLab, router: str, *hosts: str) -> None:
    for vip in VIPS:
        lab.wait_next_hops(router, vip, *hosts)


@pytest.mark.extended
def test_dead_host_breaks_only_flows_of_the_member_behind_that_host(site: NativeLab) -> None:
    """The other hosts get the rows for its slots, as their agents would write them."""
    with site.load("asker", replace(STEADY, rate=1, timeout=10)) as load:
        await_held(site)
        site.power_off("host3")
        for vip in VIPS:
            await_routes(site, vip, "host1", "host2")
        survivors = [slot % 2 + 1 if number == 3 else number for slot, number in enumerate(EVEN)]
        for host in ("host1", "host2"):
            write_host_rows(site, host, survivors)
        for target in TARGETS:
            asked = Traffic(to=target.to, port=PORT, protocol=target.protocol, count=40, concurrency=10)
            result = site.traffic("within", asked)
            assert (result.errors, set(result.answers)) == ({}, {"m1", "m2"}), target
        seen = load.stop()
    lost = [each for each in seen.failed if each.member]
    assert {each.member for each in lost} == {"m3"}
    assert (set(seen.held), sum(seen.held.values()) + len(lost)) == ({"m1", "m2"}, STEADY.held)
    site.power_on("host3")
    site.wait_routed()
    for host in HOSTS:
        write_host_rows(site, host, EVEN)
    for vip in VIPS:
        await_routes(site, vip, *HOSTS)
