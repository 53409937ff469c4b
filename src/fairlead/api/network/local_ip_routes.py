"""Routes of Local IPs and their port associations, under both path spellings that Neutron accepts."""

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import Services, identity
from fairlead.api.http.openapi import FLAG, Operation
from fairlead.api.network import errors, parsers
from fairlead.api.network.handlers import NO_CONTENT, CollectionHandlers, routes_of
from fairlead.api.network.local_ips import LOCAL_IPS
from fairlead.api.network.port_associations import association_routes
from fairlead.changes.local_ips import delete_local_ip
from fairlead.model.documents.local_ip import LocalIP

SPELLINGS = ("/local_ips", "/local-ips")


def local_ip_routes(services: Services) -> list[Operation]:
    views = LocalIPHandlers(services, LOCAL_IPS)
    return [
        route
        for path in SPELLINGS
        for route in (*routes_of(views, path, {"force": FLAG}), *association_routes(services, path))
    ]


class LocalIPHandlers(CollectionHandlers[LocalIP]):
    async def delete(self, request: Request) -> Response:
        """Delete a Local IP; with `force`, also its associations (`local-ip-fairlead`)."""
        caller, force = identity(request), _read_force(request)
        await self._change(
            request, lambda now, local_ip: delete_local_ip(now, caller, local_ip, force=force), verb="delete"
        )
        return Response(status_code=NO_CONTENT)


def _read_force(request: Request) -> bool:
    """Read the query parameter `force`. Raises ApiError 400."""
    try:
        return parsers.boolean(request.query_params.get("force", "false"))
    except ValueError as error:
        raise errors.bad_attribute("force", str(error)) from None
