"""Octavia's own responses: a table of invalid and almost invalid requests, with Octavia's status codes and texts.

The responses were recorded from Octavia's own API with its noop provider. Requests for which Octavia answers 500, or
not always the same, are left out. Refusals for reasons of Fairlead's own are tested in other modules.
"""

from typing import Any

import pytest

from harness.front_ends.octavia_world import MONITOR, SUBNET, UNKNOWN_ID, OctaviaFrontEnd

LB, WEB, DATAGRAMS = "{lb}", {"protocol": "HTTP"}, {"protocol": "UDP"}
FAILURE = "Validation failure: "
FIELD = "Invalid input for field/attribute"
COOKIE = "^[^\\s,;\\\\]+$"
HSTS = "The HSTS feature can only be used for listeners using the TERMINATED_HTTPS protocol."
CLIENT_CA = "An SNI or default certificate container reference must be provided with a client CA container reference."
NO_TLS = "UDP protocol listener does not support TLS or header insertion."
TAKEN = {"protocol_port": 80}
ENDS_TLS = {"protocol": "TERMINATED_HTTPS"}
POOL = {"loadbalancer_id": LB, "lb_algorithm": "ROUND_ROBIN", **WEB}
LISTENER = {"loadbalancer_id": LB, "protocol": "TCP", "protocol_port": 82}
POLICY = {"listener_id": "{front}"}
URL = {**POLICY, "action": "REDIRECT_TO_URL"}


def kept(kind: object = None, **more: object) -> dict[str, Any]:
    return {"session_persistence": {**({"type": kind} if kind else {}), **more}}


