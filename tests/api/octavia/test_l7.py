"""L7 policies and their rules: the API stores and checks them for every provider."""

from typing import Any

import pytest

from harness.front_ends.octavia_world import SUBNET, TREE, UNKNOWN_ID, OctaviaFrontEnd


@pytest.fixture
def door(anything: OctaviaFrontEnd) -> OctaviaFrontEnd:
    anything.create_tree()
    anything.reconcile()
    return anything


def policies(door: OctaviaFrontEnd) -> dict[str, int]:
    """Return the listener's policies: name -> position."""
    found = door.call_ok("GET", "/l7policies?listener_id=" + door.ids["other"])["l7policies"]
    return {policy["name"]: policy["position"] for policy in found}


def test_policy_from_create_to_delete(door: OctaviaFrontEnd):
    made = door.create("policy", listener_id=door.ids["other"], action="REDIRECT_TO_URL", redirect_url="http://a.b/c")
    assert made == {
        "id": made["id"],
        "name": "",
        "description": "",
        "provisioning_status": "PENDING_CREATE",
        "operating_status": "OFFLINE",
        "admin_state_up": True,
        "project_id": "demo",
        "tenant_id": "demo",
        "action": "REDIRECT_TO_URL",
        "listener_id": door.ids["other"],
        "redirect_pool_id": None,
        "redirect_url": "http://a.b/c",
        "redirect_prefix": None,
        "redirect_http_code": 302,
        "position": 1,
        "rules": [],
        "created_at": "2026-01-01T12:00:00",
        "updated_at": None,
        "tags": [],
    }
    assert door.show("listener", door.ids["other"])["l7policies"] == [{"id": made["id"]}]
    changed = door.update("policy", made["id"], redirect_http_code=307, name="x", admin_state_up=False)
    assert (changed["redirect_http_code"], changed["name"]) == (307, "x")
    changed = door.update("policy", made["id"], redirect_prefix="https://c.d")
    assert (changed["action"], changed["redirect_url"], changed["redirect_prefix"]) == (
        "REDIRECT_PREFIX",
        None,
        "https://c.d",
    )
    changed = door.update("policy", made["id"], action="REJECT")
    assert (changed["redirect_prefix"], changed["redirect_http_code"]) == (None, None)
    door.call_ok("DELETE", f"/l7policies/{made['id']}")
    assert door.call_error("GET", f"/l7policies/{made['id']}") == (404, f"L7 Policy {made['id']} not found.")
    assert door.show("listener", door.ids["other"])["l7policies"] == []


def test_policy_positions_are_renumbered_after_each_change(door: OctaviaFrontEnd):
    common = {"listener_id": door.ids["other"], "action": "REJECT"}
    made = {name: door.create("policy", name=name, **common)["id"] for name in "ab"}
    made["c"] = door.create("policy", name="c", position=1, **common)["id"]
    assert policies(door) == {"c": 1, "a": 2, "b": 3}
    assert door.create("policy", name="d", position=70, **common)["position"] == 4
    assert door.update("policy", made["b"], position=1)["position"] == 1
    assert policies(door) == {"b": 1, "c": 2, "a": 3, "d": 4}
    door.call_ok("DELETE", f"/l7policies/{made['c']}")
    assert policies(door) == {"b": 1, "a": 2, "d": 3}
    assert door.update("policy", made["b"], position=None)["position"] == 3
    assert door.update("policy", made["b"], name="bb")["position"] == 3


def test_pool_used_by_a_policy_cannot_be_deleted(door: OctaviaFrontEnd):
    words = (409, f"Pool {door.ids['files']} is in use by L7 policy {door.ids['policy']}")
    assert door.call_error("DELETE", "/pools/{files}") == words
    assert door.show("pool", door.ids["files"])["listeners"] == [{"id": door.ids["front"]}]
    door.call_ok("DELETE", "/l7policies/{policy}")
    door.call_ok("DELETE", "/pools/{files}")


def test_policy_is_created_with_its_rules_in_one_request(door: OctaviaFrontEnd):
    rule = {"type": "HOST_NAME", "compare_type": "EQUAL_TO", "value": "a.b"}
    made = door.create("policy", listener_id=door.ids["other"], action="REJECT", rules=[rule, rule])
    found = door.call_ok("GET", f"/l7policies/{made['id']}/rules")
    assert [item["id"] for item in found["rules"]] == [item["id"] for item in made["rules"]]
    assert (len(found["rules"]), found["rules_links"]) == (2, [])


