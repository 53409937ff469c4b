"""README's table of Octavia features matches the API: it lists every attribute, with its actual support."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.keys import Keys
from fairlead.api.octavia import specs
from fairlead.compilers.haproxy import compiler
from fairlead.compilers.haproxy.frontends import HEADER_TIMEOUT_MS, MAX_CONNECTIONS
from fairlead.dataplane.haproxy_text import HARD_STOP_AFTER
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.process import MAX_REPLACED
from fairlead.keystores.interface import Content
from fairlead.model.documents import l7
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import AllocationPool
from fairlead.model.registry.changeset import Changes
from harness.api import WITH_PROXIES, compile_with_proxies
from harness.certificates import Authority
from harness.front_ends.octavia_world import MONITOR, NET, PATHS, SUBNET, UNKNOWN_ID, OctaviaFrontEnd, machine, network
from harness.proxied import listener, pool, rows_of, view

WITH_AGENTS = ("by proxy", "by agents")
"""Values of the table for features that are refused where no agents probe."""
README = Path(__file__).parents[3] / "README.md"
COMMON = "each of these, but L7"
SPECS: Mapping[str, specs.Spec] = {
    "load balancer": specs.LOAD_BALANCER_POST,
    "listener": specs.LISTENER_POST,
    "pool": {**specs.POOL_POST, **specs.SESSION_PERSISTENCE},
    "member": specs.MEMBER_POST,
    "health monitor": specs.HEALTH_MONITOR_POST,
    "L7 policy": {**specs.L7_POLICY_POST, **specs.L7_POLICY_IN_TREE},
    "L7 rule": specs.L7_RULE_POST,
}
VALUES: Mapping[tuple[str, str], type[StrEnum]] = {
    ("listener", "protocol"): lb.ListenerProtocol,
    ("pool", "protocol"): lb.PoolProtocol,
    ("pool", "lb_algorithm"): lb.Algorithm,
    ("pool", "locality"): lb.Locality,
    ("pool", "down_member"): lb.DownMember,
    ("pool", "session_persistence"): lb.PersistenceType,
    ("health monitor", "type"): lb.MonitorType,
    ("L7 policy", "action"): l7.L7ActionType,
    ("L7 rule", "type"): l7.L7RuleType,
    ("L7 rule", "compare_type"): l7.L7Comparison,
}
"""Attributes of which each value is a feature of its own; ANY is not one of Octavia's protocols."""
SAID_AS_VALUES = {"type"}
"""Attributes of session persistence."""

