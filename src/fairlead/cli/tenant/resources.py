"""Objects that a tenant names: found by id or name, shown and changed through the API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from fairlead.http.server_client import ApiClient, ServerError


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceType:
    """Kind of object, with its names in the API."""

    service: str
    path: str
    one: str
    """Key of a single object in a body."""
    many: str
    title: str
    """Name in messages."""
    columns: tuple[str, ...]
    """Columns printed for a person."""
    parts: str = ""
    """Sub-collection that is shown with the object."""
    omitted: Mapping[str, Any] = field(default_factory=dict)
    """Attribute -> default where the API omits it."""


POOL = ResourceType(
    service="load_balancer",
    path="/v2/lbaas/pools",
    one="pool",
    many="pools",
    title="pool",
    columns=(
        "id",
        "name",
        "locality",
        "down_member",
        "protocol",
        "lb_algorithm",
        "provisioning_status",
        "operating_status",
        "loadbalancers",
        "members",
    ),
    omitted={"locality": "NONE", "down_member": "KEEP"},
)
LISTENER = ResourceType(
    service="load_balancer",
    path="/v2/lbaas/listeners",
    one="listener",
    many="listeners",
    title="listener",
    columns=(
        "id",
        "name",
        "raw",
        "protocol",
        "protocol_port",
        "default_pool_id",
        "provisioning_status",
        "operating_status",
        "loadbalancers",
    ),
    omitted={"raw": None},
)
LOCAL_IP = ResourceType(
    service="network",
    path="/v2.0/local_ips",
    one="local_ip",
    many="local_ips",
    title="Local IP",
    columns=(
        "id",
        "name",
        "local_ip_address",
        "network_id",
        "local_port_id",
        "ip_mode",
        "fallback",
        "health_monitor",
        "project_id",
        "port_associations",
    ),
    parts="port_associations",
)


def find(door: ApiClient, sort: ResourceType, wanted: str) -> Mapping[str, Any]:
    """Return the object with this id, or otherwise with this name. Raises ServerError."""
    for key in ("id", "name"):
        found = door.request("GET", f"{sort.path}?{urlencode({key: wanted})}")[sort.many]
        if len(found) > 1:
            ids = ", ".join(each["id"] for each in found)
            raise ServerError(f"{len(found)} objects have the name '{wanted}'; give one of the ids {ids}")
        if found:
            thing: Mapping[str, Any] = found[0]
            return thing
    raise ServerError(f"no {sort.title} '{wanted}'")


def show(door: ApiClient, sort: ResourceType, wanted: str) -> Mapping[str, Any]:
    """Read the object with its child objects (listeners, pools, members). Raises ServerError."""
    return _with_parts(door, sort, find(door, sort, wanted))


def change(door: ApiClient, sort: ResourceType, wanted: str, attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Change an object and return its new state. Raises ServerError."""
    identity = find(door, sort, wanted)["id"]
    changed: Mapping[str, Any] = door.request(
        "PUT", f"{sort.path}/{quote(identity, safe='')}", {sort.one: dict(attributes)}
    )[sort.one]
    return _with_parts(door, sort, changed)


def _with_parts(door: ApiClient, sort: ResourceType, thing: Mapping[str, Any]) -> Mapping[str, Any]:
    if not sort.parts:
        return {**sort.omitted, **thing}
    return {**thing, **door.request("GET", f"{sort.path}/{quote(thing['id'], safe='')}/{sort.parts}")}


def render(sort: ResourceType, thing: Mapping[str, Any]) -> list[str]:
    """Render one line for each column that the API returned."""
    known = [column for column in sort.columns if column in thing]
    width = max(map(len, known), default=0)
    return [f"{column:<{width}}  {_text(thing[column])}".rstrip() for column in known]


def _text(value: Any) -> str:
    match value:
        case None:
            return "none"
        case list():
            return ", ".join(map(_one_of, value))
        case dict():
            return " ".join(f"{key}={_text(each)}" for key, each in value.items())
        case _:
            return str(value)


def _one_of(part: Any) -> str:
    return str(part["id"]) if isinstance(part, dict) and "id" in part else _text(part)
