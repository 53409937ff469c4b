"""The parts of Keystone and Barbican that tempest uses, in memory, in front of a Fairlead server.

Tempest creates a project and a user for each role of a test, and calls each service with a token. Fairlead has the
users of its password file. So the file has a user for each possible project and each set of roles in the tests
(`write_password_file`), projects are allocated from that stock, and a request with a token is forwarded to Fairlead as
the user of its project and its roles. Only Fairlead decides on authorization.
"""

import base64
import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PASSWORD = "tempest"
PROJECTS = [uuid.uuid5(uuid.NAMESPACE_DNS, f"project-{number}").hex for number in range(400)]
"""More than the tests create: none is allocated twice."""
NO_RELEVANT_ROLE = frozenset({"load-balancer_quota_admin"})
"""Role of a user without relevant roles, because a password file requires one; no test uses quotas."""
KEYSTONE_ROLES = frozenset({"admin", "member", "reader"})
OCTAVIA_ROLES = frozenset(f"load-balancer_{name}" for name in ("admin", "member", "observer", "global_observer"))
ROLE_SETS = [*map(frozenset, ([role] for role in sorted(KEYSTONE_ROLES | OCTAVIA_ROLES))), NO_RELEVANT_ROLE]
"""Users in the tests have at most one role of a family, except administrators, whose `admin` suffices."""
SERVICES = {"load-balancer": "/load-balancer", "network": "/network"}
DOMAIN = {"id": "default", "name": "Default"}
TOKEN_EXPIRY = "2999-12-31T00:00:00.000000Z"
DROPPED_HEADERS = {"host", "x-auth-token", "content-length", "connection", "accept-encoding"}


def write_password_file(path: Path) -> None:
    right = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    path.touch(mode=0o600)
    path.write_text(
        "".join(
            f"{user_name(project, roles)}:{right}:{project}:{','.join(sorted(roles))}\n"
            for project, roles in itertools.product(PROJECTS, ROLE_SETS)
        )
    )


def user_name(project: str, roles: frozenset[str]) -> str:
    return f"{project}.{ROLE_SETS.index(roles)}"


def basic(project: str, roles: frozenset[str]) -> str:
    """Authorization header of a user of Fairlead."""
    credentials = f"{user_name(project, roles)}:{PASSWORD}"
    return "Basic " + base64.b64encode(credentials.encode()).decode()


ADMINISTRATOR = {"authorization": basic(PROJECTS[0], frozenset({"admin"}))}


