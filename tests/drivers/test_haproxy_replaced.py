"""Connections of a load balancer that nobody changes outlive the changes of others, with the real program."""

import asyncio
import socket
from contextlib import ExitStack

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.process import MAX_REPLACED, find_processes
from fairlead.model.documents.loadbalancer import ListenerProtocol, PoolProtocol
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, HaproxySite, response_on
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually

pytestmark = [needs_haproxy]
OTHER = Owner(Kind.LOAD_BALANCER, "other")


def rows(name: str, port: int, machine: int, limit: int) -> Rows:
    """Another limit is another process. Connections of TCP stay, as WebSockets do."""
    web = pool(f"{name}-pool", member("m1", machine), protocol=PoolProtocol.TCP)
    front = listener(name, port, web, protocol=ListenerProtocol.TCP, connection_limit=limit)
    return HAPROXY.compile(view([front], [web]), WEB)


@pytest.mark.parametrize("changes", [2 * MAX_REPLACED, pytest.param(1000, marks=pytest.mark.extended)])
async def test_changes_of_another_load_balancer_cut_no_connection(
    site: HaproxySite, machines: tuple[int, int], changes: int
) -> None:
    """Each process that is replaced has a connection of the one that changes, which stays: too many such processes are
    ended, and never the one with the connection of the load balancer that nobody has changed."""
    port, changing = free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows("web", port, machines[0], 4_000))
    await site.apply_until_done(OTHER, rows("other", changing, machines[0], 4_000))
    [folder] = site.folder.glob("*/")
    with ExitStack() as stack:
        untouched = stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE))
        assert b" 200 " in await asyncio.to_thread(response_on, untouched)
        first = site.pid
        for number in range(changes):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", changing), DEADLINE))
            assert b" 200 " in await asyncio.to_thread(response_on, held)
            site.allow_replacement()
            await site.apply_until_done(OTHER, rows("other", changing, machines[0], 4_001 + number % 900))
            assert b" 200 " in await asyncio.to_thread(response_on, untouched)
        await eventually(lambda: len(find_processes(folder)) <= MAX_REPLACED + 1, "too many have ended")
        assert first in [each.pid for each in find_processes(folder)]
    await site.apply_until_done(OTHER, {})