ANSWERS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "pool", {**POOL, **kept("SOURCE_IP", cookie_name="a")}, 400,
     f'{FAILURE}Field "cookie_name" can only be specified with session persistence of type "APP_COOKIE".'),
    ("POST", "pool", {**POOL, **kept("APP_COOKIE", cookie_name="a=b")}, 400,
     f'{FAILURE}Supplied "cookie_name" is invalid.'),
    ("POST", "pool", {**POOL, **kept("APP_COOKIE", cookie_name="a b")}, 400,
     f"{FIELD} cookie_name. Value: 'a b'. Value should match the pattern {COOKIE}"),
    ("POST", "pool", {**POOL, **kept("APP_COOKIE")}, 400,
     f'{FAILURE}Field "cookie_name" must be specified when using the "APP_COOKIE" session persistence type.'),
    ("POST", "pool", {**POOL, **kept("SOURCE_IP", persistence_timeout=5)}, 400,
     f"{FAILURE}persistence_timeout and persistence_granularity is only for UDP and SCTP protocol pools."),
    ("POST", "pool", {**POOL, **DATAGRAMS, **kept("SOURCE_IP", cookie_name="a")}, 400,
     f"{FAILURE}session_persistence SOURCE_IP type for UDP and SCTP protocols only accepts: type, persistence_timeout,"
     " persistence_granularity."),
    ("POST", "pool", {**POOL, **DATAGRAMS, **kept("HTTP_COOKIE")}, 400,
     f"{FAILURE}Session persistence of type HTTP_COOKIE is not supported for UDP/SCTP protocol pools."),
    ("POST", "pool", {**POOL, **DATAGRAMS, **kept("APP_COOKIE", cookie_name="a")}, 400,
     f"{FAILURE}Cookie names are not supported for UDP/SCTP pools."),
    ("POST", "pool", {**POOL, **kept("SOURCE_IP", persistence_granularity="x")}, 400,
     f"{FIELD} persistence_granularity. Value: 'x'. Value should be IPv4 or IPv6 format"),
    ("POST", "pool", {**POOL, **kept("SOURCE_IP", colour="red")}, 400,
     "Unknown attribute for argument pool_.pool.session_persistence: colour"),
    ("POST", "pool", {**POOL, "crl_container_ref": "a"}, 400,
     f"{FAILURE}A CA certificate reference is required to specify a revocation list."),
    ("POST", "pool", {**POOL, "tls_ciphers": "a b"}, 400,
     f"{FAILURE}Invalid characters in cipher string. Only alphanumeric, -, +, !, :, @, =, _, and . are allowed."),
    ("POST", "pool", {**POOL, "alpn_protocols": ["x"]}, 400,
     f"{FIELD} alpn_protocols. Value: '['x']'. Value should be a valid ALPN protocol ID"),
    ("POST", "pool", {**POOL, "colour": "red", "size": 1}, 400,
     "Unknown attributes for argument pool_.pool: colour, size"),
    ("PUT", "pool/{app}", {"crl_container_ref": "a"}, 400,
     f"{FAILURE}A CA reference is required to specify a certificate revocation list."),
    ("PUT", "pool/{app}", kept(), 400, f"{FAILURE}Invalid session_persistence provided."),
    ("POST", "pool", {"listener_id": "{front}", "lb_algorithm": "ROUND_ROBIN", **WEB, **kept("APP_COOKIE")}, 400,
     f'{FAILURE}Field "cookie_name" must be specified when using the "APP_COOKIE" session persistence type.'),
    ("POST", "pool", {"listener_id": "{front}", "lb_algorithm": "ROUND_ROBIN", **WEB}, 409,
     "This listener already has a default pool"),
    ("POST", "pool", {"listener_id": "{metrics}", "lb_algorithm": "ROUND_ROBIN", **WEB}, 400,
     "Protocol PROMETHEUS listeners cannot have child objects."),
    ("POST", "healthmonitor", {"pool_id": "{app}", **MONITOR, "http_method": "GET"}, 400,
     "http_method is not a valid option for health monitors of type TCP"),
    ("POST", "healthmonitor", {"pool_id": "{app}", **MONITOR, "domain_name": "a"}, 400,
     f"{FAILURE}'http_version' must be specified when 'domain_name' is provided."),
    ("POST", "healthmonitor", {"pool_id": "{app}", **MONITOR}, 409, "This pool already has a health monitor"),
    ("POST", "healthmonitor", {"pool_id": "{app}", **MONITOR, "expected_codes": "20"}, 400,
     rf"{FIELD} expected_codes. Value: '20'. Value should match the pattern ^(\d{{3}}(\s*,\s*\d{{3}})*)$|"
     rf"^(\d{{3}}-\d{{3}})$"),
    ("POST", "healthmonitor", {"pool_id": "{app}", **MONITOR, "url_path": "a"}, 400,
     f"{FIELD} url_path. Value: 'a'. Value must be a valid URL Path string"),
    ("POST", "healthmonitor", {"pool_id": None, **MONITOR}, 404, "Pool None not found."),
    ("POST", "healthmonitor", MONITOR, 400, f"{FIELD} pool_id. Value: 'None'. Mandatory field missing."),
    ("PUT", "healthmonitor/{monitor}", {"expected_codes": None}, 400,
     "expected_codes is not a valid option for health monitors of type TCP"),
    ("PUT", f"healthmonitor/{UNKNOWN_ID}", {}, 404, f"Health Monitor {UNKNOWN_ID} not found."),
    ("PUT", f"l7policy/{UNKNOWN_ID}", {}, 404, f"L7 Policy {UNKNOWN_ID} not found."),
    ("POST", "listener", {**LISTENER, "allowed_cidrs": ["x"]}, 400,
     f"{FIELD} allowed_cidrs. Value: '['x']'. Value should be IPv4 or IPv6 CIDR format"),
    ("POST", "listener", {**LISTENER, "protocol": "UDP", "default_tls_container_ref": "a"}, 400,
     f"{FAILURE}UDP protocol listener does not support TLS."),
    ("POST", "listener", {**LISTENER, "default_tls_container_ref": "a"}, 400,
     f"{FAILURE}Certificate container references are not allowed on TCP protocol listeners."),
    ("POST", "listener", {**LISTENER, "client_ca_tls_container_ref": "a"}, 400, FAILURE + CLIENT_CA),
    ("POST", "listener", {**LISTENER, "hsts_max_age": 5}, 400, FAILURE + HSTS),
    ("POST", "listener", {**LISTENER, "name": 1}, 400, f"{FIELD} name. Value: '1'. Value should be string"),
    ("POST", "listener", {**LISTENER, "protocol_port": 80}, 409,
     "Another Listener on this Load Balancer is already using protocol HTTP and protocol_port 80"),
    ("POST", "listener", {**LISTENER, "protocol": "UDP", "insert_headers": {"X-Forwarded-For": "true"}}, 400,
     "insert-headers is not a valid option for a UDP protocol listener."),
    ("PUT", "listener/{datagrams}", {"insert_headers": {"X-Forwarded-For": "true"}}, 400, FAILURE + NO_TLS),
    ("PUT", "listener/{datagrams}", {"insert_headers": {"X-Bad": "true"}}, 400, FAILURE + NO_TLS),
    ("PUT", "listener/{datagrams}", {"default_tls_container_ref": "a"}, 400, FAILURE + NO_TLS),
    ("PUT", "listener/{datagrams}", {"sni_container_refs": ["a"]}, 400, FAILURE + NO_TLS),
    ("PUT", "listener/{front}", {"insert_headers": {"X-Bad": "true"}}, 400,
     "['X-Bad'] is not a valid option for insert_headers"),
    ("POST", "listener", {**LISTENER, **TAKEN, "protocol": "HTTPS", "default_pool_id": "{app}"}, 400,
     f"{FAILURE}The pool protocol 'HTTP' is invalid while the listener protocol is 'HTTPS'."),
    ("POST", "listener", {**LISTENER, **ENDS_TLS, "default_pool_id": "{secure}"}, 400,
     f"{FAILURE}The pool protocol 'HTTPS' is invalid while the listener protocol is 'TERMINATED_HTTPS'."),
    ("POST", "listener", {**LISTENER, **ENDS_TLS, "default_pool_id": UNKNOWN_ID}, 404, f"Pool {UNKNOWN_ID} not found."),
    ("POST", "listener", {**LISTENER, **ENDS_TLS, "default_pool_id": "{app}"}, 400,
     f"{FAILURE}An SNI or default certificate container reference must be provided for TERMINATED_HTTPS protocol"
     " listeners."),
    ("POST", "listener", {**LISTENER, **TAKEN, "default_pool_id": UNKNOWN_ID}, 404, f"Pool {UNKNOWN_ID} not found."),
    ("POST", "listener", {**LISTENER, **TAKEN, "protocol": "PROMETHEUS", "default_pool_id": "{app}"}, 400,
     "Protocol PROMETHEUS listeners cannot have child objects."),
    ("POST", "listener", {**LISTENER, **TAKEN, "allowed_cidrs": ["2001:db8::/64"]}, 409,
     "Another Listener on this Load Balancer is already using protocol HTTP and protocol_port 80"),
    ("POST", "listener", {**LISTENER, "loadbalancer_id": None}, 404, "Load Balancer None not found."),
    ("POST", "l7policy", {"listener_id": None, "action": "REJECT"}, 404, "Listener None not found."),
    ("POST", "pool", {**POOL, "loadbalancer_id": None}, 400,
     f"{FAILURE}Must provide at least one of: loadbalancer_id, listener_id"),
    ("POST", "l7policy", URL, 400, "Invalid L7 Policy arguments: redirect_url must not be None"),
    ("POST", "l7policy", {**URL, "redirect_url": "x"}, 400,
     f"{FIELD} redirect_url. Value: 'x'. Value must be a valid URL string"),
    ("POST", "rule /l7policies/{policy}/rules", {"type": "PATH", "compare_type": "REGEX", "value": ""}, 400,
     "Error parsing L7Rule: Invalid L7 Rule: L7 rule type requires a value"),
    ("POST", "rule /l7policies/{policy}/rules", {"type": "PATH", "compare_type": "REGEX", "value": "a\nb"}, 400,
     f"{FIELD} value. Value: 'a\nb'. Value should match the pattern ^[^\\r\\n]*$"),
    ("PUT", "members /pools/{app}/members", {"address": "10.0.0.11", "protocol_port": 80, "colour": "red"}, 400,
     "Unknown attribute for argument members_.members: colour"),
    ("PUT", "quota/demo", {"colour": 1}, 400, "Unknown attribute for argument quotas.quota: colour"),
    ("PUT", "l7policy/{policy}", {"action": None}, 400, "Invalid L7 Policy action specified: None"),
    ("POST", "loadbalancer", {"vip_subnet_id": SUBNET, "vip_address": "x"}, 400,
     f"{FIELD} vip_address. Value: 'x'. Value should be IPv4 or IPv6 format"),
    ("POST", "loadbalancer", {"vip_subnet_id": SUBNET, "listeners": [{**WEB, "protocol_port": 80, "size": 1}]}, 400,
     "Unknown attribute for argument load_balancer.loadbalancer.listeners: size"),
    ("POST", "loadbalancer", {"vip_subnet_id": SUBNET, "availability_zone": "nowhere"}, 400,
     f"{FAILURE}Invalid availability zone."),
]  # fmt: skip
PATHS = {"l7policy": "l7policies"}
REFERENCES = ("{lb}", "{front}", "{metrics}", "{app}", "{secure}")
_COMMON = (
    *("admin_state_up", "created_at", "id", "operating_status", "project_id", "provisioning_status", "tags"),
    *("tenant_id", "updated_at"),
)
_TLS = ("alpn_protocols", "tls_ciphers", "tls_versions")
ATTRIBUTES = {
    "listener": {
        *_COMMON,
        *_TLS,
        *("allowed_cidrs", "client_authentication", "client_ca_tls_container_ref", "client_crl_container_ref"),
        *("connection_limit", "default_pool_id", "default_tls_container_ref", "description", "hsts_include_subdomains"),
        *("hsts_max_age", "hsts_preload", "insert_headers", "l7policies", "loadbalancers", "name", "protocol"),
        *("protocol_port", "sni_container_refs", "timeout_client_data", "timeout_member_connect"),
        *("timeout_member_data", "timeout_tcp_inspect"),
    },
    "pool": {
        *_COMMON,
        *_TLS,
        *("ca_tls_container_ref", "crl_container_ref", "description", "healthmonitor_id", "lb_algorithm", "listeners"),
        *("loadbalancers", "members", "name", "protocol", "session_persistence", "tls_container_ref", "tls_enabled"),
    },
    "member": {
        *_COMMON,
        *("address", "backup", "monitor_address", "monitor_port", "name", "protocol_port", "subnet_id", "vnic_type"),
        "weight",
    },
    "healthmonitor": {
        *_COMMON,
        *("delay", "domain_name", "expected_codes", "http_method", "http_version", "max_retries", "max_retries_down"),
        *("name", "pools", "timeout", "type", "url_path"),
    },
}
"""Attributes that octavia.api.v2.types of Octavia 19.0.0 shows for each object."""


