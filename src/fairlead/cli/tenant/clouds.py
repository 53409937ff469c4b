"""Endpoints and credentials, configured as for the `openstack` command: clouds.yaml and OS_* variables.

Variables override clouds.yaml, as in that command, where they are the defaults of its options.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlead.cli.tenant.keystone import AUTH_PLUGINS, KEYS, EndpointNotFound, log_in
from fairlead.http.server_client import ApiClient, is_url

DEFAULT_PATHS = {"load_balancer": "load-balancer", "network": "network"}
"""Service name in clients -> default path below the endpoint."""
AUTH_TYPES = ("none", "http_basic", *AUTH_PLUGINS)
NAMES = ("clouds.yaml", "clouds.yml")
FOLDERS = (Path(), Path("~/.config/openstack"), Path("/etc/openstack"))
"""Search path of openstacksdk, in this order."""
AUTH_KEYS = ("endpoint", "username", "password", *KEYS)
"""Keys below `auth` in clouds.yaml."""
BESIDE = ("cacert", "region_name", "interface")
"""Keys beside `auth`."""


class BadCloud(Exception):
    """The cloud's configuration is not usable; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    endpoints: Mapping[str, str]
    """Service -> URL of its API."""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """Keystone token."""
    ca: str = ""
    """PEM file with CA certificates for the server; "" for the system's."""

    def api_client(self, service: str) -> ApiClient:
        return ApiClient(
            url=self.endpoints[service], user=self.user, password=self.password, token=self.token, ca=self.ca
        )


def find_cloud(name: str, environment: Mapping[str, str]) -> Cloud:
    """Return the named cloud of clouds.yaml, or the one that the variables describe. Logs in at Keystone if it has one.

    Raises BadCloud and ServerError.
    """
    chosen = name or environment.get("OS_CLOUD", "")
    said = _flat(_read_cloud(chosen, environment)) if chosen else {}
    said |= {key: text for key in _keys() if (text := environment.get(f"OS_{key.upper()}", ""))}
    kind = said.get("auth_type") or _default_kind(said)
    if kind not in AUTH_TYPES:
        raise BadCloud(f"auth_type: expected one of {', '.join(AUTH_TYPES)}, got '{kind}'")
    if said.get("verify") in ("False", "false"):
        raise BadCloud(
            "verify: cannot be false, because server certificates are always verified; set cacert to the CA's file"
        )
    ca = str(Path(said["cacert"]).expanduser()) if said.get("cacert") else ""
    if kind in AUTH_PLUGINS:
        return _cloud_of_keystone(said, kind, ca)
    basic = kind == "http_basic"
    return Cloud(
        endpoints={service: _service_url(service, path, said) for service, path in DEFAULT_PATHS.items()},
        user=said.get("username", "") if basic else "",
        password=said.get("password", "") if basic else "",
        ca=ca,
    )


def _default_kind(said: Mapping[str, str]) -> str:
    if said.get("auth_url"):
        return "password"
    return "http_basic" if said.get("username") else "none"


def _cloud_of_keystone(said: Mapping[str, str], kind: str, ca: str) -> Cloud:
    """Take endpoints from Keystone's catalogue, unless overridden. Raises BadCloud and ServerError."""
    if not is_url(said.get("auth_url", "")):
        raise BadCloud(f"auth_url: expected http://HOST:PORT or https://HOST:PORT, got '{said.get('auth_url', '')}'")
    try:
        session = log_in(said, kind, ca)
        doors = {
            service: said.get(f"{service}_endpoint_override", "").rstrip("/") or session.endpoint(path)
            for service, path in DEFAULT_PATHS.items()
        }
    except EndpointNotFound as error:
        raise BadCloud(str(error)) from None
    return Cloud(endpoints=doors, token=session.token, ca=ca)


def _keys() -> Iterator[str]:
    yield from ("auth_type", *AUTH_KEYS, *BESIDE)
    yield from (f"{service}_endpoint_override" for service in DEFAULT_PATHS)


def _service_url(service: str, path: str, said: Mapping[str, str]) -> str:
    """Return the URL of a service without Keystone. Raises BadCloud."""
    endpoint = said.get("endpoint", "").rstrip("/")
    url = said.get(f"{service}_endpoint_override") or (endpoint and f"{endpoint}/{path}")
    if not url:
        raise BadCloud(
            "no server is configured; set OS_CLOUD to a cloud of clouds.yaml, or OS_ENDPOINT=http://HOST:PORT"
        )
    if not is_url(url):
        raise BadCloud(f"endpoint: expected http://HOST:PORT or https://HOST:PORT, got '{url}'")
    return url.rstrip("/")


def _flat(cloud: Mapping[str, Any]) -> dict[str, str]:
    """Flatten a cloud to texts, with the keys below `auth` beside the rest."""
    auth = cloud.get("auth")
    pairs = {**cloud, **(auth if isinstance(auth, dict) else {})}
    return {
        str(key): str(value) for key, value in pairs.items() if not isinstance(value, dict | list) and value is not None
    }


def _read_cloud(name: str, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Read a cloud with its secrets. Raises BadCloud."""
    path = _first(environment)
    found = _read(path).get("clouds")
    clouds = found if isinstance(found, dict) else {}
    if not isinstance(clouds.get(name), dict):
        raise BadCloud(f"{path}: no cloud '{name}'")
    secure = _secure(path).get("clouds")
    more = secure.get(name) if isinstance(secure, dict) else None
    return _merged(clouds[name], more) if isinstance(more, dict) else clouds[name]


def _first(environment: Mapping[str, str]) -> Path:
    """Return the path of clouds.yaml. Raises BadCloud."""
    if said := environment.get("OS_CLIENT_CONFIG_FILE", ""):
        return Path(said)
    places = [folder.expanduser() / name for folder in FOLDERS for name in NAMES]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        raise BadCloud(f"clouds.yaml not found; searched {', '.join(map(str, places))}")
    return found


def _secure(path: Path) -> Mapping[str, Any]:
    """Read secure.yaml beside it, which holds secrets."""
    beside = path.with_name(f"secure{path.suffix}")
    return _read(beside) if beside.exists() else {}


def _read(path: Path) -> Mapping[str, Any]:
    """Parse a YAML file. Raises BadCloud."""
    import yaml

    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadCloud(f"{path}: {error}") from None
    return read if isinstance(read, dict) else {}


def _merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    """Merge maps recursively; other values are replaced."""
    both: Callable[[Any, Any], Any] = lambda old, new: _merged(old, new) if isinstance(old, dict) else new  # noqa: E731
    return {**base, **{key: both(base.get(key), value) for key, value in more.items()}}
