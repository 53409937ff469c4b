"""Attributes of each resource and their parsers, as in the Octavia v2 API reference.

Compilers reject the options their provider lacks; `LOAD_BALANCER_UNSUPPORTED` are the options that the model lacks.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from fairlead.api.http.front_end import ApiError
from fairlead.api.octavia import limits, texts
from fairlead.api.octavia.errors import bad_field, bad_request, missing_field, unknown_field
from fairlead.api.octavia.options import LISTENER_HTTP, LISTENER_TLS, POOL_TLS, forms
from fairlead.api.octavia.raw import raw_match
from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents import sizes
from fairlead.model.documents.l7 import L7ActionType, L7Comparison, L7RuleType
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    DownMember,
    ListenerProtocol,
    Locality,
    MonitorType,
    PersistenceType,
    PoolProtocol,
)
from fairlead.schema import (
    BadField,
    Field,
    MissingField,
    Parser,
    Spec,
    UnknownField,
    Values,
    boolean,
    enum_of,
    fields_schema,
    integer,
    list_of,
    mapping,
    object_schema,
    read_fields,
    reads,
    text,
    uuid,
)

COOKIE_NAME = re.compile(r"^[^\s,;\\]+$")
_T = TypeVar("_T")
DEFAULTS: Mapping[str, Any] = {"name": "", "description": "", "tags": (), "admin_state_up": False}
"""Meaning of null in a PUT, for attributes of every resource; `admin_state_up` becomes False, as in Octavia."""


@reads({"type": "string", "maxLength": limits.MAX_TEXT_LENGTH, "pattern": r"^[^\s,;\\\u0000]+$"})
def cookie_name(value: object) -> str:
    name = text(limits.MAX_TEXT_LENGTH)(value)
    if not COOKIE_NAME.fullmatch(name):
        raise ValueError(rf"Value should match the pattern {COOKIE_NAME.pattern}")
    return name


def nested(spec: Spec) -> Parser[Values]:
    """Make a parser of an object inside a body."""

    @reads(fields_schema(spec))
    def parse(value: object) -> Values:
        return _read(mapping(value), spec)

    return parse


def body(root: str, spec: Spec, *, argument: str) -> Parser[Values]:
    """Make a parser of a whole body with its root element. `argument` is Octavia's name of it in errors. Raises
    ApiError."""
    return under(root, nested(spec), "an object", argument=argument)


def under(root: str, parser: Parser[_T], form: str, *, argument: str) -> Parser[_T]:
    @reads(object_schema({root: parser.schema}, [root]))
    def parse(value: object) -> _T:
        if not isinstance(value, dict) or set(value) != {root}:
            raise ApiError(400, f'The request body should be an object with the one attribute "{root}", {form}.')
        refuse_too_many(value[root])
        try:
            return parser(value[root])
        except UnknownField as error:
            raise unknown_field(f"{argument}.{root}", error) from None
        except ValueError as error:
            raise bad_field(BadField(root, value[root], str(error))) from None

    return parse


def refuse_too_many(value: object) -> None:
    """Check the total number of items in nested lists before decoding, because each list may be within its own limit.
    Raises ApiError 400."""
    counted, level = Counter[str](), [value]
    while level:
        objects = [each for each in level if isinstance(each, dict)]
        items = [(name, item) for each in objects for name, item in each.items() if isinstance(item, dict | list)]
        for name, item in items:
            if name in limits.MAX_PER_REQUEST and isinstance(item, list):
                counted[name] += len(item)
        level = [item for _, item in items] + [item for each in level if isinstance(each, list) for item in each]
    for name, most in limits.MAX_PER_REQUEST.items():
        if counted[name] > most:
            raise bad_request(f"A load balancer can have at most {most} {name} in all.")


def _read(values: Mapping[str, object], spec: Spec) -> Values:
    """Read an object. Raises UnknownField, ApiError."""
    try:
        return read_fields(spec, values)
    except MissingField as error:
        raise missing_field(error) from None
    except BadField as error:
        raise bad_field(error) from None


_EVERYWHERE: Spec = {
    "name": Field(text(limits.MAX_TEXT_LENGTH)),
    "admin_state_up": Field(boolean),
    "tags": Field(list_of(text(limits.MAX_TEXT_LENGTH), limits.TAGS)),
}
_DESCRIBED: Spec = {**_EVERYWHERE, "description": Field(text(limits.MAX_TEXT_LENGTH))}
_CREATED: Spec = {"project_id": Field(text(MAX_PROJECT_ID_LENGTH)), "tenant_id": Field(text(MAX_PROJECT_ID_LENGTH))}

MEMBER_PUT: Spec = {
    **_EVERYWHERE,
    "backup": Field(boolean),
    "monitor_address": Field(texts.written_address),
    "monitor_port": Field(integer(1, 65535)),
    "weight": Field(integer(0, sizes.MAX_WEIGHT)),
}
MEMBER_POST: Spec = {
    **MEMBER_PUT,
    **_CREATED,
    "address": Field(texts.written_address, required=True),
    "protocol_port": Field(integer(1, 65535), required=True),
    "request_sriov": Field(boolean),
    "subnet_id": Field(uuid),
}

HEALTH_MONITOR_PUT: Spec = {
    **_EVERYWHERE,
    "delay": Field(integer(0, limits.MAX_NUMBER)),
    "delay_ms": Field(integer(sizes.MIN_DELAY_MS, sizes.MAX_DELAY_MS)),  # not in Octavia
    "domain_name": Field(texts.domain_name),
    "expected_codes": Field(texts.expected_codes),
    "http_method": Field(texts.one_of(*texts.HTTP_METHODS)),
    "http_version": Field(texts.http_version),
    "max_retries": Field(integer(1, sizes.MAX_RETRIES)),
    "max_retries_down": Field(integer(1, sizes.MAX_RETRIES)),
    "timeout": Field(integer(0, limits.MAX_NUMBER)),
    "url_path": Field(texts.url_path),
}
HEALTH_MONITOR_IN_TREE: Spec = {
    **HEALTH_MONITOR_PUT,
    **_CREATED,
    "delay": Field(integer(0, limits.MAX_NUMBER), required=True),
    "max_retries": Field(integer(1, sizes.MAX_RETRIES), required=True),
    "timeout": Field(integer(0, limits.MAX_NUMBER), required=True),
    "type": Field(enum_of(MonitorType), required=True),
}
HEALTH_MONITOR_POST: Spec = {**HEALTH_MONITOR_IN_TREE, "pool_id": Field(uuid, required=True, names_parent=True)}

SESSION_PERSISTENCE_PUT: Spec = {
    "type": Field(enum_of(PersistenceType)),
    "cookie_name": Field(cookie_name),
    "persistence_granularity": Field(texts.address),
    "persistence_timeout": Field(integer(1, limits.MAX_NUMBER)),
}
SESSION_PERSISTENCE: Spec = {**SESSION_PERSISTENCE_PUT, "type": Field(enum_of(PersistenceType), required=True)}

POOL_PUT: Spec = {
    **_DESCRIBED,
    **forms(
        POOL_TLS,
        rest={
            "lb_algorithm": Field(enum_of(Algorithm)),
            "locality": Field(enum_of(Locality)),  # this attribute and the next are not in Octavia
            "down_member": Field(enum_of(DownMember)),
            "session_persistence": Field(nested(SESSION_PERSISTENCE_PUT)),
        },
    ),
}
POOL_IN_TREE: Spec = {
    **POOL_PUT,
    **_CREATED,
    "healthmonitor": Field(nested(HEALTH_MONITOR_IN_TREE)),
    "members": Field(list_of(nested(MEMBER_POST), sizes.MAX_MEMBERS)),
    "protocol": Field(enum_of(PoolProtocol, but={PoolProtocol.ANY})),
    "session_persistence": Field(nested(SESSION_PERSISTENCE)),
}
POOL_POST: Spec = {
    **POOL_IN_TREE,
    "lb_algorithm": Field(enum_of(Algorithm), required=True),
    "listener_id": Field(uuid),
    "loadbalancer_id": Field(uuid),
    "protocol": Field(enum_of(PoolProtocol, but={PoolProtocol.ANY}), required=True),
}
L7_RULE_PUT: Spec = {
    "admin_state_up": Field(boolean),
    "compare_type": Field(enum_of(L7Comparison)),
    "invert": Field(boolean),
    "key": Field(texts.line),
    "tags": Field(list_of(text(limits.MAX_TEXT_LENGTH), limits.TAGS)),
    "type": Field(enum_of(L7RuleType)),
    "value": Field(texts.line),
}
L7_RULE_POST: Spec = {
    **L7_RULE_PUT,
    **_CREATED,
    "compare_type": Field(enum_of(L7Comparison), required=True),
    "type": Field(enum_of(L7RuleType), required=True),
    "value": Field(texts.line, required=True),
}
L7_POLICY_PUT: Spec = {
    **_DESCRIBED,
    "action": Field(enum_of(L7ActionType)),
    "position": Field(integer(1, limits.MAX_NUMBER)),
    "redirect_http_code": Field(texts.redirect_code),
    "redirect_pool_id": Field(uuid),
    "redirect_prefix": Field(texts.url),
    "redirect_url": Field(texts.url),
}
L7_POLICY_IN_TREE: Spec = {
    **L7_POLICY_PUT,
    **_CREATED,
    "action": Field(enum_of(L7ActionType), required=True),
    "redirect_pool": Field(nested(POOL_IN_TREE)),
    "rules": Field(list_of(nested(L7_RULE_POST), sizes.MAX_L7RULES)),
}
L7_POLICY_POST: Spec = {
    **{name: field for name, field in L7_POLICY_IN_TREE.items() if name != "redirect_pool"},
    "listener_id": Field(uuid, required=True, names_parent=True),
}
LISTENER_PUT: Spec = {
    **_DESCRIBED,
    **forms(
        LISTENER_TLS,
        LISTENER_HTTP,
        rest={
            "allowed_cidrs": Field(list_of(texts.cidr, sizes.MAX_ALLOWED_CIDRS)),
            "connection_limit": Field(integer(-1, limits.MAX_NUMBER)),
            "default_pool_id": Field(uuid),
            "raw": Field(raw_match),  # not in Octavia
            "timeout_client_data": Field(integer(0, limits.MAX_TIMEOUT_MS)),
            "timeout_member_connect": Field(integer(0, limits.MAX_TIMEOUT_MS)),
            "timeout_member_data": Field(integer(0, limits.MAX_TIMEOUT_MS)),
            "timeout_tcp_inspect": Field(integer(0, limits.MAX_TIMEOUT_MS)),
        },
    ),
}
LISTENER_IN_TREE: Spec = {
    **LISTENER_PUT,
    **_CREATED,
    "default_pool": Field(nested(POOL_IN_TREE)),
    "l7policies": Field(list_of(nested(L7_POLICY_IN_TREE), sizes.MAX_L7POLICIES)),
    "protocol": Field(enum_of(ListenerProtocol, but={ListenerProtocol.ANY}), required=True),
    "protocol_port": Field(integer(1, 65535), required=True),
}
LISTENER_POST: Spec = {**LISTENER_IN_TREE, "loadbalancer_id": Field(uuid, required=True, names_parent=True)}

LOAD_BALANCER_PUT: Spec = {
    **_DESCRIBED,
    "vip_qos_policy_id": Field(uuid),
    "vip_sg_ids": Field(list_of(uuid, limits.REFERENCES)),
}
ADDITIONAL_VIP: Spec = {
    "ip_address": Field(texts.address),
    "port_id": Field(uuid),
    "subnet_id": Field(uuid, required=True),
}
LOAD_BALANCER_POST: Spec = {
    **LOAD_BALANCER_PUT,
    **_CREATED,
    "additional_vips": Field(list_of(nested(ADDITIONAL_VIP), sizes.MAX_ADDITIONAL_VIPS)),
    "availability_zone": Field(text(limits.MAX_TEXT_LENGTH)),
    "flavor_id": Field(uuid),
    "listeners": Field(list_of(nested(LISTENER_IN_TREE), sizes.MAX_LISTENERS)),
    "pools": Field(list_of(nested(POOL_IN_TREE), sizes.MAX_POOLS)),
    "provider": Field(text(limits.MAX_PROVIDER_LENGTH)),
    "vip_address": Field(texts.address),
    "vip_network_id": Field(uuid),
    "vip_port_id": Field(uuid),
    "vip_subnet_id": Field(uuid),
}

LOAD_BALANCER_UNSUPPORTED = ("vip_qos_policy_id", "vip_sg_ids")
_MEANS_NO: tuple[object, ...] = (None, ())


def reject_unsupported(values: Mapping[str, Any], provider: str) -> None:
    """Raise Unsupported for the first option of a load balancer that no provider supports."""
    for name in LOAD_BALANCER_UNSUPPORTED:
        if values.get(name) not in _MEANS_NO:
            raise Unsupported(name, provider)
