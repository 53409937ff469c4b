"""`GET /1.0`: what the server is, and what clients may ask of it. Clients look for the extensions before they call."""

from starlette.requests import Request
from starlette.responses import Response

from fairlead import __version__
from fairlead.api.door import Services, identity
from fairlead.api.lxd.envelope import gives, sync
from fairlead.api.openapi import TEXT, TEXTS, Operation

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
    "event_lifecycle",
    "network_load_balancer_health_check",
    "network_load_balancer_state",
    "explicit_trust_token",
)
"""By which clients know what can be had (doc/api-extensions.md of LXD and of Incus). Not
`storage_and_network_operations`: with it newer clients expect operations that end later, and here all is done when it
is answered."""
INFO = {
    "type": "object",
    "properties": {"api_extensions": TEXTS, "auth": TEXT, "config": {"type": "object"}},
    "required": ["api_extensions", "api_status", "api_version", "auth", "auth_methods", "public"],
}


def routes(services: Services) -> list[Operation]:
    async def show(request: Request) -> Response:
        """What this server is. Strangers are told no more than what they need to be trusted."""
        public = {
            "api_extensions": EXTENSIONS,
            "api_status": "stable",
            "api_version": "1.0",
            "auth": "trusted" if identity(request).roles else "untrusted",
            "public": False,
            "auth_methods": ["tls"],
        }
        return sync(public | _private() if identity(request).roles else public)

    def _private() -> dict[str, object]:
        environment = {"server": "fairlead", "server_version": __version__, "server_clustered": False}
        return {"config": {}, "environment": environment}

    return [Operation("GET", "/", show, gives={200: gives(INFO)}, admits=lambda _: None)]
