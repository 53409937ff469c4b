"""L7 policies and their rules: the API stores and checks them for every provider."""

from typing import Any

import pytest

from harness.front_ends.octavia_world import NOBODY, SUBNET, TREE, Door


@pytest.fixture
def door(anything: Door) -> Door:
    anything.build()
    anything.rest()
    return anything


def policies(door: Door) -> dict[str, int]:
    """Return the listener's policies: name -> position."""
    found = door.good("GET", "/l7policies?listener_id=" + door.ids["other"])["l7policies"]
    return {policy["name"]: policy["position"] for policy in found}


def test_from_create_to_delete(door: Door):
    made = door.make("policy", listener_id=door.ids["other"], action="REDIRECT_TO_URL", redirect_url="http://a.b/c")
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
    changed = door.change("policy", made["id"], redirect_http_code=307, name="x", admin_state_up=False)
    assert (changed["redirect_http_code"], changed["name"]) == (307, "x")
    changed = door.change("policy", made["id"], redirect_prefix="https://c.d")
    assert (changed["action"], changed["redirect_url"], changed["redirect_prefix"]) == (
        "REDIRECT_PREFIX",
        None,
        "https://c.d",
    )
    changed = door.change("policy", made["id"], action="REJECT")
    assert (changed["redirect_prefix"], changed["redirect_http_code"]) == (None, None)
    door.good("DELETE", f"/l7policies/{made['id']}")
    assert door.bad("GET", f"/l7policies/{made['id']}") == (404, f"L7 Policy {made['id']} not found.")
    assert door.show("listener", door.ids["other"])["l7policies"] == []


def test_positions_are_counted_again_after_each_change(door: Door):
    common = {"listener_id": door.ids["other"], "action": "REJECT"}
    made = {name: door.make("policy", name=name, **common)["id"] for name in "ab"}
    made["c"] = door.make("policy", name="c", position=1, **common)["id"]
    assert policies(door) == {"c": 1, "a": 2, "b": 3}
    assert door.make("policy", name="d", position=70, **common)["position"] == 4
    assert door.change("policy", made["b"], position=1)["position"] == 1
    assert policies(door) == {"b": 1, "c": 2, "a": 3, "d": 4}
    door.good("DELETE", f"/l7policies/{made['c']}")
    assert policies(door) == {"b": 1, "a": 2, "d": 3}
    assert door.change("policy", made["b"], position=None)["position"] == 3
    assert door.change("policy", made["b"], name="bb")["position"] == 3


def test_a_pool_that_a_policy_leads_to_stays(door: Door):
    words = (409, f"Pool {door.ids['files']} is in use by L7 policy {door.ids['policy']}")
    assert door.bad("DELETE", "/pools/{files}") == words
    assert door.show("pool", door.ids["files"])["listeners"] == [{"id": door.ids["front"]}]
    door.good("DELETE", "/l7policies/{policy}")
    door.good("DELETE", "/pools/{files}")


def test_a_policy_with_its_rules_in_one_call(door: Door):
    rule = {"type": "HOST_NAME", "compare_type": "EQUAL_TO", "value": "a.b"}
    made = door.make("policy", listener_id=door.ids["other"], action="REJECT", rules=[rule, rule])
    found = door.good("GET", f"/l7policies/{made['id']}/rules")
    assert [item["id"] for item in found["rules"]] == [item["id"] for item in made["rules"]]
    assert (len(found["rules"]), found["rules_links"]) == (2, [])


def test_rules_from_create_to_delete(door: Door):
    made = door.make("rule", type="HEADER", compare_type="EQUAL_TO", key="x-a", value="1", invert=True)
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
    changed = door.good("PUT", path, {"rule": {"value": "2", "invert": None, "tags": ["t"]}})["rule"]
    assert (changed["value"], changed["invert"], changed["tags"]) == ("2", False, ["t"])
    words = (400, "Error parsing L7Rule: Invalid L7 Rule: L7 rule type requires a key")
    assert door.bad("PUT", path, {"rule": {"key": None}}) == words
    assert len(door.show("policy", door.ids["policy"])["rules"]) == 2
    door.good("DELETE", path)
    assert door.bad("GET", path) == (404, f"L7 Rule {made['id']} not found.")