def call(door: OctaviaFrontEnd, method: str, where: str, values: dict[str, Any]) -> tuple[int, str]:
    """Send the request. `where` is the root element, optionally followed by an id or by a path."""
    root, _, path = where.partition(" ")
    root, _, identity = root.partition("/")
    path = path or f"/{PATHS.get(root, f'{root}s')}" + (f"/{identity}" if identity else "")
    filled = {name: value.format(**door.ids) if value in REFERENCES else value for name, value in values.items()}
    return door.call_error(method, path, {root: [filled] if root == "members" else filled})


@pytest.fixture
def door(anything: OctaviaFrontEnd) -> OctaviaFrontEnd:
    """The tree, at rest, a listener for metrics and one of datagrams, and a pool of HTTPS."""
    anything.create_tree()
    anything.reconcile()
    secure = {"loadbalancer_id": anything.ids["lb"], "protocol": "HTTPS", "lb_algorithm": "ROUND_ROBIN"}
    anything.ids["secure"] = anything.create("pool", **secure)["id"]
    for name, protocol, port in (("metrics", "PROMETHEUS", 90), ("datagrams", "UDP", 91)):
        values = {"loadbalancer_id": anything.ids["lb"], "protocol": protocol, "protocol_port": port}
        anything.ids[name] = anything.create("listener", **values)["id"]
    return anything


