"""TLS and HTTP attributes of listeners and pools: stored and shown with a provider that supports them, else refused by
name."""

from typing import Any

import pytest

from fairlead.changes.tls_checks import DEFAULT_CIPHERS
from harness.front_ends.octavia_world import SUBNET, OctaviaFrontEnd

REF = "https://secrets/v1/containers/1"
TERMINATED = {"protocol": "TERMINATED_HTTPS", "default_tls_container_ref": REF}


def listener(door: OctaviaFrontEnd, **more: object) -> dict[str, Any]:
    if "lb" not in door.ids:
        door.ids["lb"] = door.create("lb", vip_subnet_id=SUBNET)["id"]
    return {"listener": {"loadbalancer_id": door.ids["lb"], "protocol": "TCP", "protocol_port": 443, **more}}


def pool(door: OctaviaFrontEnd, **more: object) -> dict[str, Any]:
    listener(door)
    common = {"loadbalancer_id": door.ids["lb"], "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN"}
    return {"pool": {**common, **more}}


def test_tls_attributes_of_a_listener_are_stored_and_reset_by_null(anything: OctaviaFrontEnd):
    wanted = {
        "default_tls_container_ref": REF,
        "sni_container_refs": [f"{REF}2", f"{REF}3"],
        "client_authentication": "MANDATORY",
        "client_ca_tls_container_ref": f"{REF}4",
        "client_crl_container_ref": f"{REF}5",
        "tls_versions": ["TLSv1.3"],
        "tls_ciphers": "A:B",
        "alpn_protocols": ["h2"],
        "insert_headers": {"X-Forwarded-For": "true", "X-SSL-Client-CN": "false"},
        "hsts_max_age": 60,
        "hsts_include_subdomains": True,
        "hsts_preload": True,
    }
    body = listener(anything, protocol="TERMINATED_HTTPS", **wanted)
    made = anything.call_ok("POST", "/listeners", body)["listener"]
    assert {name: made[name] for name in wanted} == wanted
    assert anything.show("listener", made["id"])["insert_headers"] == wanted["insert_headers"]
    gone = dict.fromkeys([name for name in wanted if name != "default_tls_container_ref"])
    changed = anything.update("listener", made["id"], **gone)
    assert {name: changed[name] for name in gone} == {
        "sni_container_refs": [],
        "client_authentication": "NONE",
        "client_ca_tls_container_ref": None,
        "client_crl_container_ref": None,
        "tls_versions": ["TLSv1.2", "TLSv1.3"],
        "tls_ciphers": DEFAULT_CIPHERS,
        "alpn_protocols": ["h2", "http/1.1", "http/1.0"],
        "insert_headers": {},
        "hsts_max_age": None,
        "hsts_include_subdomains": False,
        "hsts_preload": False,
    }


def test_listener_without_tls_has_no_tls_attributes(anything: OctaviaFrontEnd):
    made = anything.call_ok("POST", "/listeners", listener(anything))["listener"]
    assert (made["tls_versions"], made["alpn_protocols"], made["client_authentication"]) == (None, None, "NONE")
    assert anything.server.model.snapshot.load_balancers[anything.ids["lb"]].listeners[0].tls is None


def test_tls_attributes_of_a_pool_are_stored_and_reset_by_null(anything: OctaviaFrontEnd):
    wanted = {
        "tls_enabled": True,
        "tls_container_ref": REF,
        "ca_tls_container_ref": f"{REF}2",
        "crl_container_ref": f"{REF}3",
        "tls_ciphers": "A",
        "tls_versions": ["TLSv1.2"],
        "alpn_protocols": ["http/1.1"],
    }
    made = anything.call_ok("POST", "/pools", pool(anything, **wanted))["pool"]
    assert {name: made[name] for name in wanted} == wanted
    changed = anything.update("pool", made["id"], tls_versions=None, tls_ciphers=None)
    assert (changed["tls_ciphers"], changed["tls_versions"]) == (DEFAULT_CIPHERS, ["TLSv1.2", "TLSv1.3"])
    changed = anything.update("pool", made["id"], tls_enabled=False, tls_versions=None)
    assert (changed["tls_enabled"], changed["tls_versions"]) == (False, None)


def test_pool_with_tls_enabled_has_default_ciphers_and_versions(anything: OctaviaFrontEnd):
    made = anything.call_ok("POST", "/pools", pool(anything, tls_enabled=True))["pool"]
    assert (made["tls_ciphers"], made["tls_versions"]) == (DEFAULT_CIPHERS, ["TLSv1.2", "TLSv1.3"])


def test_revocation_list_requires_a_ca_certificate(anything: OctaviaFrontEnd):
    words = f"{FAILURE}A CA certificate reference is required to specify a revocation list."
    assert anything.call_error("POST", "/pools", pool(anything, crl_container_ref=REF)) == (400, words)
    both = {"ca_tls_container_ref": REF, "crl_container_ref": f"{REF}2"}
    made = anything.call_ok("POST", "/pools", pool(anything, **both))["pool"]
    words = f"{FAILURE}A CA reference cannot be removed when a certificate revocation list is present."
    assert anything.call_error("PUT", f"/pools/{made['id']}", {"pool": {"ca_tls_container_ref": None}}) == (400, words)


