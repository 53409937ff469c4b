"""Proxy ports on unmanaged networks: the ports that a service must create and delete, and its reason if it cannot."""

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, json_response
from fairlead.api.http.openapi import IDENTITY, TEXT, Operation, read_body
from fairlead.api.octavia import handlers, specs
from fairlead.model.documents.proxy_place import ProxyPlace, device_mac, proxy_device
from fairlead.model.queries.unmanaged_proxy_ports import proxied_balancers, required_proxy_changes
from fairlead.model.registry.facts import REJECTED_PROXY_PORTS
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import Field, Schema, Spec, array_schema, object_schema, text

MAX_PLACES, MAX_PORTS = 10_000, 10_000
"""Maximum projects of a network, and proxy ports of a project on it."""
MAX_REASON_LENGTH = 1_000
_REQUESTED_PORT = {"host": TEXT, "device_id": TEXT, "mac_address": TEXT}
_PLACE: dict[str, Schema] = {
    "project_id": TEXT,
    "come": array_schema(object_schema(_REQUESTED_PORT, _REQUESTED_PORT), MAX_PORTS),
    "go": array_schema(IDENTITY, MAX_PORTS),
}
_REFUSED: Spec = {"refused": Field(text(MAX_REASON_LENGTH), required=True)}


def proxied_routes(services: Services) -> list[Operation]:
    async def show(request: Request) -> Response:
        """List the proxy ports to create and delete on an unmanaged network, by project with load balancers that use
        proxies there. Other projects need none."""
        places = await run_in_steps(_places(services.model.snapshot, request.path_params["id"]))
        return json_response({"network": {"places": places}})

    async def refuse(request: Request) -> Response:
        """Report why proxy ports cannot be created on a network. An empty text clears the report."""
        network_id, reason = request.path_params["id"], (await read_body(request))["refused"]
        known = services.model.snapshot.refused_proxies.get(network_id, "")
        is_led = next(proxied_balancers(services.model.snapshot, network_id), None) is not None
        if reason != known and (is_led or not reason):
            await run_in_steps(services.model.observe(REJECTED_PROXY_PORTS, {network_id: reason or None}))
        return Response(status_code=handlers.NO_CONTENT)

    places = {"places": array_schema(object_schema(_PLACE, _PLACE), MAX_PLACES)}
    shown = {"network": object_schema(places, places)}
    said = specs.body("network", _REFUSED, argument="network")
    path = "/proxied-networks/{id}"
    return [
        Operation("GET", path, show, gives={200: object_schema(shown, shown)}),
        Operation("PUT", path, refuse, takes=said, gives={204: None}),
    ]


def _places(snapshot: Snapshot, network_id: str) -> Steps[list[JsonObject]]:
    found = yield from required_proxy_changes(snapshot, network_id)
    return [
        {
            "project_id": place.project_id,
            "come": [_port(snapshot, network_id, place, each) for each in wanted.create_on],
            "go": list(wanted.delete),
        }
        for place, wanted in sorted(found.items(), key=lambda item: item[0])
    ]


def _port(snapshot: Snapshot, network_id: str, place: ProxyPlace, chassis: str) -> JsonObject:
    device_id = proxy_device(network_id, chassis)
    mac_address = device_mac(device_id, place.project_id)
    return {"host": _host(snapshot, chassis), "device_id": device_id, "mac_address": mac_address}


def _host(snapshot: Snapshot, chassis: str) -> str:
    """Return the host name that other services use for the chassis."""
    known = snapshot.chassis.get(chassis)
    return known.host if known is not None and known.host else chassis
