"""Bodies of L7 policies and rules to values of the model."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fairlead.api.door import ApiError
from fairlead.api.fields import Values
from fairlead.api.octavia import limits
from fairlead.api.octavia.caller import Origin, common, given
from fairlead.model.l7 import (
    L7Action,
    L7ActionType,
    L7Comparison,
    L7Policy,
    L7Rule,
    L7RuleType,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.model.loadbalancer import Listener

FOUND = 302
"""The code of a redirection for which nothing else is asked (RFC 9110, section 15.4.3)."""
_TARGETS = {
    L7ActionType.REDIRECT_TO_URL: "redirect_url",
    L7ActionType.REDIRECT_TO_POOL: "redirect_pool_id",
    L7ActionType.REDIRECT_PREFIX: "redirect_prefix",
}
"""Action -> the one attribute that says where to."""
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""The name of a header or of a cookie (RFC 9110, section 5.6.2; RFC 6265, section 4.1.1)."""
_COOKIE_VALUE = re.compile(r"[!-~]+")
_HEADER_VALUE = re.compile(r"[!-~]+|\"[\t -~]*\"")
"""Of visible characters; with blanks only inside double quotes (RFC 9110, section 5.6.4)."""
_DN_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9-]*")


def decode_policy(values: Values, origin: Origin, redirect_pool_id: str | None) -> L7Policy:
    """Raises ApiError."""
    policy = L7Policy(**origin.resource(), action=Reject())
    policy = update_policy(policy, {**given(values), "redirect_pool_id": redirect_pool_id})
    rules = tuple(decode_rule(body, origin) for body in values.get("rules") or ())
    return replace(policy, rules=rules)


def update_policy(policy: L7Policy, values: Values) -> L7Policy:
    """Exactly the target that its action needs; a target alone names its action, as in Octavia. Raises ApiError."""
    named = {action: name for action, name in _TARGETS.items() if values.get(name)}
    kind: L7ActionType = values.get("action") or next(iter(named), policy.action.type)
    if "action" in values and kind is not values["action"]:
        raise ApiError(400, "Invalid L7 Policy action specified: None")
    if not values.get("action"):
        _refuse_several(named.values())
    old = policy.action if policy.action.type is kind else None
    return replace(policy, **common(values), action=_action(kind, old, values))


def _action(kind: L7ActionType, old: L7Action | None, values: Values) -> L7Action:
    """`old` is what was of this kind before. Raises ApiError."""
    match kind:
        case L7ActionType.REJECT:
            return Reject()
        case L7ActionType.REDIRECT_TO_POOL:
            known = old.pool_id if isinstance(old, RedirectToPool) else None
            return RedirectToPool(pool_id=_target("redirect_pool_id", known, values))
        case L7ActionType.REDIRECT_TO_URL:
            known, code = (old.url, old.code) if isinstance(old, RedirectToUrl) else (None, None)
            return RedirectToUrl(url=_target("redirect_url", known, values), code=_code("redirect_url", code, values))
        case L7ActionType.REDIRECT_PREFIX:
            known, code = (old.prefix, old.code) if isinstance(old, RedirectPrefix) else (None, None)
            prefix = _target("redirect_prefix", known, values)
            return RedirectPrefix(prefix=prefix, code=_code("redirect_prefix", code, values))


def _target(name: str, known: str | None, values: Values) -> str:
    target: str | None = values.get(name, known)
    if not target:
        words = "redirect_pool_id or redirect_pool" if name == "redirect_pool_id" else name
        raise ApiError(400, f"Invalid L7 Policy arguments: {words} must not be None")
    return target


def _code(target: str, known: int | None, values: Values) -> int | None:
    """A target that is named without a code gets the default one; a code alone may be taken away, as in Octavia."""
    if values.get(target):
        return values.get("redirect_http_code") or FOUND
    code: int | None = values.get("redirect_http_code", known)
    return code


def _refuse_several(names: Iterable[str]) -> None:
    targets = set(names)
    if "redirect_pool_id" in targets and len(targets) > 1:
        raise ApiError(
            400,
            "Invalid L7 Policy arguments: Cannot specify redirect_pool_id and redirect_url or redirect_prefix at the"
            " same time",
        )
    if len(targets) > 1:
        raise ApiError(
            400, "Invalid L7 Policy arguments: Cannot specify redirect_url and redirect_prefix at the same time"
        )


