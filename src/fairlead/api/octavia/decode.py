"""Decoder of Octavia API bodies into values of the model, including the meaning of null.

Only bodies that no value can represent are rejected here; `fairlead.changes` checks consistency.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.octavia.caller import CreationContext, common_attributes, without_nulls
from fairlead.api.octavia.errors import COOKIES_OF_DATAGRAMS, bad_request
from fairlead.api.octavia.tls import decode_listener_tls, decode_pool_tls
from fairlead.changes.persistence import PersistenceTimeoutNotSupported
from fairlead.changes.refusal import Refused
from fairlead.changes.vips import AdditionalVipRequest, VipRequest
from fairlead.model.documents.loadbalancer import (
    DATAGRAM_PROTOCOLS,
    HTTP_MONITORS,
    Algorithm,
    AppCookiePersistence,
    DownMember,
    HealthMonitor,
    HttpCookiePersistence,
    HttpMonitor,
    Listener,
    Locality,
    Member,
    PersistenceType,
    PlainMonitor,
    Pool,
    SessionPersistence,
    SourceIpPersistence,
    Timeouts,
)
from fairlead.model.documents.port_ranges import one_port
from fairlead.schema import Values, WrittenAddress

_TIMEOUTS = {
    "timeout_client_data": "client_data",
    "timeout_member_connect": "member_connect",
    "timeout_member_data": "member_data",
    "timeout_tcp_inspect": "tcp_inspect",
}
_NO_TIMEOUTS = Timeouts()
_HTTP_DEFAULTS: Mapping[str, Any] = {"http_method": "GET", "url_path": "/", "expected_codes": "200"}
"""Defaults of attributes that only HTTP monitors may have; other monitors reject even a null in a PUT."""


def decode_vip(values: Values, origin: CreationContext, balancer_id: str) -> VipRequest:
    more = values.get("additional_vips") or ()
    return VipRequest(
        balancer_id=balancer_id,
        project_id=origin.project_id,
        new_port_id=origin.new_id(),
        port_id=values.get("vip_port_id"),
        subnet_id=values.get("vip_subnet_id"),
        network_id=values.get("vip_network_id"),
        address=values.get("vip_address"),
        additional=tuple(
            AdditionalVipRequest(
                subnet_id=each["subnet_id"], address=each.get("ip_address"), port_id=each.get("port_id")
            )
            for each in more
        ),
    )


def decode_listener(values: Values, origin: CreationContext, default_pool_id: str | None) -> Listener:
    listener = Listener(
        **origin.resource(values),
        protocol=values["protocol"],
        ports=one_port(values["protocol_port"]),
    )
    return edit_listener(listener, {**without_nulls(values), "default_pool_id": default_pool_id})


def edit_listener(listener: Listener, values: Values) -> Listener:
    changes = common_attributes(values)
    if "connection_limit" in values:
        limit = values["connection_limit"]
        changes["connection_limit"] = -1 if limit is None else limit
    if "allowed_cidrs" in values:
        changes["allowed_cidrs"] = tuple(dict.fromkeys(values["allowed_cidrs"] or ()))
    if "default_pool_id" in values:
        changes["default_pool_id"] = values["default_pool_id"]
    if "raw" in values:
        changes["raw"] = values["raw"]
    timeouts = {
        field: getattr(_NO_TIMEOUTS, field) if values[name] is None else values[name]
        for name, field in _TIMEOUTS.items()
        if name in values
    }
    if timeouts:
        changes["timeouts"] = replace(listener.timeouts, **timeouts)
    return replace(listener, **changes, **decode_listener_tls(listener, values))


def decode_pool(values: Values, origin: CreationContext) -> Pool:
    pool = Pool(
        **origin.resource(values),
        protocol=values["protocol"],
        algorithm=values["lb_algorithm"],
    )
    pool = edit_pool(pool, without_nulls(values))
    members = tuple([decode_member(body, origin) for body in values.get("members") or ()])
    monitor = values.get("healthmonitor")
    return replace(pool, members=members, health_monitor=None if monitor is None else decode_monitor(monitor, origin))


def edit_pool(pool: Pool, values: Values) -> Pool:
    changes = common_attributes(values)
    if "lb_algorithm" in values:
        changes["algorithm"] = values["lb_algorithm"] or Algorithm.SOURCE_IP_PORT
    if "locality" in values:
        changes["locality"] = values["locality"] or Locality.NONE
    if "down_member" in values:
        changes["down_member"] = values["down_member"] or DownMember.KEEP
    if "session_persistence" in values:
        wanted = values["session_persistence"]
        changes["persistence"] = None if wanted is None else _persistence(wanted, pool)
    return replace(pool, **changes, **decode_pool_tls(pool, values))


def decode_member(values: Values, origin: CreationContext) -> Member:
    written: WrittenAddress = values["address"]
    if values.get("request_sriov"):
        raise ApiError(400, "The load balancer flavor does not allow SR-IOV member ports.")
    member = Member(
        **origin.resource(values),
        address=written.address,
        address_text=written.text,
        port=values["protocol_port"],
        subnet_id=values.get("subnet_id"),
    )
    return edit_member(member, without_nulls(values))


def edit_member(member: Member, values: Values) -> Member:
    changes = common_attributes(values)
    if "weight" in values:
        changes["weight"] = 1 if values["weight"] is None else values["weight"]
    if "backup" in values:
        changes["backup"] = bool(values["backup"])
    if "monitor_address" in values:
        written: WrittenAddress | None = values["monitor_address"]
        changes["monitor_address"] = written.address if written else None
        changes["monitor_address_text"] = written.text if written else ""
    if "monitor_port" in values:
        changes["monitor_port"] = values["monitor_port"]
    return replace(member, **changes)


def decode_monitor(values: Values, origin: CreationContext) -> HealthMonitor:
    kind = HttpMonitor if values["type"] in HTTP_MONITORS else PlainMonitor
    monitor: HealthMonitor = kind(
        **origin.resource(values),
        type=values["type"],
        delay=values["delay"],
        timeout=values["timeout"],
        max_retries=values["max_retries"],
    )
    return edit_monitor(monitor, without_nulls(values))


def edit_monitor(monitor: HealthMonitor, values: Values) -> HealthMonitor:
    """Apply a body to a health monitor; null means the default, where there is one."""
    changes: dict[str, Any] = common_attributes(values)
    for name in ("delay", "timeout", "max_retries"):
        if name in values:
            if values[name] is None:
                raise ApiError(400, f"None is not a valid option for {name}")
            changes[name] = values[name]
    if "max_retries_down" in values:
        changes["max_retries_down"] = values["max_retries_down"] or 3
    for name, default in _HTTP_DEFAULTS.items():
        if name in values:
            if not isinstance(monitor, HttpMonitor):
                raise ApiError(400, f"{name} is not a valid option for health monitors of type {monitor.type.value}")
            changes[name] = default if values[name] is None else values[name]
    changes |= {name: values[name] for name in ("http_version", "domain_name", "delay_ms") if name in values}
    return replace(monitor, **changes)


def _persistence(values: Values, pool: Pool) -> SessionPersistence:
    """Return the session persistence of a pool after a PUT or POST; an omitted type is unchanged. Raises ApiError."""
    old = pool.persistence
    kind: PersistenceType | None = values.get("type") or (old.type if old else None)
    cookie, timeout, granularity = (
        values.get(name) for name in ("cookie_name", "persistence_timeout", "persistence_granularity")
    )
    is_of_datagrams = pool.protocol in DATAGRAM_PROTOCOLS
    if not is_of_datagrams and (timeout is not None or granularity is not None):
        raise Refused(PersistenceTimeoutNotSupported())
    if cookie and kind is not PersistenceType.APP_COOKIE and is_of_datagrams:
        raise _cookie_of_datagrams(kind)
    if kind is None:
        raise bad_request("Invalid session_persistence provided.")
    if cookie and kind is not PersistenceType.APP_COOKIE:
        raise bad_request('Field "cookie_name" can only be specified with session persistence of type "APP_COOKIE".')
    match kind:
        case PersistenceType.HTTP_COOKIE:
            return HttpCookiePersistence()
        case PersistenceType.APP_COOKIE if cookie:
            return AppCookiePersistence(cookie_name=cookie)
        case PersistenceType.APP_COOKIE if is_of_datagrams:
            raise bad_request(COOKIES_OF_DATAGRAMS.format(kind.value))
        case PersistenceType.APP_COOKIE:
            raise bad_request(
                'Field "cookie_name" must be specified when using the "APP_COOKIE" session persistence type.'
            )
        case PersistenceType.SOURCE_IP:
            return SourceIpPersistence(timeout=timeout, granularity=granularity)


def _cookie_of_datagrams(kind: PersistenceType | None) -> ApiError:
    return bad_request(
        "session_persistence SOURCE_IP type for UDP and SCTP protocols only accepts: type, persistence_timeout,"
        " persistence_granularity."
        if kind is PersistenceType.SOURCE_IP
        else "Cookie names are not supported for UDP/SCTP pools."
    )
