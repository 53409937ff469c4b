"""Lists, tags and discovery: the auxiliary requests of stock clients."""

from typing import Any
from urllib.parse import urlsplit

import pytest

from harness.front_ends.network_world import NetworkFrontEnd


@pytest.fixture
def place(door: NetworkFrontEnd) -> dict[str, Any]:
    """Create two networks, one of them dual-stack with three ports, and a router."""
    net = door.create("network", name="net", tags=["red", "blue"])
    door.create("network", name="other", tags=["red"], admin_state_up=False)
    four = door.create("subnet", name="four", network_id=net["id"], cidr="10.0.0.0/24")
    six = door.create("subnet", name="six", network_id=net["id"], cidr="fd00::/64")
    for number, name in enumerate(("a", "b", "c"), 11):
        fixed = [{"ip_address": f"10.0.0.{number}"}, {"ip_address": f"fd00::{number}"}]
        mac = f"fa:16:3e:00:00:{number}"
        bound = {"binding:host_id": f"node{number}"}
        door.create("port", name=name, network_id=net["id"], fixed_ips=fixed, mac_address=mac, device_id=name, **bound)
    router = door.create("router", name="r")
    door.call_ok("PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": four["id"]})
    return {"net": net["id"], "four": four["id"], "six": six["id"], "router": router["id"]}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("networks?name=net", ["net"]),
        ("networks?name=net&name=other", ["net", "other"]),
        ("networks?name=", []),
        ("networks?id={net}", ["net"]),
        ("networks?admin_state_up=False", ["other"]),
        ("networks?admin_state_up=1", ["net"]),
        ("networks?shared=true", []),
        ("networks?router:external=False&sort_key=name&sort_dir=desc", ["other", "net"]),
        ("networks?tags=red,blue", ["net"]),
        ("networks?tags-any=blue,green", ["net"]),
        ("networks?not-tags=red,blue", ["other"]),
        ("networks?not-tags-any=blue", ["other"]),
        ("networks?project_id=one&tenant_id=one", ["net", "other"]),
        ("networks?status=ACTIVE&mtu=1442", ["net", "other"]),
        ("networks?provider:physical_network=None", ["net", "other"]),
        ("subnets?network_id={net}&ip_version=6", ["six"]),
        ("subnets?cidr=FD00:0::/64", ["six"]),
        ("subnets?gateway_ip=10.0.0.1&enable_dhcp=True", ["four"]),
        ("subnets?id={four}&id={six}", ["four", "six"]),
        ("ports?network_id={net}&sort_key=name", ["", "a", "b", "c"]),
        ("ports?device_id={router}", [""]),
        ("ports?device_owner=network:router_interface", [""]),
        ("ports?device_owner=", ["a", "b", "c"]),
        ("ports?mac_address=FA:16:3E:00:00:12", ["b"]),
        ("ports?binding:host_id=node13", ["c"]),
        ("ports?fixed_ips=ip_address=10.0.0.11&fixed_ips=ip_address=10.0.0.12", ["a", "b"]),
        ("ports?fixed_ips=ip_address=FD00:0::12", ["b"]),
        ("ports?fixed_ips=ip_address_substr=::1", ["a", "b", "c"]),
        ("ports?fixed_ips=subnet_id={four}&fixed_ips=ip_address=10.0.0.11", ["a"]),
        ("ports?fixed_ips=subnet_id={six}&fixed_ips=ip_address=10.0.0.11", []),
        ("ports?fixed_ips=subnet_id={six}", ["a", "b", "c"]),
        ("ports?security_groups=x", []),
        ("routers?name=r&admin_state_up=True", ["r"]),
    ],
)
def test_list_filters_select_the_matching_resources(
    door: NetworkFrontEnd, place: dict[str, Any], query: str, expected: list[str]
):
    plural = query.partition("?")[0]
    found = door.call_ok("GET", f"/{query.format(**place)}")[plural]
    assert [item["name"] for item in found] == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("bogus=1", "['bogus'] is invalid attribute for filtering"),
        ("bogus=1&all=2", "['all', 'bogus'] is invalid attribute for filtering"),
        ("allowed_address_pairs=1", "['allowed_address_pairs'] is invalid attribute for filtering"),
        ("sort_key=bogus", "['bogus'] is invalid attribute for sort_keys"),
        ("sort_key=name&sort_dir=asc&sort_dir=asc", "The number of sort_keys and sort_dirs must be same"),
        ("sort_key=name&sort_dir=up", "['up'] is invalid value for sort_dirs, valid value is 'asc' and 'desc'"),
        ("limit=-1", "Bad limit request: Limit must be an integer 0 or greater and not '-1'."),
        ("limit=x", "Bad limit request: Limit must be an integer 0 or greater and not 'x'."),
        (
            "fixed_ips=10.0.0.1",
            "'10.0.0.1' is not a filter for fixed_ips; give subnet_id=, ip_address= or ip_address_substr=",
        ),
    ],
)
def test_invalid_queries_are_refused(door: NetworkFrontEnd, query: str, message: str):
    status, _, told = door.call_error("GET", f"/ports?{query}")
    assert (status, told) == (400, message)


