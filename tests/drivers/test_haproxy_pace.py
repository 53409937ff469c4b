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
from fairlead.dataplane.haproxy_commands import commands, tellable
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import driver, supervisor
from fairlead.drivers.haproxy.backoff import (
    BURST,
    FIRST,
    FIRST_PAUSE,
    INTERVAL,
    LONGEST,
    LONGEST_PAUSE,
    QUIET,
    STEADY,
    CommandPace,
    Pace,
    Restarts,
)
from fairlead.drivers.haproxy.network import with_change
from fairlead.drivers.haproxy.process import MAX_REPLACED, all_running
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, Asking, Site, get, more_answers
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view

pytestmark = pytest.mark.slow

OTHER, OTHER_NET = Owner(Kind.LOAD_BALANCER, "other"), Owner(Kind.NETWORK, "net2")


def limited(port: int, limit: int, *members: Any, name: str = "one") -> Rows:
    """Another limit is another process."""
    web = pool(name, *members)
    return HAPROXY.compile(view([listener(name, port, web, connection_limit=limit)], [web]), WEB)


def test_distances_double_up_to_a_bound_and_begin_anew_after_a_quiet_time() -> None:
    pace, now, gaps = Pace(), 0.0, []
    for _ in range(7):
        gaps.append(pace.wait(now))
        now += pace.wait(now)
        pace.spend(now)
    assert gaps == [0.0, FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, LONGEST, LONGEST]
    now += QUIET * LONGEST + 0.1
    assert pace.wait(now) == 0
    pace.spend(now)
    assert pace.wait(now) == FIRST


@given(st.lists(st.floats(0, 10), min_size=1, max_size=300))
def test_whoever_asks_nobody_waits_longer_and_there_are_no_more_than_that(pauses: list[float]) -> None:
    """Asked again and again: one comes as soon as it may."""
    pace, now, times = Pace(), 0.0, []
    for pause in pauses:
        now += pause
        assert 0 <= pace.wait(now) <= LONGEST
        if not pace.wait(now):
            pace.spend(now)
            times.append(now)
    assert all(b - a >= FIRST for a, b in pairwise(times))
    for first in times:
        within = [each for each in times if first <= each < first + 60]
        assert len(within) <= 60 / (QUIET * FIRST) + 1


def test_commands_come_at_once_up_to_a_number_and_then_at_equal_distances() -> None:
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


def test_who_has_ended_comes_back_at_once_unless_it_ends_again_and_again() -> None:
    """However often it was replaced meanwhile: only ends and failures count."""
    restarts, now, pauses = Restarts(), 0.0, []
    for gap in (0, STEADY + 1, STEADY + 1, 5, 5, 5, STEADY + 1):
        now += gap
        pauses.append((restarts.after_end(now), restarts.ends))
    assert pauses == [
        *((FIRST_PAUSE, 1), (FIRST_PAUSE, 1), (FIRST_PAUSE, 1)),
        *((2 * FIRST_PAUSE, 2), (4 * FIRST_PAUSE, 3), (8 * FIRST_PAUSE, 4), (FIRST_PAUSE, 1)),
    ]
    assert max(restarts.after_failure(now) for _ in range(20)) == LONGEST_PAUSE


def test_what_commands_do_is_done_before_the_rest() -> None:
    before = limited(1024, 100, member("m1", 1), member("m2", 2))
    after = limited(1024, 200, member("m1", 1, weight=3), member("m3", 3))
    part = tellable(diff(after, before), before)
    assert sorted(map(str, part.creates)) == ["('Server', 'one:http:5000:50000', 'm3')"]
    assert [key[-1] for key in part.updates] == ["m1"]
    assert [key[-1] for key in part.deletes] == ["m2"]
    assert commands(part)
    rest = diff(after, with_change(before, part))
    assert [type(update.after) for update in rest.updates.values()] == [Frontend]
    assert not rest.creates
    assert not rest.deletes


def test_a_member_of_a_pool_that_changes_comes_with_it() -> None:
    before = limited(1024, 100, member("m1", 1))
    after = {
        key: replace(row, lines=(*row.lines, ("balance", "leastconn"))) if isinstance(row, Backend) else row
        for key, row in limited(1024, 100, member("m1", 1, weight=2), member("m2", 2)).items()
    }
    part = tellable(diff(after, before), before)
    assert not part.creates
    assert [key[-1] for key in part.updates] == ["m1"]


def processes(site: Site) -> int:
    return sum(len(all_running(folder)) for folder in site.folder.glob("*/"))


