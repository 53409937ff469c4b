"""OpenAPI documents of the API front ends: every route, every attribute, and readable by a generic client.

`harness.openapi_validation` checks in every other API test that responses match the documents.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, WebSocketRoute

from fairlead.api import lxd, network, octavia, plugin
from fairlead.api.agents import routes as agent_routes
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.api.http.openapi import Operation, operations
from fairlead.api.network.networks import NETWORKS
from fairlead.api.network.ports import PORTS
from fairlead.api.network.routers import ROUTERS
from fairlead.api.network.subnets import SUBNETS
from fairlead.api.octavia import catalog, specs
from fairlead.api.octavia.quotas import QUOTA_PUT
from fairlead.api.operator import routes as operator_routes
from fairlead.model.documents import sizes
from harness.api import InProcessServer, play
from harness.openapi_validation import ResponseValidator
from harness.served import make_application

DOORS = ("network", "load-balancer", "operator", "agent", "1.0", "plugin")

ALIASES = {octavia.MACHINES_ALIAS: octavia.MACHINES, **dict.fromkeys(octavia.ALIASES, octavia.PREFIX)}


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Starlette, dict[str, Any]]]:
    """Return each API front end, and the document that it serves without authentication."""
    found: dict[str, tuple[Starlette, dict[str, Any]]] = {}

    async def story(place: InProcessServer) -> None:
        services, whole = make_application(place, authenticate_as_admin)
        made = (
            network.make_front_end(services),
            octavia.make_front_end(services),
            operator_routes.make_front_end(services, place.reconciler),
            agent_routes.make_front_end(services),
            lxd.make_front_end(services),
            plugin.make_front_end(services),
        )
        transport = httpx.ASGITransport(app=whole)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for name, door in zip(DOORS, made, strict=True):
                found[name] = (door, (await client.get(f"/{name}/openapi.json")).json())

    play(octavia.make_front_end, tmp_path_factory.mktemp("doors"), story)
    return found


def leaves(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, BaseRoute]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from leaves(route.routes, prefix + route.path)
        else:
            yield prefix, route


@pytest.mark.parametrize("name", DOORS)
def test_every_route_is_in_the_document(doors, name: str):
    door, document = doors[name]
    assert document["servers"] == [{"url": f"http://host/{name}"}]
    for prefix, route in leaves(door.routes):
        if isinstance(route, WebSocketRoute):
            assert "get" in document["paths"][route.path], "who asks for no websocket is told so"
            continue
        assert isinstance(route, Operation), f"{prefix}{route} is not declared"
    for path, operation in operations(door.routes):
        shown = path.rstrip("/") or "/"
        for alias, prefix in ALIASES.items():
            shown = shown if shown in document["paths"] else path.replace(alias, prefix, 1)
        known = document["paths"].get(shown, document["paths"].get("/v2.0"))  # a version, under an alias
        assert operation.method.lower() in known, f"{operation.method} {path} is not in the document"


@pytest.mark.parametrize("name", DOORS)
def test_openapi_document_and_its_schemas_are_valid(doors, name: str):
    _, document = doors[name]
    assert document["openapi"].startswith("3.1")
    for path, item in document["paths"].items():
        for method, operation in item.items():
            named = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path
            assert operation["responses"], (method, path)
            bodies = [*operation["responses"].values(), operation.get("requestBody", {})]
            for content in (body["content"]["application/json"] for body in bodies if "content" in body):
                jsonschema_rs.meta.validate({**content["schema"], "components": document["components"]})


@pytest.mark.parametrize("collection", [NETWORKS, SUBNETS, PORTS, ROUTERS], ids=lambda found: found.plural)
def test_network_attributes_are_in_the_openapi_document(doors, collection):
    document = doors["network"][1]["paths"]
    path, root = f"/v2.0/{collection.plural}", collection.singular

    def attributes(method: str, path: str, *keys: str) -> set[str]:
        found = document[path][method]
        for key in (*keys, "content", "application/json", "schema"):
            found = found[key]
        return set(found.get("oneOf", [found])[0]["properties"][root]["properties"])

    known = collection.attributes
    assert attributes("post", path, "requestBody") == {name for name in known if known[name].post}
    assert attributes("put", path + "/{id}", "requestBody") == {name for name in known if known[name].put}
    assert attributes("get", path + "/{id}", "responses", "200") == {name for name in known if known[name].in_responses}


@pytest.mark.parametrize(
    ("method", "path", "root", "spec"),
    [
        ("post", "/loadbalancers", "loadbalancer", specs.LOAD_BALANCER_POST),
        ("put", "/loadbalancers/{id}", "loadbalancer", specs.LOAD_BALANCER_PUT),
        ("post", "/listeners", "listener", specs.LISTENER_POST),
        ("put", "/listeners/{id}", "listener", specs.LISTENER_PUT),
        ("post", "/pools", "pool", specs.POOL_POST),
        ("put", "/pools/{id}", "pool", specs.POOL_PUT),
        ("post", "/pools/{pool_id}/members", "member", specs.MEMBER_POST),
        ("put", "/pools/{pool_id}/members/{id}", "member", specs.MEMBER_PUT),
        ("put", "/quotas/{project_id}", "quota", QUOTA_PUT),
        ("post", "/flavors", "flavor", catalog.offer_post(catalog.FLAVORS)),
        ("put", "/flavorprofiles/{id}", "flavorprofile", catalog.profile_put(catalog.FLAVORS)),
        ("put", "/availabilityzones/{name}", "availability_zone", catalog.offer_put(catalog.ZONES)),
        ("post", "/availabilityzoneprofiles", "availability_zone_profile", catalog.profile_post(catalog.ZONES)),
        ("post", "/healthmonitors", "healthmonitor", specs.HEALTH_MONITOR_POST),
        ("put", "/healthmonitors/{id}", "healthmonitor", specs.HEALTH_MONITOR_PUT),
        ("post", "/l7policies", "l7policy", specs.L7_POLICY_POST),
        ("put", "/l7policies/{id}", "l7policy", specs.L7_POLICY_PUT),
        ("post", "/l7policies/{l7policy_id}/rules", "rule", specs.L7_RULE_POST),
        ("put", "/l7policies/{l7policy_id}/rules/{id}", "rule", specs.L7_RULE_PUT),
    ],
)
def test_load_balancer_attributes_are_in_the_openapi_document(doors, method, path, root, spec):
    body = doors["load-balancer"][1]["paths"][f"{octavia.PREFIX}{path}"][method]["requestBody"]
    assert set(body["content"]["application/json"]["schema"]["properties"][root]["properties"]) == set(spec)


def test_openapi_document_states_enforced_limits(doors):
    body = doors["load-balancer"][1]["paths"][f"{octavia.PREFIX}/loadbalancers"]["post"]["requestBody"]
    tree = body["content"]["application/json"]["schema"]["properties"]["loadbalancer"]["properties"]
    listeners = tree["listeners"]["anyOf"][0]
    assert listeners["maxItems"] == sizes.MAX_LISTENERS
    assert listeners["items"]["properties"]["protocol_port"] == {"type": "integer", "minimum": 1, "maximum": 65535}
    pool = listeners["items"]["properties"]["default_pool"]["anyOf"][0]["properties"]
    assert pool["members"]["anyOf"][0]["maxItems"] == sizes.MAX_MEMBERS


def test_undocumented_response_fails_the_document_check(doors):
    door, document = doors["load-balancer"]
    documented = ResponseValidator(door, document["components"])
    path = "/v2.0/lbaas/providers"
    documented.check("GET", path, 200, b'{"providers": []}')
    for status, body in ((200, b'{"providers": 1}'), (200, b'{"providers": [], "x": 1}'), (418, b"{}"), (404, b"{}")):
        with pytest.raises(AssertionError):
            documented.check("GET", path, status, body)


def test_openapi_document_needs_no_authentication(tmp_path: Path):
    """OpenAPI documents need no authentication; the state of the server does."""

    async def nobody(_: object) -> None:
        return None

    async def story(place: InProcessServer) -> None:
        for authenticate, expected in ((nobody, [200, 401]), (authenticate_as_admin, [200, 200])):
            _, whole = make_application(place, authenticate)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=whole), base_url="http://host") as client:
                paths = ("/operator/openapi.json", "/operator/statistics")
                assert [(await client.get(path)).status_code for path in paths] == expected

    play(octavia.make_front_end, tmp_path, story)
