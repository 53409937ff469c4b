"""Bodies of the Octavia API to values of the model. What a null means is decided here, once for every way in."""

import re
from collections.abc import Container
from dataclasses import replace

from fairlead.api.door import ApiError
from fairlead.api.fields import Values, Written
from fairlead.api.octavia.caller import Origin, common, given
from fairlead.api.octavia.errors import bad_request
from fairlead.api.octavia.monitors import decode_monitor
from fairlead.api.octavia.tls import decode_listener_tls, decode_pool_tls
from fairlead.model.addresses import IPAddress, is_destination
from fairlead.model.loadbalancer import (
    Algorithm,
    AppCookiePersistence,
    HttpCookiePersistence,
    Listener,
    Member,
    PersistenceType,
    Pool,
    PoolProtocol,
    SessionPersistence,
    SourceIpPersistence,
    Timeouts,
    with_members,
    with_slots,
)

COOKIE_NAME = re.compile(r"[!#$%&'*+\-.0-9^_`a-z|~]+", re.ASCII | re.IGNORECASE)
"""RFC 6265, section 4.1.1: a token, as RFC 9110, section 5.6.2, has it."""
_DATAGRAMS = (PoolProtocol.UDP, PoolProtocol.SCTP)
_TIMEOUTS = {
    "timeout_client_data": "client_data",
    "timeout_member_connect": "member_connect",
    "timeout_member_data": "member_data",
    "timeout_tcp_inspect": "tcp_inspect",
}


def decode_listener(values: Values, origin: Origin, default_pool_id: str | None) -> Listener:
    listener = Listener(
        **origin.resource(),
        protocol=values["protocol"],
        port=values["protocol_port"],
        default_pool_id=default_pool_id,
    )
    return update_listener(listener, given(values))


def update_listener(listener: Listener, values: Values) -> Listener:
    changes = common(values)
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
    changed = replace(listener, **changes, timeouts=replace(listener.timeouts, **timeouts))
    return decode_listener_tls(changed, values)


def decode_pool(values: Values, origin: Origin) -> Pool:
    pool = Pool(
        **origin.resource(),
        protocol=values["protocol"],
        algorithm=values["lb_algorithm"],
    )
    pool = update_pool(pool, given(values))
    members: dict[tuple[IPAddress, int], Member] = {}
    for body in values.get("members") or ():
        member = decode_member(body, origin, len(members))
        refuse_duplicate(members, member)
        members[where(member)] = member
    if values.get("healthmonitor") is not None:
        pool = replace(pool, health_monitor=decode_monitor(values["healthmonitor"], origin, pool.protocol))
    return with_members(pool, tuple(members.values()))


def update_pool(pool: Pool, values: Values) -> Pool:
    changes = common(values)
    if "lb_algorithm" in values:
        changes["algorithm"] = values["lb_algorithm"] or Algorithm.SOURCE_IP_PORT
    if "session_persistence" in values:
        wanted = values["session_persistence"]
        changes["persistence"] = None if wanted is None else _persistence(wanted, pool)
    return with_slots(decode_pool_tls(replace(pool, **changes), values))


def decode_member(values: Values, origin: Origin, ordinal: int) -> Member:
    written: Written = values["address"]
    _refuse_address(written, "member address")
    if values.get("request_sriov"):
        raise ApiError(400, "The load balancer flavor does not allow SR-IOV member ports.")
    member = Member(
        **origin.resource(),
        ordinal=ordinal,
        address=written.address,
        address_text=written.text,
        port=values["protocol_port"],
        subnet_id=values.get("subnet_id"),
    )
    return update_member(member, given(values))


def update_member(member: Member, values: Values) -> Member:
    changes = common(values)
    if "weight" in values:
        changes["weight"] = 1 if values["weight"] is None else values["weight"]
    if "backup" in values:
        changes["backup"] = bool(values["backup"])
    if "monitor_address" in values:
        written: Written | None = values["monitor_address"]
        if written is not None:
            _refuse_address(written, "member monitor_address")
        changes["monitor_address"] = written.address if written else None
        changes["monitor_address_text"] = written.text if written else ""
    if "monitor_port" in values:
        changes["monitor_port"] = values["monitor_port"]
    return replace(member, **changes)


def _refuse_address(written: Written, option: str) -> None:
    """Raises ApiError. Link-local ones include that of the metadata service, with other people's credentials."""
    if not is_destination(written.address):
        raise ApiError(400, f"{written.address} is not a valid option for {option}")


def where(member: Member) -> tuple[IPAddress, int]:
    """What only one member of a pool may have."""
    return member.address, member.port


def refuse_duplicate(taken: Container[tuple[IPAddress, int]], new: Member) -> None:
    if where(new) in taken:
        raise ApiError(
            409, f"Another member on this pool is already using ip {new.address} on protocol_port {new.port}"
        )


def _persistence(values: Values, pool: Pool) -> SessionPersistence | None:
    """What a pool keeps clients by from now on; a type that is not said stays as it is. Raises ApiError."""
    old = pool.persistence
    kind: PersistenceType | None = values.get("type") or (old.type if old else None)
    cookie, timeout, granularity = (
        values.get(name) for name in ("cookie_name", "persistence_timeout", "persistence_granularity")
    )
    if pool.protocol in _DATAGRAMS:
        _refuse_cookies(kind, cookie)
    elif timeout is not None or granularity is not None:
        raise bad_request("persistence_timeout and persistence_granularity is only for UDP and SCTP protocol pools.")
    if kind is None:
        raise bad_request("Invalid session_persistence provided.")
    if cookie and kind is not PersistenceType.APP_COOKIE:
        raise bad_request('Field "cookie_name" can only be specified with session persistence of type "APP_COOKIE".')
    if cookie and not COOKIE_NAME.fullmatch(cookie):
        raise bad_request('Supplied "cookie_name" is invalid.')
    match kind:
        case PersistenceType.HTTP_COOKIE:
            return HttpCookiePersistence()
        case PersistenceType.APP_COOKIE:
            if not cookie:
                raise bad_request(
                    'Field "cookie_name" must be specified when using the "APP_COOKIE" session persistence type.'
                )
            return AppCookiePersistence(cookie_name=cookie)
        case PersistenceType.SOURCE_IP:
            return SourceIpPersistence(timeout=timeout, granularity=granularity)


def _refuse_cookies(kind: PersistenceType | None, cookie: str | None) -> None:
    """Datagrams carry none."""
    if cookie and kind is PersistenceType.SOURCE_IP:
        raise bad_request(
            "session_persistence SOURCE_IP type for UDP and SCTP protocols only accepts: type, persistence_timeout,"
            " persistence_granularity."
        )
    if cookie:
        raise bad_request("Cookie names are not supported for UDP/SCTP pools.")
    if kind in (PersistenceType.HTTP_COOKIE, PersistenceType.APP_COOKIE):
        raise bad_request(f"Session persistence of type {kind.value} is not supported for UDP/SCTP protocol pools.")