def test_rules_from_create_to_delete(door: OctaviaFrontEnd):
    made = door.create("rule", type="HEADER", compare_type="EQUAL_TO", key="x-a", value="1", invert=True)
    assert made == {
        "id": made["id"],
        "type": "HEADER",
        "compare_type": "EQUAL_TO",
        "key": "x-a",
        "value": "1",
        "invert": True,
        "admin_state_up": True,
        "provisioning_status": "PENDING_CREATE",
        "operating_status": "OFFLINE",
        "project_id": "demo",
        "tenant_id": "demo",
        "created_at": "2026-01-01T12:00:00",
        "updated_at": None,
        "tags": [],
    }
    path = f"/l7policies/{{policy}}/rules/{made['id']}"
    changed = door.call_ok("PUT", path, {"rule": {"value": "2", "invert": None, "tags": ["t"]}})["rule"]
    assert (changed["value"], changed["invert"], changed["tags"]) == ("2", False, ["t"])
    words = (400, "Error parsing L7Rule: Invalid L7 Rule: L7 rule type requires a key")
    assert door.call_error("PUT", path, {"rule": {"key": None}}) == words
    assert len(door.show("policy", door.ids["policy"])["rules"]) == 2
    door.call_ok("DELETE", path)
    assert door.call_error("GET", path) == (404, f"L7 Rule {made['id']} not found.")


def test_a_policy_has_at_most_fifty_rules(door: OctaviaFrontEnd):
    rule = {"type": "PATH", "compare_type": "EQUAL_TO", "value": "/x"}
    body = {"listener_id": door.ids["other"], "action": "REJECT", "rules": [rule] * 50}
    made = door.create("policy", **body)["id"]
    assert door.call_error("POST", f"/l7policies/{made}/rules", {"rule": rule}) == (
        409,
        f"Too many rules on L7 policy {made}",
    )


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({}, 400, "attribute action. Value: 'None'. Mandatory field missing."),
        ({"action": "REDIRECT_TO_URL"}, 400, "Invalid L7 Policy arguments: redirect_url must not be None"),
        (
            {"action": "REDIRECT_TO_POOL"}, 400,
            "Invalid L7 Policy arguments: redirect_pool_id or redirect_pool must not be None",
        ),
        ({"action": "REDIRECT_PREFIX"}, 400, "Invalid L7 Policy arguments: redirect_prefix must not be None"),
        ({"action": "REDIRECT_TO_URL", "redirect_url": "ftp://x"}, 400, "Value must be a valid URL string"),
        ({"action": "REDIRECT_TO_URL", "redirect_url": "http://x:y"}, 400, "Value must be a valid URL string"),
        ({"action": "REDIRECT_TO_POOL", "redirect_pool_id": UNKNOWN_ID}, 404, f"Pool {UNKNOWN_ID} not found."),
        ({"action": "REJECT", "redirect_http_code": 300}, 400, "Value should be one of: 301, 302, 303, 307, 308"),
        ({"action": "REJECT", "position": 0}, 400, "Value should be greater or equal to 1"),
        ({"action": "REJECT", "listener_id": UNKNOWN_ID}, 404, f"Listener {UNKNOWN_ID} not found."),
        ({"action": "REJECT", "redirect_pool": {"name": "x"}}, 400, "argument l7policy_.l7policy: redirect_pool"),
    ],
)  # fmt: skip
def test_invalid_policies_are_refused(door: OctaviaFrontEnd, more: dict[str, Any], status: int, words: str):
    code, told = door.call_error("POST", "/l7policies", {"l7policy": {"listener_id": door.ids["other"], **more}})
    assert (code, words in told) == (status, True), told


def test_policy_with_two_redirect_targets_is_refused(door: OctaviaFrontEnd):
    body = {"redirect_pool_id": door.ids["files"], "redirect_url": "http://x"}
    assert door.call_error("PUT", "/l7policies/{policy}", {"l7policy": body}) == (
        400,
        "Invalid L7 Policy arguments: Cannot specify redirect_pool_id and redirect_url or redirect_prefix at the same"
        " time",
    )


def test_redirect_pool_with_an_incompatible_protocol_is_refused(door: OctaviaFrontEnd):
    udp = door.create("pool", loadbalancer_id=door.ids["lb"], protocol="UDP", lb_algorithm="ROUND_ROBIN")["id"]
    told = door.call_error("PUT", "/l7policies/{policy}", {"l7policy": {"redirect_pool_id": udp}})
    words = "Validation failure: The pool protocol 'UDP' is invalid while the listener protocol is 'HTTP'."
    assert told == (400, words)


def test_prometheus_listener_cannot_have_children(door: OctaviaFrontEnd):
    made = door.create("listener", loadbalancer_id=door.ids["lb"], protocol="PROMETHEUS", protocol_port=9)["id"]
    words = (400, "Protocol PROMETHEUS listeners cannot have child objects.")
    assert door.call_error("POST", "/l7policies", {"l7policy": {"listener_id": made, "action": "REJECT"}}) == words
    assert door.call_error("PUT", f"/listeners/{made}", {"listener": {"default_pool_id": door.ids["app"]}}) == words


CERT, VERIFY, FIELD = "SSL_CONN_HAS_CERT", "SSL_VERIFY_RESULT", "SSL_DN_FIELD"
INVALID = "Error parsing L7Rule: Invalid L7 Rule: "
COMPARISON = f"{INVALID}invalid comparison type for rule type"


