"""Minimal Identity API v3, for deployments without Keystone.

Before the OpenStack client changes a project's quota it looks up the project, and it finds the Identity API below its
one configured endpoint. Every name is a valid project, and the id equals the name.
"""

from collections.abc import Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response
from fairlead.changes.identity import Identity
from fairlead.model.snapshot import Snapshot

VERSION = "/v3"


def version_document(root: str) -> JsonObject:
    """Return the version list that clients look for at an endpoint."""
    version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": f"{root}{VERSION}/"}]}
    return {"versions": {"values": [version]}}


def identity_routes(services: Services) -> list[BaseRoute]:
    """Return the routes. Older clients request `/projects` without a version."""

    async def show(request: Request) -> Response:
        return json_response({"project": _encode(request.path_params["name"])})

    async def list_all(request: Request) -> Response:
        """List projects; a requested name exists even if it has no objects."""
        wanted = request.query_params.getlist("name")
        listed = wanted or known_projects(services.model.snapshot, identity(request))
        return json_response({"projects": [_encode(name) for name in listed], "links": {"next": None}})

    return [
        Route(f"{VERSION}/projects", list_all),
        Route(f"{VERSION}/projects/{{name}}", show),
        Route("/projects/{name}", show),
    ]


def known_projects(snapshot: Snapshot, caller: Identity) -> list[str]:
    """Return the caller's project, and those with objects or a quota that the caller may see."""
    names: Iterable[str] = {project for project, _ in snapshot.usage} | set(snapshot.quotas) | {caller.project_id}
    return sorted(name for name in names if name and caller.may_see(name))


def _encode(name: str) -> JsonObject:
    return {"id": name, "name": name, "enabled": True, "domain_id": "default"}