@dataclass
class StandInKeystone:
    """The stand-in. It starts with the administrator `admin` of the project `admin`; tests create all others."""

    fairlead: str
    """Address of the server."""
    address: str
    """Own address, for the catalogue."""
    octavia: str = ""
    """Address of a real Octavia that gets the load-balancer requests instead."""
    counted_roles: frozenset[str] = KEYSTONE_ROLES
    """Roles relevant for load balancers: Keystone's, or Octavia's older ones. For networks they are Keystone's."""
    unused_projects: list[str] = field(default_factory=lambda: list(reversed(PROJECTS)))
    projects: dict[str, dict[str, Any]] = field(default_factory=dict)
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    roles: dict[str, dict[str, Any]] = field(default_factory=dict)
    assigned: set[tuple[str, str, str]] = field(default_factory=set)
    """(project, user, role)"""
    tokens: dict[str, tuple[str, str]] = field(default_factory=dict)
    """(project, user) of each token."""

    def __post_init__(self) -> None:
        for role in sorted(KEYSTONE_ROLES | OCTAVIA_ROLES):
            self.add_role({"name": role})
        project = self.add_project({"name": "admin"})["id"]
        user = self.add_user({"name": "admin", "password": PASSWORD})["id"]
        self.assigned.add((project, user, self._find_by_name(self.roles, "admin")))

    def add_project(self, body: Mapping[str, Any]) -> dict[str, Any]:
        made = {"enabled": True, "domain_id": DOMAIN["id"], **body, "id": self.unused_projects.pop()}
        self.projects[made["id"]] = made
        return made

    def add_user(self, body: Mapping[str, Any]) -> dict[str, Any]:
        made = {"enabled": True, "domain_id": DOMAIN["id"], **body, "id": uuid.uuid4().hex}
        self.users[made["id"]] = made
        return made

    def add_role(self, body: Mapping[str, Any]) -> dict[str, Any]:
        made = {**body, "id": uuid.uuid4().hex}
        self.roles[made["id"]] = made
        return made

    def token(self, auth: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """Issue a token for a password or another token, scoped to a project."""
        identity, scope = auth["identity"], auth["scope"]["project"]
        project = scope.get("id") or self._find_by_name(self.projects, scope["name"])
        if "token" in identity:
            user = self.tokens[identity["token"]["id"]][1]
        else:
            asked = identity["password"]["user"]
            user = asked.get("id") or self._find_by_name(self.users, asked["name"])
            if self.users.get(user, {}).get("password") != asked["password"]:
                return None
        if not self._roles_of(project, user):
            return None
        token = uuid.uuid4().hex
        self.tokens[token] = (project, user)
        return token, {
            "methods": ["password"],
            "user": {"id": user, "name": self.users[user]["name"], "domain": DOMAIN},
            "project": {"id": project, "name": self.projects[project]["name"], "domain": DOMAIN},
            "roles": [self.roles[role] for role in self._roles_of(project, user)],
            "catalog": self._catalog(),
            "issued_at": "2000-01-01T00:00:00.000000Z",
            "expires_at": TOKEN_EXPIRY,
        }

    def assignments(self, project: str, user: str) -> list[dict[str, Any]]:
        return [
            {"role": {"id": role}, "user": {"id": user}, "scope": {"project": {"id": project}}}
            for role in self._roles_of(project, user)
        ]

    def route(self, token: str, path: str) -> tuple[str, dict[str, str]]:
        """Target URL of a request, and the headers that identify the caller."""
        prefix = SERVICES["load-balancer"]
        if not (self.octavia and path.startswith(prefix)):
            return self.fairlead + path, {"authorization": self.authorization(token, path)}
        project, user = self.tokens[token]
        names = (self.roles[role]["name"] for role in self._roles_of(project, user))
        headers = {"x-project-id": project, "x-user-id": user, "x-roles": ",".join(names)}
        return self.octavia + path.removeprefix(prefix), headers

    def authorization(self, token: str, path: str) -> str:
        """Authorization header that replaces the token in requests to Fairlead."""
        project, user = self.tokens[token]
        names = frozenset(self.roles[role]["name"] for role in self._roles_of(project, user))
        counted = self.counted_roles | {"admin"} if path.startswith(SERVICES["load-balancer"]) else KEYSTONE_ROLES
        roles = frozenset({"admin"}) & names or counted & names or NO_RELEVANT_ROLE
        return basic(project, roles)

    def _roles_of(self, project: str, user: str) -> list[str]:
        return sorted(role for where, who, role in self.assigned if (where, who) == (project, user))

    def _find_by_name(self, kind: Mapping[str, Mapping[str, Any]], name: str) -> str:
        return next((key for key, value in kind.items() if value["name"] == name), "")

    def _catalog(self) -> list[dict[str, Any]]:
        found = {"identity": "/v3", "key-manager": "/key-manager", **SERVICES}
        return [
            {
                "id": service,
                "type": service,
                "name": service,
                "endpoints": [
                    {
                        "id": service,
                        "interface": "public",
                        "region": "one",
                        "region_id": "one",
                        "url": self.address + path,
                    }
                ],
            }
            for service, path in found.items()
        ]


def make_app(keystone: StandInKeystone, client: httpx.AsyncClient) -> Starlette:
    async def authenticate(request: Request) -> Response:
        given = keystone.token((await request.json())["auth"])
        if given is None:
            return JSONResponse({"error": {"code": 401, "title": "Unauthorized", "message": "no"}}, 401)
        return JSONResponse({"token": given[1]}, 201, {"X-Subject-Token": given[0]})

    async def domains(_: Request) -> Response:
        return JSONResponse({"domains": [{**DOMAIN, "enabled": True}]})

    async def create(request: Request) -> Response:
        [(kind, body)] = (await request.json()).items()
        add = {"project": keystone.add_project, "user": keystone.add_user, "role": keystone.add_role}[kind]
        return JSONResponse({kind: add(body)}, 201)

    def kind(request: Request) -> tuple[str, dict[str, dict[str, Any]]]:
        plural = request.url.path.split("/")[2]
        return plural, {"projects": keystone.projects, "users": keystone.users, "roles": keystone.roles}[plural]

    async def index(request: Request) -> Response:
        plural, things = kind(request)
        name = request.query_params.get("name")
        return JSONResponse({plural: [thing for thing in things.values() if name in (None, thing["name"])]})

    async def show(request: Request) -> Response:
        plural, things = kind(request)
        return JSONResponse({plural.removesuffix("s"): things[request.path_params["id"]]})

    async def delete(request: Request) -> Response:
        gone = request.path_params["id"]
        del kind(request)[1][gone]
        keystone.assigned = {held for held in keystone.assigned if gone not in held}
        return Response(status_code=204)

    async def assign(request: Request) -> Response:
        keystone.assigned.add(tuple(request.path_params[part] for part in ("project", "user", "role")))
        return Response(status_code=204)

    async def assignments(request: Request) -> Response:
        query = request.query_params
        found = keystone.assignments(query["scope.project.id"], query["user.id"])
        return JSONResponse({"role_assignments": found})

    async def key_manager(_: Request) -> Response:
        links = [{"rel": "self", "href": f"{keystone.address}/key-manager/v1"}]
        version = {"id": "v1", "status": "CURRENT", "min_version": "1.0", "max_version": "1.1", "links": links}
        return JSONResponse({"versions": [version]}, 300)

    async def store_secret(_: Request) -> Response:
        return JSONResponse({"secret_ref": f"{keystone.address}/key-manager/v1/secrets/{uuid.uuid4()}"}, 201)

    async def show_secret(request: Request) -> Response:
        return JSONResponse({"secret_ref": str(request.url), "status": "ACTIVE", "consumers": []})

    async def delete_secret(_: Request) -> Response:
        return Response(status_code=204)

    async def forward(request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in DROPPED_HEADERS}
        address, who = keystone.route(request.headers["x-auth-token"], request.url.path)
        answer = await client.request(
            request.method,
            f"{address}?{request.url.query}",
            headers={**headers, **who},
            content=await request.body(),
        )
        kept = {name: value for name, value in answer.headers.items() if name not in ("content-length", "connection")}
        return Response(answer.content, answer.status_code, kept)

    return Starlette(
        routes=[
            Route("/v3/auth/tokens", authenticate, methods=["POST"]),
            Route("/v3/domains", domains),
            *(Route(path, key_manager) for path in ("/key-manager", "/key-manager/v1", "/key-manager/v1/")),
            Route("/key-manager/v1/secrets/", store_secret, methods=["POST"]),
            Route("/key-manager/v1/secrets/{id}", show_secret),
            Route("/key-manager/v1/secrets/{id}", delete_secret, methods=["DELETE"]),
            Route("/v3/role_assignments", assignments),
            Route("/v3/projects/{project}/users/{user}/roles/{role}", assign, methods=["PUT"]),
            *(
                Route(path, view, methods=[method])
                for plural in ("projects", "users", "roles")
                for path, view, method in (
                    (f"/v3/{plural}", create, "POST"),
                    (f"/v3/{plural}", index, "GET"),
                    (f"/v3/{plural}/{{id}}", show, "GET"),
                    (f"/v3/{plural}/{{id}}", delete, "DELETE"),
                )
            ),
            *(
                Route(prefix + "{rest:path}", forward, methods=["GET", "POST", "PUT", "DELETE"])
                for prefix in SERVICES.values()
            ),
        ]
    )