def test_fields_query_limits_the_attributes_of_a_response(door: NetworkFrontEnd, place: dict[str, Any]):
    expected = {"id": place["net"], "name": "net"}
    assert door.call_ok("GET", "/networks?name=net&fields=id&fields=name") == {"networks": [expected]}
    assert door.call_ok("GET", f"/networks/{place['net']}?fields=id&fields=name") == {"network": expected}


@pytest.mark.usefixtures("place")
def test_page_links_lead_to_the_next_and_previous_page(door: NetworkFrontEnd):
    def names(path: str) -> tuple[list[str], dict[str, str]]:
        body = door.call_ok("GET", path)
        links = {
            link["rel"]: link["href"].removeprefix("http://door/network/v2.0") for link in body.get("ports_links", [])
        }
        return [item["name"] for item in body["ports"]], links

    first, links = names("/ports?sort_key=name&limit=3&fields=id&fields=name")
    assert (first, set(links)) == (["", "a", "b"], {"next"})
    assert urlsplit(links["next"]).path == "/ports"
    second, links = names(links["next"])
    assert (second, set(links)) == (["c"], {"previous"})
    assert names(links["previous"])[0] == first


def test_tags_can_be_replaced_added_checked_and_removed(door: NetworkFrontEnd, place: dict[str, Any]):
    for plural, key in (("networks", "net"), ("subnets", "four"), ("routers", "router")):
        path = f"/{plural}/{place[key]}/tags"
        assert door.call_ok("PUT", path, {"tags": ["b", "a/c"]}) == {"tags": ["a/c", "b"]}
        assert door.call("PUT", f"{path}/new") == (201, None)
        assert door.call("POST", path, {"tags": ["more", "b"]}) == (201, {"tags": ["a/c", "b", "more", "new"]})
        assert door.call("GET", f"{path}/b") == (204, None)
        assert door.call("DELETE", f"{path}/a%2Fc") == (204, None)
        gone = (404, "TagNotFound", "Tag a/c could not be found.")
        assert door.call_error("GET", f"{path}/a/c") == gone
        assert door.call_error("DELETE", f"{path}/a/c") == gone
        assert door.call_ok("GET", path) == {"tags": ["b", "more", "new"]}
        assert door.call("DELETE", path) == (204, None)
        assert door.call_ok("GET", path) == {"tags": []}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Invalid tags body"),
        ({"tags": "a"}, "'a' is not a list"),
        ({"tags": ["a", "a"]}, "Duplicate items in the list: 'a'"),
        ({"tags": ["x" * 256]}, f"'{'x' * 256}' exceeds maximum length of 255"),
        ({"tags": [str(n) for n in range(101)]}, "there are 101 items, and at most 100 are allowed"),
    ],
)
def test_invalid_tags_are_refused(door: NetworkFrontEnd, place: dict[str, Any], body: Any, message: str):
    told = door.call_error("PUT", f"/networks/{place['net']}/tags", body)
    assert told == (400, "InvalidInput", f"Invalid input for operation: {message}.")


def test_write_with_a_stale_if_match_revision_is_refused(door: NetworkFrontEnd, place: dict[str, Any]):
    path = f"/v2.0/networks/{place['net']}"
    current = door.send("GET", path).json()["network"]["revision_number"]
    body = {"network": {"name": "new"}}
    stale = door.send("PUT", path, json=body, headers={"if-match": "revision_number=1"})
    assert (stale.status_code, stale.json()["NeutronError"]) == (
        412,
        {
            "type": "RevisionNumberConstraintFailed",
            "message": f"Constrained to 1, but current revision is {current}",
            "detail": "",
        },
    )
    assert door.send("PUT", path, json=body, headers={"if-match": "anything"}).status_code == 400
    assert door.send("PUT", path, json=body, headers={"if-match": f"revision_number={current}"}).status_code == 200