REF, SUBNET_6 = "https://secrets/1", "22222222-0000-4000-8000-000000000006"
POOL = {"name": "p", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT"}
ENDS_TLS = {"protocol": "TERMINATED_HTTPS", "default_tls_container_ref": REF}
ASKS_CERTIFICATE = {**ENDS_TLS, "client_ca_tls_container_ref": REF}
DATAGRAMS, WEB, HTTP = {"protocol": "UDP"}, {"protocol": "HTTP"}, {"type": "HTTP"}
COOKIE = {"session_persistence": {"type": "APP_COOKIE", "cookie_name": "c"}}
TO_POOL = {"action": "REDIRECT_TO_POOL", "redirect_pool_id": "{pool}"}
TO_URL = {"action": "REDIRECT_TO_URL", "redirect_url": "http://a.b/"}
TO_PREFIX = {"action": "REDIRECT_PREFIX", "redirect_prefix": "http://a.b/"}
HEADER = {"type": "HEADER", "key": "a", "value": "b"}

LEAST: Mapping[str, Mapping[str, Any]] = {
    COMMON: {"vip_subnet_id": SUBNET, "project_id": "demo", "tenant_id": "demo"},
    "load balancer": {"vip_subnet_id": SUBNET},
    "listener": {"loadbalancer_id": "{lb}", "protocol": "TCP", "protocol_port": 81},
    "pool": {"loadbalancer_id": "{lb}", **POOL},
    "member": {"address": "10.0.0.12", "protocol_port": 80},
    "health monitor": {"pool_id": "{pool}", **MONITOR},
    "L7 policy": {"listener_id": "{listener}", "action": "REJECT"},
    "L7 rule": {"type": "PATH", "compare_type": "EQUAL_TO", "value": "/"},
}
"""Base body of each request; names in braces stand for ids."""
MORE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    COMMON: {"name": {"name": "x"}, "description": {"description": "x"}, "tags": {"tags": ["x"]}},
    "load balancer": {
        "vip_address": {"vip_address": "10.0.0.50"},
        "vip_network_id": {"vip_subnet_id": None, "vip_network_id": NET},
        "vip_port_id": {"vip_subnet_id": None, "vip_port_id": machine(19)},
        "additional_vips": {"additional_vips": [{"subnet_id": SUBNET_6}]},
        "listeners": {"listeners": [{"protocol": "TCP", "protocol_port": 80}]},
        "pools": {"pools": [POOL]},
        "provider": {"provider": "ovn"},
        "flavor_id": {"flavor_id": "{flavor}"},
        "availability_zone": {"availability_zone": "east"},
        "vip_qos_policy_id": {"vip_qos_policy_id": UNKNOWN_ID},
        "vip_sg_ids": {"vip_sg_ids": [UNKNOWN_ID]},
    },
    "listener": {
        "protocol TERMINATED_HTTPS": ENDS_TLS,
        "allowed_cidrs": {"allowed_cidrs": ["10.0.0.0/24"]},
        "default_pool": {"default_pool": POOL},
        "default_pool_id": {"default_pool_id": "{pool}"},
        **{name: {name: 7} for name in specs.LISTENER_POST if name.startswith("timeout_")},
        "connection_limit": {"connection_limit": 5},
        "raw": {"raw": {"location": 0, "value": "5353482d"}},
        "l7policies": {"l7policies": [{"action": "REJECT"}]},
        "insert_headers": {"protocol": "HTTP", "insert_headers": {"X-Forwarded-For": "true"}},
        "hsts_max_age": {**ENDS_TLS, "hsts_max_age": 60},
        "hsts_include_subdomains": {**ENDS_TLS, "hsts_max_age": 60, "hsts_include_subdomains": True},
        "hsts_preload": {**ENDS_TLS, "hsts_max_age": 60, "hsts_preload": True},
        "default_tls_container_ref": ENDS_TLS,
        "sni_container_refs": {**ENDS_TLS, "sni_container_refs": [REF]},
        "client_authentication": {**ASKS_CERTIFICATE, "client_authentication": "MANDATORY"},
        "client_ca_tls_container_ref": ASKS_CERTIFICATE,
        "client_crl_container_ref": {**ASKS_CERTIFICATE, "client_crl_container_ref": REF},
        "tls_ciphers": {"tls_ciphers": "A:B"},
        "tls_versions": {"tls_versions": ["TLSv1.3"]},
        "alpn_protocols": {"alpn_protocols": ["h2"]},
    },
    "pool": {
        "session_persistence SOURCE_IP": {"session_persistence": {"type": "SOURCE_IP"}},
        "session_persistence HTTP_COOKIE": {"session_persistence": {"type": "HTTP_COOKIE"}},
        "session_persistence APP_COOKIE": COOKIE,
        "cookie_name": COOKIE,
        **{
            name: {**DATAGRAMS, "session_persistence": {"type": "SOURCE_IP", name: value}}
            for name, value in (("persistence_timeout", 60), ("persistence_granularity", "255.255.255.0"))
        },
        "listener_id": {"listener_id": "{bare}"},
        "members": {"members": [{"address": "10.0.0.12", "protocol_port": 80}]},
        "healthmonitor": {"healthmonitor": MONITOR},
        "tls_enabled": {"tls_enabled": True},
        "tls_container_ref": {"tls_container_ref": REF},
        "ca_tls_container_ref": {"ca_tls_container_ref": REF},
        "crl_container_ref": {"ca_tls_container_ref": REF, "crl_container_ref": REF},
        "tls_ciphers": {"tls_ciphers": "A:B"},
        "tls_versions": {"tls_versions": ["TLSv1.3"]},
        "alpn_protocols": {"alpn_protocols": ["h2"]},
    },
    "member": {
        "weight": {"weight": 7},
        "backup": {"backup": True},
        "subnet_id": {"subnet_id": SUBNET},
        "monitor_address": {"monitor_address": "10.0.0.13"},
        "monitor_port": {"monitor_port": 81},
        "request_sriov": {"request_sriov": True},
    },
    "health monitor": {
        "type UDP-CONNECT": {"pool_id": "{datagrams}", "type": "UDP-CONNECT"},
        "type SCTP": {"pool_id": "{datagrams}", "type": "SCTP"},
        "max_retries_down": {"max_retries_down": 7},
        "delay_ms": {"delay_ms": 100},
        "http_method": {**HTTP, "http_method": "GET"},
        "http_version": {"http_version": 1.1},
        "url_path": {**HTTP, "url_path": "/"},
        "expected_codes": {**HTTP, "expected_codes": "200"},
        "domain_name": {"http_version": 1.1, "domain_name": "a.b"},
    },
    "L7 policy": {
        "action REDIRECT_TO_POOL": TO_POOL,
        "action REDIRECT_TO_URL": TO_URL,
        "action REDIRECT_PREFIX": TO_PREFIX,
        "position": {"position": 1},
        "redirect_pool_id": TO_POOL,
        "redirect_pool": {"action": "REDIRECT_TO_POOL", "redirect_pool": {**POOL, "protocol": "HTTP"}},
        "redirect_url": TO_URL,
        "redirect_prefix": TO_PREFIX,
        "redirect_http_code": {**TO_URL, "redirect_http_code": 307},
        "rules": {"rules": [LEAST["L7 rule"]]},
        **{name: {name: "x"} for name in ("name", "description")},
        **{name: {name: "demo"} for name in ("project_id", "tenant_id")},
        "tags": {"tags": ["x"]},
    },
    "L7 rule": {
        "type COOKIE": {"type": "COOKIE", "key": "a"},
        "type FILE_TYPE": {"type": "FILE_TYPE", "value": "js"},
        "type HEADER": HEADER,
        "type SSL_CONN_HAS_CERT": {"type": "SSL_CONN_HAS_CERT", "value": "true"},
        "type SSL_VERIFY_RESULT": {"type": "SSL_VERIFY_RESULT", "value": "0"},
        "type SSL_DN_FIELD": {"type": "SSL_DN_FIELD", "key": "CN"},
        "key": HEADER,
        "invert": {"invert": True},
        **{name: {name: "demo"} for name in ("project_id", "tenant_id")},
        "tags": {"tags": ["x"]},
    },
}
"""Feature -> additional attributes of its request. Attribute values and switches need none."""
CALLS = {
    "status tree": ("GET", "/loadbalancers/{lb}/status", None),
    "statistics": ("GET", "/loadbalancers/{lb}/stats", None),
    "statistics of a listener": ("GET", "/listeners/{listener}/stats", None),
    "failover": ("PUT", "/loadbalancers/{lb}/failover", None),
    "batch update": ("PUT", "/pools/{pool}/members", {"members": [LEAST["member"]]}),
    "cascade delete": ("DELETE", "/loadbalancers/{lb}?cascade=true", None),
}
"""Features that are not attributes."""
ABOUT = {
    "insert_headers": "protocol HTTP",
    "request_sriov": "SR-IOV",
    "cookie_name": "session_persistence APP_COOKIE",
    "crl_container_ref": "ca_tls_container_ref",
    "l7policies": "L7 policies",
    **{
        name: "protocol TERMINATED_HTTPS" for name, more in MORE["listener"].items() if more.items() >= ENDS_TLS.items()
    },
    **{name: "monitors of type HTTP" for name, more in MORE["health monitor"].items() if more.items() >= HTTP.items()},
}
"""Refused feature -> error text, where the text is about a feature that must accompany it."""


