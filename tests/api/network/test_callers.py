"""Read and write access per caller, and the response to an internal error."""

import logging
from typing import Any

import pytest

from fairlead.compilers.unsupported import Unsupported
from fairlead.store.interface import StoreUnavailable
from harness.front_ends.network_world import NetworkFrontEnd


@pytest.fixture
def mine(door: NetworkFrontEnd) -> dict[str, str]:
    """Create one resource of each kind as ann, and return their ids."""
    net = door.create("network", "ann", name="net")
    subnet = door.create("subnet", "ann", network_id=net["id"], cidr="10.0.0.0/24")
    port = door.create("port", "ann", network_id=net["id"])
    return {
        "network": net["id"],
        "subnet": subnet["id"],
        "port": port["id"],
        "router": door.create("router", "ann")["id"],
    }


def test_other_projects_do_not_see_or_change_the_resources(door: NetworkFrontEnd, mine: dict[str, str]):
    for singular, key in mine.items():
        path, error = f"/{singular}s/{key}", (404, f"{singular.capitalize()}NotFound")
        assert door.call_ok("GET", f"/{singular}s", caller="bob") == {f"{singular}s": []}
        assert len(door.call_ok("GET", f"/{singular}s", caller="ann")[f"{singular}s"]) == 1
        assert door.call_error("GET", path, caller="bob")[:2] == error
        assert door.call_error("DELETE", path, caller="bob")[:2] == error
        assert door.call_error("PUT", path, {singular: {"name": "x"}}, "bob")[:2] == error
        assert door.call_error("PUT", f"{path}/tags/x", caller="bob")[:2] == error


def test_reader_role_can_read_but_not_write(door: NetworkFrontEnd, mine: dict[str, str]):
    for singular, key in mine.items():
        path = f"/{singular}s/{key}"
        assert door.call("GET", path, caller="rita")[0] == 200
        for method, verb, body in (("PUT", "update", {singular: {"name": "x"}}), ("DELETE", "delete", None)):
            told = door.call_error(method, path, body, "rita")
            assert told == (403, "PolicyNotAuthorized", f"rule:{verb}_{singular} is disallowed by policy")
    told = door.call_error("POST", "/networks", {"network": {}}, "rita")
    assert told == (403, "PolicyNotAuthorized", "rule:create_network is disallowed by policy")
    for singular in ("subnet", "port"):
        body = {singular: {"network_id": mine["network"], **({"cidr": "10.1.0.0/24"} if singular == "subnet" else {})}}
        told = door.call_error("POST", f"/{singular}s", body, "rita")
        assert told == (403, "PolicyNotAuthorized", f"rule:create_{singular} is disallowed by policy")


def test_system_scope_sees_every_project_and_creates_nothing_without_a_project(
    door: NetworkFrontEnd, mine: dict[str, str]
):
    for singular, key in mine.items():
        for who in ("sam", "root"):
            assert len(door.call_ok("GET", f"/{singular}s", caller=who)[f"{singular}s"]) == 1
            assert door.call("GET", f"/{singular}s/{key}", caller=who)[0] == 200
        told = door.call_error("PUT", f"/{singular}s/{key}", {singular: {"name": "x"}}, "sam")
        assert told == (403, "PolicyNotAuthorized", f"rule:update_{singular} is disallowed by policy")
        assert door.call_error("DELETE", f"/{singular}s/{key}", caller="sam")[0] == 403
    for who in ("sam", "root"):
        told = door.call_error("POST", "/networks", {"network": {}}, who)
        assert told == (400, "HTTPBadRequest", "Running without keystone AuthN requires that tenant_id is specified")
    assert door.call_error("POST", "/networks", {"network": {"project_id": "two"}}, "sam")[0] == 400
    made = door.call_ok("POST", "/networks", {"network": {"project_id": "two"}}, "root")["network"]
    assert made["project_id"] == "two"
    assert door.call_error("GET", "/quotas", caller="sam")[0] == 403
    assert door.call("GET", "/quotas/two", caller="sam")[0] == 200


