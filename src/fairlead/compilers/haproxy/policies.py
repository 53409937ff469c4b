"""L7 policies of a listener, in the order in which Octavia's amphorae apply them.

The order is: REJECT, then redirects to URLs and prefixes, then redirects to pools; within each group by position
(Octavia, "Layer 7 Load Balancing", Policy Position). A policy applies if all of its rules match. A policy without an
enabled rule, or to a disabled pool, is ignored.

Pools of disabled policies and of policies without rules have backends too, so enabling such a policy needs no
reload.
"""

import re
from typing import assert_never

from fairlead.compilers.haproxy.backends import check_argument
from fairlead.compilers.haproxy.expressions import with_match_limit
from fairlead.dataplane.haproxy_policies import Condition, Policy
from fairlead.dataplane.haproxy_words import Line, Unwritable, name
from fairlead.model.documents.l7 import (
    L7Action,
    L7Comparison,
    L7Policy,
    L7Rule,
    L7RuleType,
    RedirectPrefix,
    RedirectToPool,
    RedirectToUrl,
    Reject,
)
from fairlead.model.documents.loadbalancer import Listener, Pool
from fairlead.model.queries.proxy_backends import BackendNames

FOUND = 302
"""Status code of a redirect without one (RFC 9110, section 15.4.3)."""
_MATCH = {
    L7Comparison.CONTAINS: "sub",
    L7Comparison.ENDS_WITH: "end",
    L7Comparison.EQUAL_TO: "str",
    L7Comparison.REGEX: "reg",
    L7Comparison.STARTS_WITH: "beg",
}
_ORDER: dict[type[L7Action], int] = {Reject: 0, RedirectToUrl: 1, RedirectPrefix: 1, RedirectToPool: 2}
_URL = re.compile(r"https?://[!-~]+", re.IGNORECASE)
_QUOTED = re.compile(r"\"[\t -~]*\"")
_TYPES = "path,field(-1,/),field(2,.,0)"
"""File extension: the text after the first dot of the last path segment; empty if there is none."""


def policy_pools(listener: Listener, names: BackendNames) -> tuple[Pool, ...]:
    """Return the pools of policies in force."""
    pools = (names.find_enabled(each.redirect_pool_id) for each in listener.l7policies if _is_in_force(each, names))
    return tuple(pool for pool in pools if pool is not None)


def all_policy_pools(listener: Listener, names: BackendNames) -> tuple[Pool, ...]:
    """Return the pools of all policies, including those that are not in force."""
    pools = (names.find_enabled(policy.redirect_pool_id) for policy in listener.l7policies)
    return tuple(pool for pool in pools if pool is not None)


def compile_policies(listener: Listener, names: BackendNames) -> tuple[Policy, ...]:
    """Return the policies in force, in order. Raises Unwritable, also for a policy that is not in force, because it
    can be enabled later."""
    compiled = [(each, _compile_policy(each, listener, names)) for each in listener.l7policies]
    in_force = ((each, policy) for each, policy in compiled if _is_in_force(each, names))
    return tuple(policy for _, policy in sorted(in_force, key=lambda each: _ORDER[type(each[0].action)]))


def _compile_policy(policy: L7Policy, listener: Listener, names: BackendNames) -> Policy:
    """Compile each rule once. Raises Unwritable, also for disabled rules."""
    pool, target = names.find_enabled(policy.redirect_pool_id), _target(policy.action)
    conditions = [(rule, _condition(rule)) for rule in policy.rules]
    enabled = (condition for rule, condition in conditions if rule.admin_state_up)
    return Policy(
        action=f"pool:{name(names.of(pool, listener))}" if pool is not None else target,
        # all have to match, so the order is free: sorted by shape, more policies fit into a slot
        conditions=tuple(sorted(enabled, key=lambda each: each.shape)),
    )


def _is_in_force(policy: L7Policy, names: BackendNames) -> bool:
    leads_nowhere = policy.redirect_pool_id is not None and names.find_enabled(policy.redirect_pool_id) is None
    return policy.admin_state_up and any(rule.admin_state_up for rule in policy.rules) and not leads_nowhere


def _target(action: L7Action) -> str:
    match action:
        case RedirectToUrl(url=url, code=code):
            return f"location-{code or FOUND}:{_url(url)}"
        case RedirectPrefix(prefix=prefix, code=code):
            return f"prefix-{code or FOUND}:{_url(prefix)}"
        case Reject():
            return "deny"
        case RedirectToPool():
            return ""  # the caller names the backend
        case _:
            assert_never(action)


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise Unwritable("a URL with characters that are not allowed in a header")
    return text


def _condition(rule: L7Rule) -> Condition:
    match rule.type:
        case L7RuleType.SSL_CONN_HAS_CERT:
            return Condition(samples=("ssl_c_used",), inverted=rule.invert)
        case L7RuleType.SSL_VERIFY_RESULT:
            value = _number(rule.value)
            return Condition(samples=("ssl_c_verify",), matching=("-m", "int"), value=value, inverted=rule.invert)
        case _:
            samples, matching = _samples(rule.type, rule.key), _matching(rule.type, rule.compare_type)
            return Condition(samples=samples, matching=matching, value=_value(rule), inverted=rule.invert)


def _matching(kind: L7RuleType, comparison: L7Comparison) -> Line:
    insensitive = ("-i",) if kind is L7RuleType.HOST_NAME else ()
    return *insensitive, "-m", _MATCH[comparison]


def _samples(kind: L7RuleType, name: str | None) -> tuple[str, ...]:
    """Samples of a rule. A header is read both as a comma-separated list and as one text; a host name with and
    without port."""
    key = check_argument(name or "")
    match kind:
        case L7RuleType.HOST_NAME:
            return "req.hdr(host)", "req.hdr(host),host_only"
        case L7RuleType.PATH:
            return ("path",)
        case L7RuleType.FILE_TYPE:
            return _TYPES, f"{_TYPES},field(-1,.)"
        case L7RuleType.HEADER:
            return f"req.hdr({key})", f"req.fhdr({key})"
        case L7RuleType.COOKIE:
            return (f"req.cook({key})",)
        case L7RuleType.SSL_DN_FIELD:
            return (f"ssl_c_s_dn({key})",)
        case _:
            raise AssertionError(kind)


PREPARED = tuple(
    Policy(
        action="deny",
        conditions=(Condition(samples=_samples(kind, None), matching=_matching(kind, each), value="/"),),
    )
    for kind in (L7RuleType.HOST_NAME, L7RuleType.PATH)
    for each in L7Comparison
)
"""Shapes with free slots in every listener with L7 policies: the most frequent ones, which need no key."""


def _value(rule: L7Rule) -> str:
    if rule.compare_type is L7Comparison.REGEX:
        return with_match_limit(rule.value)
    if rule.type is L7RuleType.FILE_TYPE:
        return _unquoted(rule.value).removeprefix(".")
    return rule.value if rule.type is L7RuleType.SSL_DN_FIELD else _unquoted(rule.value)


def _unquoted(text: str) -> str:
    """Remove the quotes that Octavia requires around values with blanks."""
    return text[1:-1] if _QUOTED.fullmatch(text) else text


def _number(text: str) -> str:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Unwritable("a value that is not a number")
    return str(int(text))
