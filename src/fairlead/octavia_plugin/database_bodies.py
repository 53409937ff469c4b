"""Conversion of a load balancer in Octavia's database to the body that the driver would send now.

Rows are read only by the attributes of Octavia's models. Objects being deleted are omitted. Lists are sorted, because a
database returns them in any order.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.octavia_plugin import bodies
from fairlead.octavia_plugin.bodies import Body

_COLUMNS: Mapping[str, str] = {
    "admin_state_up": "enabled",
    "address": "ip_address",
    "max_retries": "rise_threshold",
    "max_retries_down": "fall_threshold",
    "default_tls_container_ref": "tls_certificate_id",
    "client_ca_tls_container_ref": "client_ca_tls_certificate_id",
    "client_crl_container_ref": "client_crl_container_id",
    "tls_container_ref": "tls_certificate_id",
    "ca_tls_container_ref": "ca_tls_certificate_id",
    "crl_container_ref": "crl_container_id",
}
"""Attributes of the driver with another column name."""
_ELSEWHERE = frozenset(
    {"vip_qos_policy_id", "vip_sg_ids", "allowed_cidrs", "sni_container_refs", "session_persistence"}
)
"""Attributes that are stored in rows of their own."""
_PERSISTENCE = ("type", "cookie_name", "persistence_timeout", "persistence_granularity")
_DELETED = ("PENDING_DELETE", "DELETED")


def load_balancer(row: Any) -> Body:
    vip = row.vip
    return {
        **_values(row, ("id", "project_id", *bodies.LOAD_BALANCER)),
        "vip_address": vip.ip_address,
        "vip_network_id": vip.network_id,
        "vip_port_id": vip.port_id,
        "vip_subnet_id": vip.subnet_id,
        "vip_qos_policy_id": vip.qos_policy_id,
        "vip_sg_ids": sorted(vip.sg_ids),
        "additional_vips": sorted((_vip(each) for each in row.additional_vips), key=lambda each: each["subnet_id"]),
        "listeners": [_listener(each) for each in _parts(row.listeners)],
        "pools": [_pool(each) for each in _parts(row.pools)],
    }


def _vip(row: Any) -> Body:
    return {name: getattr(row, name) for name in ("ip_address", "subnet_id", "port_id") if getattr(row, name)}


def _listener(row: Any) -> Body:
    return {
        **_values(row, ("id", "protocol", "protocol_port", *bodies.LISTENER)),
        "allowed_cidrs": sorted(each.cidr for each in row.allowed_cidrs) or None,
        "sni_container_refs": [each.tls_container_id for each in row.sni_containers],
        "l7policies": [_policy(each) for each in sorted(_parts(row.l7policies), key=lambda each: each.position)],
    }


def _pool(row: Any) -> Body:
    persistence, monitor = row.session_persistence, next(_parts([row.health_monitor]), None)
    return {
        **_values(row, ("id", "protocol", *bodies.POOL)),
        "session_persistence": {name: getattr(persistence, name) for name in _PERSISTENCE} if persistence else None,
        "members": [_values(each, _MEMBER) for each in _parts(row.members)],
        **({"healthmonitor": _values(monitor, ("id", "type", *bodies.MONITOR))} if monitor else {}),
    }


_MEMBER = ("id", "address", "protocol_port", "subnet_id", *bodies.MEMBER)


def _policy(row: Any) -> Body:
    return {
        **_values(row, ("id", *bodies.L7_POLICY)),
        "rules": [_values(each, ("id", *bodies.L7_RULE)) for each in _parts(row.l7rules)],
    }


def _values(row: Any, names: Iterable[str]) -> Body:
    return {name: getattr(row, _COLUMNS.get(name, name)) for name in names if name not in _ELSEWHERE}


def _parts(rows: Iterable[Any]) -> Any:
    there = (row for row in rows if row is not None and row.provisioning_status not in _DELETED)
    return iter(sorted(there, key=lambda row: row.id))