@dataclass(frozen=True)
class Row:
    section: str
    feature: str
    verdict: str

    @property
    def items(self) -> list[str]:
        """List the attributes; or an attribute with each of its values; or the feature's own name."""
        attributes = re.findall(r"`(\w+)`", self.feature)
        values = re.findall(r"[A-Z][A-Z0-9_-]+", self.feature)
        return [f"{attributes[0]} {value}" for value in values] or attributes or [self.feature]


def rows() -> Iterator[Row]:
    text = README.read_text().split("## Octavia, feature by feature\n")[1].split("\n## ")[0]
    _, *lines = (line for line in text.splitlines() if line.startswith("| "))
    section = ""
    for line in lines:
        feature, verdict, _ = (cell.strip() for cell in line.strip("|").split("|"))
        if feature.startswith("**"):
            section = feature.strip("*")
        else:
            yield Row(section, feature, verdict)


def named(section: str) -> list[str]:
    return [item for row in rows() if row.section == section for item in row.items if item not in CALLS]


def taken(section: str) -> set[str]:
    names = SPECS[section].keys() - (SAID_AS_VALUES if section == "pool" else set())
    return {
        feature
        for name in names
        for feature in [f"{name} {value}" for value in VALUES.get((section, name), ()) if value != "ANY"] or [name]
    }


