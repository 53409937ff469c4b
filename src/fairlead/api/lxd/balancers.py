"""Load balancers of a network, below /1.0."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import Services
from fairlead.api.http.openapi import TEXT, TEXTS, Operation
from fairlead.api.lxd.balancer_body import BALANCER, LISTEN, NO_BALANCER
from fairlead.api.lxd.balancer_decode import decode_balancer
from fairlead.api.lxd.balancer_encode import encode_balancer
from fairlead.api.lxd.balancer_state import STATE, encode_state
from fairlead.api.lxd.bodies import struct
from fairlead.api.lxd.envelope import sync, sync_schema
from fairlead.api.lxd.filters import PROJECT_QUERY
from fairlead.api.lxd.spec_handlers import COMMON_SCHEMA, SpecHandlers, SpecKind
from fairlead.model.documents import loadbalancer as lb
from fairlead.runtime.cooperative import run_in_steps
from fairlead.schema import Schema, object_schema

_BACKEND = dict.fromkeys(("name", "description", "target_port", "target_address"), TEXT)
_PORT = {**dict.fromkeys(("description", "protocol", "listen_port"), TEXT), "target_backend": TEXTS}
_SHOWN: Mapping[str, Schema] = {
    **COMMON_SCHEMA,
    "backends": {"type": "array", "items": object_schema(_BACKEND, _BACKEND)},
    "ports": {"type": "array", "items": object_schema(_PORT, _PORT)},
}
LOAD_BALANCERS = SpecKind(
    use=lb.SpecPurpose.LOAD_BALANCER,
    plural="load-balancers",
    noun="load balancer",
    no_address="Invalid load balancer listen address {}".format,
    put=struct(BALANCER),
    post=struct({**LISTEN, **BALANCER}),
    empty=NO_BALANCER,
    shown=object_schema(_SHOWN, _SHOWN),
    decode=decode_balancer,
    encode=encode_balancer,
    error_texts={},
)


def routes(services: Services) -> list[Operation]:
    views = SpecHandlers(services, LOAD_BALANCERS)

    async def show_state(request: Request) -> Response:
        """Show the health of the backends, null where they are not probed, and the status of the last change."""
        snapshot = services.model.snapshot
        balancer = views.find(snapshot, request)
        health = await run_in_steps(encode_state(snapshot, balancer))
        return sync({**health, "status": views.status(snapshot, balancer)})

    path = f"/networks/{{network}}/{LOAD_BALANCERS.plural}/{{listen_address}}/state"
    return [*views.routes(), Operation("GET", path, show_state, gives={200: sync_schema(STATE)}, query=PROJECT_QUERY)]
