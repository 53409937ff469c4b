"""Requests of the Kubernetes cloud provider where nodes have proxies: each call of a Service's life, and its response.

The calls are those of cloud-provider-openstack's `ensureOctaviaLoadBalancer`, for one annotation at a time. A listener
with x-forwarded-for is HTTP, a pool with proxy-protocol is PROXY or PROXYV2, and a change of protocol makes a new pool.
With `externalTrafficPolicy: Local` the monitor requests /healthz from kube-proxy's own port.
"""

from typing import Any

import pytest

from harness.front_ends.kubernetes import NAME, TIMEOUTS, members, service
from harness.front_ends.octavia_world import OctaviaFrontEnd

HEALTHZ = {"type": "HTTP", "url_path": "/healthz", "http_method": "GET", "expected_codes": "200"}
LOCAL = {"name": "monitor", "delay": 5, "timeout": 3, "max_retries": 1, "max_retries_down": 3, **HEALTHZ}
NODE_PORT = 32100
"""Port of kube-proxy's health check server."""


def _made(door: OctaviaFrontEnd, asked: dict[str, Any]) -> dict[str, Any]:
    """Create a load balancer in one request, store its ids, and wait for ACTIVE, as the cloud provider does."""
    made: dict[str, Any] = door.call_ok("POST", "/loadbalancers", asked)["loadbalancer"]
    door.reconcile()
    assert door.show("lb", made["id"])["provisioning_status"] == "ACTIVE"
    door.ids |= {"lb": made["id"], "listener": made["listeners"][0]["id"], "pool": made["pools"][0]["id"]}
    return made


def _proxy_port(door: OctaviaFrontEnd) -> int:
    """Port on which proxies accept the listener's connections; 0 if the switch forwards to members."""
    return door.server.model.snapshot.load_balancers[door.ids["lb"]].listeners[0].proxy_port


def _listener(door: OctaviaFrontEnd) -> dict[str, Any]:
    (found,) = door.call_ok("GET", "/listeners?loadbalancer_id={lb}")["listeners"]
    return dict(found)


def _pool(door: OctaviaFrontEnd) -> dict[str, Any]:
    (found,) = door.call_ok("GET", "/pools?loadbalancer_id={lb}")["pools"]
    return dict(found)


def test_plain_service_uses_no_proxy(proxied: OctaviaFrontEnd):
    _made(proxied, service("fairlead", **TIMEOUTS))
    assert _proxy_port(proxied) == 0


def test_x_forwarded_for_uses_a_proxy_and_can_be_removed(proxied: OctaviaFrontEnd):
    asked = service("fairlead", protocol="HTTP", insert_headers={"X-Forwarded-For": "true"}, **TIMEOUTS)
    asked["loadbalancer"]["listeners"][0]["default_pool"]["protocol"] = "HTTP"
    _made(proxied, asked)
    listener = _listener(proxied)
    assert (listener["protocol"], listener["insert_headers"]) == ("HTTP", {"X-Forwarded-For": "true"})
    assert _proxy_port(proxied) > 0
    # without the annotation, the headers are removed and the listener keeps its protocol
    proxied.call_ok("PUT", "/listeners/{listener}", {"listener": {"insert_headers": {}}})
    proxied.reconcile()
    assert (_listener(proxied)["insert_headers"], _pool(proxied)["protocol"]) == ({}, "HTTP")


@pytest.mark.parametrize("protocol", ["PROXY", "PROXYV2"])
def test_proxy_protocol_is_switched_by_replacing_the_pool(proxied: OctaviaFrontEnd, protocol: str):
    _made(proxied, service("fairlead", **TIMEOUTS))
    assert _proxy_port(proxied) == 0
    for wanted in (protocol, "TCP"):
        proxied.call_ok("DELETE", f"/pools/{_pool(proxied)['id']}")
        proxied.reconcile()
        body = {
            "name": f"pool_0_{NAME}",
            "protocol": wanted,
            "lb_algorithm": "ROUND_ROBIN",
            "session_persistence": {"type": "SOURCE_IP"},
            "listener_id": proxied.ids["listener"],
        }
        made = proxied.call_ok("POST", "/pools", {"pool": body})["pool"]
        proxied.reconcile()
        proxied.call_ok("PUT", f"/pools/{made['id']}/members", {"members": members(11, 12)})
        proxied.reconcile()
        assert (_pool(proxied)["protocol"], _pool(proxied)["session_persistence"]["type"]) == (wanted, "SOURCE_IP")
        assert bool(_proxy_port(proxied)) == (wanted == protocol)


