"""Common parts of the LXD API: response envelope, caller and project."""

import pytest
from starlette.requests import Request

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.envelope import check_match, etag
from harness.front_ends.lxd_world import LxdFrontEnd


def request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw})


def test_server_information_lists_api_extensions_that_clients_need(door: LxdFrontEnd):
    told = door.call_ok("GET", "/1.0")
    assert told["auth"] == "trusted"
    assert {"network_load_balancer", "network_forward", "projects", "etag"} <= {*told["api_extensions"]}
    assert "storage_and_network_operations" not in told["api_extensions"]


def test_untrusted_client_sees_no_server_configuration(door: LxdFrontEnd):
    told = door.call_ok("GET", "/1.0", by="stranger")
    assert told["auth"] == "untrusted"
    assert {"environment", "config"}.isdisjoint(told)


def test_not_found_error_uses_the_lxd_response_envelope(door: LxdFrontEnd):
    answer = door.send("GET", "/1.0/nothing")
    assert answer.json() == {
        "type": "error",
        "status": "",
        "status_code": 0,
        "operation": "",
        "error_code": 404,
        "error": "not found",
        "metadata": None,
    }
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_etag_ignores_key_order_and_mismatch_returns_412():
    tag = etag(["192.0.2.9", "", {"b": "1", "a": "2"}, []])
    assert tag == etag(["192.0.2.9", "", {"a": "2", "b": "1"}, []])
    for sent in ("", tag, f'"{tag}"', "*"):
        check_match(request(if_match=sent), tag)
    with pytest.raises(ApiError) as caught:
        check_match(request(if_match='"abc"'), tag)
    assert (caught.value.status, caught.value.message) == (412, f"ETag doesn't match: {tag} vs abc")
