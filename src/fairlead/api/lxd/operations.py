"""Operations API. Only unused tokens are operations, because other requests complete before their response."""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import Services, identity
from fairlead.api.http.openapi import Operation
from fairlead.api.lxd.envelope import EMPTY, sync, sync_schema
from fairlead.api.lxd.events import lifecycle_of_server
from fairlead.api.lxd.filters import LIST_QUERY, found_by
from fairlead.api.lxd.tokens import operation, url
from fairlead.changes.trust import find_token, revoke_token, valid_tokens

OPERATION = {
    "type": "object",
    "required": ["id", "class", "created_at", "updated_at", "status", "status_code", "metadata", "may_cancel"],
}


def routes(services: Services) -> list[Operation]:
    async def show_all(request: Request) -> Response:
        """List operations by status: unused tokens are `running`. Empty for clients that may not issue tokens."""
        tokens = valid_tokens(services.model.snapshot, services.now()) if identity(request).is_admin else []
        reachable = services.client_endpoint()
        items = ((url(token), partial(operation, token, reachable)) for token in tokens)
        shown = await found_by(request, items)
        return sync({"running": shown} if shown else {})

    async def show(request: Request) -> Response:
        token = find_token(services.model.snapshot, identity(request), request.path_params["id"], services.now())
        return sync(operation(token, services.client_endpoint()))

    async def cancel(request: Request) -> Response:
        """Revoke a token."""
        caller, token = identity(request), request.path_params["id"]
        await services.write(lambda snapshot: revoke_token(snapshot, caller, token, services.now()))
        lifecycle_of_server(request, "operation-cancelled", f"/1.0/operations/{token}")
        return sync()

    shown = sync_schema({"type": "object"})
    return [
        Operation("GET", "/operations", show_all, gives={200: shown}, query=LIST_QUERY),
        Operation("GET", "/operations/{id}", show, gives={200: sync_schema(OPERATION)}),
        Operation("DELETE", "/operations/{id}", cancel, gives={200: EMPTY}),
    ]
