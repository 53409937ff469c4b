"""Long poll for the MACs under which the machines of a node must know their neighbours.

Each answer is the whole list, and a digest of it detects changes. The server therefore keeps no state of a node, any
server can answer, and the next answer includes changes that an agent missed.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import msgspec
from immutables import Map
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from fairlead.agent_protocol.messages import render_neighbourhoods
from fairlead.api.http.front_end import Services, json_response
from fairlead.api.http.openapi import project_slot, read_body
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import Port
from fairlead.model.queries.neighbours import AnnouncedAddresses, list_announcements
from fairlead.runtime.cooperative import run_in_steps

POLL_INTERVAL = 0.5
"""Seconds between two checks for a change of the inputs."""
PortsOf: TypeAlias = Callable[[Request, str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Inputs of an answer, except the request. A snapshot's maps keep their identity until they change."""

    local_ips: Map[str, LocalIP]
    ports: Map[str, Port]
    here: frozenset[str]

    def is_same_as(self, other: "_Inputs | None") -> bool:
        same = other is not None and self.local_ips is other.local_ips and self.ports is other.ports
        return same and other is not None and self.here == other.here


class NeighbourLongPoll:
    def __init__(self, services: Services, ports_of: PortsOf) -> None:
        """`ports_of` returns the ports of a chassis that the caller represents. It raises ApiError and DriverError."""
        self._services = services
        self._ports_of = ports_of
        self._counters = services.nodes.neighbours
        self._newest: dict[str, Request] = {}
        """Chassis -> its pending request. Each chassis has at most one, so the number of chassis bounds the pending
        requests."""

    async def poll(self, request: Request) -> Response:
        """Long-poll for the MACs that a node's machines must have for their neighbours. Returns when the list
        differs from the caller's digest; null after the wait time, or when the chassis sends another request."""
        chassis = request.path_params["chassis"]
        self._ports_of(request, chassis)
        async with project_slot(request.scope):
            asked = await read_body(request)
        with self._waiting(chassis, request):
            return await self._wait_for_change(request, chassis, asked)

    async def _wait_for_change(self, request: Request, chassis: str, asked: Any) -> Response:
        until = perf_counter() + (asked.get("wait") or 0)
        before: _Inputs | None = None
        digest, networks = "", dict[str, object]()
        while True:
            snapshot = self._services.model.snapshot
            inputs = _Inputs(snapshot.local_ips, snapshot.ports, self._ports_of(request, chassis))
            if not inputs.is_same_as(before):
                before = inputs
                async with project_slot(request.scope):
                    digest, networks = await self._compute_neighbours(inputs.here, asked["remembered"])
            if digest != asked.get("digest"):
                self._counters.changed += 1
                return json_response({"digest": digest, "networks": networks})
            wanted = perf_counter() < until and self._newest.get(chassis) is request
            if not wanted or await _is_over(request.scope):
                return json_response({"digest": digest, "networks": None})

    async def _compute_neighbours(
        self, ports: frozenset[str], remembered: AnnouncedAddresses
    ) -> tuple[str, dict[str, object]]:
        found = await run_in_steps(list_announcements(self._services.model.snapshot, ports, remembered))
        networks = render_neighbourhoods(found)
        return hashlib.sha256(msgspec.json.encode(networks)).hexdigest(), networks

    @contextlib.contextmanager
    def _waiting(self, chassis: str, request: Request) -> Iterator[None]:
        self._newest[chassis] = request
        self._counters.waiting = len(self._newest)
        try:
            yield
        finally:
            if self._newest.get(chassis) is request:
                del self._newest[chassis]
            self._counters.waiting = len(self._newest)


async def _is_over(scope: Scope) -> bool:
    """Wait for the poll interval, and return whether the caller or the server has closed the connection."""
    over = scope.get("extensions", {}).get("fairlead.over", {}).get("event") or asyncio.Event()
    began = perf_counter()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(POLL_INTERVAL):
            await over.wait()
    scope.get("waited", []).append(perf_counter() - began)
    return bool(over.is_set())