@pytest.mark.parametrize("section", SPECS)
def test_feature_table_lists_exactly_the_attributes_of_the_api(section: str):
    common = set() if section.startswith("L7") else set(named(COMMON))
    assert sorted(named(section)) == sorted(taken(section) - common)


def test_each_row_has_one_of_five_support_values():
    assert {row.verdict for row in rows()} == {"natively", "stored only", *WITH_AGENTS, "refused"}
    assert {row.section for row in rows()} == {COMMON, *SPECS}


@pytest.fixture
def door(ovn: OctaviaFrontEnd) -> OctaviaFrontEnd:
    return furnished(ovn, "TCP")


@dataclass(frozen=True)
class Store:
    """Key store that returns the same file for every reference."""

    content: bytes

    async def read(self, project_id: str, reference: str, asker: object) -> Content:
        return Content(material=self.content)


@pytest.fixture
def with_agents(tmp_path: Path) -> Iterator[OctaviaFrontEnd]:
    authority = Authority()
    store = Store(f"{authority.issue('a.b').certificate_and_key}{authority.revoke()}".encode())
    opened = OctaviaFrontEnd(tmp_path, compile_with_proxies, replace(WITH_PROXIES, keys=Keys(store)))
    yield furnished(opened, "HTTP")
    opened.close()


def furnished(ovn: OctaviaFrontEnd, protocol: str) -> OctaviaFrontEnd:
    """Create two listeners, one of them without a pool, two pools and a member, a flavor, an availability zone, and a
    node that reports counters."""
    ovn.server.node_counts.record("node", {}, interval=60, age=lambda _: 0.0)
    wide = AllocationPool(start=parse_address("fd00::2"), end=parse_address("fd00::ff"))
    cidr, gateway = parse_network("fd00::/64"), parse_address("fd00::1")
    six = replace(network().subnets[0], id=SUBNET_6, cidr=cidr, gateway=gateway, allocation_pools=(wide,))
    whole = replace(network(), subnets=(*network().subnets, six))
    ovn.run(ovn.server.model.write(lambda _: Changes(puts=(whole,))))
    ovn.ids["protocol"] = protocol
    ovn.ids["lb"] = ovn.create("lb", vip_subnet_id=SUBNET)["id"]
    for name, port in (("listener", 80), ("bare", 90)):
        made = ovn.create("listener", loadbalancer_id=ovn.ids["lb"], protocol=protocol, protocol_port=port)
        ovn.ids[name] = made["id"]
    ovn.ids["pool"] = ovn.create("pool", listener_id=ovn.ids["listener"], **{**POOL, "protocol": protocol})["id"]
    ovn.ids["datagrams"] = ovn.create("pool", loadbalancer_id=ovn.ids["lb"], **{**POOL, **DATAGRAMS})["id"]
    ovn.create("member", address="10.0.0.11", protocol_port=80)
    profile = {"flavorprofile": {"name": "p", "provider_name": "ovn", "flavor_data": "{}"}}
    made = ovn.call_ok("POST", "/flavorprofiles", profile)["flavorprofile"]
    flavor = {"flavor": {"name": "gold", "flavor_profile_id": made["id"]}}
    ovn.ids["flavor"] = ovn.call_ok("POST", "/flavors", flavor)["flavor"]["id"]
    profile = {"availability_zone_profile": {"name": "p", "provider_name": "ovn", "availability_zone_data": "{}"}}
    made = ovn.call_ok("POST", "/availabilityzoneprofiles", profile)["availability_zone_profile"]
    zone = {"availability_zone": {"name": "east", "availability_zone_profile_id": made["id"]}}
    ovn.call_ok("POST", "/availabilityzones", zone)
    return ovn


@pytest.mark.parametrize("section", [COMMON, *SPECS])
def test_every_row_states_the_actual_support(door: OctaviaFrontEnd, section: str):
    for row in rows():
        for item in row.items if row.section == section else ():
            (check_done if row.verdict in ("natively", "stored only") else check_refused)(door, section, item)


