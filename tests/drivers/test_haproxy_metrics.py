"""The metrics that a tenant's Prometheus gets: of one load balancer, by Octavia's names, over processes."""

import asyncio
import http.client
import re
import socket
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.octavia_metrics import AccumulatedMetrics, render_metrics
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy import metrics
from fairlead.drivers.haproxy.metrics import SOCKET
from fairlead.drivers.haproxy.network import ProxyNetwork
from fairlead.model.documents.loadbalancer import ListenerProtocol
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, HaproxySite, get
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, run_ready_tasks

pytestmark = [needs_haproxy, pytest.mark.slow]
ONE = 'octavia_listener_http_requests_total{listener="one"}'
OTHER = Owner(Kind.LOAD_BALANCER, "other")


def with_metrics(port: int, at: int, *members: Any, limit: int = 100) -> Rows:
    web = pool("web", *members)
    told = listener("m", at, protocol=ListenerProtocol.PROMETHEUS)
    return HAPROXY.compile(view([listener("one", port, web, connection_limit=limit), told], [web]), WEB)


def scrape(at: int, path: str = "/metrics") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", at, timeout=DEADLINE)
    connection.request("GET", path, headers={"Connection": "close"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def value(text: str, sample: str) -> float | None:
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found is not None else None


async def scraped(at: int, sample: str, wanted: float) -> str:
    """When this is so: what is known is told again for a second. No counter is ever less than before."""
    seen = -1.0

    async def scrape_again() -> str:
        nonlocal seen
        status, text = await asyncio.to_thread(scrape, at)
        assert status == 200, text
        before, seen = seen, value(text, sample) or 0.0
        assert seen >= before
        return text

    return await eventually(scrape_again, f"{sample} {wanted}", is_enough=lambda _: seen == wanted)


async def test_metrics_of_one_load_balancer_use_octavia_names(site: HaproxySite, machines: tuple[int, int]):
    port, at, others = free_port(), free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, with_metrics(port, at, member("m1", machines[0])))
    theirs = pool("theirs", member("m2", machines[1]))
    await site.apply_until_done(OTHER, HAPROXY.compile(view([listener("two", others, theirs)], [theirs]), WEB))
    for asked in (port, port, port, others):
        await asyncio.to_thread(get, asked)
    text = await scraped(at, ONE, 3)
    assert value(text, 'octavia_pool_http_responses_total{pool="web:http:5000:50000",code="2xx"}') == 3
    assert value(text, 'octavia_member_sessions_total{pool="web:http:5000:50000",member="m1"}') == 3
    assert value(text, 'octavia_member_status{pool="web:http:5000:50000",member="m1",state="UP"}') == 1
    assert value(text, "octavia_loadbalancer_listeners") == 2
    assert value(text, "octavia_loadbalancer_requests_total") == 4  # this one too
    assert not re.search('two|theirs|m2|exporter|"metrics|haproxy_', text)
    assert {"octavia_loadbalancer_cpu", "octavia_memory_pool_used_bytes"} <= set(re.findall(r"TYPE (\w+)", text))
    assert (await asyncio.to_thread(scrape, at, "/other"))[0] == 404
    await site.apply_until_done(OTHER, {})


async def test_counters_never_decrease_across_processes_and_agents(site: HaproxySite, machines: tuple[int, int]):
    port, at, first = free_port(), free_port(), member("m1", machines[0])
    await site.apply_until_done(NET, NETWORK)
    for number, limit in enumerate((100, 200, 300)):
        site.allow_replacement()
        await site.apply_until_done(WEB, with_metrics(port, at, first, limit=limit))
        if number:
            await asyncio.to_thread(get, port)
        await scraped(at, ONE, 2 * number)
        await asyncio.to_thread(get, port)
        site.allow_replacement()
        await site.apply_until_done(WEB, with_metrics(port, at, first, limit=limit + 1))
    await scraped(at, ONE, 5)


async def test_removed_network_leaves_no_scraped_metrics(site: HaproxySite, machines: tuple[int, int]):
    """Or an agent's memory grows with each network that is made, scraped and deleted."""
    port, at = free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, with_metrics(port, at, member("m1", machines[0])))
    await scraped(at, ONE, 0)
    assert len(site.driver._metrics._scraped) == 1
    await site.apply_until_done(NET, {})  # the load balancer is there yet
    assert site.driver._metrics._scraped == {}
    assert b"503" in await asyncio.to_thread(asked_agent, site)
    assert site.driver._metrics._scraped == {}


def asked_agent(site: HaproxySite) -> bytes:
    """As a proxy asks that is to end."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(site.folder / SOCKET))
        client.sendall(b"GET /web HTTP/1.1\r\n\r\n")
        return client.recv(100)


def test_load_balancer_without_listeners_still_has_metrics():
    text = render_metrics(AccumulatedMetrics(), frozenset(), frozenset(), memory=1)
    assert value(text, "octavia_loadbalancer_listeners") == 0
    assert value(text, "octavia_loadbalancer_requests_total") == 0


async def test_scrape_in_progress_while_the_process_ends_leaves_no_metrics(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port, at, begun, free, ask = free_port(), free_port(), asyncio.Event(), asyncio.Event(), metrics._read
    looks, look = list[object](), metrics.MetricsServer._read_cached

    async def wait(*known: Any) -> None:
        begun.set()
        await free.wait()
        await ask(*known)

    async def note(them: metrics.MetricsServer, network: ProxyNetwork) -> AccumulatedMetrics:
        looks.append(network)
        return await look(them, network)

    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, with_metrics(port, at, member("m1", machines[0])))
    monkeypatch.setattr(metrics, "_read", wait)
    monkeypatch.setattr(metrics.MetricsServer, "_read_cached", note)
    [network] = site.driver._networks.values()
    scraping = asyncio.ensure_future(asyncio.to_thread(asked_agent, site))
    await begun.wait()
    ending = asyncio.ensure_future(site.apply_until_done(WEB, {}))
    late = asyncio.ensure_future(asyncio.to_thread(asked_agent, site))
    await eventually(lambda: network.queue.task is not None and len(looks) == 2)
    await run_ready_tasks()
    free.set()
    await asyncio.gather(scraping, ending, late)
    assert site.driver._metrics._scraped == {}


async def test_metrics_are_unavailable_without_an_agent_and_return_with_the_next(
    site: HaproxySite, machines: tuple[int, int]
):
    port, at = free_port(), free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, with_metrics(port, at, member("m1", machines[0])))
    await scraped(at, ONE, 0)
    await site.driver.close()
    assert (await asyncio.to_thread(scrape, at))[0] == 503
    site.driver = site.new()
    await site.driver.open()
    await scraped(at, ONE, 0)
    assert (await asyncio.to_thread(get, port)) == "m1"
