"""Bodies of the Octavia API to values of the model. What a null means is decided here, once for every way in."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from fairlead.api.door import ApiError, Identity
from fairlead.api.fields import Values
from fairlead.api.octavia import specs
from fairlead.api.octavia.errors import bad_request
from fairlead.model.addresses import is_host
from fairlead.model.loadbalancer import (
    Algorithm,
    HealthMonitor,
    Listener,
    Member,
    PersistenceType,
    Pool,
    PoolProtocol,
    SessionPersistence,
    Timeouts,
    with_members,
    with_slots,
)

RESERVED_ADDRESSES = frozenset({"169.254.169.254"})
"""The metadata service: a load balancer in front of it would hand out other people's credentials."""
_TIMEOUTS = {
    "timeout_client_data": "client_data",
    "timeout_member_connect": "member_connect",
    "timeout_member_data": "member_data",
    "timeout_tcp_inspect": "tcp_inspect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What a new object gets that no body says."""

    project_id: str
    now: datetime
    new_id: Callable[[], str]
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks for a change, and what a new object gets."""

    identity: Identity
    birth: Birth


def decode_listener(values: Values, birth: Birth, default_pool_id: str | None) -> Listener:
    specs.refuse_not_yet(values, specs.LISTENER_NOT_YET, birth.provider)
    listener = Listener(
        id=birth.new_id(),
        project_id=birth.project_id,
        created_at=birth.now,
        protocol=values["protocol"],
        port=values["protocol_port"],
        default_pool_id=default_pool_id,
    )
    return update_listener(listener, _given(values), birth.provider)


def update_listener(listener: Listener, values: Values, provider: str) -> Listener:
    specs.refuse_not_yet(values, specs.LISTENER_NOT_YET, provider)
    changes = _common(values)
    if "connection_limit" in values:
        limit = values["connection_limit"]
        changes["connection_limit"] = -1 if limit is None else limit
    if "allowed_cidrs" in values:
        changes["allowed_cidrs"] = tuple(dict.fromkeys(values["allowed_cidrs"] or ()))
    defaults = Timeouts()
    timeouts = {
        field: getattr(defaults, field) if values[name] is None else values[name]
        for name, field in _TIMEOUTS.items()
        if name in values
    }
    return replace(listener, **changes, timeouts=replace(listener.timeouts, **timeouts))


def decode_pool(values: Values, birth: Birth) -> Pool:
    pool = Pool(
        id=birth.new_id(),
        project_id=birth.project_id,
        created_at=birth.now,
        protocol=values["protocol"],
        algorithm=values["lb_algorithm"],
    )
    pool = update_pool(pool, _given(values), birth.provider)
    members: tuple[Member, ...] = ()
    for body in values.get("members") or ():
        member = decode_member(body, birth, len(members))
        refuse_duplicate(members, member)
        members = (*members, member)
    if values.get("healthmonitor"):
        pool = replace(pool, health_monitor=decode_health_monitor(values["healthmonitor"], birth))
    return with_members(pool, members)


def decode_health_monitor(values: Values, birth: Birth) -> HealthMonitor:
    times = {name: values[name] for name in specs.MONITOR_TIMES if values.get(name) is not None}
    return HealthMonitor(
        id=birth.new_id(),
        project_id=birth.project_id,
        created_at=birth.now,
        name=values.get("name") or "",
        admin_state_up=values.get("admin_state_up") is not False,
        type=values["type"],
        **times,
    )


def update_pool(pool: Pool, values: Values, provider: str) -> Pool:
    specs.refuse_not_yet(values, specs.POOL_NOT_YET, provider)
    changes = _common(values)
    if "lb_algorithm" in values:
        changes["algorithm"] = values["lb_algorithm"] or Algorithm.SOURCE_IP_PORT
    if "session_persistence" in values:
        wanted = values["session_persistence"]
        changes["persistence"] = None if wanted is None else _persistence(wanted, pool.protocol)
    return with_slots(replace(pool, **changes))


def decode_member(values: Values, birth: Birth, ordinal: int) -> Member:
    if str(values["address"]) in RESERVED_ADDRESSES or not is_host(values["address"]):
        raise ApiError(400, f"{values['address']} is not a valid option for member address")
    if values.get("request_sriov"):
        raise ApiError(400, "The load balancer flavor does not allow SR-IOV member ports.")
    member = Member(
        id=birth.new_id(),
        project_id=birth.project_id,
        created_at=birth.now,
        ordinal=ordinal,
        address=values["address"],
        port=values["protocol_port"],
        subnet_id=values.get("subnet_id"),
    )
    return update_member(member, _given(values))


def update_member(member: Member, values: Values) -> Member:
    changes = _common(values)
    if "weight" in values:
        changes["weight"] = 1 if values["weight"] is None else values["weight"]
    if "backup" in values:
        changes["backup"] = bool(values["backup"])
    changes |= {name: values[name] for name in ("monitor_address", "monitor_port") if name in values}
    return replace(member, **changes)


def refuse_duplicate(members: tuple[Member, ...], new: Member) -> None:
    if any((member.address, member.port) == (new.address, new.port) for member in members):
        raise ApiError(
            409, f"Another member on this pool is already using ip {new.address} on protocol_port {new.port}"
        )


def _persistence(values: Values, protocol: PoolProtocol) -> SessionPersistence:
    kind: PersistenceType = values["type"]
    datagrams = protocol in (PoolProtocol.UDP, PoolProtocol.SCTP)
    timed = any(values.get(name) is not None for name in ("persistence_timeout", "persistence_granularity"))
    if timed and not datagrams:
        raise bad_request("persistence_timeout and persistence_granularity is only for UDP and SCTP protocol pools.")
    if datagrams and kind is not PersistenceType.SOURCE_IP:
        raise bad_request(
            f"session_persistence of type {kind.value} is not for {protocol.value} pools, only SOURCE_IP."
        )
    if kind is PersistenceType.APP_COOKIE and not values.get("cookie_name"):
        raise bad_request('Field "cookie_name" must be specified when using the "APP_COOKIE" session persistence type.')
    if kind is not PersistenceType.APP_COOKIE and values.get("cookie_name"):
        raise bad_request(f'Field "cookie_name" can not be specified with session persistence of type "{kind.value}".')
    return SessionPersistence(
        type=kind,
        cookie_name=values.get("cookie_name"),
        timeout=values.get("persistence_timeout"),
        granularity=values.get("persistence_granularity"),
    )


def _common(values: Values) -> dict[str, Any]:
    """The attributes that every resource has; a null is the default."""
    return {
        name: default if values[name] is None else values[name]
        for name, default in specs.DEFAULTS.items()
        if name in values
    }


def _given(values: Values) -> Values:
    """In a POST a null is as good as nothing said."""
    return {name: value for name, value in values.items() if value is not None}
