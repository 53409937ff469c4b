"""Query strings: sorting, pages and fields, with the texts of octavia.api.common.pagination."""

import pytest

from harness.front_ends.octavia_world import MONITOR, SUBNET, UNKNOWN_ID, OctaviaFrontEnd

NAMES = ("b", "a", "c")


@pytest.fixture
def three(ovn: OctaviaFrontEnd) -> OctaviaFrontEnd:
    for name in NAMES:
        made = ovn.create("lb", vip_subnet_id=SUBNET, name=name, description="x" if name == "c" else "y")
        ovn.ids[name] = made["id"]
    return ovn


@pytest.mark.parametrize(
    ("query", "order"),
    [
        ("sort=name", "abc"),
        ("sort=name:DESC", "cba"),
        ("sort=description,name:desc", "cba"),
        ("sort_key=name&sort_dir=DESC", "cba"),
        ("sort_key=description,name&sort_dir=desc,asc", "abc"),
        ("sort_key=description&sort_key=name&sort_dir=asc&sort_dir=desc", "cba"),
        ("sort_key=name,id&sort_dir=desc", "cba"),
        ("sort_dir=desc", "bac"),
        ("limit=-1", "bac"),
        ("limit=infinite", "bac"),
        ("limit=0", "bac"),
        ("limit=2", "ba"),
    ],
)
def test_lists_are_sorted_and_limited_as_in_octavia(three: OctaviaFrontEnd, query: str, order: str):
    found = three.call_ok("GET", f"/loadbalancers?{query}")["loadbalancers"]
    assert "".join(each["name"] for each in found) == order


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sort=name:bad", "Supplied sort direction 'bad' is not valid."),
        ("sort_key=name&sort_dir=bad", "Supplied sort direction 'bad' is not valid."),
        ("sort=bogus", "Supplied sort key 'bogus' is not valid."),
        (f"marker={UNKNOWN_ID}", f"Supplied pagination marker '{UNKNOWN_ID}' is not valid."),
        ("limit=x", "Supplied pagination limit 'x' is not valid."),
        ("limit=-2", "Supplied pagination limit '-2' is not valid."),
        ("bogus=1", "One or more arguments are either duplicate or invalid: 'bogus'"),
    ],
)
def test_invalid_list_queries_are_refused_with_octavias_texts(three: OctaviaFrontEnd, query: str, words: str):
    status, said = three.call_error("GET", f"/loadbalancers?{query}")
    assert (status, said[: len(words)]) == (400, words)


OMITTED = [
    ("pools", "locality=CHASSIS", ["near"]),
    ("pools", "locality=NONE", ["far"]),
    ("pools", "locality=NONE&locality=CHASSIS&sort=locality:desc", ["far", "near"]),
    ("pools", "sort=locality", ["near", "far"]),
    ("pools", "down_member=KEEP&name=far", ["far"]),
    ("pools", "down_member=RESET", []),
    ("pools", "sort=healthmonitor_id", ["near", "far"]),
    ("listeners", "raw=None", ["web"]),
    ("listeners", "raw=value", ["ssh"]),
    ("listeners", "sort=raw", ["web", "ssh"]),
    ("healthmonitors", "probed_by=dataplane&delay_ms=", ["often"]),
    ("healthmonitors", "probed_by=agents", []),
]


@pytest.mark.parametrize(("plural", "query", "names"), OMITTED)
def test_attributes_omitted_from_responses_can_be_filtered_and_sorted_by(
    tree: OctaviaFrontEnd, plural: str, query: str, names: list[str]
):
    found = tree.call_ok("GET", f"/{plural}?{query}")[plural]
    assert [each["name"] for each in found] == names
    cut = tree.call_ok("GET", f"/{plural}?{query}&fields=name&fields=locality&fields=raw&fields=probed_by")[plural]
    shown = {"near": {"locality": "CHASSIS"}, "ssh": {"raw": {"location": 0, "value": "5353482d"}}}
    assert cut == [{"name": name, **shown.get(name, {})} for name in names]


@pytest.mark.parametrize("query", ["listeners?locality=NONE", "pools?sort=raw", "pools?probed_by=dataplane"])
def test_omitted_attributes_of_another_kind_are_refused_in_queries(tree: OctaviaFrontEnd, query: str):
    assert tree.call_error("GET", f"/{query}")[0] == 400


@pytest.fixture
def tree(anything: OctaviaFrontEnd) -> OctaviaFrontEnd:
    """Create, for each kind with attributes of Fairlead's own, one object with defaults and one with other values."""
    balancer = anything.create("lb", vip_subnet_id=SUBNET)["id"]
    common = {"loadbalancer_id": balancer, "protocol": "TCP"}
    near = anything.create("pool", name="near", lb_algorithm="ROUND_ROBIN", locality="CHASSIS", **common)
    far = anything.create("pool", name="far", lb_algorithm="ROUND_ROBIN", locality="NONE", **common)
    anything.create("monitor", name="often", pool_id=far["id"], **MONITOR)
    assert (near["locality"], "locality" in far) == ("CHASSIS", False)
    ssh = {"raw": {"location": 0, "value": "5353482d"}}
    anything.create("listener", name="ssh", protocol_port=22, **ssh, **common)
    anything.create("listener", name="web", protocol_port=80, raw=None, **common)
    return anything


def test_fields_query_limits_the_attributes_of_one_object(three: OctaviaFrontEnd):
    made = three.create("listener", loadbalancer_id=three.ids["a"], protocol="TCP", protocol_port=80)
    found = three.call_ok("GET", "/loadbalancers/{a}?fields=id&fields=name")
    assert found == {"loadbalancer": {"id": three.ids["a"], "name": "a"}}
    found = three.call_ok("GET", f"/listeners/{made['id']}?fields=protocol_port")
    assert found == {"listener": {"protocol_port": 80}}
    found = three.call_ok("GET", "/quotas/p1?fields=pool")
    assert found == {"quota": {"pool": -1}}
    assert three.call_ok("GET", "/loadbalancers/{a}?fields=nothing") == {"loadbalancer": {}}


def test_unsupported_method_gets_405_with_the_allowed_methods(three: OctaviaFrontEnd):
    for path, allowed in (
        ("/loadbalancers", "GET, HEAD, POST"),
        ("/loadbalancers/{a}", "DELETE, GET, HEAD, PUT"),
        ("/pools/{a}/members", "GET, HEAD, POST, PUT"),
    ):
        answer = three.call("PATCH", path)
        assert (answer.status_code, answer.headers.get("allow")) == (405, allowed)
