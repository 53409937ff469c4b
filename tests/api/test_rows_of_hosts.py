"""Desired rows of plain hosts, as the operator API shows them."""

from typing import Any

import pytest

from fairlead.api.operator import node_rows
from harness.front_ends.plain_hosts import ONE, announced, as_tenant, balancer, caller, put
from harness.whole_application import Caller

__all__ = ["caller"]

TWO = {"addresses": ["10.20.0.22"], "prefixes": [{"cidr": "10.2.0.0/24"}]}


def make(caller: Caller) -> dict[str, Any]:
    put(caller, "one", **ONE, number=1)
    put(caller, "two", **TWO, number=2)
    made: dict[str, Any] = balancer(caller, announced(caller), "10.1.0.7", "10.2.0.7").json()["loadbalancer"]
    return made


def vip_of(made: dict[str, Any]) -> str:
    return next(each for each in (made["vip_address"], *_more(made)) if "." in each)


def _more(made: dict[str, Any]) -> list[str]:
    return [each["ip_address"] for each in made["additional_vips"]]


def get(caller: Caller, path: str) -> Any:
    found = caller.send("GET", f"/operator{path}")
    assert found.status_code == 200, found.text
    return found.json()


def test_operator_api_shows_desired_rows_of_a_load_balancer_per_host(caller: Caller):
    made = make(caller)
    vip = vip_of(made)
    shown = get(caller, "/owners/shop")["dataplanes"]["native"]
    assert (list(shown["nodes"]), shown["left_out"]) == (["one", "two"], 0)
    for name, here, there in (("one", "10.1.0.7:8080", "host 2"), ("two", "10.2.0.7:8080", "host 1")):
        node = shown["nodes"][name]
        assert (node["agent"], node["error"]) == ("none", None)
        assert node["rows"][f"Vip {vip}"] == f"Vip {vip} held"
        service = node["rows"][f"Service {vip} tcp 443"]
        assert f"{here} 128" in service
        assert f"{there} 128" in service
    alone = get(caller, "/owners/shop?chassis=two")["dataplanes"]["native"]
    assert alone == {"nodes": {"two": shown["nodes"]["two"]}, "left_out": 0}
    assert get(caller, "/owners/one")["dataplanes"]["native"]["nodes"]["two"]["rows"] == {"Way 1": "Way 1 10.20.0.21"}


def test_rows_of_many_hosts_are_truncated_and_left_out_hosts_are_counted(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(node_rows, "MAX_NODES", 1)
    make(caller)
    shown = get(caller, "/owners/shop")["dataplanes"]["native"]
    assert (list(shown["nodes"]), shown["left_out"]) == (["one"], 1)
    assert list(get(caller, "/owners/shop?chassis=two")["dataplanes"]["native"]["nodes"]) == ["two"]


def test_rows_of_a_host_are_grouped_by_owner(caller: Caller, monkeypatch: pytest.MonkeyPatch):
    made = make(caller)
    rows = get(caller, "/chassis/one/rows")["dataplanes"]["native"]
    shown = get(caller, f"/owners/{made['id']}")["dataplanes"]["native"]["nodes"]["one"]["rows"]
    assert rows == {"host/two": {"Way 2": "Way 2 10.20.0.22"}, f"loadbalancer/{made['id']}": shown}
    monkeypatch.setattr(node_rows, "MAX_ROWS", 2)
    refused = caller.send("GET", "/operator/chassis/one/rows")
    assert (refused.status_code, refused.json()["error"]) == (
        409,
        "host one has more than 2 rows: request those of one owner",
    )


@pytest.mark.parametrize("path", ["/owners/shop?chassis=nine", "/chassis/nine/rows"])
def test_rows_of_an_undeclared_host_return_404(caller: Caller, path: str):
    make(caller)
    refused = caller.send("GET", f"/operator{path}")
    assert (refused.status_code, refused.json()["error"]) == (
        404,
        "host nine does not exist; list hosts with `fairlead chassis host list`",
    )


def test_tenants_cannot_read_rows_of_hosts(caller: Caller):
    make(caller)
    assert as_tenant(caller, "GET", "/operator/chassis/one/rows").status_code == 403
