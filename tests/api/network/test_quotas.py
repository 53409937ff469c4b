"""Quotas: Neutron's bodies and texts, and no request that exceeds a limit."""

from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.network import make_front_end
from fairlead.model.documents.quota import Limits, Quota
from fairlead.model.registry.changeset import Changes
from harness.api import in_process_server
from harness.front_ends.network_world import CALLERS, NetworkFrontEnd

NAMES = ("network", "subnet", "port", "router", "floatingip", "local_ip", "local_ip_association")


def limits(**own: int) -> dict[str, int]:
    return {**dict.fromkeys(NAMES, -1), **own}


def used(limit: int, number: int) -> dict[str, int]:
    return {"limit": limit, "used": number, "reserved": 0}


def test_quota_responses_match_neutrons(door: NetworkFrontEnd):
    assert door.call_ok("GET", "/quotas") == {"quotas": []}
    assert door.call_ok("GET", "/quotas/one") == {"quota": limits()}
    assert door.call_ok("PUT", "/quotas/one", {"quota": {"network": 3, "port": "7"}}) == {
        "quota": limits(network=3, port=7)
    }
    assert door.call_ok("PUT", "/quotas/two", {"quota": {"router": 0}}) == {"quota": limits(router=0)}
    assert door.call_ok("GET", "/quotas/one") == {"quota": limits(network=3, port=7)}
    assert door.call_ok("GET", "/quotas/one/default") == {"quota": limits()}
    listed = [
        {**limits(network=3, port=7), "project_id": "one", "tenant_id": "one"},
        {**limits(router=0), "project_id": "two", "tenant_id": "two"},
    ]
    assert door.call_ok("GET", "/quotas") == {"quotas": listed}
    net = door.create("network", name="net")
    door.create("subnet", network_id=net["id"], cidr="10.0.0.0/24")
    figures = {**dict.fromkeys(NAMES, used(-1, 0)), "network": used(3, 1), "subnet": used(-1, 1), "port": used(7, 0)}
    assert door.call_ok("GET", "/quotas/one/details") == {"quota": figures}
    assert door.call_ok("GET", "/quotas/project", caller="ann") == {"project": {"project_id": "one"}}
    assert door.call_ok("GET", "/quotas/tenant", caller="bob") == {"tenant": {"tenant_id": "two"}}
    assert door.call("DELETE", "/quotas/one") == (204, None)
    told = (404, "TenantQuotaNotFound", "Quota for tenant one could not be found.")
    assert door.call_error("DELETE", "/quotas/one") == told
    assert door.call_ok("GET", "/quotas/one") == {"quota": limits()}


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        ({"network": -2}, "Invalid input for network. Reason: '-2' is too small - must be at least '-1'."),
        (
            {"port": 2_000_000_001},
            "Invalid input for port. Reason: '2000000001' is too large - must be no larger than '2000000000'.",
        ),
        ({"router": "few"}, "Invalid input for router. Reason: 'few' is not an integer."),
        ({"router": None}, "Invalid input for router. Reason: A value is required."),
        ({"security_group": 1}, "Unrecognized attribute(s) 'security_group'"),
        ({"listener": 1}, "Unrecognized attribute(s) 'listener'"),
    ],
)
def test_invalid_quotas_are_refused_with_the_reason(door: NetworkFrontEnd, quota: dict[str, Any], message: str):
    assert door.call_error("PUT", "/quotas/one", {"quota": quota}) == (400, "HTTPBadRequest", message)
    assert door.call_error("PUT", f"/quotas/{'p' * 37}", {"quota": {}})[0] == 400


def test_limit_below_usage_is_refused_only_with_check_limit(door: NetworkFrontEnd):
    door.create("network")
    door.create("network")
    told = (
        400,
        "HTTPBadRequest",
        "Quota limit 1 for network must be greater than or equal to already used 2",
    )
    assert door.call_error("PUT", "/quotas/one", {"quota": {"network": 1, "check_limit": True}}) == told
    for body in ({"network": -1, "check_limit": True}, {"network": 1, "force": True}, {"network": 1}):
        door.call_ok("PUT", "/quotas/one", {"quota": body})
    assert door.call_error("POST", "/networks", {"network": {}})[1] == "OverQuota"


def test_projects_read_their_own_quota_and_only_administrators_set_quotas(door: NetworkFrontEnd):
    assert door.call_ok("GET", "/quotas/one", caller="rita") == {"quota": limits()}
    assert door.call_ok("GET", "/quotas/one/details", caller="rita")["quota"]["port"] == used(-1, 0)
    for method, path, rule in (
        ("GET", "/quotas", "get_quota"),
        ("GET", "/quotas/two", "get_quota"),
        ("GET", "/quotas/two/default", "get_quota"),
        ("GET", "/quotas/two/details", "get_quota"),
        ("PUT", "/quotas/one", "update_quota"),
        ("DELETE", "/quotas/one", "delete_quota"),
    ):
        body = {"quota": {"network": 9}} if method == "PUT" else None
        told = (403, "PolicyNotAuthorized", f"rule:{rule} is disallowed by policy")
        assert door.call_error(method, path, body, "ann") == told


