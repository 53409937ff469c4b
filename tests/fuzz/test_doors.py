"""Every operation of each API's OpenAPI document, with valid and invalid input, on a real server.

make fuzz                       the calls of CI, the same in every run except for ids
FUZZ_CALLS=5000 make fuzz       this number of calls per API, different in every run
"""

import contextlib
import os
from collections import Counter
from random import Random
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from harness.fuzz.machine import FuzzedServer
from harness.fuzz.world import REJECTED_PATH, FuzzObjects
from harness.values import NETWORKS
from harness.waiting import DEADLINE

pytestmark = pytest.mark.fuzz
CALLS = {"network": 1200, "load-balancer": 1200, "1.0": 600, "operator": 300, "agent": 120, "plugin": 300}
"""Number of calls per API."""
LONG = int(os.environ.get("FUZZ_CALLS", "0"))
OFTEN = {"post": 12, "put": 9, "patch": 9, "get": 3, "delete": 5}
"""Weight of each method: more objects are created than deleted."""
DESCRIBED = 0.7
"""Probability that a body for the LXD API is a valid specification."""
ENDLESS = "/chassis/{chassis}/slice"
"""Suffix of the path with an endless response stream."""
FLOW = "/flow"
"""Path of the flow trace; its parameters must match each other."""
REFRESH = 10
"""Calls between two refreshes of the known objects."""
MAX_MEMORY = 400 * 2**20
"""Limit in bytes."""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]

schemathesis.openapi.format("cidr", NETWORKS)


def operations(server: FuzzedServer, door: str) -> list[Any]:
    document = server.get(f"/{door}/openapi.json")
    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return [operation for operation in found if not operation.path.endswith(ENDLESS)]


def _weight(operation: Any) -> int:
    if not _is_obtainable(operation) or REJECTED_PATH in operation.path:
        return 1
    if operation.path == FLOW:
        return OFTEN["put"]
    plain = operation.method == "get" and "{" not in operation.path and not list(operation.query)
    return OFTEN[operation.method] // (3 if plain or "/tags" in operation.path else 1)  # tags have many operations


def _is_obtainable(operation: Any) -> bool:
    return any(status.startswith("2") for status in operation.definition.raw["responses"])


@pytest.mark.parametrize("door", CALLS)
def test_every_response_matches_the_openapi_document(server: FuzzedServer, world: FuzzObjects, door: str):
    known = operations(server, door)
    often = [operation for operation in known for _ in range(_weight(operation))]
    session, done, calls = requests.Session(), Counter[str](), 0

    @settings(
        max_examples=LONG or CALLS[door],
        derandomize=not LONG,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data(), seed=st.integers(0, 2**32))
    def call(data: st.DataObject, seed: int) -> None:
        nonlocal calls
        random = Random(seed)
        if calls % REFRESH == 0:
            world.refresh()
            # a generator of its own, so that the drawn values do not depend on existing objects
            world.recreate_missing(Random(seed))
        case = draw(data, random.choice(often), random, world)
        answer = case.call(base_url=f"{server.url}/{door}", session=session, timeout=DEADLINE)
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        case.validate_response(answer, checks=CHECKS)
        calls += 1
        done[case.operation.label] += answer.status_code < 300

    call()
    never = {operation.label for operation in known if _is_obtainable(operation)} - {
        label for label in done if done[label]
    }
    print(f"{door}: {calls} calls, {done.total()} of them did it; never done: {sorted(never) or 'nothing'}")
    assert done.total() > calls / 5, "too much is refused to say anything"


def _thin_out(operation: Any, body: Any, random: Random) -> Any:
    """Drop most optional attributes: a body with all of them always has one that is refused."""
    ((root, value),) = body.items() if len(body) == 1 else [("", None)]
    if not isinstance(value, dict):
        return body
    schema = operation.definition.raw["requestBody"]["content"]["application/json"]["schema"]
    required = schema.get("properties", {}).get(root, {}).get("required", ())
    share = random.choice([0.0, 0.2, 1.0])
    kept = (name for name in value if name in required or random.random() < (0.8 if name.endswith("_id") else share))
    return {root: {name: value[name] for name in kept}}


def draw(data: st.DataObject, operation: Any, random: Random, world: FuzzObjects) -> Case:
    """Draw a call, mostly valid, and mostly about existing objects."""
    mode = GenerationMode.POSITIVE if random.random() < 0.8 else GenerationMode.NEGATIVE
    case: Case = data.draw(operation.as_strategy(generation_mode=mode))
    case.path_parameters = world.path(operation.path, case.path_parameters or {}, random)
    if operation.path == FLOW and mode is GenerationMode.POSITIVE:
        case.query = world.flow(random)
    if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
        leaves = operation.path.endswith("remove_router_interface")
        body = _thin_out(operation, case.body, random)
        if "id" in (body.get("loadbalancer") or ()):  # body of the plug-in API
            case.body = world.plugin_body(operation.path, case.path_parameters, random)
            return case
        case.body = world.remove_interface_body(case.path_parameters["id"]) if leaves else world.body(body, random)
        if operation.path.startswith(("/networks", "/projects")) and random.random() < DESCRIBED:
            case.body = world.lxd_body(operation, case.path_parameters.get("network", ""), random) or case.body
    if operation.method == "delete" and operation.path.endswith("/loadbalancers/{id}"):
        case.query = {"cascade": random.random() < 0.7}
    elif case.query and random.random() < 0.7:  # random filters rarely match anything
        case.query = dict(random.sample(sorted(case.query.items()), 1))
    return case


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0", b"GET", b"GET / HTTP/9.9\r\n\r\n", b"G\0T / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /network/v2.0/networks HTTP/1.1\r\nhost: x\r\ncontent-length: nine\r\n\r\n",
        b"POST /network/v2.0/networks HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /network/v2.0/networks HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{}",
        b"POST /network/v2.0/networks HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        b"POST /network/v2.0/networks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /network/v2.0/networks?\xff\xfe HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET /%ff%00%0a/\xe9 HTTP/1.1\r\nhost: \xff\r\nconnection: close\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=lambda request: repr(request[:40]),
)  # fmt: skip
def test_malformed_request_does_not_stop_the_server(server: FuzzedServer, request_bytes: bytes):
    answer = server.send_raw(request_bytes)
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]
    assert server.get("/")


@pytest.mark.parametrize("head", [b"GET /", b"GET / HTTP/1.1\r\nx: "], ids=["path", "header"])
def test_endless_request_head_takes_bounded_memory(server: FuzzedServer, head: bytes):
    before, sent = server.memory(), 0
    with server.connect() as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head)
        while sent < 64 * 2**20:
            connection.sendall(b"a" * 2**16)
            sent += 2**16
    assert server.memory() - before < 16 * 2**20
    assert server.get("/")


def test_ovn_matches_the_model_after_all_calls(server: FuzzedServer, world: FuzzObjects):
    """The last test of the file: no request waits, no owner is pending, no row differs, and the log has no internal
    error."""
    server.wait_idle()
    plan = server.get("/operator/plan")["plan"]
    assert plan == {}
    for line in server.client.get("/metrics").text.splitlines():
        if line.startswith("fairlead_owners{") and 'status="PENDING' in line:
            assert line.endswith(" 0.0")
    world.refresh()
    for kind in ("network", "router", "port", "loadbalancer"):
        for identity in world.ids[kind]:
            shown = server.get(f"/operator/owners/{kind}/{identity}")
            assert shown["status"] == "ACTIVE" or (shown["status"] == "ERROR" and shown["error"]), shown
    assert server.memory() < MAX_MEMORY
    assert server.bug_reports() == []
