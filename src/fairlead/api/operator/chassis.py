"""Operator API of nodes: each chassis as in OVN, its agent, and its enrolment."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.agents.authentication import issue
from fairlead.api.http.front_end import ApiError, JsonObject, Services, json_response
from fairlead.api.http.openapi import FLAG, NUMBER, TEXT, TEXTS, Operation
from fairlead.changes.nodes import revoke_node
from fairlead.model.documents.agent_counters import STARVED
from fairlead.model.documents.proxy_place import ProxyPlace, place_of_host_proxy, proxy_chassis
from fairlead.model.queries.host_proxies import has_host_proxy
from fairlead.model.queries.proxies import proxy_ports, required_proxy_ports
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, array_schema, object_schema, or_null

MAX_LISTED = 20_000
_UNAPPLIED: Schema = object_schema({"dataplane": TEXT, "owner": TEXT, "error": TEXT}, ["dataplane", "owner", "error"])
_AGENT = object_schema(
    {
        "version": TEXT,
        "host": TEXT,
        "since": TEXT,
        "last_heard": or_null(TEXT),
        "heard": FLAG,
        "listens": FLAG,
        "probes": NUMBER,
        "starved": FLAG,
        "unapplied": array_schema(_UNAPPLIED, MAX_LISTED),
    },
    ["version", "host", "since", "last_heard", "heard", "listens", "probes", "starved", "unapplied"],
)
_SERVING: Mapping[str, Schema] = {"at": TEXT, "project_id": TEXT, "serving": NUMBER, "wanted": NUMBER}
"""Schema of the proxies for a project's listeners on a network, or on a router's gateway."""
_PROXY = object_schema(_SERVING, _SERVING)
_DECLARED = object_schema({"number": NUMBER, "draining": FLAG}, ["number", "draining"])
"""Schema of the declaration as a plain host."""
_ENROLLED = object_schema({"since": TEXT, "until": TEXT, "expired": FLAG}, ["since", "until", "expired"])
_ROW: Mapping[str, Schema] = {
    "name": TEXT,
    "host": TEXT,
    "in_ovn": FLAG,
    "alive": FLAG,
    "zones": TEXTS,
    "ports": NUMBER,
    "covered_for": NUMBER,
    "declared": or_null(_DECLARED),
    "agent": or_null(_AGENT),
    "proxies": array_schema(_PROXY, MAX_LISTED),
    "enrolled": or_null(_ENROLLED),
    "token_until": or_null(TEXT),
}
ROW = object_schema(_ROW, _ROW)


def routes(services: Services) -> list[Operation]:
    async def list_all(_: Request) -> Response:
        """List the nodes, by name: chassis in OVN, declared plain hosts, nodes with an agent, and enrolled nodes or
        pending tokens."""
        snapshot = services.model.snapshot
        names = sorted({name for known in _known(snapshot) for name in known})
        found = await run_in_steps(_compute_totals(snapshot))
        return json_response({"chassis": [_row(services, snapshot, name, found) for name in names[:MAX_LISTED]]})

    async def show(request: Request) -> Response:
        """Show a node."""
        name, snapshot = request.path_params["chassis"], services.model.snapshot
        if not any(name in known for known in _known(snapshot)):
            raise ApiError(404, f"chassis {name[:100]} does not exist")
        return json_response(_row(services, snapshot, name, await run_in_steps(_compute_totals(snapshot))))

    async def enrol(request: Request) -> Response:
        """Issue a token with which the node's agent gets its first certificate. The token is shown and usable once,
        and replaces an earlier token of the node."""
        enrolment = services.enrolment()
        if enrolment is None:
            raise ApiError(409, "agents cannot authenticate with certificates: set nodes.listen in the configuration")
        token, until = await issue(services, enrolment, request.path_params["chassis"])
        return json_response({"token": token, "expires_at": _time(until)}, 201)

    async def revoke(request: Request) -> Response:
        """Revoke the certificates and tokens of a node. Open connections of its agent are closed."""
        name = request.path_params["chassis"]
        await services.write(lambda snapshot: revoke_node(snapshot, name))
        return Response(status_code=204)

    token = object_schema({"token": TEXT, "expires_at": TEXT}, ["token", "expires_at"])
    listed = object_schema({"chassis": array_schema(ROW, MAX_LISTED)}, ["chassis"])
    return [
        Operation("GET", "/chassis", list_all, gives={200: listed}),
        Operation("GET", "/chassis/{chassis}", show, gives={200: ROW}),
        Operation("POST", "/chassis/{chassis}/token", enrol, gives={201: token}),
        Operation("DELETE", "/chassis/{chassis}/identity", revoke, gives={204: None}),
    ]


def _known(snapshot: Snapshot) -> tuple[Collection[str], ...]:
    return snapshot.chassis, snapshot.hosts, snapshot.agents, snapshot.nodes, snapshot.node_tokens


@dataclass(frozen=True, slots=True)
class _ChassisTotals:
    """Values computed in one pass over the snapshot, by chassis."""

    covered: Mapping[str, int]
    proxies: Mapping[str, list[JsonObject]]


def _compute_totals(snapshot: Snapshot) -> Steps[_ChassisTotals]:
    proxies = defaultdict[str, list[JsonObject]](list)
    for place in sorted(snapshot.place_proxies):
        wanted = required_proxy_ports(snapshot, place)
        for port in proxy_ports(snapshot, place):
            known = snapshot.proxies.get(port.id)
            serving = known.serving & wanted if known is not None else ()
            proxies[proxy_chassis(port)].append({**place._asdict(), "serving": len(serving), "wanted": len(wanted)})
        yield
    wanted_at = dict[ProxyPlace, frozenset[int]]()
    for identity in sorted(snapshot.proxies):
        on_host, name = place_of_host_proxy(identity), identity.rpartition("/")[2]
        if on_host is not None and has_host_proxy(snapshot, name, on_host):
            if on_host not in wanted_at:
                wanted_at[on_host] = required_proxy_ports(snapshot, on_host)
            wanted = wanted_at[on_host]
            serving = snapshot.proxies[identity].serving & wanted
            proxies[name].append({**on_host._asdict(), "serving": len(serving), "wanted": len(wanted)})
            yield
    return _ChassisTotals(Counter(snapshot.covered.values()), proxies)


def _row(services: Services, snapshot: Snapshot, name: str, of_each: _ChassisTotals) -> JsonObject:
    chassis, agent, host = snapshot.chassis.get(name), snapshot.agents.get(name), snapshot.hosts.get(name)
    node, token = snapshot.nodes.get(name), snapshot.node_tokens.get(name)
    heard = services.nodes.agents.last_report(name)
    until = [each.not_after for each in node.certificates] if node is not None else []
    waits = token is not None and services.now() < token.expires_at
    return {
        "name": name,
        "host": chassis.host if chassis else agent.host if agent else "",
        "in_ovn": chassis is not None,
        "alive": chassis is not None and chassis.alive,
        "zones": sorted(chassis.zones) if chassis else [],
        "ports": len(chassis.ports) if chassis else 0,
        "covered_for": of_each.covered.get(name, 0),
        "proxies": of_each.proxies.get(name, [])[:MAX_LISTED],
        "declared": host and {"number": host.number, "draining": host.draining},
        "agent": agent
        and {
            "version": agent.version,
            "host": agent.host,
            "since": _time(agent.since),
            "last_heard": None if heard is None else _time(datetime.fromtimestamp(heard, UTC)),
            "heard": agent.is_responsive,
            "listens": services.nodes.channel.is_connected(name),
            "probes": services.nodes.agents.reported_endpoints(name),
            "starved": bool(services.nodes.agents.counted_by(name).get(STARVED)),
            "unapplied": [
                {"dataplane": each.dataplane, "owner": each.owner, "error": each.error} for each in agent.apply_failures
            ],
        },
        "enrolled": node
        and {"since": _time(node.enrolled_at), "until": _time(max(until)), "expired": max(until) < services.now()},
        "token_until": _time(token.expires_at) if token is not None and waits else None,
    }


def _time(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
