"""The largest load balancer that one HAProxy may have, with the real program: nothing holds the agent's event loop."""

import asyncio

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.loadbalancer import Pool
from fairlead.model.documents.sizes import MAX_MEMBERS
from fairlead.model.queries.proxy_backends import MAX_PROXY_SERVERS, proxy_servers
from fairlead.model.snapshot import Snapshot
from harness.haproxy_site import NET, NETWORK, HaproxySite, get
from harness.ports import free_port
from harness.proxied import WEB, listener, member, needs_haproxy, pool, view

MAX_BYTES = 8_000_000
"""Of all files of the process: what one change of its tenant writes at most."""
pytestmark = [needs_haproxy]


def members(number: int, port: int) -> Pool:
    """One member answers, the others do not exist."""
    there = member("m1", port)
    rest = (member(f"m{each}", 80, "127.0.0.9", weight=0) for each in range(2, MAX_MEMBERS + 1))
    return pool(f"p{number}", there, *rest)


def largest(port: int, machine: int) -> Snapshot:
    pools = [members(number, machine) for number in range(MAX_PROXY_SERVERS // MAX_MEMBERS)]
    listeners = [listener(f"l{number}", port if not number else free_port(), each) for number, each in enumerate(pools)]
    return view(listeners, pools)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def rows(port: int, machines: tuple[int, int]) -> Rows:
    """Compiled outside of the event loop, which nothing may hold."""
    snapshot = largest(port, machines[0])
    assert sum(proxy_servers(snapshot.load_balancers["web"]).values()) == MAX_PROXY_SERVERS
    return HAPROXY.compile(snapshot, WEB)


async def test_largest_load_balancer_is_applied_without_blocking_the_event_loop(
    site: HaproxySite, rows: Rows, port: int
) -> None:
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows)
    assert await asyncio.to_thread(get, port) == "m1"
    assert sum(each.stat().st_size for each in site.folder.rglob("*") if each.is_file()) < MAX_BYTES
    await site.apply_until_done(WEB, {})
