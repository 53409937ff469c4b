"""Caller and project of a request. LXD clients name the project in the query; without one it is `default`."""

from dataclasses import replace
from urllib.parse import quote, quote_plus

from starlette.requests import HTTPConnection

from fairlead.api.http.front_end import ApiError, JsonObject, Services, identity
from fairlead.api.lxd.config_texts import TRUE
from fairlead.api.lxd.errors import forbidden, not_found
from fairlead.changes.identity import DEFAULT_PROJECT, MAX_PROJECT_ID_LENGTH, Identity
from fairlead.changes.projects import is_project
from fairlead.model.snapshot import ANY_PROJECT, Snapshot

ALL_PROJECTS = "all-projects"
"""Query parameter."""
READS = frozenset({"GET", "HEAD"})


def services_of(request: HTTPConnection) -> Services:
    """Return the services of this front end."""
    services: Services = request.app.state.services
    return services


def check_trusted(caller: Identity) -> None:
    """Raise ApiError 403 for an untrusted caller."""
    if not caller.roles:
        raise forbidden()


def caller_of(request: HTTPConnection) -> Identity:
    """Return the caller in the project of the request. Raises ApiError 403 if the caller may not use the project, 404
    if it does not exist.

    An unrestricted caller is an administrator (`is_admin`) and may see and change objects of all projects. A handler
    therefore looks up only objects of the project (`project_id`).
    """
    caller = identity(request)
    asked = named_project(request)
    if not may_name(caller, asked):
        text = f'User does not have permissions for project "{asked[:MAX_PROJECT_ID_LENGTH]}"'
        raise ApiError(403, text)
    caller = replace(caller, project_id=asked)
    if not (caller.may_see if request.scope["method"] in READS else caller.may_change)(asked):
        raise forbidden()
    if not is_project(services_of(request).model.snapshot, asked):
        raise not_found("Project")
    return caller


def named_project(request: HTTPConnection) -> str:
    """Return the project in the request, whether or not it exists."""
    return request.query_params.get("project") or identity(request).project_id


def may_name(caller: Identity, project: str) -> bool:
    return caller.is_admin or project == caller.project_id or project in caller.projects


def sees(caller: Identity, project: str) -> bool:
    """Return whether objects of the project may be shown to the caller, whichever project the request names."""
    return caller.may_see(project) or project in caller.projects


def projects_asked(request: HTTPConnection, snapshot: Snapshot, caller: Identity) -> list[str]:
    """Return the project of the request, or with `all-projects` all projects with networks that the caller may see."""
    if request.query_params.get(ALL_PROJECTS, "").lower() not in TRUE:
        return [caller.project_id]
    found = {*snapshot.project_networks, DEFAULT_PROJECT, caller.project_id} - {ANY_PROJECT}
    return sorted(each for each in found if sees(caller, each))


def requestor(request: HTTPConnection) -> JsonObject:
    """Return the caller in the form of events (LXD's EventLifecycleRequestor)."""
    address = request.client.host if request.client else ""
    protocol = "unix" if address.startswith("uid ") else "tls" if request.url.scheme in ("https", "wss") else "http"
    return {
        "username": identity(request).user,
        "protocol": protocol,
        "address": "@" if protocol == "unix" else address,
    }


def in_project(path: str, project: str) -> str:
    """Return the URL of a path in a project, which LXD omits for `default`."""
    return path if project == DEFAULT_PROJECT else f"{path}?project={quote_plus(project)}"


def in_path(name: str) -> str:
    """Percent-encodes a name for use as one segment of a URL path (RFC 3986, section 3.3)."""
    return quote(name, safe=":@=")