@needs_haproxy
async def test_of_many_changes_few_are_a_process_and_the_last_one_serves(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Twenty changes a second, by the clock of the pace."""
    port, (one, _), pids, most, now = free_port(), machines, set[int](), 0, 0.0
    for module in (driver, supervisor):
        monkeypatch.setattr(module, "_now", lambda: now)
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, member("m1", one)))
    with Asking(port) as asking:
        for number in range(60):
            now += 0.05
            last = limited(port, 200 + number, member("m1", one, weight=1 + number % 9))
            wait = await site.try_(WEB, last)
            pids.add(site.pid)
            most = max(most, processes(site))
        assert 0 < wait <= LONGEST
        now += wait
        assert await site.try_(WEB, last) == 0
        assert await site.driver.read(WEB) == last
        pids.add(site.pid)
        await more_answers(asking)
    assert set(asking.answers) == {"m1"}
    assert len(pids) == 5, "at 0, 0.25, 0.75, 1.75 and 3.75 seconds"
    assert most <= MAX_REPLACED + 2


@needs_haproxy
async def test_members_come_and_go_while_a_process_is_waited_for(site: Site, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, member("m1", one)))
    site.hold_replacements()
    before = site.pid
    assert await site.try_(WEB, limited(port, 999, member("m2", two))) > 0
    assert await asyncio.to_thread(get, port) == "m2"
    assert site.pid == before
    found = await site.driver.read(WEB)
    assert [row.connections for row in found.values() if isinstance(row, Frontend)] == [100]
    assert [row.name for row in found.values() if isinstance(row, Server)] == ["m2"]


@needs_haproxy
async def test_all_who_wait_come_with_one_process(site: Site, machines: tuple[int, int]):
    ports, first = [free_port() for _ in range(6)], member("m1", machines[0])
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(ports[0], 100, first))
    owners = [Owner(Kind.LOAD_BALANCER, f"lb{number}") for number in range(5)]
    wanted = {owner: limited(port, 100, first, name=owner.id) for owner, port in zip(owners, ports[1:], strict=True)}
    site.hold_replacements()
    before = site.pid
    for owner, rows in wanted.items():
        assert await site.try_(owner, rows) > 0
    site.allow_replacement()
    await site.put(owners[0], wanted[owners[0]])
    assert site.pid != before
    assert {owner: await site.driver.read(owner) for owner in owners} == wanted
    assert [await asyncio.to_thread(get, port) for port in ports] == ["m1"] * 6
    for owner in owners:
        site.allow_replacement()
        await site.put(owner, {})


@needs_haproxy
async def test_what_is_wanted_no_more_does_not_come_with_another_s_process(site: Site, machines: tuple[int, int]):
    """A load balancer that went before its time had come, and one that is again as it was."""
    port, first = free_port(), member("m1", machines[0])
    was, gone = limited(port, 100, first), Owner(Kind.LOAD_BALANCER, "gone")
    await site.put(NET, NETWORK)
    await site.put(WEB, was)
    site.hold_replacements()
    assert await site.try_(WEB, limited(port, 200, first)) > 0
    assert await site.try_(gone, limited(free_port(), 100, first, name="two")) > 0
    assert await site.try_(WEB, was) == 0
    assert await site.try_(gone, {}) == 0
    site.allow_replacement()
    third, before = Owner(Kind.LOAD_BALANCER, "third"), site.pid
    await site.put(third, limited(free_port(), 100, first, name="three"))
    assert site.pid != before
    assert (await site.driver.read(WEB), await site.driver.read(gone)) == (was, {})
    site.allow_replacement()
    await site.put(third, {})


@needs_haproxy
async def test_the_pace_of_one_proxy_is_not_that_of_another(site: Site, machines: tuple[int, int]):
    port, other, first = free_port(), free_port(), member("m1", machines[0])
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, first))
    site.hold_replacements()
    assert await site.try_(WEB, limited(port, 200, first)) > 0
    [of_another] = (replace(row, network="net2") for row in NETWORK.values() if isinstance(row, Process))
    theirs = {
        key: replace(row, process="net2") if isinstance(row, Frontend | Backend) else row
        for key, row in limited(other, 100, first, name="two").items()
    }
    try:
        assert await site.try_(OTHER_NET, {of_another.key: of_another}) == 0
        assert await site.try_(OTHER, theirs) == 0
        assert await asyncio.to_thread(get, other) == "m1"
        site.allow_replacement()
    finally:
        await site.put(OTHER, {})
        await site.put(OTHER_NET, {})