SNI = "An SNI or default certificate container reference must be provided for TERMINATED_HTTPS protocol listeners."
HSTS = "The HSTS feature can only be used for listeners using the TERMINATED_HTTPS protocol."
FAILURE = "Validation failure: "
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"default_tls_container_ref": REF},
        f"{FAILURE}Certificate container references are not allowed on TCP protocol listeners.",
    ),
    (
        {"protocol": "UDP", "sni_container_refs": [REF]},
        f"{FAILURE}UDP protocol listener does not support TLS.",
    ),
    ({"protocol": "TERMINATED_HTTPS"}, FAILURE + SNI),
    (
        {**TERMINATED, "client_authentication": "OPTIONAL"},
        f"{FAILURE}Client authentication setting OPTIONAL requires a client CA container reference.",
    ),
    (
        {**TERMINATED, "client_crl_container_ref": REF},
        f"{FAILURE}A client authentication CA reference is required to specify a client authentication revocation"
        " list.",
    ),
    ({**TERMINATED, "tls_versions": []}, f"{FAILURE}Empty TLS version list."),
    ({**TERMINATED, "tls_versions": ["TLSv9"]}, f"{FAILURE}Invalid TLS versions: TLSv9"),
    (
        {**TERMINATED, "tls_versions": ["SSLv3", "TLSv1.3"]},
        f"{FAILURE}Requested TLS versions are less than the minimum: SSLv3 < TLSv1.2",
    ),
    ({**TERMINATED, "alpn_protocols": []}, f"{FAILURE}Empty ALPN protocol list."),
    ({**TERMINATED, "alpn_protocols": ["h9"]}, "Value: '['h9']'. Value should be a valid ALPN protocol ID"),
    ({**TERMINATED, "hsts_preload": True}, f"{FAILURE}HSTS configuration options hsts_include_subdomains and hsts_"),
    ({"protocol": "HTTP", "hsts_max_age": 1}, FAILURE + HSTS),
    (
        {"protocol": "UDP", "insert_headers": {"X-Forwarded-For": "true"}},
        "insert-headers is not a valid option for a UDP protocol listener.",
    ),
    ({"protocol": "HTTP", "insert_headers": {"X": "true"}}, "['X'] is not a valid option for insert_headers"),
    (
        {"protocol": "HTTP", "insert_headers": {"X-SSL-Issuer": "true"}},
        "['X-SSL-Issuer'] is not a valid option for HTTP protocol listener.",
    ),
    ({"protocol": "HTTP", "insert_headers": {"X-Forwarded-For": "1"}}, "1 is not a valid option for insert_headers X-"),
    ({"protocol": "HTTP", "insert_headers": {"X-Forwarded-For": True}}, "Value should be an object of texts."),
    ({"client_authentication": "SOME"}, "Value should be one of: MANDATORY, NONE, OPTIONAL"),
]


@pytest.mark.parametrize(("more", "words"), BAD)
def test_invalid_tls_and_header_attributes_are_refused(anything: OctaviaFrontEnd, more: dict[str, Any], words: str):
    code, told = anything.call_error("POST", "/listeners", listener(anything, **more))
    assert (code, words in told) == (400, True), told


@pytest.mark.parametrize(
    ("kind", "more", "option"),
    [
        ("listener", {"tls_ciphers": "A"}, "tls_ciphers"),
        ("listener", {"tls_versions": ["TLSv1.2"]}, "tls_versions"),
        ("listener", {"alpn_protocols": ["h2"]}, "alpn_protocols"),
        ("listener", TERMINATED, "protocol TERMINATED_HTTPS"),
        ("listener", {"protocol": "HTTP", "insert_headers": {"X-Forwarded-For": "true"}}, "protocol HTTP"),
        ("pool", {"tls_enabled": True}, "tls_enabled"),
        ("pool", {"tls_container_ref": REF}, "tls_container_ref"),
        ("pool", {"ca_tls_container_ref": REF}, "ca_tls_container_ref"),
        ("pool", {"ca_tls_container_ref": REF, "crl_container_ref": REF}, "ca_tls_container_ref"),
        ("pool", {"tls_ciphers": "A"}, "tls_ciphers"),
        ("pool", {"tls_versions": ["TLSv1.2"]}, "tls_versions"),
        ("pool", {"alpn_protocols": ["h2"]}, "alpn_protocols"),
    ],
)
def test_ovn_refuses_tls_attributes_by_name(ovn: OctaviaFrontEnd, kind: str, more: dict[str, Any], option: str):
    body = (listener if kind == "listener" else pool)(ovn, **more)
    words = f"Provider 'fairlead' does not support a requested option: {option}"
    assert ovn.call_error("POST", f"/{kind}s", body) == (501, words)
