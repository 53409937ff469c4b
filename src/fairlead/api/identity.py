"""What clients ask Keystone, as far as they cannot do without (Identity API v3). There is no Keystone here.

Before the stock client says anything about a project's quota it looks for the project, and it finds the Identity API
below the one endpoint that it has been given. A project is whatever is called so, and its name is its id.
"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from fairlead.api.door import JsonObject, Services, identity, json_response
from fairlead.changes.identity import Identity
from fairlead.model.snapshot import Snapshot

VERSION = "/v3"


def version_document(root: str) -> JsonObject:
    """Where the API is, in the list of versions that clients look for below an endpoint."""
    version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": f"{root}{VERSION}/"}]}
    return {"versions": {"values": [version]}}


def identity_routes(services: Services) -> list[BaseRoute]:
    """`/projects` without a version is what older clients ask for."""

    async def show(request: Request) -> Response:
        return json_response({"project": _encode(request.path_params["name"])})

    async def list_all(request: Request) -> Response:
        """A name that nobody has used yet is a project too."""
        wanted = request.query_params.getlist("name")
        listed = wanted or known_projects(services.model.snapshot, identity(request))
        return json_response({"projects": [_encode(name) for name in listed], "links": {"next": None}})

    return [
        Route(f"{VERSION}/projects", list_all),
        Route(f"{VERSION}/projects/{{name}}", show),
        Route("/projects/{name}", show),
    ]


def known_projects(snapshot: Snapshot, caller: Identity) -> list[str]:
    """Those that have anything, or a quota of their own, and that the caller may see; and the caller's own."""
    names: Iterable[str] = {project for project, _ in snapshot.usage} | set(snapshot.quotas) | {caller.project_id}
    return sorted(name for name in names if name and caller.may_see(name))


def _encode(name: str) -> JsonObject:
    return {"id": name, "name": name, "enabled": True, "domain_id": "default"}
