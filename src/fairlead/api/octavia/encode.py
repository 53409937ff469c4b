"""Encoder of the model into Octavia API bodies. Each status is derived at the time of the request."""

from collections.abc import Callable, Iterable, Mapping, Set
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

import msgspec

from fairlead.api.http.front_end import JsonObject, Services
from fairlead.api.http.openapi import IDENTITY, NUMBER, TEXT
from fairlead.api.octavia import specs
from fairlead.api.octavia.raw import encode_raw
from fairlead.api.octavia.tls import encode_listener_tls, encode_pool_tls
from fairlead.model.documents import sizes
from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.l7 import (
    L7Action,
    L7Policy,
    L7Rule,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.model.documents.loadbalancer import (
    AppCookiePersistence,
    DownMember,
    HealthMonitor,
    HttpMonitor,
    Listener,
    LoadBalancer,
    Locality,
    Member,
    Pool,
    SessionPersistence,
    SourceIpPersistence,
    find_pool,
    listeners_of,
    pools_of,
)
from fairlead.model.documents.member_ports import target_ports
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import OperatingStatus, ProvisioningStatus
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, Spec, array_schema, enum_schema, object_schema, or_null

STATISTICS: Mapping[str, Schema] = dict.fromkeys(
    ("active_connections", "bytes_in", "bytes_out", "request_errors", "total_connections"), NUMBER
)
_NO_TARGET = dict.fromkeys(("redirect_pool_id", "redirect_url", "redirect_prefix", "redirect_http_code"))
_V = TypeVar("_V")
Shown: TypeAlias = Mapping[str, Schema]
"""Schema of the attributes of a response: writable and read-only ones."""
BY_AGENTS, BY_DATAPLANE = "agents", "dataplane"
OMITTED: Mapping[str, object] = {
    "healthmonitor_id": None,
    "raw": None,
    "locality": Locality.NONE.value,
    "down_member": DownMember.KEEP.value,
    "delay_ms": None,
    "probed_by": BY_DATAPLANE,
}
"""Attribute -> the value that responses omit: no monitor on a pool, as in Octavia, and the defaults of attributes
that Octavia lacks. Filters and sort keys can still name it."""


def omitted_of(shown: Shown) -> Mapping[str, object]:
    """Return the attributes of this schema that responses may omit, with the omitted value."""
    return {name: value for name, value in OMITTED.items() if name in shown}


def _unless_omitted(**values: object) -> JsonObject:
    return {name: value for name, value in values.items() if value != OMITTED[name]}


def _shown(spec: Spec, *hidden: str, **only_read: Schema) -> Shown:
    """Return the schema of a resource. An attribute that responses may omit is never null."""
    given = {
        name: field.parse.schema if name in OMITTED else or_null(field.parse.schema)
        for name, field in spec.items()
        if name not in hidden
    }
    return {
        **given,
        "id": IDENTITY,
        "created_at": TEXT,
        "updated_at": or_null(TEXT),
        "provisioning_status": enum_schema(ProvisioningStatus),
        "operating_status": enum_schema(OperatingStatus),
        **only_read,
    }


def _ids_of(most: int) -> Schema:
    return array_schema(object_schema({"id": IDENTITY}, ["id"]), most)


_ONE = _ids_of(1)
MEMBER = _shown(specs.MEMBER_POST, "request_sriov", vnic_type=TEXT)
_MORE = {"http_version": or_null({"enum": [1.0, 1.1]}), "probed_by": {"const": BY_AGENTS}}
HEALTH_MONITOR = _shown(specs.HEALTH_MONITOR_POST, "pool_id", pools=_ONE, **_MORE)
L7_RULE = _shown(specs.L7_RULE_POST)
L7_POLICY = _shown(
    specs.L7_POLICY_POST,
    listener_id=IDENTITY,
    rules=_ids_of(sizes.MAX_L7RULES),
    position={"type": "integer", "minimum": 1},
)
POOL = _shown(
    specs.POOL_POST,
    *("healthmonitor", "listener_id", "loadbalancer_id"),
    healthmonitor_id=IDENTITY,
    loadbalancers=_ONE,
    listeners=_ids_of(sizes.MAX_LISTENERS),
    members=_ids_of(sizes.MAX_MEMBERS),
)
LISTENER = _shown(
    specs.LISTENER_POST,
    *("default_pool", "loadbalancer_id"),
    loadbalancers=_ONE,
    l7policies=_ids_of(sizes.MAX_L7POLICIES),
)
LOAD_BALANCER = _shown(
    specs.LOAD_BALANCER_POST,
    vip_vnic_type=TEXT,
    listeners=_ids_of(sizes.MAX_LISTENERS),
    pools=_ids_of(sizes.MAX_POOLS),
)
_NAMED_BY_PLACE = frozenset({"healthmonitor_id", "loadbalancers"})
"""Attributes that nested listeners and pools lack in the response of a single-call create, because the nesting implies
them; likewise `pools` of a health monitor."""


def _without(shown: Mapping[str, _V], names: Set[str]) -> dict[str, _V]:
    return {name: value for name, value in shown.items() if name not in names}


def full_schema(shown: Shown, **nested: Schema) -> Schema:
    """Return the schema of a full response; only attributes in `OMITTED` may be missing."""
    attributes = {**shown, **nested}
    return object_schema(attributes, attributes.keys() - OMITTED.keys())


_POLICY_IN_TREE = full_schema(L7_POLICY, rules=array_schema(full_schema(L7_RULE), sizes.MAX_L7RULES))
_MONITOR_IN_TREE = or_null(full_schema(_without(HEALTH_MONITOR, {"pools"})))
_POOL_IN_TREE = full_schema(
    _without(POOL, _NAMED_BY_PLACE),
    members=array_schema(full_schema(MEMBER), sizes.MAX_MEMBERS),
    healthmonitor=_MONITOR_IN_TREE,
)
LOAD_BALANCER_TREE: Shown = {
    **LOAD_BALANCER,
    "listeners": array_schema(
        full_schema(
            _without(LISTENER, _NAMED_BY_PLACE), l7policies=array_schema(_POLICY_IN_TREE, sizes.MAX_L7POLICIES)
        ),
        sizes.MAX_LISTENERS,
    ),
    "pools": array_schema(_POOL_IN_TREE, sizes.MAX_POOLS),
}


def status_in(services: Services, snapshot: Snapshot, balancer: LoadBalancer) -> BalancerStatus:
    return derive_balancer_status(snapshot, balancer, services.applied(Owner(Kind.LOAD_BALANCER, balancer.id)))


def encode_load_balancer(where: BalancerStatus) -> JsonObject:
    balancer = where.balancer
    return {
        **_resource(where, balancer, where.of_balancer()),
        "admin_state_up": balancer.admin_state_up,
        "vip_address": str(balancer.vip.address),
        "vip_port_id": balancer.vip.port_id,
        "vip_subnet_id": balancer.vip.subnet_id,
        "vip_network_id": balancer.vip.network_id,
        "vip_sg_ids": [],
        "additional_vips": [
            {"subnet_id": vip.subnet_id, "ip_address": str(vip.address), "port_id": vip.port_id}
            for vip in balancer.additional_vips
        ],
        "listeners": _ids(listener.id for listener in balancer.listeners),
        "pools": _ids(pool.id for pool in balancer.pools),
        "provider": balancer.provider,
        "flavor_id": balancer.flavor_id,
        "vip_qos_policy_id": None,
        "availability_zone": balancer.availability_zone,
        "vip_vnic_type": "normal",
    }


def encode_tree(where: BalancerStatus) -> Steps[JsonObject]:
    """Encode a load balancer with all its parts, as the response of a single-call create."""
    balancer = where.balancer
    listeners, pools = list[JsonObject](), list[JsonObject]()
    for listener in balancer.listeners:
        listeners.append(_listener_in_tree(where, listener))
        yield
    for pool in balancer.pools:
        pools.append((yield from _pool_in_tree(where, pool)))
        yield
    return {**encode_load_balancer(where), "listeners": listeners, "pools": pools}


def _listener_in_tree(where: BalancerStatus, listener: Listener) -> JsonObject:
    policies = [
        {
            **encode_policy(where, listener, policy),
            "rules": [encode_rule(where, listener, policy, rule) for rule in policy.rules],
        }
        for policy in listener.l7policies
    ]
    return {**_without(encode_listener(where, listener), _NAMED_BY_PLACE), "l7policies": policies}


def _pool_in_tree(where: BalancerStatus, pool: Pool) -> Steps[JsonObject]:
    monitor, members = pool.health_monitor, list[JsonObject]()
    for member in pool.members:
        members.append(encode_member(where, pool, member))
        yield
    return {
        **_without(encode_pool(where, pool), _NAMED_BY_PLACE),
        "healthmonitor": _without(encode_monitor(where, pool, monitor), {"pools"}) if monitor else None,
        "members": members,
    }


def encode_listener(where: BalancerStatus, listener: Listener) -> JsonObject:
    return {
        **_resource(where, listener, where.of_listener(listener)),
        "admin_state_up": listener.admin_state_up,
        "protocol": listener.protocol.value,
        "protocol_port": listener.port,
        "connection_limit": listener.connection_limit,
        "default_pool_id": listener.default_pool_id,
        "loadbalancers": _ids([where.balancer.id]),
        "l7policies": _ids(policy.id for policy in listener.l7policies),
        "timeout_client_data": listener.timeouts.client_data,
        "timeout_member_connect": listener.timeouts.member_connect,
        "timeout_member_data": listener.timeouts.member_data,
        "timeout_tcp_inspect": listener.timeouts.tcp_inspect,
        **_unless_omitted(raw=encode_raw(listener.raw)),
        "allowed_cidrs": [str(cidr) for cidr in listener.allowed_cidrs] or None,
        **encode_listener_tls(listener),
    }


def encode_pool(where: BalancerStatus, pool: Pool) -> JsonObject:
    monitor = pool.health_monitor
    return {
        **_resource(where, pool, where.of_pool(pool)),
        "admin_state_up": pool.admin_state_up,
        "protocol": pool.protocol.value,
        "lb_algorithm": pool.algorithm.value,
        "session_persistence": _persistence(pool.persistence),
        "loadbalancers": _ids([where.balancer.id]),
        "listeners": _ids(listener.id for listener in listeners_of(where.balancer, pool.id)),
        "members": _ids(member.id for member in pool.members),
        **_unless_omitted(
            healthmonitor_id=monitor.id if monitor else None,
            locality=pool.locality.value,
            down_member=pool.down_member.value,
        ),
        **encode_pool_tls(pool),
    }


def encode_member(where: BalancerStatus, pool: Pool, member: Member) -> JsonObject:
    monitored = member.monitor_address
    listeners = () if isinstance(member.port, int) else listeners_of(where.balancer, pool.id)
    body = {
        **_resource(where, member, where.of_member(pool, member)),
        "admin_state_up": member.admin_state_up,
        "address": member.address_text or str(member.address),
        "protocol_port": next(iter(target_ports(listeners, member)), None),
        "weight": member.weight,
        "backup": member.backup,
        "subnet_id": member.subnet_id,
        "monitor_address": member.monitor_address_text or (str(monitored) if monitored else None),
        "monitor_port": member.monitor_port,
        "vnic_type": "normal",
    }
    del body["description"]
    return body


def encode_monitor(where: BalancerStatus, pool: Pool, monitor: HealthMonitor) -> JsonObject:
    """Encode a health monitor. `http_version` is a number, as in Octavia."""
    http = monitor if isinstance(monitor, HttpMonitor) else None
    body = {
        **_resource(where, monitor, where.of_monitor(pool, monitor)),
        "admin_state_up": monitor.admin_state_up,
        "type": monitor.type.value,
        "delay": monitor.delay,
        "timeout": monitor.timeout,
        "max_retries": monitor.max_retries,
        "max_retries_down": monitor.max_retries_down,
        "http_method": http.http_method if http else None,
        "url_path": http.url_path if http else None,
        "expected_codes": http.expected_codes if http else None,
        "http_version": float(monitor.http_version) if monitor.http_version else None,
        "domain_name": monitor.domain_name,
        **_unless_omitted(delay_ms=monitor.delay_ms, probed_by=BY_AGENTS if where.agents_probe else BY_DATAPLANE),
        "pools": _ids([pool.id]),
    }
    del body["description"]
    return body


def encode_policy(where: BalancerStatus, listener: Listener, policy: L7Policy) -> JsonObject:
    """Encode an L7 policy. Positions are consecutive and start at 1, as Octavia renumbers them after each change."""
    return {
        **_resource(where, policy, where.of_policy(listener, policy)),
        "admin_state_up": policy.admin_state_up,
        "action": policy.action.type.value,
        "listener_id": listener.id,
        "position": listener.l7policies.index(policy) + 1,
        **_NO_TARGET,
        **_target(policy.action),
        "rules": _ids(rule.id for rule in policy.rules),
    }


def _target(action: L7Action) -> JsonObject:
    match action:
        case Reject():
            return {}
        case RedirectToPool():
            return {"redirect_pool_id": action.pool_id}
        case RedirectToUrl():
            return {"redirect_url": action.url, "redirect_http_code": action.code}
        case RedirectPrefix():
            return {"redirect_prefix": action.prefix, "redirect_http_code": action.code}


def encode_rule(where: BalancerStatus, listener: Listener, policy: L7Policy, rule: L7Rule) -> JsonObject:
    body = {
        **_resource(where, rule, where.of_rule(listener, policy, rule)),
        "admin_state_up": rule.admin_state_up,
        "type": rule.type.value,
        "compare_type": rule.compare_type.value,
        "key": rule.key,
        "value": rule.value,
        "invert": rule.invert,
    }
    del body["description"], body["name"]
    return body


def encode_statuses(where: BalancerStatus) -> Steps[list[bytes]]:
    """Encode the status tree in pieces. A pool is listed under each listener that references it; a pool without a
    listener is omitted.

    Two hundred listeners may reference one pool of a thousand members, so each pool is encoded once and its piece is
    reused.
    """
    pools = dict[str, bytes]()
    whole: JsonObject = {**_brief(encode_load_balancer(where)), "listeners": []}
    before, after = _around({"statuses": {"loadbalancer": whole}})
    pieces = [before]
    for number, listener in enumerate(where.balancer.listeners):
        begun, ended = _around({**_brief(encode_listener(where, listener)), "pools": []})
        shown = list[bytes]()
        for pool_id in pools_of(listener):
            if pool_id not in pools and (pool := find_pool(where.balancer, pool_id)) is not None:
                pools[pool_id] = msgspec.json.encode((yield from _pool_statuses(where, pool)))
            if pool_id in pools:
                shown += (b",", pools[pool_id]) if shown else (pools[pool_id],)
        pieces += (b"," + begun if number else begun, *shown, ended)
        yield
    return [*pieces, after]


def _around(body: JsonObject) -> tuple[bytes, bytes]:
    """Encode a body with an empty list as its last attribute; return the bytes before and after the list's items."""
    before, bracket, after = msgspec.json.encode(body).rpartition(b"]")
    return before, bracket + after


def _pool_statuses(where: BalancerStatus, pool: Pool) -> Steps[JsonObject]:
    monitor, members = pool.health_monitor, list[JsonObject]()
    for member in pool.members:
        members.append(_brief(encode_member(where, pool, member), "address", "protocol_port"))
        yield
    return {
        **_brief(encode_pool(where, pool)),
        "health_monitor": _brief(encode_monitor(where, pool, monitor), "type") if monitor else None,
        "members": members,
    }


def _brief(body: JsonObject, *more: str) -> JsonObject:
    return {name: body[name] for name in ("id", "name", "provisioning_status", "operating_status", *more)}


def _resource(where: BalancerStatus, resource: Resource, operating: OperatingStatus) -> JsonObject:
    status = where.provisioning_status(resource)
    return {
        **{name: plain(resource) for name, plain in PLAIN.items()},
        "updated_at": _time(resource.updated_at or _first_update(resource, status)),
        "provisioning_status": status,
        "operating_status": operating,
    }


def _first_update(resource: Resource, status: ProvisioningStatus) -> datetime | None:
    """Return the creation time in place of a missing `updated_at`, once the creation is complete, because Octavia
    records the end of a creation as an update."""
    return None if status is ProvisioningStatus.PENDING_CREATE else resource.created_at


def _persistence(persistence: SessionPersistence | None) -> JsonObject | None:
    if persistence is None:
        return None
    by_cookie = persistence if isinstance(persistence, AppCookiePersistence) else None
    by_source = persistence if isinstance(persistence, SourceIpPersistence) else None
    granularity = by_source.granularity if by_source else None
    return {
        "type": persistence.type.value,
        "cookie_name": by_cookie.cookie_name if by_cookie else None,
        "persistence_timeout": by_source.timeout if by_source else None,
        "persistence_granularity": str(granularity) if granularity else None,
    }


PLAIN: Mapping[str, Callable[[Resource], Any]] = {
    "id": attrgetter("id"),
    "name": attrgetter("name"),
    "description": attrgetter("description"),
    "project_id": attrgetter("project_id"),
    "tenant_id": attrgetter("project_id"),
    "created_at": lambda resource: _time(resource.created_at),
    "tags": attrgetter("tags"),
}
"""Attributes copied from the resource."""


def _ids(identities: Iterable[str]) -> list[dict[str, Any]]:
    return [{"id": identity} for identity in identities]


def _time(moment: datetime | None) -> str | None:
    """Format a UTC time as ISO 8601 without a zone."""
    return None if moment is None else moment.replace(tzinfo=None).isoformat()


def encode_statistics(figures: TrafficCounters) -> JsonObject:
    """Encode counters as "Load Balancer Statistics" of the API."""
    return {
        "active_connections": figures.active,
        "bytes_in": figures.bytes_in,
        "bytes_out": figures.bytes_out,
        "request_errors": figures.errors,
        "total_connections": figures.connections,
    }
