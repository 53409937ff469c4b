"""Keystone requests of a command, and endpoints of its catalogue. Tests with a real one are in tests/keystone."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from fairlead.cli.tenant.clouds import BadCloud, Cloud, find_cloud
from fairlead.http.server_client import ServerError

ANN_CREDENTIALS = {"OS_USERNAME": "ann", "OS_PASSWORD": "secret"}
IN_SHOP = {**ANN_CREDENTIALS, "OS_PROJECT_NAME": "shop"}
DEFAULT = {"id": "default"}


def entry(kind: str, *endpoints: tuple[str, str, str]) -> dict[str, Any]:
    keys = ("interface", "region_id", "url")
    return {"type": kind, "endpoints": [dict(zip(keys, endpoint, strict=True)) for endpoint in endpoints]}


CATALOG = [
    entry("identity", ("public", "one", "https://id.example:5000/v3")),
    entry(
        "network",
        ("internal", "one", "http://n-internal"),
        ("public", "one", "http://n1/"),
        ("public", "two", "http://n2"),
    ),
    entry(
        "load-balancer",
        ("internal", "one", "http://l-internal"),
        ("public", "one", "http://l1"),
        ("public", "two", "http://l2"),
    ),
]


class FakeKeystone:
    """Server with prepared responses to logins, which records requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.token = "t"
        self.answer: Any = {"token": {"catalog": CATALOG}}
        played = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                played.asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(201)
                if played.token:
                    self.send_header("X-Subject-Token", played.token)
                self.end_headers()
                self.wfile.write(json.dumps(played.answer).encode())

            def log_message(self, *_: object) -> None:
                """Drop the log."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.here = {"OS_AUTH_URL": f"http://127.0.0.1:{self.server.server_port}"}
        self.ann = {**self.here, "OS_USERNAME": "ann", "OS_PASSWORD": "secret"}
        self.in_shop = {**self.ann, "OS_PROJECT_NAME": "shop"}


@pytest.fixture
def played() -> Iterator[FakeKeystone]:
    played = FakeKeystone()
    thread = threading.Thread(target=played.server.serve_forever, args=(0.01,))
    thread.start()
    yield played
    played.server.shutdown()
    played.server.server_close()
    thread.join()


def identity(**user: object) -> dict[str, object]:
    return {"methods": ["password"], "password": {"user": {**user, "password": "secret"}}}


ANN = identity(name="ann", domain=DEFAULT)
REQUESTS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "names": (IN_SHOP, {"identity": ANN, "scope": {"project": {"name": "shop", "domain": DEFAULT}}}),
    "domains": (
        {**IN_SHOP, "OS_USER_DOMAIN_NAME": "People", "OS_PROJECT_DOMAIN_ID": "d1"},
        {
            "identity": identity(name="ann", domain={"name": "People"}),
            "scope": {"project": {"name": "shop", "domain": {"id": "d1"}}},
        },
    ),
    "ids": (
        {**ANN_CREDENTIALS, "OS_USER_ID": "u1", "OS_PROJECT_ID": "p1"},
        {"identity": identity(id="u1"), "scope": {"project": {"id": "p1"}}},
    ),
    "system": ({**ANN_CREDENTIALS, "OS_SYSTEM_SCOPE": "all"}, {"identity": ANN, "scope": {"system": {"all": True}}}),
    "credential": (
        {
            "OS_AUTH_TYPE": "v3applicationcredential",
            "OS_APPLICATION_CREDENTIAL_ID": "c1",
            "OS_APPLICATION_CREDENTIAL_SECRET": "s",
        },
        {"identity": {"methods": ["application_credential"], "application_credential": {"id": "c1", "secret": "s"}}},
    ),
    "credential by name": (
        {
            **ANN_CREDENTIALS,
            "OS_AUTH_TYPE": "v3applicationcredential",
            "OS_APPLICATION_CREDENTIAL_NAME": "c",
            "OS_APPLICATION_CREDENTIAL_SECRET": "s",
        },
        {
            "identity": {
                "methods": ["application_credential"],
                "application_credential": {"name": "c", "user": {"name": "ann", "domain": DEFAULT}, "secret": "s"},
            }
        },
    ),
}


@pytest.mark.parametrize(("said", "request_body"), REQUESTS.values(), ids=REQUESTS)
def test_keystone_request_follows_the_given_credentials(
    played: FakeKeystone, said: dict[str, str], request_body: dict[str, Any]
):
    found = find_cloud("", {**played.here, **said})
    assert played.asked == [("/v3/auth/tokens", {"auth": request_body})]
    assert found.token == "t"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("more", "doors"),
    [
        ({}, ("http://n1", "http://l1")),
        ({"OS_REGION_NAME": "two"}, ("http://n2", "http://l2")),
        ({"OS_INTERFACE": "internal"}, ("http://n-internal", "http://l-internal")),
        ({"OS_INTERFACE": "publicURL", "OS_NETWORK_ENDPOINT_OVERRIDE": "http://own/"}, ("http://own", "http://l1")),
        ({"OS_AUTH_TYPE": "v3password"}, ("http://n1", "http://l1")),
    ],
)
def test_endpoints_are_read_from_the_catalogue(played: FakeKeystone, more: dict[str, str], doors: tuple[str, str]):
    found = find_cloud("", {**played.in_shop, **more})
    assert found == Cloud(endpoints=dict(zip(("network", "load_balancer"), doors, strict=True)), token="t")
    assert found.api_client("network").token == "t"


def test_missing_endpoint_is_named(played: FakeKeystone):
    with pytest.raises(BadCloud, match="no public endpoint of load-balancer in region three"):
        find_cloud("", {**played.in_shop, "OS_REGION_NAME": "three"})


@pytest.mark.parametrize("answer", [{}, [], {"token": {}}, {"token": 1}, None])
def test_server_that_is_no_keystone_is_an_error(played: FakeKeystone, answer: object):
    played.answer = answer
    with pytest.raises(ServerError, match="it is not Keystone's"):
        find_cloud("", played.in_shop)
    played.answer, played.token = {"token": {"catalog": []}}, ""
    with pytest.raises(ServerError, match="it is not Keystone's"):
        find_cloud("", played.in_shop)


@pytest.mark.parametrize("end", ["/v3", "/v3/", "/"])
def test_keystone_url_may_contain_the_version(played: FakeKeystone, end: str):
    find_cloud("", {**played.in_shop, "OS_AUTH_URL": played.here["OS_AUTH_URL"] + end})
    assert played.asked[0][0] == "/v3/auth/tokens"
