"""Decoder of L7 policies and rules."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.octavia.caller import CreationContext, common_attributes, without_nulls
from fairlead.model.documents.l7 import (
    L7Action,
    L7ActionType,
    L7Policy,
    L7Rule,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.schema import Values

FOUND = 302
"""Default status code of a redirect (RFC 9110, section 15.4.3)."""
_TARGETS = {
    L7ActionType.REDIRECT_TO_URL: "redirect_url",
    L7ActionType.REDIRECT_TO_POOL: "redirect_pool_id",
    L7ActionType.REDIRECT_PREFIX: "redirect_prefix",
}
"""Action -> its target attribute."""


def decode_policy(values: Values, origin: CreationContext, redirect_pool_id: str | None) -> L7Policy:
    """Decode a policy. Raises ApiError."""
    policy = L7Policy(**origin.resource(values), action=Reject())
    policy = edit_policy(policy, {**without_nulls(values), "redirect_pool_id": redirect_pool_id})
    rules = tuple(decode_rule(body, origin) for body in values.get("rules") or ())
    return replace(policy, rules=rules)


def edit_policy(policy: L7Policy, values: Values) -> L7Policy:
    """Apply a body to a policy. The policy has only the target of its action; a target without an action selects the
    action, as in Octavia. Raises ApiError."""
    named = {action: name for action, name in _TARGETS.items() if values.get(name)}
    kind: L7ActionType = values.get("action") or next(iter(named), policy.action.type)
    if "action" in values and kind is not values["action"]:
        raise ApiError(400, "Invalid L7 Policy action specified: None")
    if not values.get("action"):
        _refuse_several(named.values())
    old = policy.action if policy.action.type is kind else None
    return replace(policy, **common_attributes(values), action=_action(kind, old, values))


def _action(kind: L7ActionType, old: L7Action | None, values: Values) -> L7Action:
    """Return the new action; `old` is the previous action if it has the same type. Raises ApiError."""
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
    """Return the status code of a redirect. A new target without a code gets the default; a null code removes it, as in
    Octavia."""
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


def decode_rule(values: Values, origin: CreationContext) -> L7Rule:
    kind, comparison = values["type"], values["compare_type"]
    rule = L7Rule(**origin.resource(values), type=kind, compare_type=comparison, value=values["value"])
    return edit_rule(rule, without_nulls(values))


def edit_rule(rule: L7Rule, values: Values) -> L7Rule:
    """Apply a body to a rule. A null removes the key, and leaves required attributes unchanged."""
    changes: dict[str, Any] = common_attributes(values)
    changes |= {name: values[name] for name in ("type", "compare_type", "value") if values.get(name) is not None}
    if "key" in values:
        changes["key"] = values["key"] or None
    if "invert" in values:
        changes["invert"] = bool(values["invert"])
    return replace(rule, **changes)