def test_invalid_requests_get_octavias_status_codes_and_texts(door: OctaviaFrontEnd):
    before = door.server.model.snapshot
    told = [call(door, method, where, values) for method, where, values, _, _ in ANSWERS]
    assert told == [(code, words) for _, _, _, code, words in ANSWERS]
    assert door.server.model.snapshot is before


def test_validation_errors_are_reported_before_the_pending_status(door: OctaviaFrontEnd):
    """Validation errors are reported before the pending status, because a retry cannot fix the request."""
    door.server.is_reconciling = False
    door.call_ok("PUT", "/loadbalancers/{lb}", {"loadbalancer": {"name": "x"}})
    waiting = [(method, where, values) for method, where, values, code, _ in ANSWERS if code == 400]
    assert {call(door, *each)[0] for each in waiting} == {400}
    assert door.call_error("PUT", "/pools/{app}", {"pool": {"name": "x"}})[0] == 409


def test_responses_have_exactly_octavias_attributes(anything: OctaviaFrontEnd):
    """Attributes that Octavia does not have are shown only where a client has set them."""
    tree = anything.create_tree()
    anything.reconcile()
    pool, in_tree = tree["pools"][0], {"loadbalancers", "healthmonitor_id", "pools"}
    parts = {"listener": tree["listeners"][0], "pool": pool, "member": pool["members"][0]}
    parts["healthmonitor"] = pool["healthmonitor"]
    assert {name: set(part) - {"healthmonitor"} for name, part in parts.items()} == {
        name: attributes - in_tree for name, attributes in ATTRIBUTES.items()
    }
    paths = {
        "listener": "/listeners/{front}",
        "pool": "/pools/{app}",
        "member": "/pools/{app}/members/{a}",
        "healthmonitor": "/healthmonitors/{monitor}",
    }
    assert {name: set(anything.call_ok("GET", path)[name]) for name, path in paths.items()} == ATTRIBUTES


