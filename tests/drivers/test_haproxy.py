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
    HaproxySite,
    RepeatingClient,
    await_more_answers,
    eventually_answers,
    get,
    response_on,
    rows,
    sockets_at,
)
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, eventually_equal

pytestmark = [needs_haproxy]
SILENCE = 0.5  # seconds without anything on a connection that must stay


async def test_member_changes_apply_to_the_running_process(site: HaproxySite, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    assert site.reported_ports == []  # nobody to serve: no process
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    assert site.reported_ports == [frozenset({port})]
    assert await asyncio.to_thread(get, port) == "m1"
    first = site.pid
    with RepeatingClient(port) as asking:
        await site.apply_until_done(WEB, rows(port, member("m1", one), member("m2", two)))
        await eventually(lambda: "m2" in asking.answers)
        await site.apply_until_done(WEB, rows(port, member("m2", two, weight=7)))
        seen = len(asking.answers)
        await await_more_answers(asking)
    assert set(asking.answers) == {"m1", "m2"}
    assert set(asking.answers[seen + 2 :]) == {"m2"}
    assert site.pid == first


async def test_changes_without_a_runtime_command_replace_the_process_without_loss(
    site: HaproxySite, machines: tuple[int, int]
):
    port, other, (one, _) = free_port(), free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    first = site.pid
    with RepeatingClient(port) as asking:
        for limit in (100, 200, 300):
            more = [listener("two", other, pool("web"), connection_limit=limit)]
            await site.apply_until_done(WEB, rows(port, member("m1", one), more=more))
        await await_more_answers(asking)
    assert set(asking.answers) == {"m1"}
    assert await asyncio.to_thread(get, other) == "m1"
    assert site.pid != first
    assert None not in site.reported_ports  # who is replaced has not ended
    assert site.reported_ports[-1] == {port, other}


async def test_replaced_process_closes_an_idle_connection_only_after_an_answer(
    site: HaproxySite, machines: tuple[int, int]
):
    """A request may be on its way there, and nobody would answer it."""
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
        assert b"connection: close" not in (await asyncio.to_thread(response_on, client)).lower()
        site.allow_replacement()
        await site.apply_until_done(
            WEB, rows(port, member("m1", machines[0]), more=[listener("two", free_port(), pool("web"))])
        )
        assert site.pid != first
        client.settimeout(SILENCE)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(client.recv, 1)
        client.settimeout(DEADLINE)
        assert b"connection: close" in (await asyncio.to_thread(response_on, client)).lower()


async def test_replacement_process_inherits_the_ipv4_and_ipv6_sockets(site: HaproxySite, machines: tuple[int, int]):
    """Who waits in the queue of a socket that is closed is reset."""
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first, before = site.pid, sockets_at(port)
    site.allow_replacement()
    await site.apply_until_done(
        WEB, rows(port, member("m1", machines[0]), more=[listener("two", free_port(), pool("web"))])
    )
    await eventually(lambda: not Path(f"/proc/{first}/fd").exists())
    assert site.pid != first
    assert set(before) == {"tcp", "tcp6"}
    assert sockets_at(port) == before


async def test_killed_process_is_restarted(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    os.kill(site.pid, signal.SIGKILL)
    await eventually_equal(lambda: site.reported_ports[-2:], [None, {port}])
    assert await asyncio.to_thread(get, port) == "m1"


async def test_process_survives_an_agent_restart_and_is_adopted(site: HaproxySite, machines: tuple[int, int]):
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    first, before = site.pid, await site.driver.read_all()
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    assert (site.pid, await site.driver.read_all()) == (first, before)
    assert site.reported_ports[-1] == {port}
    await site.apply_until_done(WEB, rows(port, member("m2", two)))
    assert (site.pid, await asyncio.to_thread(get, port)) == (first, "m2")


async def test_restarted_agent_completes_an_unfinished_change(site: HaproxySite, machines: tuple[int, int]):
    """It was killed when the files were written and the process was not told."""
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    await site.driver.close()
    [network] = site.driver._networks.values()
    network.state.owners[WEB] = {row.key: row for row in _ours(rows(port, member("m2", two)))}
    network.state.write(settled=False)
    site.driver = site.new()
    await site.driver.open()
    await eventually_answers("m2", port)


async def test_process_that_died_without_an_agent_is_started_again(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    await site.driver.close()
    os.kill(site.pid, signal.SIGKILL)
    site.driver = site.new()
    await site.driver.open()
    await eventually_answers("m1", port)


async def test_rejected_configuration_changes_nothing(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    good = rows(port, member("m1", machines[0]))
    await site.apply_until_done(WEB, good)
    first = site.pid
    bad = {
        key: replace(row, lines=(("balance", "nonsense"), *row.lines)) if isinstance(row, Frontend) else row
        for key, row in rows(port, member("m1", machines[0])).items()
    }
    with pytest.raises(DriverError, match=r"rejected the configuration: .*balance"):
        await site.apply_until_done(WEB, bad)
    assert (site.pid, await site.driver.read(WEB)) == (first, good)
    assert await asyncio.to_thread(get, port) == "m1"
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0], weight=3)))
    assert await asyncio.to_thread(get, port) == "m1"