def test_a_policy_has_at_most_fifty_rules(door: Door):
    rule = {"type": "PATH", "compare_type": "EQUAL_TO", "value": "/x"}
    body = {"listener_id": door.ids["other"], "action": "REJECT", "rules": [rule] * 50}
    made = door.make("policy", **body)["id"]
    assert door.bad("POST", f"/l7policies/{made}/rules", {"rule": rule}) == (409, f"Too many rules on L7 policy {made}")


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
        ({"action": "REDIRECT_TO_POOL", "redirect_pool_id": NOBODY}, 404, f"Pool {NOBODY} not found."),
        ({"action": "REJECT", "redirect_http_code": 300}, 400, "Value should be one of: 301, 302, 303, 307, 308"),
        ({"action": "REJECT", "position": 0}, 400, "Value should be greater or equal to 1"),
        ({"action": "REJECT", "listener_id": NOBODY}, 404, f"Listener {NOBODY} not found."),
        ({"action": "REJECT", "redirect_pool": {"name": "x"}}, 400, "argument l7policy_.l7policy: redirect_pool"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be(door: Door, more: dict[str, Any], status: int, words: str):
    code, told = door.bad("POST", "/l7policies", {"l7policy": {"listener_id": door.ids["other"], **more}})
    assert (code, words in told) == (status, True), told


def test_targets_that_exclude_each_other(door: Door):
    body = {"redirect_pool_id": door.ids["files"], "redirect_url": "http://x"}
    assert door.bad("PUT", "/l7policies/{policy}", {"l7policy": body}) == (
        400,
        "Invalid L7 Policy arguments: Cannot specify redirect_pool_id and redirect_url or redirect_prefix at the same"
        " time",
    )


def test_a_pool_that_does_not_fit_its_listener(door: Door):
    udp = door.make("pool", loadbalancer_id=door.ids["lb"], protocol="UDP", lb_algorithm="ROUND_ROBIN")["id"]
    told = door.bad("PUT", "/l7policies/{policy}", {"l7policy": {"redirect_pool_id": udp}})
    words = "Validation failure: The pool protocol 'UDP' is invalid while the listener protocol is 'HTTP'."
    assert told == (400, words)


def test_prometheus_has_no_children(door: Door):
    made = door.make("listener", loadbalancer_id=door.ids["lb"], protocol="PROMETHEUS", protocol_port=9)["id"]
    words = (400, "Protocol PROMETHEUS listeners cannot have child objects.")
    assert door.bad("POST", "/l7policies", {"l7policy": {"listener_id": made, "action": "REJECT"}}) == words
    assert door.bad("PUT", f"/listeners/{made}", {"listener": {"default_pool_id": door.ids["app"]}}) == words


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
def test_rules_that_can_be_and_that_cannot(door: Door, kind: str, compare: str, key: str, value: str, words: str):
    body = {"rule": {"type": kind, "compare_type": compare, "key": key, "value": value}}
    answer = door.call("POST", "/l7policies/{policy}/rules", body)
    if not words:
        assert answer.status_code == 201, answer.text
        return
    assert (answer.status_code, words in answer.json()["faultstring"]) == (400, True), answer.text


def test_a_tree_refers_to_its_pools_by_name(anything: Door):
    tree = anything.build()
    front = next(listener for listener in tree["listeners"] if listener["name"] == "front")
    policy = front["l7policies"][0]
    assert (policy["redirect_pool_id"], policy["redirect_http_code"]) == (anything.ids["files"], None)
    assert (policy["position"], policy["rules"][0]["value"]) == (1, "/static")
    lost = {"action": "REDIRECT_TO_POOL", "redirect_pool": {"name": "lost"}}
    body = {**TREE, "vip_address": "10.0.0.20", "listeners": [{**TREE["listeners"][0], "l7policies": [lost]}]}  # type: ignore[index]
    words = "Validation failure: Pool 'lost' was referenced but no full definition was found."
    assert anything.bad("POST", "/loadbalancers", {"loadbalancer": body}) == (400, words)


def test_ovn_refuses_them_by_name_and_writes_nothing(ovn: Door):
    balancer = ovn.make("lb", vip_subnet_id=SUBNET)["id"]
    listener = ovn.make("listener", loadbalancer_id=balancer, protocol="TCP", protocol_port=80)["id"]
    told = ovn.bad("POST", "/l7policies", {"l7policy": {"listener_id": listener, "action": "REJECT"}})
    assert told == (501, "Provider 'fairlead' does not support a requested option: L7 policies")
    assert not ovn.place.model.snapshot.l7policy_owner


def test_a_rule_is_found_by_its_value_under_both_names(door: Door):
    for name in ("value", "rule_value"):
        for value, found in (("/static", 1), ("/dynamic", 0)):
            rules = door.good("GET", f"/l7policies/{{policy}}/rules?{name}={value}")["rules"]
            assert len(rules) == found, name


def test_rules_and_members_are_found_by_what_the_path_says_too(door: Door):
    for path, plural, parent, count in (
        ("/l7policies/{policy}/rules", "rules", "l7policy_id={policy}", 1),
        ("/pools/{pool}/members", "members", "pool_id={pool}", 2),
    ):
        assert len(door.good("GET", f"{path}?{parent}")[plural]) == count
        assert door.good("GET", f"{path}?{parent.split('=')[0]}={NOBODY}")[plural] == []
