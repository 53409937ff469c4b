"""Invalid bodies, queries and headers of every kind: an error in the API's own format, never an internal error."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from fairlead.api.http.authentication import HttpBasic, LoginAttempt, authenticate_as_admin
from fairlead.api.http.front_end import MAX_BODY_BYTES, MAX_BODY_DEPTH, MAX_BODY_VALUES, THREADED_BODY_BYTES, read_json
from fairlead.changes.identity import Identity
from fairlead.store.model import REQUEST_PROJECT
from harness.values import FEW_EXAMPLES, JSON, NEARLY_VALID
from harness.whole_application import Caller

NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"
PLACES = {
    f"{NETWORK}/networks": "network",
    f"{NETWORK}/subnets": "subnet",
    f"{NETWORK}/ports": "port",
    f"{NETWORK}/routers": "router",
    f"{BALANCER}/loadbalancers": "loadbalancer",
    f"{BALANCER}/listeners": "listener",
    f"{BALANCER}/pools": "pool",
    f"{BALANCER}/healthmonitors": "healthmonitor",
    f"{BALANCER}/l7policies": "l7policy",
}
FEWER = settings(FEW_EXAMPLES, max_examples=FEW_EXAMPLES.max_examples * 2 // 5)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """Yield a caller with one object of each kind."""
    made = Caller(tmp_path_factory.mktemp("bodies"))
    net = made.make(f"{NETWORK}/networks", "network", name="net", tags=["a"])["id"]
    made.make(f"{NETWORK}/subnets", "subnet", network_id=net, cidr="10.0.0.0/24", ip_version=4)
    made.make(f"{NETWORK}/ports", "port", network_id=net, name="port")
    made.make(f"{NETWORK}/routers", "router", name="router")
    pool = {"name": "pool", "protocol": "TCP", "lb_algorithm": "SOURCE_IP"}
    listener = {"protocol": "TCP", "protocol_port": 80, "default_pool": pool}
    made.make(f"{BALANCER}/loadbalancers", "loadbalancer", vip_network_id=net, listeners=[listener])
    yield made
    made.close()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nul", b"NaN", b'{"a": Infinity}', b"1e400", b"1" * 5000, b"[" * 100_000, b"\xff\xfe", b'"\\ud800"',
        b'"\xed\xa0\x80"', b"{}{}", b"\xef\xbb\xbf{}", b'{"' + b"a" * 10_000 + b'": 1}', b"[" * 500 + b"]" * 500,
        b'{"a":' * 400 + b"1" + b"}" * 400, b"null", b"[]", b'"text"', b"3", b"{}",
    ],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
def test_invalid_json_body_is_rejected(caller: Caller, body: bytes):
    for path in PLACES:
        assert caller.send("POST", path, content=body).status_code == 400


def test_last_of_duplicate_json_names_wins(caller: Caller):
    body = b'{"network": {"name": "first", "name": "second"}}'
    assert caller.send("POST", f"{NETWORK}/networks", content=body).json()["network"]["name"] == "second"


@pytest.mark.parametrize(("path", "root"), PLACES.items())
def test_body_size_and_depth_are_limited(caller: Caller, path: str, root: str):
    large = b'{"x": "' + b"x" * MAX_BODY_BYTES + b'"}'
    assert caller.send("POST", path, content=large).status_code == 413
    deep: Any = "x"
    for _ in range(MAX_BODY_DEPTH):
        deep = [deep]
    answer = caller.send("POST", path, json={root: {"name": deep}})
    assert (answer.status_code, f"more than {MAX_BODY_DEPTH} levels" in answer.text) == (400, True)


@pytest.mark.parametrize("value", ["[]", "{}", "1", '{"a":1}', '"x"'])
def test_number_of_values_in_a_body_is_limited(caller: Caller, value: str):
    """A body with more values is refused before it is parsed, because parsing would take long."""
    some = MAX_BODY_VALUES // (1 + sum(map(value.count, "[{,"))) - 1
    for count, words in ((some, "Body contains invalid data"), (some + 3, f"more than {MAX_BODY_VALUES} values")):
        answer = caller.send("POST", f"{NETWORK}/networks", content=f"[{','.join([value] * count)}]")
        assert (answer.status_code, words in answer.text) == (400, True), (count, answer.text)


NAMES = ("name", "tags", "network_id", "cidr", "fixed_ips", "vip_network_id", "listeners", "protocol", "x", "routes")
VALUES = st.one_of(JSON, NEARLY_VALID)
BODIES = st.one_of(VALUES, st.dictionaries(st.sampled_from(NAMES), VALUES))


@FEWER
@given(body=BODIES, wrapped=st.booleans())
def test_random_body_causes_no_internal_error(caller: Caller, body: Any, wrapped: bool):
    for path, root in PLACES.items():
        caller.send("POST", path, json={root: body} if wrapped else body)


WORDS = ("limit", "marker", "sort", "sort_key", "sort_dir", "page_reverse", "fields", "tags", "not-tags-any", "id")
FILTERS = ("name", "fixed_ips", "network_id", "loadbalancer_id", "admin_state_up", "revision_number", "created_at", "x")
MEANT = st.sampled_from(
    ["name", "asc", "desc", "name:desc", "id", "tags", "members", "1", "True", "ip_address=10.0.0.1"]
)
QUERIES = st.lists(st.tuples(st.sampled_from(WORDS + FILTERS), st.one_of(NEARLY_VALID, st.text(), MEANT)), max_size=4)


@FEWER
@given(query=QUERIES)
def test_random_query_causes_no_internal_error(caller: Caller, query: list[tuple[str, str]]):
    for path in PLACES:
        caller.send("GET", path, params=query)


@pytest.mark.parametrize(
    "query", ["%", "%ff", "%ed%a0%80=1", "&&&=", "limit=%00", "limit=" + "9" * 5000, "?", "a" * 5000, "sort=:::,,"]
)
def test_malformed_query_causes_no_internal_error(caller: Caller, query: str):
    for path in PLACES:
        caller.send("GET", f"{path}?{query}")


def test_path_with_a_line_break_returns_404(caller: Caller):
    for path in PLACES:
        answer = caller.send("GET", f"{path}/a%0Ab")
        assert answer.status_code == 404


@FEWER
@given(
    name=st.sampled_from(["x-project-id", "authorization", "origin", "content-length", "content-type", "if-match"]),
    value=st.one_of(
        st.binary(max_size=60),
        st.text(st.characters(max_codepoint=255)).map(lambda text: text.encode("latin-1")),
        st.sampled_from(
            [b"http://[", b"http://[::1]:x", b"null", b"-1", b"1e9", "²".encode("latin-1"), b"9" * 5000, b"Basic \xff",
             b"Basic Og==", b"revision_number=99999999999999999999", b"revision_number=1", b"multipart/form-data"]
        ),
    ),
)  # fmt: skip
def test_random_header_causes_no_internal_error(caller: Caller, name: str, value: bytes):
    for path, root in PLACES.items():
        answer = caller.client.build_request("POST", path, json={root: {}})
        headers = [(key, old) for key, old in answer.headers.raw if key.lower() != name.encode()]
        caller.send("POST", path, content=answer.content, headers=[*headers, (name.encode(), value)])


@FEWER
@given(header=st.one_of(st.text(), st.binary().map(lambda value: value.decode("latin-1")), NEARLY_VALID))
async def test_random_authorization_header_raises_no_error(header: str):
    check = HttpBasic({})
    for text in (header, f"Basic {header}", f"basic {header}"):
        assert (await check(LoginAttempt(authorization=text, project_id=header))) is None
    caller = await authenticate_as_admin(LoginAttempt(authorization=header, project_id=header))
    assert isinstance(caller, Identity)
    assert len(caller.project_id) <= 36


async def test_large_bodies_of_one_project_do_not_delay_other_projects():
    """One body is being read and one is queued; then another project's turn comes, however many the first one has."""
    body, order = json.dumps(["x" * 100] * (THREADED_BODY_BYTES // 100)).encode(), list[str]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read(project: str) -> None:
        REQUEST_PROJECT.set(project)
        await read_json(Request({"type": "http", "headers": []}, receive), lambda value: value)
        order.append(project)

    await asyncio.gather(*(asyncio.create_task(read(project)) for project in ["greedy"] * 8 + ["other"]))
    assert order.index("other") <= 2