def test_connection_limit_switches_the_listener_to_a_proxy_and_back(proxied: OctaviaFrontEnd):
    _made(proxied, service("fairlead", connection_limit=100))
    assert (_listener(proxied)["connection_limit"], _proxy_port(proxied) > 0) == (100, True)
    for limit, is_led in ((50, True), (-1, False), (100, True)):
        proxied.call_ok("PUT", "/listeners/{listener}", {"listener": {"connection_limit": limit}})
        proxied.reconcile()
        assert (_listener(proxied)["connection_limit"], _proxy_port(proxied) > 0) == (limit, is_led)


def test_external_traffic_policy_local_probes_the_health_check_node_port(proxied: OctaviaFrontEnd):
    """The monitor for `externalTrafficPolicy: Local` probes kube-proxy; without the policy it is replaced by another
    type."""
    asked = service("fairlead", **TIMEOUTS)
    pool = asked["loadbalancer"]["listeners"][0]["default_pool"]
    pool |= {"healthmonitor": LOCAL, "members": [{**each, "monitor_port": NODE_PORT} for each in members(11, 12)]}
    _made(proxied, asked)
    assert _proxy_port(proxied) == 0  # the switch forwards, agents probe
    monitor = proxied.show("monitor", _pool(proxied)["healthmonitor_id"])
    assert {name: monitor[name] for name in HEALTHZ} == HEALTHZ
    shown = proxied.call_ok("GET", "/pools/{pool}/members")["members"]
    assert {each["monitor_port"] for each in shown} == {NODE_PORT}
    proxied.call_ok("DELETE", f"/healthmonitors/{monitor['id']}")
    proxied.reconcile()
    plain = {key: LOCAL[key] for key in ("name", "delay", "timeout", "max_retries", "max_retries_down")}
    body = {**plain, "type": "TCP", "pool_id": proxied.ids["pool"]}
    proxied.call_ok("POST", "/healthmonitors", {"healthmonitor": body})
    proxied.reconcile()
    proxied.call_ok("PUT", "/pools/{pool}/members", {"members": members(11, 12)})
    proxied.reconcile()
    shown = proxied.call_ok("GET", "/pools/{pool}/members")["members"]
    # attributes that a batch omits are kept, as in Octavia
    assert {each["monitor_port"] for each in shown} == {NODE_PORT}


def test_timeouts_and_allowed_cidrs_of_a_proxied_listener_can_be_changed(proxied: OctaviaFrontEnd):
    asked = service("fairlead", connection_limit=7, allowed_cidrs=["192.0.2.0/24"], **TIMEOUTS)
    _made(proxied, asked)
    changed = {"timeout_client_data": 1000, "timeout_member_data": 2000, "allowed_cidrs": ["198.51.100.0/24"]}
    proxied.call_ok("PUT", "/listeners/{listener}", {"listener": changed})
    proxied.reconcile()
    assert {name: _listener(proxied)[name] for name in changed} == changed


def test_connection_limit_of_a_udp_listener_is_refused(proxied: OctaviaFrontEnd):
    """A UDP listener with a connection limit is refused, and the error names the option."""
    asked = service("fairlead", protocol="UDP", connection_limit=100)
    asked["loadbalancer"]["listeners"][0]["default_pool"] |= {"protocol": "UDP", "healthmonitor": None}
    status, words = proxied.call_error("POST", "/loadbalancers", asked)
    assert (status, words) == (501, "Provider 'fairlead' does not support a requested option: connection_limit")


def test_proxied_service_is_deleted_by_cascade(proxied: OctaviaFrontEnd):
    _made(proxied, service("fairlead", connection_limit=100))
    proxied.call_ok("DELETE", "/loadbalancers/{lb}?cascade=true")
    assert proxied.call_ok("GET", f"/loadbalancers?name={NAME}")["loadbalancers"] == []
