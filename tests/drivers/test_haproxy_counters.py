"""What proxies count, with real processes on loopback: over processes that are replaced, killed and left alone."""

import asyncio
import os
import signal
import socket
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.process import is_running, start_time_of
from fairlead.model.documents.loadbalancer import ListenerProtocol, PoolProtocol
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.node.listener_counters import CounterSums
from harness.haproxy_site import NET, NETWORK, HaproxySite
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


def counted(site: HaproxySite, listener_id: str = "one") -> TrafficCounters:
    return site.tally.reported_sums.get(listener_id, TrafficCounters())


async def looked(site: HaproxySite, wanted: TrafficCounters, listener_id: str = "one") -> None:
    async def count() -> TrafficCounters:
        await site.driver.poll()
        return counted(site, listener_id)

    await eventually_equal(count, wanted)


def of(requests: int, got: int, **more: int) -> TrafficCounters:
    return TrafficCounters(connections=requests, bytes_in=requests * len(REQUEST), bytes_out=got, **more)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_client_traffic_is_counted_across_reloads(site: HaproxySite, machines: tuple[int, int], protocol: Any):
    port, got, requests = free_port(), 0, 0
    await site.apply_until_done(NET, NETWORK)
    for limit in (100, 200, 300, 300):
        await site.apply_until_done(WEB, limited(port, limit, member("m1", machines[0]), protocol=protocol))
        for _ in range(5):
            got, requests = got + await asyncio.to_thread(ask, port), requests + 1
    await looked(site, of(20, got))
    await site.driver.poll()
    assert counted(site) == of(20, got)


async def test_open_connection_of_a_replaced_process_is_counted_to_its_end(
    site: HaproxySite, machines: tuple[int, int]
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, member("m1", machines[0])))
    first = site.pid
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as client:
        client.sendall(REQUEST[:10])
        await looked(site, TrafficCounters(connections=1, bytes_in=10, active=1))
        await site.apply_until_done(WEB, limited(port, 200, member("m1", machines[0])))
        assert site.pid != first
        got = await asyncio.to_thread(ask, port)
        client.sendall(REQUEST[10:])
        got += await asyncio.to_thread(lambda: sum(map(len, iter(lambda: client.recv(4096), b""))))
    await looked(site, of(2, got))
    await eventually(lambda: not start_time_of(first))


async def test_killed_process_loses_no_counters_already_read(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, member("m1", machines[0])))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got))
    os.kill(site.pid, signal.SIGKILL)
    await eventually_equal(lambda: site.reported_ports[-2:], [None, {port}])
    got += await asyncio.to_thread(ask, port)
    await looked(site, of(2, got))


async def test_restarted_agent_continues_the_counters(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100, member("m1", machines[0])))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got))
    await site.driver.close()
    site.tally = CounterSums(sums=site.tally.sums, processes=site.tally.processes)
    site.driver = site.new()
    await site.driver.open()
    got += await asyncio.to_thread(ask, port)
    await looked(site, of(2, got))
    assert all(map(is_running, site.tally.processes))


async def test_request_without_an_available_member_counts_as_an_error(site: HaproxySite):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, limited(port, 100))
    got = await asyncio.to_thread(ask, port)
    await looked(site, of(1, got, errors=1))


async def test_errors_of_a_shared_backend_count_for_one_listener_across_reloads(site: HaproxySite):
    """HAProxy counts them for the backend. The sum of a load balancer is exact, also while a listener comes that is
    the first one by id."""
    ports = {name: free_port() for name in ("a", "b", "c")}
    web = pool("web")

    async def serve(*names: str) -> None:
        site.allow_replacement()
        await site.apply_until_done(
            WEB, HAPROXY.compile(view([listener(name, ports[name], web) for name in names], [web]), WEB)
        )

    async def errors() -> dict[str, int]:
        await site.driver.poll()
        return {name: counted(site, name).errors for name in ports}

    await site.apply_until_done(NET, NETWORK)
    await serve("b", "c")
    for name in ("b", "c", "c"):
        await asyncio.to_thread(ask, ports[name])
    await eventually_equal(errors, {"a": 0, "b": 3, "c": 0})
    await serve("a", "b", "c")
    await asyncio.to_thread(ask, ports["c"])
    await eventually_equal(errors, {"a": 1, "b": 3, "c": 0})