async def test_process_ends_with_its_last_listener_and_namespace_with_the_port(site: HaproxySite):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port))
    assert not [row for row in (await site.driver.read(WEB)).values() if isinstance(row, Server)]
    await site.apply_until_done(WEB, {})
    assert site.reported_ports[-1] is None
    assert site.places.removed == []
    await site.apply_until_done(NET, {})
    assert site.places.removed == ["net1"]
    assert list(site.folder.iterdir()) == []


async def test_load_balancer_may_be_applied_before_and_outlive_its_network(
    site: HaproxySite, machines: tuple[int, int]
):
    """A load balancer may be applied before its network, and outlive it."""
    port = free_port()
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    assert site.reported_ports == []
    await site.apply_until_done(NET, NETWORK)
    assert await asyncio.to_thread(get, port) == "m1"
    await site.apply_until_done(NET, {})
    assert site.reported_ports[-1] is None
    assert await asyncio.to_thread(get, port) == ""


async def test_node_without_listeners_has_no_proxy_folder(site: HaproxySite):
    assert not site.folder.exists()
    await site.apply_until_done(NET, NETWORK)
    assert (await site.driver.read_all()).keys() == {NET}


async def test_missing_program_or_user_is_reported_to_the_owner(site: HaproxySite):
    await site.apply_until_done(NET, NETWORK)
    for program, said in (
        (Program(path="/nowhere/haproxy", user=""), "No such file"),
        (Program(path=PROGRAM, user="nobody-there"), "nobody-there"),
    ):
        site.driver._supervisor.program = program
        with pytest.raises(DriverError, match=said):
            await site.apply_until_done(WEB, rows(free_port()))
    assert await site.driver.read(WEB) == {}


def _ours(found: Rows) -> list[Any]:
    return list(found.values())


async def test_client_keeps_its_member_across_listeners_and_reloads(site: HaproxySite, machines: tuple[int, int]):
    """The stick table belongs to the pool: listeners with other timeouts, whose backends differ, use the same one."""
    one, two = free_port(), free_port()
    web = pool("web", *(member(f"m{n}", port) for n, port in enumerate(machines, 1)), persistence=SourceIpPersistence())

    def with_timeout(milliseconds: int) -> Rows:
        slow = listener("two", two, web, timeouts=Timeouts(member_data=milliseconds))
        return HAPROXY.compile(view([listener("one", one, web), slow], [web]), WEB)

    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, with_timeout(20_000))
    first, kept = site.pid, await asyncio.to_thread(get, one)
    assert {kept} == {await asyncio.to_thread(get, port) for port in (two, one, two, two, one)}
    site.allow_replacement()
    await site.apply_until_done(WEB, with_timeout(30_000))
    assert site.pid != first
    assert {kept} == {await asyncio.to_thread(get, port) for port in (two, two, one, one, two)}