@pytest.mark.parametrize(
    ("kind", "compare", "key", "value", "words"),
    [
        ("COOKIE", "EQUAL_TO", None, "x", f"{INVALID}L7 rule type requires a key"),
        ("COOKIE", "EQUAL_TO", "a b", "x", "Error parsing L7Rule: Invalid characters in key"),
        ("COOKIE", "EQUAL_TO", "a", "x y", "Error parsing L7Rule: Invalid characters in cookie value"),
        ("HEADER", "CONTAINS", "a", "x y", "Error parsing L7Rule: Invalid characters in header value"),
        ("HEADER", "CONTAINS", "a", '"x y"', ""),
        ("HEADER", "REGEX", "a", "(", "Error parsing L7Rule: Unable to parse regular expression: missing ), "),
        ("FILE_TYPE", "CONTAINS", None, "x", COMPARISON),
        ("FILE_TYPE", "REGEX", None, "x|y", ""),
        ("PATH", "EQUAL_TO", None, "a b", "Error parsing L7Rule: Invalid characters in comparison value"),
        ("PATH", "EQUAL_TO", None, None, "Mandatory field missing."),
        ("PATH", "EQUAL_TO", None, "a\nb", "Value should match the pattern"),
        (CERT, "EQUAL_TO", "a", "true", f'{INVALID}L7rule type {CERT} does not use the "key" field.'),
        (CERT, "EQUAL_TO", None, "no", f"{INVALID}L7rule value no is not a boolean True string."),
        (CERT, "REGEX", None, "True", f"{INVALID}L7rule type {CERT} only supports the EQUAL_TO compare type."),
        (CERT, "EQUAL_TO", None, "True", ""),
        (VERIFY, "EQUAL_TO", None, "-1", f"{INVALID}L7rule type {VERIFY} needs a int value, which is >= 0"),
        (VERIFY, "EQUAL_TO", None, "0", ""),
        (FIELD, "EQUAL_TO", None, "x", f"{INVALID}L7rule type {FIELD} needs to specify a key and a value."),
        (FIELD, "EQUAL_TO", "1-a", "x", f"{INVALID}Invalid L7rule distinguished name field."),
        (FIELD, "STARTS_WITH", "OU-3", "x y", ""),
    ],
)
def test_valid_rules_are_created_and_invalid_rules_are_refused(
    door: OctaviaFrontEnd, kind: str, compare: str, key: str, value: str, words: str
):
    body = {"rule": {"type": kind, "compare_type": compare, "key": key, "value": value}}
    answer = door.call("POST", "/l7policies/{policy}/rules", body)
    if not words:
        assert answer.status_code == 201, answer.text
        return
    assert (answer.status_code, words in answer.json()["faultstring"]) == (400, True), answer.text


def test_a_tree_refers_to_its_pools_by_name(anything: OctaviaFrontEnd):
    tree = anything.create_tree()
    front = next(listener for listener in tree["listeners"] if listener["name"] == "front")
    policy = front["l7policies"][0]
    assert (policy["redirect_pool_id"], policy["redirect_http_code"]) == (anything.ids["files"], None)
    assert (policy["position"], policy["rules"][0]["value"]) == (1, "/static")
    lost = {"action": "REDIRECT_TO_POOL", "redirect_pool": {"name": "lost"}}
    body = {**TREE, "vip_address": "10.0.0.20", "listeners": [{**TREE["listeners"][0], "l7policies": [lost]}]}  # type: ignore[index]
    words = "Validation failure: Pool 'lost' was referenced but no full definition was found."
    assert anything.call_error("POST", "/loadbalancers", {"loadbalancer": body}) == (400, words)


def test_ovn_refuses_l7_policies_by_name_and_writes_nothing(ovn: OctaviaFrontEnd):
    balancer = ovn.create("lb", vip_subnet_id=SUBNET)["id"]
    listener = ovn.create("listener", loadbalancer_id=balancer, protocol="TCP", protocol_port=80)["id"]
    told = ovn.call_error("POST", "/l7policies", {"l7policy": {"listener_id": listener, "action": "REJECT"}})
    assert told == (501, "Provider 'fairlead' does not support a requested option: L7 policies")
    assert not ovn.server.model.snapshot.l7policy_owner


def test_rules_are_filtered_by_value_and_by_rule_value(door: OctaviaFrontEnd):
    for name in ("value", "rule_value"):
        for value, found in (("/static", 1), ("/dynamic", 0)):
            rules = door.call_ok("GET", f"/l7policies/{{policy}}/rules?{name}={value}")["rules"]
            assert len(rules) == found, name


def test_rules_and_members_are_filtered_by_the_parent_id_too(door: OctaviaFrontEnd):
    for path, plural, parent, count in (
        ("/l7policies/{policy}/rules", "rules", "l7policy_id={policy}", 1),
        ("/pools/{pool}/members", "members", "pool_id={pool}", 2),
    ):
        assert len(door.call_ok("GET", f"{path}?{parent}")[plural]) == count
        assert door.call_ok("GET", f"{path}?{parent.split('=')[0]}={UNKNOWN_ID}")[plural] == []
