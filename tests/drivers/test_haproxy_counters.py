"""What proxies count, with real processes on loopback: over processes that are replaced, killed and left alone."""

import asyncio
import os
import signal
import socket
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.process import began_of, is_running
from fairlead.model.documents.loadbalancer import ListenerProtocol, PoolProtocol
from fairlead.model.documents.traffic_counters import Figures
from fairlead.node.listener_counters import Tally
from harness.haproxy_site import NET, NETWORK, Site
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, eventually_equal

pytestmark = [needs_haproxy, pytest.mark.slow]

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


PROTOCOLS = [(ListenerProtocol.HTTP, PoolProtocol.HTTP), (ListenerProtocol.TCP, PoolProtocol.TCP)]


def limited(port: int, limit: int, *members: Any, protocol: Any = PROTOCOLS[0]) -> Rows:
    """Another limit is another process."""
    web = pool("web", *members, protocol=protocol[1])
    return HAPROXY.compile(view([listener("one", port, web, protocol=protocol[0], connection_limit=limit)], [web]), WEB)


def ask(port: int) -> int:
    """How many bytes come back."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
        client.sendall(REQUEST)
        return sum(map(len, iter(lambda: client.recv(4096), b"")))


def counted(site: Site, listener_id: str = "one") -> Figures:
    return site.tally.told.get(listener_id, Figures())


async def looked(site: Site, wanted: Figures, listener_id: str = "one") -> None:
    async def count() -> Figures:
        await site.driver.look()
        return counted(site, listener_id)

    await eventually_equal(count, wanted)


def of(requests: int, got: int, **more: int) -> Figures:
    return Figures(connections=requests, bytes_in=requests * len(REQUEST), bytes_out=got, **more)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_what_clients_sent_and_got_is_counted_over_reloads(site: Site, machines: tuple[int, int], protocol: Any):
    port, got, requests = free_port(), 0, 0
    await site.put(NET, NETWORK)
    for limit in (100, 200, 300, 300):
        await site.put(WEB, limited(port, limit, member("m1", machines[0]), protocol=protocol))
        for _ in range(5):
            got, requests = got + await asyncio.to_thread(ask, port), requests + 1
    await looked(site, of(20, got))
    await site.driver.look()
    assert counted(site) == of(20, got)


async def test_a_connection_that_a_replaced_process_has_is_counted_to_its_end(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, member("m1", machines[0])))
    first = site.pid
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
        client.sendall(REQUEST[:10])
        await looked(site, Figures(connections=1, bytes_in=10, active=1))
        await site.put(WEB, limited(port, 200, member("m1", machines[0])))
        assert site.pid != first
        got = await asyncio.to_thread(ask, port)
        client.sendall(REQUEST[10:])
        got += await asyncio.to_thread(lambda: sum(map(len, iter(lambda: client.recv(4096), b""))))
    await looked(site, of(2, got))
    await eventually(lambda: not began_of(first))


async def test_a_process_that_is_killed_takes_nothing_that_was_seen_with_it(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, member("m1", machines[0])))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got))
    os.kill(site.pid, signal.SIGKILL)
    await eventually_equal(lambda: site.said[-2:], [None, {port}])
    got += await asyncio.to_thread(ask, port)
    await looked(site, of(2, got))


async def test_the_next_agent_goes_on_where_the_last_one_was(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100, member("m1", machines[0])))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got))
    await site.driver.close()
    site.tally = Tally(sums=site.tally.sums, processes=site.tally.processes)
    site.driver = site.new()
    await site.driver.open()
    got += await asyncio.to_thread(ask, port)
    await looked(site, of(2, got))
    assert all(map(is_running, site.tally.processes))


async def test_who_finds_no_member_is_an_error(site: Site):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, limited(port, 100))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got, errors=1))


async def test_errors_of_a_shared_backend_are_those_of_one_listener_over_reloads(site: Site):
    """HAProxy counts them for the backend. The sum of a load balancer is exact, also while a listener comes that is
    the first one by id."""
    ports = {name: free_port() for name in ("a", "b", "c")}
    web = pool("web")

    async def serve(*names: str) -> None:
        site.allow_replacement()
        await site.put(WEB, HAPROXY.compile(view([listener(name, ports[name], web) for name in names], [web]), WEB))

    async def errors() -> dict[str, int]:
        await site.driver.look()
        return {name: counted(site, name).errors for name in ports}

    await site.put(NET, NETWORK)
    await serve("b", "c")
    for name in ("b", "c", "c"):
        await asyncio.to_thread(ask, ports[name])
    await eventually_equal(errors, {"a": 0, "b": 3, "c": 0})
    await serve("a", "b", "c")
    await asyncio.to_thread(ask, ports["c"])
    await eventually_equal(errors, {"a": 1, "b": 3, "c": 0})