def placed(listener: Listener, policy: L7Policy, position: int | None) -> Listener:
    """The listener with the policy at this position, or behind the others; those after it move on."""
    others = [other for other in listener.l7policies if other.id != policy.id]
    others.insert(len(others) if position is None else position - 1, policy)
    return replace(listener, l7policies=tuple(others))


def decode_rule(values: Values, origin: Origin) -> L7Rule:
    rule = L7Rule(**origin.resource(), type=values["type"], compare_type=values["compare_type"], value=values["value"])
    return update_rule(rule, given(values))


def update_rule(rule: L7Rule, values: Values) -> L7Rule:
    """A null takes a key away; what a rule cannot be without stays as it is. Raises ApiError."""
    changes: dict[str, Any] = common(values)
    changes |= {name: values[name] for name in ("type", "compare_type", "value") if values.get(name) is not None}
    if "key" in values:
        changes["key"] = values["key"] or None
    if "invert" in values:
        changes["invert"] = bool(values["invert"])
    changed = replace(rule, **changes)
    if problem := _problem(changed):
        raise ApiError(400, f"Error parsing L7Rule: {problem}")
    return changed


def too_many_rules(policy_id: str) -> ApiError:
    return ApiError(409, f"Too many rules on L7 policy {policy_id}")


def has_room(policy: L7Policy) -> bool:
    return len(policy.rules) < limits.RULES


def _problem(rule: L7Rule) -> str | None:
    """What is wrong with it, in Octavia's words."""
    if not rule.value:
        return "Invalid L7 Rule: L7 rule type requires a value"
    match rule.type:
        case L7RuleType.HEADER | L7RuleType.COOKIE:
            if not rule.key:
                return "Invalid L7 Rule: L7 rule type requires a key"
            if not _TOKEN.fullmatch(rule.key):
                return "Invalid characters in key"
            cookie = rule.type is L7RuleType.COOKIE
            return _wrong_value(rule, _COOKIE_VALUE if cookie else _HEADER_VALUE, f"{rule.type.value.lower()} value")
        case L7RuleType.FILE_TYPE if rule.compare_type not in (L7Comparison.REGEX, L7Comparison.EQUAL_TO):
            return "Invalid L7 Rule: invalid comparison type for rule type"
        case L7RuleType.HOST_NAME | L7RuleType.PATH | L7RuleType.FILE_TYPE:
            return _wrong_value(rule, _HEADER_VALUE, "comparison value")
        case L7RuleType.SSL_DN_FIELD:
            return _wrong_field(rule)
        case L7RuleType.SSL_CONN_HAS_CERT | L7RuleType.SSL_VERIFY_RESULT:
            problem = _wrong_certificate(rule)
            return problem and f"Invalid L7 Rule: {problem}"


def _wrong_value(rule: L7Rule, allowed: re.Pattern[str], what: str) -> str | None:
    if rule.compare_type is L7Comparison.REGEX:
        return _wrong_regex(rule.value)
    return None if allowed.fullmatch(rule.value) else f"Invalid characters in {what}"


def _wrong_regex(value: str) -> str | None:
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        return f"Unable to parse regular expression: {error}"
    return None


def _wrong_field(rule: L7Rule) -> str | None:
    """RFC 4512, section 1.4: the name of an attribute of a distinguished name."""
    if not rule.key or not rule.value:
        return f"Invalid L7 Rule: L7rule type {rule.type.value} needs to specify a key and a value."
    if not _DN_FIELD.fullmatch(rule.key):
        return "Invalid L7 Rule: Invalid L7rule distinguished name field."
    return _wrong_regex(rule.value) if rule.compare_type is L7Comparison.REGEX else None


def _wrong_certificate(rule: L7Rule) -> str | None:
    if rule.key:
        return f'L7rule type {rule.type.value} does not use the "key" field.'
    if rule.type is L7RuleType.SSL_CONN_HAS_CERT and rule.value.lower() != "true":
        return f"L7rule value {rule.value} is not a boolean True string."
    if rule.type is L7RuleType.SSL_VERIFY_RESULT and not (rule.value.isascii() and rule.value.isdecimal()):
        return f"L7rule type {rule.type.value} needs a int value, which is >= 0"
    if rule.compare_type is not L7Comparison.EQUAL_TO:
        return f"L7rule type {rule.type.value} only supports the EQUAL_TO compare type."
    return None