def test_discovery_lists_the_version_and_extensions(door: NetworkFrontEnd):
    version = {"id": "v2.0", "status": "CURRENT", "links": [{"rel": "self", "href": "http://door/network/v2.0/"}]}
    assert door.send("GET", "/").json() == {"versions": [version]}
    for path in ("/v2.0", "/v2.0/"):
        assert door.send("GET", path).json()["version"] == version
    extensions = door.call_ok("GET", "/extensions")["extensions"]
    assert {"router", "extraroute", "standard-attr-tag"} <= {item["alias"] for item in extensions}
    assert door.call_ok("GET", "/extensions/router")["extension"]["name"] == "Neutron L3 Router"
    assert door.call_error("GET", "/extensions/bgp") == (404, "HTTPNotFound", "Extension with alias bgp does not exist")


def test_unsupported_resources_are_empty_lists(door: NetworkFrontEnd):
    assert door.call_ok("GET", "/security-groups?name=x") == {"security_groups": []}
    assert door.call_ok("GET", "/qos/policies") == {"policies": []}
    assert door.call_ok("GET", "/agents") == {"agents": []}
    assert door.call_error("GET", "/agents/x")[:2] == (404, "HTTPNotFound")
    assert door.call_error("POST", "/network-ip-availabilities", {}) == (
        405,
        "HTTPMethodNotAllowed",
        "The method POST is not allowed for this resource.",
    )
    assert door.call_error("GET", "/bogus") == (404, "HTTPNotFound", "The resource could not be found.")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("security-groups", "security groups"),
        ("security-group-rules", "security groups"),
        ("qos/policies", "QoS policies"),
        ("subnetpools", "subnet pools"),
        ("rbac-policies", "RBAC policies"),
        ("trunks", "trunks"),
        ("address-groups", "address groups"),
        ("segments", "segments"),
    ],
)
def test_create_of_an_unsupported_resource_is_refused_by_name(door: NetworkFrontEnd, path: str, words: str):
    status, kind, message = door.call_error("POST", f"/{path}", {"anything": {"name": "x"}})
    assert (status, kind) == (501, "HTTPNotImplemented")
    assert message.startswith(f"This is not supported: {words}")
    for method in ("PUT", "DELETE"):
        assert door.call_error(method, f"/{path}/x", {} if method == "PUT" else None)[0] == 404


@pytest.mark.parametrize(
    ("plural", "attribute", "value", "words"),
    [
        ("networks", "qos_policy_id", "x", "QoS policies are not supported"),
        ("networks", "dns_domain", "example.org.", "DNS names are not supported"),
        ("networks", "vlan_transparent", True, "VLANs of workloads are not supported"),
        ("networks", "availability_zone_hints", ["az"], "availability zones are not supported"),
        ("subnets", "subnetpool_id", "x", "subnet pools are not supported; give a cidr"),
        ("subnets", "prefixlen", 26, "subnet pools are not supported; give a cidr"),
        ("subnets", "segment_id", "x", "segments are not supported"),
        ("ports", "security_groups", ["x"], "security groups are not supported; give an empty list"),
        ("ports", "qos_policy_id", "x", "QoS policies are not supported"),
        ("ports", "trunk_details", {"sub_ports": []}, "trunks are not supported"),
        ("ports", "dns_name", "vm", "DNS names are not supported"),
        ("routers", "external_gateways", [{}], "several gateways are not supported; give external_gateway_info"),
        ("routers", "enable_ndp_proxy", True, "the NDP proxy is not supported"),
        ("routers", "flavor_id", "x", "flavors are not supported"),
        ("floatingips", "qos_policy_id", "x", "QoS policies are not supported"),
    ],
)
def test_attribute_of_an_unsupported_extension_is_refused_by_name(
    door: NetworkFrontEnd, place: dict[str, Any], plural: str, attribute: str, value: object, words: str
):
    needs = {"subnets": {"network_id": place["net"]}, "ports": {"network_id": place["net"]}}
    needs["floatingips"] = {"floating_network_id": place["net"]}
    body = {plural.removesuffix("s"): {**needs.get(plural, {}), attribute: value}}
    told = (400, "HTTPBadRequest", f"Invalid input for {attribute}. Reason: {words}.")
    assert door.call_error("POST", f"/{plural}", body) == told


def test_default_value_of_an_unsupported_extension_is_accepted(door: NetworkFrontEnd):
    """Default values of extensions that are not offered are accepted and not shown."""
    net = door.create("network", dns_domain="", vlan_transparent=False)
    assert {"dns_domain", "vlan_transparent", "segments"} & net.keys() == set()
    port = door.create("port", network_id=net["id"], dns_name="", numa_affinity_policy=None)
    assert {"dns_name", "numa_affinity_policy"} & port.keys() == set()
