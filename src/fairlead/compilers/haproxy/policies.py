"""L7 policies of a listener, in the order in which Octavia's own proxies apply them.

Positions alone do not decide: who is refused is refused first, whatever other policies say, then come the redirects,
then those that lead to a pool; among each sort the positions decide (Octavia, "Layer 7 Load Balancing", Policy
Position). A policy applies when all of its rules do. One without a rule, or to a pool that is off, does not exist.
"""

import re
from collections.abc import Iterator

from fairlead.compilers.haproxy.backends import argument
from fairlead.compilers.haproxy.expressions import bounded
from fairlead.dataplane.haproxy_words import Line, Unwritable, literal, name
from fairlead.model.l7 import (
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
from fairlead.model.loadbalancer import Listener, LoadBalancer, Pool, find_pool
from fairlead.model.proxy_backends import BackendNames

FOUND = 302
"""Of a redirect that says no code (RFC 9110, section 15.4.3)."""
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
"""What is behind the first dot of a file's name; nothing if it has none."""


def led_pools(balancer: LoadBalancer, listener: Listener) -> tuple[Pool, ...]:
    """Those to which policies may lead."""
    pools = (_pool(balancer, policy) for policy, _ in _in_force(balancer, listener))
    return tuple(pool for pool in pools if pool is not None)


def policy_lines(balancer: LoadBalancer, listener: Listener, names: BackendNames) -> Iterator[Line]:
    """Raises Unwritable. What is not in force is looked at too: it may be some day."""
    for policy in listener.l7policies:
        for rule in policy.rules:
            list(_rule_lines(rule))
        _target(policy.action)
    for policy, rules in sorted(_in_force(balancer, listener), key=lambda each: _ORDER[type(each[0].action)]):
        for rule in rules:
            yield from _rule_lines(rule)
        condition = ("if", *(f"!{_acl(rule)}" if rule.invert else _acl(rule) for rule in rules))
        pool = _pool(balancer, policy)
        if pool is not None:
            yield "use_backend", names.of(pool, listener), *condition
        else:
            yield "http-request", *_target(policy.action), *condition


def _in_force(balancer: LoadBalancer, listener: Listener) -> Iterator[tuple[L7Policy, tuple[L7Rule, ...]]]:
    for policy in listener.l7policies:
        rules = tuple(rule for rule in policy.rules if rule.admin_state_up)
        leads_nowhere = policy.redirect_pool_id is not None and _pool(balancer, policy) is None
        if policy.admin_state_up and rules and not leads_nowhere:
            yield policy, rules


def _pool(balancer: LoadBalancer, policy: L7Policy) -> Pool | None:
    pool = find_pool(balancer, policy.redirect_pool_id)
    return pool if pool is not None and pool.admin_state_up else None


def _target(action: L7Action) -> Line:
    match action:
        case RedirectToUrl(url=url, code=code):
            return "redirect", "location", _url(url), "code", str(code or FOUND)
        case RedirectPrefix(prefix=prefix, code=code):
            return "redirect", "prefix", _url(prefix), "code", str(code or FOUND)
        case _:
            return "deny", "deny_status", "403"


def _url(text: str) -> str:
    if not _URL.fullmatch(text):
        raise Unwritable("a URL with characters that no header may have")
    return literal(text)


def _acl(rule: L7Rule) -> str:
    return name(f"rule:{rule.id}")


def _rule_lines(rule: L7Rule) -> Iterator[Line]:
    """Lines of one name are alternatives. Behind `--` nothing is an option."""
    insensitive = ("-i",) if rule.type is L7RuleType.HOST_NAME else ()
    match rule.type:
        case L7RuleType.SSL_CONN_HAS_CERT:
            yield "acl", _acl(rule), "ssl_c_used"
        case L7RuleType.SSL_VERIFY_RESULT:
            yield "acl", _acl(rule), "ssl_c_verify", "-m", "int", "--", _number(rule.value)
        case _:
            value = _value(rule)
            for looked_at in _looked_at(rule):
                yield "acl", _acl(rule), looked_at, *insensitive, "-m", _MATCH[rule.compare_type], "--", value


def _looked_at(rule: L7Rule) -> tuple[str, ...]:
    """A header may be a list with commas, or one text that has some. A name of a host may come with a port."""
    key = argument(rule.key or "")
    match rule.type:
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
            raise AssertionError(rule.type)


def _value(rule: L7Rule) -> str:
    if rule.compare_type is L7Comparison.REGEX:
        return bounded(rule.value)
    if rule.type is L7RuleType.FILE_TYPE:
        return _unquoted(rule.value).removeprefix(".")
    return rule.value if rule.type is L7RuleType.SSL_DN_FIELD else _unquoted(rule.value)


def _unquoted(text: str) -> str:
    """Octavia takes values with blanks in quotes, which are none of the value."""
    return text[1:-1] if _QUOTED.fullmatch(text) else text


def _number(text: str) -> str:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Unwritable("a number that is none")
    return str(int(text))
