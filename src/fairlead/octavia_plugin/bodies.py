"""Request bodies for Fairlead's plug-in API, built from octavia-lib's objects.

Attributes have the same names, except `id` for the object's own id. Unset attributes are omitted; None is sent. Secret
contents that Octavia has read (`*_data`) are never sent.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from octavia_lib.api.drivers.data_models import Unset

Body = dict[str, Any]
LOAD_BALANCER = ("name", "description", "admin_state_up", "vip_qos_policy_id", "vip_sg_ids")
"""Attributes that an update may change, as in the constants for the other kinds below."""
_VIP = ("project_id", "vip_address", "vip_network_id", "vip_port_id", "vip_subnet_id", "flavor", "availability_zone")
_TLS = ("tls_versions", "tls_ciphers", "alpn_protocols")
LISTENER = (
    *("name", "description", "admin_state_up", "connection_limit", "default_pool_id", "allowed_cidrs"),
    *("timeout_client_data", "timeout_member_connect", "timeout_member_data", "timeout_tcp_inspect"),
    *("default_tls_container_ref", "sni_container_refs", "client_authentication"),
    *("client_ca_tls_container_ref", "client_crl_container_ref", "insert_headers"),
    *("hsts_max_age", "hsts_include_subdomains", "hsts_preload", *_TLS),
)
POOL = (
    *("name", "description", "admin_state_up", "lb_algorithm", "session_persistence"),
    *("tls_enabled", "tls_container_ref", "ca_tls_container_ref", "crl_container_ref", *_TLS),
)
MEMBER = ("name", "admin_state_up", "weight", "backup", "monitor_address", "monitor_port")
MONITOR = (
    *("name", "admin_state_up", "delay", "timeout", "max_retries", "max_retries_down"),
    *("http_method", "url_path", "expected_codes", "http_version", "domain_name"),
)
L7_POLICY = (
    *("name", "description", "admin_state_up", "action", "position"),
    *("redirect_pool_id", "redirect_url", "redirect_prefix", "redirect_http_code"),
)
L7_RULE = ("admin_state_up", "type", "compare_type", "key", "value", "invert")


def changed(found: Any, names: Iterable[str]) -> Body:
    """Return the attributes that are set."""
    values = ((name, getattr(found, name)) for name in names)
    return {name: value for name, value in values if value is not Unset}


def load_balancer(found: Any) -> Body:
    """Body of a load balancer with all its children."""
    pools = {pool.pool_id: pool for pool in _parts(found.pools)}
    for listener in _parts(found.listeners):
        pool = listener.default_pool
        if pool and pool.pool_id not in pools:
            pools[pool.pool_id] = pool
    return {
        "id": found.loadbalancer_id,
        **changed(found, (*LOAD_BALANCER, *_VIP)),
        "additional_vips": [_vip(each) for each in _parts(found.additional_vips)],
        "listeners": [_without(listener_of(each), "loadbalancer_id") for each in _parts(found.listeners)],
        "pools": [_without(pool_of(each), "loadbalancer_id", "listener_id") for each in pools.values()],
    }


def _vip(found: Mapping[str, Any]) -> Body:
    return {name: found[name] for name in ("ip_address", "subnet_id", "port_id") if found.get(name)}


def listener_of(found: Any) -> Body:
    policies = [_without(policy_of(each), "listener_id") for each in _parts(found.l7policies)]
    return {
        "id": found.listener_id,
        **changed(found, ("loadbalancer_id", "protocol", "protocol_port", *LISTENER)),
        **({"l7policies": policies} if policies else {}),
    }


def pool_of(found: Any) -> Body:
    members = [member_of(each) for each in _parts(found.members)]
    monitor = found.healthmonitor
    return {
        "id": found.pool_id,
        **changed(found, ("loadbalancer_id", "listener_id", "protocol", *POOL)),
        **({"members": members} if members else {}),
        **({"healthmonitor": _without(monitor_of(monitor), "pool_id")} if monitor else {}),
    }


def member_of(found: Any) -> Body:
    direct = {"request_sriov": True} if found.vnic_type == "direct" else {}
    return {"id": found.member_id, **changed(found, ("address", "protocol_port", "subnet_id", *MEMBER)), **direct}


def monitor_of(found: Any) -> Body:
    return {"id": found.healthmonitor_id, **changed(found, ("pool_id", "type", *MONITOR))}


def policy_of(found: Any) -> Body:
    rules = [rule_of(each) for each in _parts(found.rules)]
    return {
        "id": found.l7policy_id,
        **changed(found, ("listener_id", *L7_POLICY)),
        **({"rules": rules} if rules else {}),
    }


def rule_of(found: Any) -> Body:
    return {"id": found.l7rule_id, **changed(found, L7_RULE)}


def _parts(found: Any) -> Iterable[Any]:
    """Return an empty list for Unset and None."""
    return found or ()


def _without(body: Body, *names: str) -> Body:
    return {name: value for name, value in body.items() if name not in names}
