"""A tenant changes the largest allowed load balancer continuously, while another one creates listeners on the node.

HAProxy processes on loopback and the node's reconciler are real.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from fairlead.dataplane.rows import Diff
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.process import Program
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer
from fairlead.model.documents.network import Network, Port
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.sizes import MAX_MEMBERS
from fairlead.model.queries.proxies import proxy_port_id
from fairlead.model.queries.proxy_backends import MAX_PROXY_SERVERS
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.node.listener_counters import CounterSums
from fairlead.node.proxies import ProxyIntervals, ProxyReconciler
from fairlead.node.reports import Reports
from harness.fixed_slice import FixedSlice
from harness.haproxy_site import LoopbackPlaces
from harness.ports import free_port
from harness.proxied import PROGRAM, listener, member, pool, view
from harness.waiting import eventually

LARGE, SMALL = (Owner(Kind.LOAD_BALANCER, name) for name in ("large", "small"))
ROUNDS = 10


@dataclass(frozen=True)
class ApplyTimes:
    alone: float
    """Mean seconds until a listener of the small tenant works, without another tenant."""
    beside: float
    """The same with the large tenant's changes."""
    between: int
    """Maximum number of applies of the large load balancer between a change of the other one and its apply."""


def project_documents(name: str, snapshot: Snapshot) -> list[Network | Port | LoadBalancer]:
    """Documents of `proxied.view`, on a network of this project's own."""
    [network], [port], [balancer] = (
        list(each.values()) for each in (snapshot.networks, snapshot.ports, snapshot.load_balancers)
    )
    at = {"network_id": name}
    vip, *others = (replace(each, **at) for each in balancer.vips)
    return [
        replace(network, id=name, project_id=name),
        replace(port, id=proxy_port_id(name, "node"), device_id=name, project_id=name, **at),
        replace(balancer, id=name, project_id=name, vip=vip, additional_vips=tuple(others)),
    ]


def model(large: Snapshot | None, small: list[Listener]) -> Snapshot:
    documents = [
        *(project_documents("large", large) if large is not None else ()),
        *project_documents("small", view(small, [])),
    ]
    facts = Snapshot(chassis=view([], []).chassis)
    return apply_changes(facts, Changes(puts=tuple(documents)), 1)


def largest() -> Callable[[int], Snapshot]:
    """The largest load balancer, with a given connection limit, because a changed limit replaces the process."""
    pools = [
        pool(f"p{number}", *(member(f"m{each}", 80, "127.0.0.9") for each in range(MAX_MEMBERS)))
        for number in range(MAX_PROXY_SERVERS // MAX_MEMBERS)
    ]
    ports = [free_port() for _ in pools]

    def limited(limit: int) -> Snapshot:
        made = zip(ports, pools, strict=True)
        return view([listener(f"l{port}", port, each, connection_limit=limit) for port, each in made], pools)

    return limited


class CountingHAProxy(HAProxy):
    """Driver that records the owners of applied rows."""

    applied: list[Owner]

    async def apply(self, owner: Owner, change: Diff) -> None:
        self.applied.append(owner)
        await super().apply(owner, change)


@asynccontextmanager
async def node(first: Snapshot) -> AsyncIterator[tuple[FixedSlice, CountingHAProxy, Reports]]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        given = FixedSlice("node", folder / "slice", first)
        agent = Agent(name="node", version="1", host="node", since=datetime.now(UTC), heartbeat=1.0)
        reports, looks = Reports(lambda: agent, list, 0), ProxyIntervals(CounterSums(), 60.0, 60.0)
        driver = CountingHAProxy(
            folder / "p", LoopbackPlaces(), reports.set_proxy_ports, Program(path=PROGRAM, user="")
        )
        driver.applied = []
        work = asyncio.ensure_future(ProxyReconciler(given, reports, driver, looks).run())
        try:
            yield given, driver, reports
            given.replace(Snapshot(), LARGE, SMALL, *(Owner(Kind.NETWORK, each.id) for each in (LARGE, SMALL)))
            await eventually(lambda: not [*(folder / "p").glob("*/")])
        finally:
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work


async def make_listeners(
    large: Callable[[int], Snapshot] | None, changing: Callable[[FixedSlice, list[Listener]], Awaitable[None]]
) -> tuple[float, int]:
    """Mean seconds until the small tenant's listeners work, and the maximum of the large one's applies in between."""
    listeners, seconds, between = list[Listener](), 0.0, 0
    async with node(model(large(1000) if large is not None else None, [])) as (given, driver, reports):
        work = asyncio.ensure_future(changing(given, listeners))
        for number in range(ROUNDS):
            port = free_port()
            listeners.append(listener(f"s{number}", port, None))
            began, before = perf_counter(), len(driver.applied)
            given.replace(model(large(1000 + number) if large is not None else None, listeners), SMALL)
            await eventually(lambda before=before: SMALL in driver.applied[before:])  # type: ignore[misc]
            applied = driver.applied[before:]
            between = max(between, applied[: applied.index(SMALL)].count(LARGE))
            await eventually(lambda port=port: any(port in each for each in reports._proxy_ports.values()))  # type: ignore[misc]
            seconds += perf_counter() - began
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
    return seconds / ROUNDS, between


async def _nothing(_: FixedSlice, __: list[Listener]) -> None:
    await asyncio.Event().wait()


async def measure() -> ApplyTimes:
    limited = largest()

    async def without_pause(given: FixedSlice, listeners: list[Listener]) -> None:
        limit = 0
        while True:
            limit = (limit + 1) % 3000
            given.replace(model(limited(1 + limit), listeners), LARGE)
            await asyncio.sleep(0.05)

    alone, _ = await make_listeners(None, _nothing)
    beside, between = await make_listeners(limited, without_pause)
    return ApplyTimes(alone, beside, between)