def test_shared_network_can_be_used_but_not_changed_by_other_projects(door: NetworkFrontEnd, mine: dict[str, str]):
    share = {"network": {"shared": True}}
    told = door.call_error("PUT", f"/networks/{mine['network']}", share, "ann")
    assert told[2] == "(rule:update_network and (rule:update_network:shared)) is disallowed by policy"
    door.call_ok("PUT", f"/networks/{mine['network']}", share)
    assert len(door.call_ok("GET", "/networks", caller="bob")["networks"]) == 1
    assert len(door.call_ok("GET", "/subnets", caller="bob")["subnets"]) == 1
    port = door.create("port", "bob", network_id=mine["network"])
    assert door.call_ok("GET", f"/ports/{port['id']}", caller="ann")["port"]["project_id"] == "two"
    assert door.call_error("DELETE", f"/networks/{mine['network']}", caller="bob")[:2] == (403, "PolicyNotAuthorized")
    for attributes in (
        {"mac_address": "fa:16:3e:00:00:01"},
        {"port_security_enabled": False},
        {"device_owner": "network:x"},
    ):
        body = {"port": {"network_id": mine["network"], **attributes}}
        told = door.call_error("POST", "/ports", body, "bob")
        name = next(iter(attributes))
        assert told[2] == f"(rule:create_port and (rule:create_port:{name})) is disallowed by policy"
    router = door.create("router", "bob")
    body = {"subnet_id": mine["subnet"]}
    told = door.call_error("PUT", f"/routers/{router['id']}/add_router_interface", body, "bob")
    assert told[2] == (
        f"Bad router request: Cannot add interface to router because subnet {mine['subnet']} is not owned by project "
        "making the request."
    )
    told = door.call_error("PUT", f"/networks/{mine['network']}", {"network": {"shared": False}})
    assert told == (
        409,
        "InvalidSharedSetting",
        f"Unable to reconfigure sharing settings for network {mine['network']}. Multiple tenants are using it.",
    )


def test_only_an_administrator_sets_and_sees_the_host_of_a_port(door: NetworkFrontEnd, mine: dict[str, str]):
    body = {"port": {"network_id": mine["network"], "binding:host_id": "node1"}}
    told = door.call_error("POST", "/ports", body, "ann")
    text = "(rule:create_port and (rule:create_port:binding:host_id)) is disallowed by policy"
    assert told == (403, "PolicyNotAuthorized", text)
    told = door.call_error("PUT", f"/ports/{mine['port']}", {"port": {"binding:host_id": "node1"}}, "ann")
    assert told[2] == "(rule:update_port and (rule:update_port:binding:host_id)) is disallowed by policy"
    assert "binding:host_id" not in door.call_ok("GET", f"/ports/{mine['port']}", caller="ann")["port"]
    told = door.call_error("GET", "/ports?binding:host_id=node1", caller="ann")
    assert told[2] == "['binding:host_id'] is invalid attribute for filtering"


def test_only_an_administrator_creates_resources_for_other_projects(door: NetworkFrontEnd):
    assert door.create("network", project_id="two")["tenant_id"] == "two"
    assert door.create("network", tenant_id="three")["project_id"] == "three"
    told = door.call_error("POST", "/networks", {"network": {"project_id": "two"}}, "ann")
    assert told == (
        400,
        "HTTPBadRequest",
        "Specifying 'project_id' or 'tenant_id' other than the authenticated project in request requires admin "
        "privileges",
    )
    told = door.call_error("POST", "/networks", {"network": {"shared": True}}, "ann")
    assert told[2] == "(rule:create_network and (rule:create_network:shared)) is disallowed by policy"


def broken(error: Exception) -> Any:
    async def write(change: Any) -> Any:
        raise error

    return write


def test_unavailable_store_is_reported_as_503_with_retry_after(door: NetworkFrontEnd, caplog: pytest.LogCaptureFixture):
    door.server.model.write = broken(StoreUnavailable("the disk is full"))
    with caplog.at_level(logging.CRITICAL):
        answer = door.send("POST", "/v2.0/networks", json={"network": {}})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["NeutronError"]["type"] == "ServiceUnavailable"


def test_change_unsupported_by_the_compiler_is_refused_with_501(door: NetworkFrontEnd):
    door.server.model.write = broken(Unsupported("anything", "ovn"))
    assert door.call_error("POST", "/networks", {"network": {}})[:2] == (501, "HTTPNotImplemented")


def test_internal_error_is_logged_and_not_shown_to_the_client(door: NetworkFrontEnd, caplog: pytest.LogCaptureFixture):
    door.server.model.write = broken(ZeroDivisionError("a secret"))
    assert door.call_error("POST", "/networks", {"network": {}}) == (
        500,
        "HTTPInternalServerError",
        "Request Failed: internal server error while processing your request.",
    )
    assert "ZeroDivisionError: a secret" in caplog.text
