"""One HAProxy has so much memory and no more: what happens when clients fill it, with the real program."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.drivers.haproxy import liveness
from fairlead.drivers.haproxy.process import Program
from fairlead.model.documents.agent_counters import MEMORY_LIMIT_REACHED
from fairlead.model.documents.loadbalancer import Timeouts
from harness.haproxy_site import NET, NETWORK, HaproxySite, get
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, assert_holds_on_loop, eventually_equal

pytestmark = [needs_haproxy]
MEMORY = 32
"""MB: HAProxy starts with 20."""
CLIENTS = 1_200
"""Connections, each with 17 kB of the process."""
CLIENT_TIMEOUT = 4_000
"""Milliseconds after which HAProxy ends what it could not read for want of memory."""
UNFINISHED = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + 8_000 * b"y"


async def test_process_at_its_memory_limit_reports_an_error_and_recovers(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not killed: the connections that it has would end. Its load balancers say why clients are refused."""
    monkeypatch.setattr(liveness, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(liveness, "UNRESPONSIVE_TIMEOUT", 0.3)
    monkeypatch.setattr(liveness, "KILL_TIMEOUT", 0.6)
    site.driver._supervisor.program = Program(path=PROGRAM, user="", memory=MEMORY)
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    web = pool("web", member("m1", machines[0]))
    front = listener("one", port, web, timeouts=Timeouts(client_data=CLIENT_TIMEOUT))
    await site.apply_until_done(WEB, HAPROXY.compile(view([front], [web]), WEB))
    first = site.pid

    async def failure() -> str | None:
        await site.driver.poll()
        return site.driver.failure_of(WEB)

    assert await failure() is None
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE))
            client.sendall(UNFINISHED)
        why = (
            f"HAProxy has reached its memory limit of {MEMORY} MB, so it refuses connections:"
            " raise agent.haproxy_memory_limit"
        )
        await eventually_equal(failure, why)
        assert site.failed_owners[-1] == [WEB]
        assert site.driver.counts()[MEMORY_LIMIT_REACHED] == 1
        await eventually_equal(lambda: site.reported_ports[-1], None)
        await assert_holds_on_loop(1.5, lambda: site.pid == first)
    await eventually_equal(failure, None)
    assert site.failed_owners[-1] == [WEB]
    await eventually_equal(lambda: site.reported_ports[-1], {port})
    assert (site.pid, await asyncio.to_thread(get, port)) == (first, "m1")
    await site.driver.close()
    site.driver = site.new()
    await site.driver.open()
    assert await failure() is None, "connections that were refused before this agent started are over"
