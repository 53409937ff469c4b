"""Agents that each follow one of several servers with a shared store, and report to all of them."""

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from fairlead.http.server_client import ApiClient
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.registry.facts import CHASSIS, PLUGGED
from fairlead.node.channel import NodeSlice, SliceReceiver
from fairlead.node.connection import Remote
from fairlead.node.reports import Reports
from fairlead.node.server_requests import Servers
from harness.agents import AgentServer, running, serving
from harness.probe_results import AGENT, ONE, TWO, WEB
from harness.waiting import eventually_equal, pause_loop

LBS = "/load-balancer/v2.0/lbaas/loadbalancers"
(LISTENER,) = (each.id for each in WEB.listeners)
BOUND_PORTS = {"one": {"vm1": "one"}, "two": {"vm2": "two"}}
REPORT_INTERVAL = 0.1  # seconds
SOME_DOWN = {"web-a": "ERROR", "web-b": "ONLINE", "web-six": "ONLINE"}
ALL_UP = dict.fromkeys(SOME_DOWN, "ONLINE")


@dataclass
class FollowingAgent:
    """An agent: it receives its slice from one server, and reports to all."""

    name: str
    urls: list[str]
    folder: Path
    figures: TrafficCounters
    interval: int = 10
    given: NodeSlice = field(init=False)
    reports: Reports = field(init=False)

    def __post_init__(self) -> None:
        self.given = NodeSlice(self.name, self.folder / self.name)
        agent = replace(AGENT, name=self.name, host=self.name)
        self.reports = Reports(lambda: agent, self.remotes, len(self.urls))

    def remotes(self) -> list[Remote]:
        return [Remote(url=url) for url in self.urls]

    async def report_counters(self) -> None:
        servers = Servers([ApiClient(url=url) for url in self.urls])
        while True:
            await servers.report(self.name, self.interval, {LISTENER: self.figures})
            await pause_loop(REPORT_INTERVAL)

    def running(self) -> Any:
        return running(SliceReceiver(self.given, self.remotes).run, self.reports.run, self.report_counters)


async def read_state(url: str) -> Any:
    """Operating statuses of members and load balancer, and the number of connections, as returned by this server."""
    async with httpx.AsyncClient(base_url=url) as client:
        tree = (await client.get(f"{LBS}/web/status")).json()["statuses"]["loadbalancer"]
        members = [each for listener in tree["listeners"] for pool in listener["pools"] for each in pool["members"]]
        stats = (await client.get(f"{LBS}/web/stats")).json().get("stats", {})
        return (
            {each["id"]: each["operating_status"] for each in members},
            tree["operating_status"],
            stats.get("total_connections"),
        )


async def await_state(wanted: Any, servers: list[AgentServer]) -> None:
    """Wait until all servers return these values."""

    async def answers() -> list[Any]:
        return [await read_state(each.url) for each in servers]

    await eventually_equal(answers, [wanted] * len(servers))


async def start_server(stack: AsyncExitStack, folder: Path, url: str, port: int) -> AgentServer:
    """Start a server with the same facts from OVN as the others."""
    server = await stack.enter_async_context(serving(folder, url=url, port=port))
    server.observe(CHASSIS, {"one": ONE, "two": TWO})
    server.observe(PLUGGED, {machine: chassis for plugs in BOUND_PORTS.values() for machine, chassis in plugs.items()})
    for each in server.model.snapshot.load_balancers:
        server.reconciler.mark([Owner(Kind.LOAD_BALANCER, each)])
    await stack.enter_async_context(running(server.model.follow, server.reconciler.run))
    return server
