"""Who calls, and for which project: LXD's clients name it in the query, and mean `default` without."""

from dataclasses import replace
from urllib.parse import quote, quote_plus

from starlette.requests import HTTPConnection

from fairlead.api.door import ApiError, JsonObject, Services, identity
from fairlead.api.lxd.config_texts import TRUE
from fairlead.api.lxd.errors import forbidden, not_found
from fairlead.changes.identity import DEFAULT_PROJECT, LONGEST_PROJECT, Identity
from fairlead.changes.projects import is_project
from fairlead.model.snapshot import EVERYBODY, Snapshot

ALL_PROJECTS = "all-projects"
"""In a query."""
READS = frozenset({"GET", "HEAD"})


def services_of(request: HTTPConnection) -> Services:
    """What is behind this door."""
    services: Services = request.app.state.services
    return services


def check_trusted(caller: Identity) -> None:
    """Raises ApiError 403 for who has shown nothing that is known here."""
    if not caller.roles:
        raise forbidden()


def caller_of(request: HTTPConnection) -> Identity:
    """Who calls, as somebody of the project that the request names. Raises ApiError: 403 when that is not for them to
    name, 404 when there is no such project.

    Who is not restricted is an administrator (`is_admin`), and may see and change what any project has: a handler looks
    only for what is the project's (`project_id`).
    """
    caller = identity(request)
    asked = named_project(request)
    if not may_name(caller, asked):
        text = f'User does not have permissions for project "{asked[:LONGEST_PROJECT]}"'
        raise ApiError(403, text)
    caller = replace(caller, project_id=asked)
    if not (caller.may_see if request.scope["method"] in READS else caller.may_change)(asked):
        raise forbidden()
    if not is_project(services_of(request).model.snapshot, asked):
        raise not_found("Project")
    return caller


def named_project(request: HTTPConnection) -> str:
    """Whether or not it is there."""
    return request.query_params.get("project") or identity(request).project_id


def may_name(caller: Identity, project: str) -> bool:
    return caller.is_admin or project == caller.project_id or project in caller.projects


def sees(caller: Identity, project: str) -> bool:
    """Whether what is the project's may be shown to the caller, whichever project they have named."""
    return caller.may_see(project) or project in caller.projects


def projects_asked(request: HTTPConnection, snapshot: Snapshot, caller: Identity) -> list[str]:
    """The project that the request names; or all with networks that the caller may see."""
    if request.query_params.get(ALL_PROJECTS, "").lower() not in TRUE:
        return [caller.project_id]
    found = {*snapshot.project_networks, DEFAULT_PROJECT, caller.project_id} - {EVERYBODY}
    return sorted(each for each in found if sees(caller, each))


def requestor(request: HTTPConnection) -> JsonObject:
    """Who calls, as events say it (LXD's EventLifecycleRequestor)."""
    address = request.client.host if request.client else ""
    protocol = "unix" if address.startswith("uid ") else "tls" if request.url.scheme in ("https", "wss") else "http"
    return {
        "username": identity(request).user,
        "protocol": protocol,
        "address": "@" if protocol == "unix" else address,
    }


def in_project(path: str, project: str) -> str:
    """A URL as LXD writes it: `default` goes without saying."""
    return path if project == DEFAULT_PROJECT else f"{path}?project={quote_plus(project)}"


def in_path(name: str) -> str:
    """Percent-encodes a name for use as one segment of a URL path (RFC 3986, section 3.3)."""
    return quote(name, safe=":@=")
