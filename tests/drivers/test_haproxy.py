"""HAProxy as it is driven on a node: real processes on loopback, told and replaced under requests, killed and found."""

import asyncio
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Frontend, Server
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.process import Program
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.loadbalancer import SourceIpPersistence, Timeouts
from harness.haproxy_site import (
    NET,
    NETWORK,
    Asking,
    Site,
    asked,
    eventually_answers,
    get,
    more_answers,
    rows,
    sockets_at,
)
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, eventually_equal

pytestmark = [needs_haproxy]
SILENCE = 0.5  # seconds without anything on a connection that must stay


async def test_members_change_in_the_process_that_runs(site: Site, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    assert site.said == []  # nobody to serve: no process
    await site.put(WEB, rows(port, member("m1", one)))
    assert site.said == [frozenset({port})]
    assert await asyncio.to_thread(get, port) == "m1"
    first = site.pid
    with Asking(port) as asking:
        await site.put(WEB, rows(port, member("m1", one), member("m2", two)))
        await eventually(lambda: "m2" in asking.answers)
        await site.put(WEB, rows(port, member("m2", two, weight=7)))
        seen = len(asking.answers)
        await more_answers(asking)
    assert set(asking.answers) == {"m1", "m2"}
    assert set(asking.answers[seen + 2 :]) == {"m2"}
    assert site.pid == first


async def test_what_no_command_does_a_new_process_does_without_a_lost_request(site: Site, machines: tuple[int, int]):
    port, other, (one, _) = free_port(), free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    first = site.pid
    with Asking(port) as asking:
        for limit in (100, 200, 300):
            more = [listener("two", other, pool("web"), connection_limit=limit)]
            await site.put(WEB, rows(port, member("m1", one), more=more))
        await more_answers(asking)
    assert set(asking.answers) == {"m1"}
    assert await asyncio.to_thread(get, other) == "m1"
    assert site.pid != first
    assert None not in site.said  # who is replaced has not ended
    assert site.said[-1] == {port, other}


async def test_who_is_replaced_closes_no_idle_connection_before_its_next_answer(site: Site, machines: tuple[int, int]):
    """A request may be on its way there, and nobody would answer it."""
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
        assert b"connection: close" not in (await asyncio.to_thread(asked, client)).lower()
        site.allow_replacement()
        await site.put(WEB, rows(port, member("m1", machines[0]), more=[listener("two", free_port(), pool("web"))]))
        assert site.pid != first
        client.settimeout(SILENCE)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(client.recv, 1)
        client.settimeout(DEADLINE)
        assert b"connection: close" in (await asyncio.to_thread(asked, client)).lower()


async def test_the_next_process_takes_the_sockets_of_both_versions_over(site: Site, machines: tuple[int, int]):
    """Who waits in the queue of a socket that is closed is reset."""
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first, before = site.pid, sockets_at(port)
    site.allow_replacement()
    await site.put(WEB, rows(port, member("m1", machines[0]), more=[listener("two", free_port(), pool("web"))]))
    await eventually(lambda: not Path(f"/proc/{first}/fd").exists())
    assert site.pid != first
    assert set(before) == {"tcp", "tcp6"}
    assert sockets_at(port) == before


async def test_a_process_that_is_killed_is_there_again(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    os.kill(site.pid, signal.SIGKILL)
    await eventually_equal(lambda: site.said[-2:], [None, {port}])
    assert await asyncio.to_thread(get, port) == "m1"


async def test_it_outlives_its_agent_and_the_next_one_goes_on_with_it(site: Site, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    first, before = site.pid, await site.driver.read_all()
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    assert (site.pid, await site.driver.read_all()) == (first, before)
    assert site.said[-1] == {port}
    await site.put(WEB, rows(port, member("m2", two)))
    assert (site.pid, await asyncio.to_thread(get, port)) == (first, "m2")


async def test_what_an_agent_had_not_finished_the_next_one_does(site: Site, machines: tuple[int, int]):
    """It was killed when the files were written and the process was not told."""
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    await site.driver.close()
    [network] = site.driver._networks.values()
    network.kept.owners[WEB] = {row.key: row for row in _ours(rows(port, member("m2", two)))}
    network.kept.write(settled=False)
    site.driver = site.new()
    await site.driver.open()
    await eventually_answers("m2", port)


async def test_one_that_died_while_nobody_looked_is_started(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    await site.driver.close()
    os.kill(site.pid, signal.SIGKILL)
    site.driver = site.new()
    await site.driver.open()
    await eventually_answers("m1", port)


async def test_what_the_program_does_not_take_changes_nothing(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    good = rows(port, member("m1", machines[0]))
    await site.put(WEB, good)
    first = site.pid
    bad = {
        key: replace(row, lines=(("balance", "nonsense"), *row.lines)) if isinstance(row, Frontend) else row
        for key, row in rows(port, member("m1", machines[0])).items()
    }
    with pytest.raises(DriverError, match=r"does not take the configuration: .*balance"):
        await site.put(WEB, bad)
    assert (site.pid, await site.driver.read(WEB)) == (first, good)
    assert await asyncio.to_thread(get, port) == "m1"
    await site.put(WEB, rows(port, member("m1", machines[0], weight=3)))
    assert await asyncio.to_thread(get, port) == "m1"


async def test_with_the_last_listener_the_process_ends_and_with_the_port_its_place(site: Site):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port))
    assert not [row for row in (await site.driver.read(WEB)).values() if isinstance(row, Server)]
    await site.put(WEB, {})
    assert site.said[-1] is None
    assert site.places.removed == []
    await site.put(NET, {})
    assert site.places.removed == ["net1"]
    assert list(site.folder.iterdir()) == []


async def test_in_any_order(site: Site, machines: tuple[int, int]):
    """A load balancer may be applied before its network, and outlive it."""
    port = free_port()
    await site.put(WEB, rows(port, member("m1", machines[0])))
    assert site.said == []
    await site.put(NET, NETWORK)
    assert await asyncio.to_thread(get, port) == "m1"
    await site.put(NET, {})
    assert site.said[-1] is None
    assert await asyncio.to_thread(get, port) == ""


async def test_a_node_that_never_had_one_has_nothing_of_it(site: Site):
    assert not site.folder.exists()
    await site.put(NET, NETWORK)
    assert (await site.driver.read_all()).keys() == {NET}


async def test_without_the_program_or_its_user_the_owner_is_told(site: Site):
    await site.put(NET, NETWORK)
    for program, said in (
        (Program(path="/nowhere/haproxy", user=""), "No such file"),
        (Program(path=PROGRAM, user="nobody-there"), "nobody-there"),
    ):
        site.driver._keeper.program = program
        with pytest.raises(DriverError, match=said):
            await site.put(WEB, rows(free_port()))
    assert await site.driver.read(WEB) == {}


def _ours(found: Rows) -> list[Any]:
    return list(found.values())


async def test_a_client_keeps_its_member_across_listeners_and_reloads(site: Site, machines: tuple[int, int]):
    """The stick table belongs to the pool: listeners with other timeouts, whose backends differ, use the same one."""
    one, two = free_port(), free_port()
    web = pool("web", *(member(f"m{n}", port) for n, port in enumerate(machines, 1)), persistence=SourceIpPersistence())

    def with_timeout(milliseconds: int) -> Rows:
        slow = listener("two", two, web, timeouts=Timeouts(member_data=milliseconds))
        return HAPROXY.compile(view([listener("one", one, web), slow], [web]), WEB)

    await site.put(NET, NETWORK)
    await site.put(WEB, with_timeout(20_000))
    first, kept = site.pid, await asyncio.to_thread(get, one)
    assert {kept} == {await asyncio.to_thread(get, port) for port in (two, one, two, two, one)}
    site.allow_replacement()
    await site.put(WEB, with_timeout(30_000))
    assert site.pid != first
    assert {kept} == {await asyncio.to_thread(get, port) for port in (two, two, one, one, two)}
