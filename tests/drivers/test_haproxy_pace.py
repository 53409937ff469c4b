"""How often processes are replaced, whatever a tenant changes: by a clock as argument, and real ones on loopback."""

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Backend, Frontend, Process, Server
from fairlead.dataplane.haproxy_commands import commands, part_without_reload
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import driver, supervisor
from fairlead.drivers.haproxy.backoff import (
    BURST,
    INTERVAL,
    MAX_INTERVAL,
    MAX_RESTART_DELAY,
    MIN_INTERVAL,
    MIN_RESTART_DELAY,
    QUIET_INTERVALS,
    STABLE_SECONDS,
    CommandPace,
    ReplacementBackoff,
    RestartBackoff,
)
from fairlead.drivers.haproxy.network import with_change
from fairlead.drivers.haproxy.process import MAX_REPLACED, find_processes
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, HaproxySite, RepeatingClient, await_more_answers, get
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view

pytestmark = pytest.mark.slow

OTHER, OTHER_NET = Owner(Kind.LOAD_BALANCER, "other"), Owner(Kind.NETWORK, "net2")


def limited(port: int, limit: int, *members: Any, name: str = "one") -> Rows:
    """Another limit is another process."""
    web = pool(name, *members)
    return HAPROXY.compile(view([listener(name, port, web, connection_limit=limit)], [web]), WEB)


def test_replacement_intervals_double_up_to_a_bound_and_reset_after_quiet() -> None:
    pace, now, gaps = ReplacementBackoff(), 0.0, []
    for _ in range(7):
        gaps.append(pace.wait(now))
        now += pace.wait(now)
        pace.record_start(now)
    assert gaps == [0.0, MIN_INTERVAL, 2 * MIN_INTERVAL, 4 * MIN_INTERVAL, 8 * MIN_INTERVAL, MAX_INTERVAL, MAX_INTERVAL]
    now += QUIET_INTERVALS * MAX_INTERVAL + 0.1
    assert pace.wait(now) == 0
    pace.record_start(now)
    assert pace.wait(now) == MIN_INTERVAL


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_replacement_wait_and_rate_are_bounded_for_any_request_pattern(pauses: list[float]) -> None:
    """Asked again and again: one comes as soon as it may."""
    pace, now, times = ReplacementBackoff(), 0.0, []
    for pause in pauses:
        now += pause
        assert 0 <= pace.wait(now) <= MAX_INTERVAL
        if not pace.wait(now):
            pace.record_start(now)
            times.append(now)
    assert all(b - a >= MIN_INTERVAL for a, b in pairwise(times))
    for first in times:
        within = [each for each in times if first <= each < first + 60]
        assert len(within) <= 60 / (QUIET_INTERVALS * MIN_INTERVAL) + 1


def test_commands_run_in_a_burst_and_then_at_fixed_intervals() -> None:
    pace, now, gaps = CommandPace(), 5.0, []
    for _ in range(BURST + 3):
        gaps.append(pace.wait(now))
        now += pace.wait(now)
        pace.spend(now)
    assert gaps == [0.0] * BURST + [INTERVAL] * 3
    now += BURST * INTERVAL
    for _ in range(BURST):
        assert pace.wait(now) == 0
        pace.spend(now)
    assert pace.wait(now) == INTERVAL


def test_restart_pause_grows_only_after_repeated_exits() -> None:
    """However often it was replaced meanwhile: only ends and failures count."""
    restarts, now, pauses = RestartBackoff(), 0.0, []
    for gap in (0, STABLE_SECONDS + 1, STABLE_SECONDS + 1, 5, 5, 5, STABLE_SECONDS + 1):
        now += gap
        pauses.append((restarts.record_end(now), restarts.ends))
    assert pauses == [
        *((MIN_RESTART_DELAY, 1), (MIN_RESTART_DELAY, 1), (MIN_RESTART_DELAY, 1)),
        *((2 * MIN_RESTART_DELAY, 2), (4 * MIN_RESTART_DELAY, 3), (8 * MIN_RESTART_DELAY, 4), (MIN_RESTART_DELAY, 1)),
    ]
    assert max(restarts.record_failure(now) for _ in range(20)) == MAX_RESTART_DELAY


def test_runtime_commands_are_applied_before_the_remaining_changes() -> None:
    before = limited(1024, 100, member("m1", 1), member("m2", 2))
    after = limited(1024, 200, member("m1", 1, weight=3), member("m3", 3))
    part = part_without_reload(diff(after, before), before)
    assert sorted(map(str, part.creates)) == ["('Server', 'one:http:5000:50000', 'm3')"]
    assert [key[-1] for key in part.updates] == ["m1"]
    assert [key[-1] for key in part.deletes] == ["m2"]
    assert commands(part)
    rest = diff(after, with_change(before, part))
    assert [type(update.after) for update in rest.updates.values()] == [Frontend]
    assert not rest.creates
    assert not rest.deletes


