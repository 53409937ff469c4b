"""Handler of `GET /1.0`: server information and API extensions, which clients check before other requests."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from fairlead import __version__
from fairlead.api.http.front_end import ApiError, JsonObject, Services, identity
from fairlead.api.http.openapi import TEXT, TEXTS, Operation, read_body
from fairlead.api.lxd.bodies import config, struct
from fairlead.api.lxd.caller import requestor
from fairlead.api.lxd.envelope import EMPTY, check_match, etag, sync, sync_schema
from fairlead.api.lxd.errors import forbidden
from fairlead.api.lxd.filters import PROJECT_QUERY
from fairlead.schema import Field

EXTENSIONS = (
    "etag",
    "patch",
    "network",
    "network_types",
    "projects",
    "network_load_balancer",
    "network_forward",
    "network_allocate_external_ips",
    "ovn_internal_load_balancer",
    "network_state",
    "network_allocations",
    "networks_all_projects",
    "event_lifecycle",
    "network_load_balancer_health_check",
    "network_load_balancer_state",
    "explicit_trust_token",
    "certificate_token",
    "certificate_project",
    "certificate_description",
    "certificate_update",
    "project_usage",
)
"""Implemented extensions (doc/api-extensions.md of LXD and of Incus). `storage_and_network_operations` is left out,
because newer clients then expect asynchronous operations, and requests here complete before their response."""
INFO = {
    "type": "object",
    "properties": {"api_extensions": TEXTS, "auth": TEXT, "config": {"type": "object"}},
    "required": ["api_extensions", "api_status", "api_version", "auth", "auth_methods", "public"],
}
PUT = struct({"config": Field(config)})
ADDRESS, EXPIRY = "core.https_address", "core.remote_token_expiry"


def routes(services: Services) -> list[Operation]:
    views = _ServerInfoHandlers(services)
    return [
        Operation("GET", "/", views.show, gives={200: sync_schema(INFO)}, query=PROJECT_QUERY, admits=lambda _: None),
        Operation("PUT", "/", views.change, takes=PUT, gives={200: EMPTY}, fails=[412]),
        Operation("PATCH", "/", views.change, takes=PUT, gives={200: EMPTY}, fails=[412]),
    ]


@dataclass(frozen=True, slots=True)
class _ServerInfoHandlers:
    _services: Services

    async def show(self, request: Request) -> Response:
        """Show server information. Untrusted clients only get the attributes that they need for authentication."""
        caller = identity(request)
        public = {
            "api_extensions": EXTENSIONS,
            "api_status": "stable",
            "api_version": "1.0",
            "auth": "trusted" if caller.roles else "untrusted",
            "public": False,
            "auth_methods": ["tls"],
        }
        if not caller.roles:
            return sync(public)
        asker = requestor(request)
        own = {"auth_user_name": asker["username"], "auth_user_method": asker["protocol"]}
        shown = self._config() if caller.is_admin else {}
        environment = self._environment(request.query_params.get("project") or caller.project_id)
        return sync({**public, **own, "config": shown, "environment": environment}, tag=etag([shown]))

    async def change(self, request: Request) -> Response:
        """Update the server's config. Only the present values are accepted, because the configuration file
        determines them."""
        if not identity(request).is_admin:
            raise forbidden()
        values, shown = await read_body(request), self._config()
        check_match(request, etag([shown]))
        for key, value in values.get("config", {}).items():
            if key not in shown and value:
                raise ApiError(400, f"cannot set '{key}' to '{value}': unknown key")
            if shown.get(key, "") != value:
                raise ApiError(400, f"cannot set '{key}' to '{value}': it is set in the server's configuration")
        return sync()

    def _config(self) -> dict[str, str]:
        reachable = self._services.client_endpoint()
        if reachable is None:
            return {}
        return {ADDRESS: ",".join(reachable.addresses), EXPIRY: f"{reachable.token_seconds}S"}

    def _environment(self, project: str) -> JsonObject:
        reachable = self._services.client_endpoint()
        return {
            "addresses": reachable.addresses if reachable else [],
            "architectures": [],
            "certificate": reachable.certificate if reachable else "",
            "certificate_fingerprint": reachable.fingerprint if reachable else "",
            "project": project,
            "server": "fairlead",
            "server_clustered": False,
            "server_name": "fairlead",
            "server_version": __version__,
        }