def test_no_request_exceeds_a_quota(door: NetworkFrontEnd):
    """Each limit equals the current usage, so every further create is refused, by any request, and nothing is
    written."""
    wire = {"provider:network_type": "flat", "provider:physical_network": "physnet"}
    public = door.create("network", **{"router:external": True, **wire})["id"]
    door.create("subnet", network_id=public, cidr="203.0.113.0/24")
    net = door.create("network")["id"]
    subnet = door.create("subnet", network_id=net, cidr="10.0.0.0/24")["id"]
    router, fip = door.create("router")["id"], {"floating_network_id": public}
    door.create("floatingip", **fip)
    door.create("port", network_id=net)
    attach = f"/routers/{router}/add_router_interface"
    ways: list[tuple[str, int, str, str, dict[str, Any]]] = [
        ("network", 2, "POST", "/networks", {"network": {}}),
        ("network", 3, "POST", "/networks", {"networks": [{}, {}]}),
        ("subnet", 2, "POST", "/subnets", {"subnet": {"network_id": net, "cidr": "10.1.0.0/24"}}),
        ("port", 1, "POST", "/ports", {"port": {"network_id": net}}),
        ("port", 2, "POST", "/ports", {"ports": [{"network_id": net}, {"network_id": net}]}),
        ("port", 1, "PUT", attach, {"subnet_id": subnet}),
        ("router", 1, "POST", "/routers", {"router": {}}),
        ("router", 1, "POST", "/routers", {"router": {"external_gateway_info": {"network_id": public}}}),
        ("floatingip", 1, "POST", "/floatingips", {"floatingip": fip}),
    ]
    for resource, number, method, path, body in ways:
        door.call_ok("PUT", "/quotas/one", {"quota": {resource: number}})
        told = (409, "OverQuota", f"Quota exceeded for resources: ['{resource}'].")
        assert door.call_error(method, path, body) == told, (method, path)
        door.call_ok("DELETE", "/quotas/one")
        door.call_ok(method, path, body)
    door.call_ok("PUT", "/quotas/one", {"quota": dict.fromkeys(NAMES, 0)})
    door.call_ok("PUT", f"/networks/{net}", {"network": {"name": "renamed"}})
    door.call_ok("PUT", f"/subnets/{subnet}", {"subnet": {"name": "renamed"}})
    door.call_ok("PUT", f"/routers/{router}", {"router": {"external_gateway_info": {"network_id": public}}})
    assert door.call_ok("POST", "/networks", {"network": {"project_id": "two"}})["network"]["project_id"] == "two"


async def test_project_quota_overrides_the_configured_default(tmp_path: Path):
    async with in_process_server(
        lambda services: make_front_end(replace(services, limits=Limits(network=1))), tmp_path, ""
    ) as place:
        place.caller = CALLERS["admin"]
        assert (await place.call_ok("GET", "/v2.0/quotas/one/default"))["quota"] == limits(network=1)
        await place.call_ok("POST", "/v2.0/networks", {"network": {}})
        assert (await place.call("POST", "/v2.0/networks", {"network": {}})).status_code == 409
        await place.call_ok("PUT", "/v2.0/quotas/one", {"quota": {"network": 2}})
        await place.call_ok("POST", "/v2.0/networks", {"network": {}})


def test_load_balancer_limits_are_not_part_of_the_network_api(door: NetworkFrontEnd):
    door.write(Quota(project_id="one", pool=1))
    assert door.call_ok("GET", "/quotas") == {"quotas": []}
    assert door.call_error("DELETE", "/quotas/one")[0] == 404
    door.call_ok("PUT", "/quotas/one", {"quota": {"network": 1}})
    door.call_ok("DELETE", "/quotas/one")
    assert door.snapshot.quotas["one"] == Quota(project_id="one", pool=1)


async def test_two_servers_never_exceed_a_quota_together(tmp_path: Path):
    """Two servers never exceed a limit together, although the second has not yet read the first server's write."""

    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(in_process_server(make_front_end, tmp_path, "")) for _ in range(2)]
        two.ids = count(10**6)
        await one.model.write(lambda _: Changes(puts=(Quota(project_id="demo", network=5),)))
        await two.model.catch_up()
        answers = [
            await place.call("POST", "/v2.0/networks", {"network": {}}) for _ in range(4) for place in (one, two)
        ]
        assert [answer.status_code for answer in answers] == [201] * 5 + [409] * 3
        await one.model.catch_up()
        assert len(one.model.snapshot.networks) == 5
