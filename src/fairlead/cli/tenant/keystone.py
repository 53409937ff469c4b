"""Login at Keystone and catalogue lookup, as in `openstack` (Identity API v3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.http.server_client import ApiClient, ServerError

AUTH_PLUGINS = ("password", "v3password", "v3applicationcredential")
"""Names of keystoneauth's plugins that are supported."""
CREDENTIAL = ("application_credential_id", "application_credential_name", "application_credential_secret")
SCOPES = ("project_id", "project_name", "project_domain_id", "project_domain_name", "system_scope")
KEYS = ("auth_url", "user_id", "user_domain_id", "user_domain_name", *SCOPES, *CREDENTIAL)


class EndpointNotFound(Exception):
    """The catalogue has no endpoint of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    token: str = field(repr=False)
    catalog: Sequence[Any]
    interface: str
    region: str
    """Region; empty for any."""

    def endpoint(self, service: str) -> str:
        """Return the URL of a service type, without a trailing slash. Raises NotFound."""
        for each in self.catalog:
            if each.get("type") == service:
                for endpoint in each.get("endpoints", ()):
                    where = endpoint.get("interface"), self.region or endpoint.get("region_id")
                    if where == (self.interface, endpoint.get("region_id")):
                        return str(endpoint["url"]).rstrip("/")
        region = f" in region {self.region}" if self.region else ""
        raise EndpointNotFound(f"Keystone's catalogue has no {self.interface} endpoint of {service}{region}")


def log_in(said: Mapping[str, str], kind: str, ca: str) -> Session:
    """Log in. `said` has the keys of clouds.yaml. Raises ServerError."""
    keystone = ApiClient(url=f"{said['auth_url'].rstrip('/').removesuffix('/v3')}/v3", ca=ca)
    headers, answer = keystone.exchange("POST", "/auth/tokens", {"auth": _request(said, kind)})
    match answer, headers.get("X-Subject-Token", ""):
        case {"token": {"catalog": list(catalog)}}, str(token) if token:
            pass
        case _:
            raise ServerError(f"auth_url: {said['auth_url']}: the response has no token, so it is not Keystone's")
    return Session(
        token=token,
        catalog=catalog,
        interface=said.get("interface", "public").removesuffix("URL"),
        region=said.get("region_name", ""),
    )


def _request(said: Mapping[str, str], kind: str) -> dict[str, Any]:
    user = _named(said, "user", said.get("username", ""), said.get("user_id", ""))
    if kind == "v3applicationcredential":
        secret = {"secret": said.get("application_credential_secret", "")}
        if identity := said.get("application_credential_id"):
            credential: dict[str, Any] = {"id": identity, **secret}
        else:
            credential = {"name": said.get("application_credential_name", ""), "user": user, **secret}
        return {"identity": {"methods": ["application_credential"], "application_credential": credential}}
    password = {"user": {**user, "password": said.get("password", "")}}
    request: dict[str, Any] = {"identity": {"methods": ["password"], "password": password}}
    if said.get("system_scope"):
        return {**request, "scope": {"system": {"all": True}}}
    return {
        **request,
        "scope": {"project": _named(said, "project", said.get("project_name", ""), said.get("project_id", ""))},
    }


def _named(said: Mapping[str, str], what: str, name: str, identity: str) -> dict[str, Any]:
    """Identify by id, or by name within a domain; the default domain is `default`."""
    if identity:
        return {"id": identity}
    domain = said.get(f"{what}_domain_name")
    return {"name": name, "domain": {"name": domain} if domain else {"id": said.get(f"{what}_domain_id", "default")}}