def test_session_persistence_update_without_a_type_keeps_the_type(anything: OctaviaFrontEnd):
    """A PUT of `session_persistence` without a type changes the other attributes and keeps the type."""
    anything.ids["lb"] = anything.create("lb", vip_subnet_id=SUBNET)["id"]
    old = kept("APP_COOKIE", cookie_name="a")
    made = anything.create("pool", loadbalancer_id=anything.ids["lb"], lb_algorithm="ROUND_ROBIN", **WEB, **old)["id"]
    changed = anything.update("pool", made, **kept(cookie_name="b"))["session_persistence"]
    assert (changed["type"], changed["cookie_name"]) == ("APP_COOKIE", "b")
    changed = anything.update("pool", made, **kept("SOURCE_IP"))["session_persistence"]
    assert (changed["type"], changed["cookie_name"]) == ("SOURCE_IP", None)


def test_redirect_code_defaults_to_302_and_can_be_removed(door: OctaviaFrontEnd):
    """A redirection without a code gets 302; a code can be removed alone."""
    values = {**URL, "listener_id": door.ids["front"], "redirect_url": "http://a"}
    made = door.create("policy", **values, redirect_http_code=None)
    assert made["redirect_http_code"] == 302
    assert door.update("policy", made["id"], redirect_http_code=301)["redirect_http_code"] == 301
    assert door.update("policy", made["id"], redirect_http_code=None)["redirect_http_code"] is None
    assert door.update("policy", made["id"], redirect_url="http://b")["redirect_http_code"] == 302


def test_null_admin_state_in_a_post_disables_the_object(door: OctaviaFrontEnd):
    made = door.create(
        "listener", loadbalancer_id=door.ids["lb"], protocol="TCP", protocol_port=82, admin_state_up=None
    )
    assert made["admin_state_up"] is False
    assert door.create("lb", vip_subnet_id=SUBNET, admin_state_up=None)["admin_state_up"] is False


def test_allowed_cidrs_are_normalized_to_network_addresses(door: OctaviaFrontEnd):
    values = {**LISTENER, "loadbalancer_id": door.ids["lb"], "allowed_cidrs": ["10.0.0.5", "10.0.0.9/24"]}
    assert door.create("listener", **values)["allowed_cidrs"] == ["10.0.0.5/32", "10.0.0.0/24"]


def test_listener_inherits_the_project_of_its_load_balancer(door: OctaviaFrontEnd):
    """The project of a load balancer is tenant_id if that differs from project_id, as in Octavia. Parts ignore both."""
    made = door.create("lb", vip_subnet_id=SUBNET, project_id="a", tenant_id="b")
    assert (made["project_id"], made["tenant_id"]) == ("b", "b")
    values = {**LISTENER, "loadbalancer_id": door.ids["lb"], "project_id": "other", "tenant_id": "another"}
    assert door.create("listener", **values)["project_id"] == "demo"