def test_new_member_of_a_changed_pool_is_applied_with_the_pool() -> None:
    before = limited(1024, 100, member("m1", 1))
    after = {
        key: replace(row, lines=(*row.lines, ("balance", "leastconn"))) if isinstance(row, Backend) else row
        for key, row in limited(1024, 100, member("m1", 1, weight=2), member("m2", 2)).items()
    }
    part = part_without_reload(diff(after, before), before)
    assert not part.creates
    assert [key[-1] for key in part.updates] == ["m1"]


def processes(site: HaproxySite) -> int:
    return sum(len(find_processes(folder)) for folder in site.folder.glob("*/"))


@needs_haproxy
async def test_frequent_changes_cause_few_replacements_and_the_last_one_serves(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Twenty changes a second, by the clock of the pace."""
    port, (one, _), pids, most, now = free_port(), machines, set[int](), 0, 0.0
    for module in (driver, supervisor):
        monkeypatch.setattr(module, "_now", lambda: now)
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, member("m1", one)))
    with RepeatingClient(port) as asking:
        for number in range(60):
            now += 0.05
            last = limited(port, 200 + number, member("m1", one, weight=1 + number % 9))
            wait = await site.apply_once(WEB, last)
            pids.add(site.pid)
            most = max(most, processes(site))
        assert 0 < wait <= MAX_INTERVAL
        now += wait
        assert await site.apply_once(WEB, last) == 0
        assert await site.driver.read(WEB) == last
        pids.add(site.pid)
        await await_more_answers(asking)
    assert set(asking.answers) == {"m1"}
    assert len(pids) == 5, "at 0, 0.25, 0.75, 1.75 and 3.75 seconds"
    assert most <= MAX_REPLACED + 2


@needs_haproxy
async def test_member_changes_apply_while_a_replacement_is_pending(site: HaproxySite, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, member("m1", one)))
    site.hold_replacements()
    before = site.pid
    assert await site.apply_once(WEB, limited(port, 999, member("m2", two))) > 0
    assert await asyncio.to_thread(get, port) == "m2"
    assert site.pid == before
    found = await site.driver.read(WEB)
    assert [row.connections for row in found.values() if isinstance(row, Frontend)] == [100]
    assert [row.name for row in found.values() if isinstance(row, Server)] == ["m2"]


@needs_haproxy
async def test_pending_changes_of_all_owners_are_applied_with_one_replacement(
    site: HaproxySite, machines: tuple[int, int]
):
    ports, first = [free_port() for _ in range(6)], member("m1", machines[0])
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(ports[0], 100, first))
    owners = [Owner(Kind.LOAD_BALANCER, f"lb{number}") for number in range(5)]
    wanted = {owner: limited(port, 100, first, name=owner.id) for owner, port in zip(owners, ports[1:], strict=True)}
    site.hold_replacements()
    before = site.pid
    for owner, rows in wanted.items():
        assert await site.apply_once(owner, rows) > 0
    site.allow_replacement()
    await site.apply_until_done(owners[0], wanted[owners[0]])
    assert site.pid != before
    assert {owner: await site.driver.read(owner) for owner in owners} == wanted
    assert [await asyncio.to_thread(get, port) for port in ports] == ["m1"] * 6
    for owner in owners:
        site.allow_replacement()
        await site.apply_until_done(owner, {})


@needs_haproxy
async def test_withdrawn_changes_are_not_applied_with_a_later_replacement(site: HaproxySite, machines: tuple[int, int]):
    """A load balancer that went before its time had come, and one that is again as it was."""
    port, first = free_port(), member("m1", machines[0])
    was, gone = limited(port, 100, first), Owner(Kind.LOAD_BALANCER, "gone")
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, was)
    site.hold_replacements()
    assert await site.apply_once(WEB, limited(port, 200, first)) > 0
    assert await site.apply_once(gone, limited(free_port(), 100, first, name="two")) > 0
    assert await site.apply_once(WEB, was) == 0
    assert await site.apply_once(gone, {}) == 0
    site.allow_replacement()
    third, before = Owner(Kind.LOAD_BALANCER, "third"), site.pid
    await site.apply_until_done(third, limited(free_port(), 100, first, name="three"))
    assert site.pid != before
    assert (await site.driver.read(WEB), await site.driver.read(gone)) == (was, {})
    site.allow_replacement()
    await site.apply_until_done(third, {})


@needs_haproxy
async def test_replacement_pace_is_separate_per_process(site: HaproxySite, machines: tuple[int, int]):
    port, other, first = free_port(), free_port(), member("m1", machines[0])
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, first))
    site.hold_replacements()
    assert await site.apply_once(WEB, limited(port, 200, first)) > 0
    [of_another] = (replace(row, network="net2") for row in NETWORK.values() if isinstance(row, Process))
    theirs = {
        key: replace(row, process="net2") if isinstance(row, Frontend | Backend) else row
        for key, row in limited(other, 100, first, name="two").items()
    }
    try:
        assert await site.apply_once(OTHER_NET, {of_another.key: of_another}) == 0
        assert await site.apply_once(OTHER, theirs) == 0
        assert await asyncio.to_thread(get, other) == "m1"
        site.allow_replacement()
    finally:
        await site.apply_until_done(OTHER, {})
        await site.apply_until_done(OTHER_NET, {})