@pytest.mark.parametrize("section", [COMMON, *SPECS])
def test_features_table_of_the_readme_matches_the_actual_support(with_agents: OctaviaFrontEnd, section: str):
    for row in rows():
        for item in row.items if row.section == section and row.verdict in WITH_AGENTS else ():
            check_done(with_agents, section, item)


def check_refused(door: OctaviaFrontEnd, section: str, item: str) -> None:
    status, words = door.call_error(*request(door, section, item))
    about = "L7 policies" if section.startswith("L7") else ABOUT.get(item, item)
    assert (status in (400, 501), about in words) == (True, True), (item, words)


def check_done(door: OctaviaFrontEnd, section: str, item: str) -> None:
    """Check that the API shows the requested values, then delete the object, so that it does not affect the next
    request."""
    method, path, body = request(door, section, item)
    answer = door.call_ok(method, path, body)
    door.reconcile()
    if method == "POST":
        ((root, made),) = answer.items()
        assert item.partition(" ")[0] in str(body), "nothing was asked for"
        shown = {
            key: value
            for key, value in body[root].items()
            if value is not None and isinstance(made.get(key), str | int)
        }
        assert {key: made[key] for key in shown} == shown
        door.call_ok("DELETE", f"{path}/{made['id']}?cascade=true")
        door.reconcile()


def request(door: OctaviaFrontEnd, section: str, item: str) -> tuple[str, str, Any]:
    if item in CALLS:
        return CALLS[item]
    name, _, value = item.partition(" ")
    by_itself = {name: value} if value else {name: False} if name == "admin_state_up" else {}
    given = {**LEAST[section], **MORE[section].get(item, by_itself)}
    if section == "L7 rule":
        section, given = "L7 policy", {**LEAST["L7 policy"], "rules": [given]}
    if "redirect_pool" in given:
        section, given = "listener", {**LEAST["listener"], "l7policies": [MORE["L7 policy"][item]]}
    if "l7policies" in given and door.ids["protocol"] == "HTTP":
        given = {**given, **WEB}
    root, path = PATHS[KINDS[section]]
    ids = {key: value.format(**door.ids) for key, value in given.items() if isinstance(value, str)}
    return "POST", path, {root: {**given, **ids}}


KINDS = {
    **dict.fromkeys((COMMON, "load balancer"), "lb"),
    **{name: name for name in ("listener", "pool", "member")},
    "health monitor": "monitor",
    "L7 policy": "policy",
}
"""Section -> the API's name of the resource."""


def test_stored_only_attributes_change_no_dataplane_row(door: OctaviaFrontEnd):
    before = door.server.driver.rows
    for section, kind, put in ((COMMON, "lb", specs.LOAD_BALANCER_PUT), ("listener", "listener", specs.LISTENER_PUT)):
        for item in (
            item for row in rows() if (row.section, row.verdict) == (section, "stored only") for item in row.items
        ):
            if item in put:
                door.update(kind, door.ids[kind], **MORE[section][item])
    assert door.server.driver.rows == before


def test_timeouts_stored_only_by_the_switch_are_applied_by_proxies():
    stored = {item for row in rows() if (row.section, row.verdict) == ("listener", "stored only") for item in row.items}
    times = {item for item in stored if item.startswith("timeout_")}
    assert times == {name for name in specs.LISTENER_POST if name.startswith("timeout_")}
    for name in times:
        assert proxied(**{name.removeprefix("timeout_"): 7}) != proxied(), name


def proxied(**milliseconds: int) -> Rows:
    its = pool("p")
    one = listener("l", 2000, its, timeouts=lb.Timeouts(**milliseconds))
    return rows_of(view([one], [its]))


def test_readme_states_the_actual_proxy_limits():
    text = README.read_text()
    assert HARD_STOP_AFTER == 3_600
    for said in (
        f"at most {MAX_REPLACED} such processes of a network on each node, and each for an hour at most",
        f"it is {MAX_CONNECTIONS:,} for each listener on each node, and {compiler.MAX_CONNECTIONS:,} for all listeners",
        f"the headers of a request have {HEADER_TIMEOUT_MS // 1000} seconds",
    ):
        assert said in text
