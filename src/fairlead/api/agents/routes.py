"""API front end of agents: listener lookup for counted addresses, counters, reports, neighbours, keys and slices.

Callers are administrators, and users with the role `service`, limited to the chassis that the password file lists for
them. The chassis must exist in OVN. A caller can look up an address only where its chassis has flows itself. Errors:
{"error": sentence}.
"""

import asyncio
import logging
from collections.abc import Container, Mapping, Sequence
from functools import partial

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from fairlead.agent_protocol.messages import (
    COUNTER_REPORT,
    LISTENER_LOOKUP,
    MAX_LISTENERS,
    NEIGHBOURS_REQUEST,
    NEIGHBOURS_RESPONSE,
    object_of,
    read_services,
)
from fairlead.agent_protocol.reports import MAX_REPORT_BYTES, read_report
from fairlead.agent_protocol.reports import REPORT as AGENT_REPORT
from fairlead.api.agents import authentication
from fairlead.api.agents.keys import KEYS, KEYS_REQUEST, KeyDelivery
from fairlead.api.agents.neighbours import NeighbourLongPoll
from fairlead.api.agents.nodes import NodeRegistry
from fairlead.api.agents.slice_stream import SliceStreams
from fairlead.api.http.front_end import ApiError, Services, identity, json_response, rate_limited
from fairlead.api.http.front_end_builder import SENTENCE, ApiFrontEnd, sentence
from fairlead.api.http.openapi import IDENTITY, TEXT, Operation, ReadConsistency, read_body
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refused
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.local_datapaths import local_places
from fairlead.model.queries.proxies import uses_proxies
from fairlead.model.queries.statistics import MAX_SERVICES_PER_REQUEST, CountedService, find_listeners
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Field, Parser, array_schema, object_schema, or_null, reads, text
from fairlead.store.codec import encode_value

LOG = logging.getLogger(__name__)
AGENT_ROLES = frozenset({"admin", "service"})
MAX_REQUEST_BYTES = 2**20
"""Maximum bytes of a neighbour request; all IPv6 addresses that a node may remember fit."""


def _whole(parser: Parser[Mapping[str, object]]) -> Parser[Mapping[str, object]]:
    """Wrap a parser of a body, so that it raises ApiError 400."""

    @reads(parser.schema)
    def parse(value: object) -> Mapping[str, object]:
        try:
            return parser(value)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    return parse


def _request(secret: str) -> Parser[Mapping[str, object]]:
    """Make a parser of a certificate request with one more text attribute, named by `secret`."""
    fields = {"request": Field(text(authentication.MAX_REQUEST_LENGTH), required=True)}
    if secret:
        fields[secret] = Field(text(authentication.MAX_SECRET_LENGTH), required=True)
    return _whole(object_of(fields))


_ANSWER = object_schema(
    {
        "listeners": array_schema(or_null(IDENTITY), MAX_SERVICES_PER_REQUEST),
        "proxied": array_schema(IDENTITY, MAX_SERVICES_PER_REQUEST),
        "places": array_schema(or_null(TEXT), MAX_SERVICES_PER_REQUEST),
    },
    ["listeners", "proxied", "places"],
)
_NAMES = array_schema(TEXT, MAX_LISTENERS)
_COUNTERS_RESPONSE = object_schema({"unknown": _NAMES, "doubtful": _NAMES}, ["unknown", "doubtful"])

_REPORT_RESPONSE = object_schema(
    {"epoch": TEXT, "refused": {"type": "array", "items": {"type": "array"}}}, ["epoch", "refused"]
)
REPORT_BURST, REPORT_SECONDS = 40, 0.05
"""Rate limit of reports per agent: burst size, and seconds until one unit is available again. An agent sends at most
twenty reports a second."""


