"""Operator API that finds the member of a flow, for dataplanes where the model determines it."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, JsonObject, Services, json_response
from fairlead.api.http.openapi import FLAG, NUMBER, TEXT, TEXTS, Operation
from fairlead.dataplane.interface import Flow, FlowTarget
from fairlead.model.documents.addresses import IPAddress, parse_address, render_endpoint
from fairlead.model.documents.loadbalancer import LoadBalancer, Member, Transport, find_listener
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Dataplanes
from fairlead.runtime.cooperative import run_in_steps
from fairlead.schema import Schema, object_schema, or_null

_NAMED = object_schema({"id": TEXT, "name": TEXT}, ["id", "name"])
_ROW: Mapping[str, Schema] = {
    "load_balancer": _NAMED,
    "listener": _NAMED,
    "slot": NUMBER,
    "admitted": FLAG,
    "endpoint": or_null(TEXT),
    "proxy": FLAG,
    "member": or_null(_NAMED),
    "chassis": or_null(TEXT),
    "before": or_null(TEXT),
    "unheard": TEXTS,
}
ROW = object_schema(_ROW, _ROW)
_PORTED = {each.value: each for each in (Transport.TCP, Transport.UDP, Transport.SCTP)}
_PROTOCOL: Schema = {"type": "string", "enum": list(_PORTED)}


def routes(services: Services, dataplanes: Dataplanes) -> list[Operation]:
    async def explain(request: Request) -> Response:
        """Return the member of a flow, computed from the model: load balancer, listener, slot, member, and the
        chassis or host that routes the member. If a proxy selects the member, the chassis of the proxy. `unheard`
        lists unresponsive hosts that the flow may pass."""
        snapshot, flow = services.model.snapshot, _flow(request.query_params)
        for each in dataplanes.nodes:
            led = await run_in_steps(each.explain(snapshot, flow)) if each.explain is not None else None
            if led is not None:
                return json_response(_row(snapshot, led))
        where = f"{flow.transport.value} at {render_endpoint(*flow.destination)}"
        raise ApiError(404, f"no load balancer on plain hosts has a listener for {where}")

    query: Mapping[str, Schema] = {"client": TEXT, "to": TEXT, "protocol": _PROTOCOL}
    return [Operation("GET", "/flow", explain, query=query, gives={200: ROW}, fails=[400, 404])]


def _flow(said: Mapping[str, str]) -> Flow:
    """Read a flow from the query. Raises ApiError."""
    client, to = (_endpoint(said, name) for name in ("client", "to"))
    protocol = said.get("protocol", Transport.TCP.value)
    if protocol not in _PORTED:
        raise ApiError(400, f"protocol must be one of: {', '.join(_PORTED)}")
    if client[0].version != to[0].version:
        raise ApiError(400, "client and to must have the same IP version")
    return Flow(client=client, destination=to, transport=_PORTED[protocol])


def _endpoint(said: Mapping[str, str], name: str) -> tuple[IPAddress, int]:
    """Read ADDRESS:PORT from the query. Raises ApiError."""
    host, _, port = said.get(name, "").rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        address = parse_address(bare)
    except ValueError:
        address = None
    bracketed = bare != host
    if address is None or bracketed != (address.version == 6) or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ApiError(400, f"{name} must be ADDRESS:PORT or [IPv6]:PORT")
    return address, int(port)


def _row(snapshot: Snapshot, led: FlowTarget) -> JsonObject:
    balancer = snapshot.load_balancers[led.balancer_id]
    listener = find_listener(balancer, led.listener_id)
    member = _member(balancer, led)
    return {
        "load_balancer": {"id": balancer.id, "name": balancer.name},
        "listener": {"id": led.listener_id, "name": "" if listener is None else listener.name},
        "slot": led.slot,
        "admitted": led.is_admitted,
        "endpoint": None if led.member is None else render_endpoint(*led.member),
        "proxy": led.is_proxy,
        "member": None if member is None else {"id": member.id, "name": member.name},
        "chassis": led.chassis or None,
        "before": led.previous_owner or None,
        "unheard": list(led.unresponsive),
    }


def _member(balancer: LoadBalancer, led: FlowTarget) -> Member | None:
    """Return the first member with the flow's address; several may have it at different ports."""
    address = led.member[0] if led.member is not None else None
    listener = find_listener(balancer, led.listener_id)
    pools = (pool for pool in balancer.pools if listener is not None and pool.id == listener.default_pool_id)
    return next((each for pool in pools for each in pool.members if each.address == address), None)