class _CounterHandlers:
    """Handlers for the counters of nodes. A node drops counters of unknown listeners, so the store is re-read before a
    listener is reported as unknown."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def look_up(self, request: Request) -> Response:
        """Return the listener of each service; null if it has none, or not on this chassis. An agent with a single
        chassis may omit `chassis`; for an administrator, omitting it means all nodes. `proxied` lists the listeners
        that proxies count; `places` has the network, router or port of each service, or null."""
        services, asked = self._services, await read_body(request)
        counted = read_services(asked)
        chassis = asked.get("chassis") or _only_chassis(identity(request))
        ports = None if chassis is None else _ports_of(services, request, chassis)
        places, found = self._find(counted, ports)
        if None in found and await services.refresh():
            places, found = self._find(counted, ports)
        snapshot = services.model.snapshot
        proxied = [each for each in {*found} if each is not None and uses_proxies(snapshot, each)]
        called = [None if each is None else snapshot.called.get(each, each) for each in places]
        return json_response({"listeners": found, "proxied": proxied, "places": called})

    def _find(
        self, counted: Sequence[CountedService], ports: frozenset[str] | None
    ) -> tuple[list[str | None], list[str | None]]:
        """Return place and listener of each service, restricted to the flows of a node with these ports; None for all
        nodes."""
        snapshot = self._services.model.snapshot
        places = [self._services.resolve_counting_place(each.place) for each in counted]
        if ports is not None:
            local = local_places(snapshot, ports)
            places = [place if place in local else None for place in places]
        return places, find_listeners(snapshot, zip(places, counted, strict=True))

    async def report(self, request: Request) -> Response:
        """Store the counters of a node. Counters of unknown listeners, and implausible ones, are dropped and
        returned as `unknown` and `doubtful`. While the store is unavailable, no listener is reported as unknown."""
        services, chassis = self._services, request.path_params["chassis"]
        _check_known(services, request, chassis)
        told = await read_body(request)
        snapshot = services.model.snapshot
        figures, unknown = await run_in_steps(_split(told["listeners"], snapshot.listener_owner))
        if unknown:
            stored = await services.refresh()
            snapshot = services.model.snapshot
            figures, missing = await run_in_steps(_split(told["listeners"], snapshot.listener_owner))
            unknown = missing if stored else []
        known = snapshot.listener_owner

        def age(listener: str) -> float:
            made = snapshot.load_balancers[known[listener]].created_at
            return max(0.0, (services.now() - made).total_seconds())

        doubtful = await run_in_steps(services.node_counts.reporting(chassis, figures, told["interval"], age))
        if doubtful:
            LOG.warning("chassis %s reports implausible counters for listener %s", chassis, doubtful[0])
        return json_response({"unknown": unknown, "doubtful": doubtful})


class _ReportHandlers:
    """Handlers for the reports of agents."""

    def __init__(self, nodes: NodeRegistry) -> None:
        self._nodes = nodes
        self._pace = RateLimiter(REPORT_BURST, REPORT_SECONDS)

    async def report(self, request: Request) -> Response:
        """Receive the report of an agent: heartbeat, apply failures and probe results. Results for endpoints that
        the agent is not assigned are ignored, and returned with the reason."""
        chassis = request.path_params["chassis"]
        _check_speaks(request, chassis)
        if (wait := self._pace.wait(chassis)) > 0:
            raise rate_limited(f"chassis {chassis} reports too often", wait)
        self._pace.add(chassis)
        report = read_report(chassis, await read_body(request))
        agents, seen = self._nodes.agents, request.scope["extensions"]
        connection: asyncio.Event = seen["fairlead.gone"]["event"]
        seen["fairlead.hung_up"]["follow"](partial(agents.record_disconnect, chassis, connection))
        refused = await agents.take_report(report, connection)
        if connection.is_set():  # the connection ended before the callback was registered
            agents.record_disconnect(chassis, connection)
        named = [[msgspec.Raw(encode_value(endpoint)), why] for endpoint, why in refused]
        epoch = f"{self._nodes.channel.epoch}.{self._nodes.agents.reconnects(chassis)}"
        return json_response({"epoch": epoch, "refused": named})


def make_front_end(services: Services) -> Starlette:
    counting, hearing = _CounterHandlers(services), _ReportHandlers(services.nodes)
    watching = SliceStreams(services.nodes.channel, _check_speaks, services.check_synced)
    lending = KeyDelivery(services, _check_speaks)
    neighbours = NeighbourLongPoll(services, partial(_ports_of, services))
    return FRONT_END.build(
        [
            *authentication.routes(services, _request),
            Operation("POST", "/sightings", counting.look_up, takes=_whole(LISTENER_LOOKUP), gives={200: _ANSWER}),
            Operation(
                "GET",
                "/chassis/{chassis}/slice",
                watching.watch,
                query={"after": TEXT},
                gives={200: None},
                waits=True,
            ),
            Operation(
                "POST",
                "/chassis/{chassis}/report",
                hearing.report,
                takes=_whole(AGENT_REPORT),
                gives={200: _REPORT_RESPONSE},
                largest=MAX_REPORT_BYTES,
            ),
            Operation(
                "POST", "/chassis/{chassis}/keys", lending.deliver, takes=_whole(KEYS_REQUEST), gives={200: KEYS}
            ),
            Operation(
                "PUT",
                "/chassis/{chassis}",
                counting.report,
                takes=_whole(COUNTER_REPORT),
                gives={200: _COUNTERS_RESPONSE},
            ),
            Operation(
                "POST",
                "/chassis/{chassis}/neighbours",
                neighbours.poll,
                takes=_whole(NEIGHBOURS_REQUEST),
                gives={200: NEIGHBOURS_RESPONSE.schema},
                largest=MAX_REQUEST_BYTES,
                waits=True,
            ),
        ]
    )


def _split(
    told: Mapping[str, Mapping[str, int]], known: Container[str]
) -> Steps[tuple[dict[str, TrafficCounters], list[str]]]:
    """Split counters into those of existing listeners and the names of the others."""
    figures: dict[str, TrafficCounters] = {}
    for listener, sums in told.items():
        if listener in known:
            figures[listener] = TrafficCounters(**sums)
        yield
    return figures, [listener for listener in told if listener not in figures]


def _only_agents(who: Identity) -> None:
    """Raise ApiError unless the caller is an agent or an administrator."""
    if not who.roles & AGENT_ROLES:
        raise ApiError(403, "the agents API requires role 'service' or 'admin'")
    if not who.is_admin and not who.chassis:
        raise ApiError(403, f"user {who.user} has no chassis: end its line in the password file with :service:CHASSIS")


def _only_chassis(who: Identity) -> str | None:
    """Return the caller's only chassis; None for an administrator, meaning all. Raises ApiError if there are
    several."""
    if who.is_admin:
        return None
    if len(who.chassis) > 1:
        raise ApiError(400, f"parameter chassis is required: one of {', '.join(sorted(who.chassis))}")
    return next(iter(who.chassis))


def _check_speaks(request: Request, chassis: str) -> None:
    """Raise ApiError unless the caller represents the chassis."""
    who = identity(request)
    if not who.is_admin and chassis not in who.chassis:
        raise ApiError(403, f"user {who.user} represents chassis {', '.join(sorted(who.chassis))}, not {chassis}")


def _check_known(services: Services, request: Request, chassis: str) -> None:
    """Check that the chassis or plain host exists and that the caller represents it. Raises ApiError, DriverError."""
    if chassis in services.model.snapshot.hosts:
        _check_speaks(request, chassis)
    else:
        _ports_of(services, request, chassis)


def _ports_of(services: Services, request: Request, chassis: str) -> frozenset[str]:
    """Return the ports of a chassis that the caller represents. Raises ApiError, DriverError."""
    _check_speaks(request, chassis)
    ports = services.ports_of_chassis(chassis)
    if ports is None:
        raise ApiError(404, f"chassis {chassis} does not exist in OVN")
    return ports


FRONT_END = ApiFrontEnd(
    path="/agent",
    title="Fairlead: agents",
    error=SENTENCE,
    fault=sentence,
    error_texts={
        DriverError: lambda _, error: ApiError(503, f"OVN is unavailable: {error}"),
        Refused: authentication.refusal_of,
    },
    authorize=_only_agents,
    consistency=ReadConsistency.LOCAL,
)
