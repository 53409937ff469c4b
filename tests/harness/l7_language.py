"""Syntax of proxied listeners and L7 policies in a story: options of a listener, and lines of policies.

    web vip=10.0.0.10 on=net1 http:80{proxy=2000,insert=X-Forwarded-For+X-Forwarded-Port,hsts=60}=a/10.0.0.11:8080
    web vip=10.0.0.10 on=net1 tcp:22{proxy=2000,raw=0:5353482d}=a/10.0.0.11:22
    web vip=10.0.0.10 on=net1 tcp:80{proxy=2000,pool=PROXYV2,times=1000+2000+3000+4000}=a/10.0.0.11:8080
    web vip=10.0.0.10 on=net1 terminated_https:443{proxy=2000,show=ref1+ref2,trust=ref3,revoked=ref4,APP_COOKIE=id}=-
    web vip=10.0.0.10 on=net1 http:80{proxy=2000,HTTP_COOKIE,members-tls,members-trust=ref3}=a/10.0.0.11:8443
    policy web http-80 p1 REDIRECT_TO_URL=https://example.com/@301 PATH:STARTS_WITH:/a !HEADER(X-A):EQUAL_TO:b off
    policy web http-80 p2 REDIRECT_TO_POOL=web-http-81-pool COOKIE(c):REGEX:^a$

`times` are Octavia's timeouts in ms: client data, member connect, member data and TCP inspect. `show` lists container
references of certificates, the default one first. A policy names its load balancer and listener; its position is after
the policies of earlier lines.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

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
from fairlead.model.documents.loadbalancer import (
    AppCookiePersistence,
    ClientAuthentication,
    Http,
    HttpCookiePersistence,
    Listener,
    ListenerTls,
    LoadBalancer,
    Pool,
    PoolProtocol,
    PoolTls,
    RawMatch,
    Timeouts,
)

RULE = re.compile(r"(!?)(\w+)(?:\(([^)]*)\))?:(\w+):(.*)")
POOLS = {"TERMINATED_HTTPS": PoolProtocol.HTTP, "PROMETHEUS": PoolProtocol.HTTP}
"""Pool protocol by listener protocol, where the two differ."""


def _parse_options(words: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def pool_protocol(protocol: str, words: Iterable[str]) -> PoolProtocol:
    said = _parse_options(words)
    return PoolProtocol(said["pool"]) if "pool" in said else POOLS.get(protocol) or PoolProtocol(protocol)


def l7_listener(listener: Listener, words: list[str]) -> Listener:
    said = _parse_options(words)
    known: dict[str, Any] = {}
    if "insert" in said or "hsts" in said:
        headers = tuple((name, "true") for name in said.get("insert", "").split("+") if name)
        known["http"] = Http(insert_headers=headers, hsts_max_age=int(said["hsts"]) if "hsts" in said else None)
    if "raw" in said:
        location, _, value = said["raw"].partition(":")
        known["raw"] = RawMatch(location=int(location), value=bytes.fromhex(value))
    if "times" in said:
        known["timeouts"] = Timeouts(**dict(zip(Timeouts.__slots__, map(int, said["times"].split("+")), strict=True)))
    if "show" in said:
        first, *more = said["show"].split("+")
        trusts = ClientAuthentication.MANDATORY if "trust" in said else ClientAuthentication.NONE
        known["tls"] = ListenerTls(
            container_ref=first,
            sni_container_refs=tuple(more),
            client_authentication=trusts,
            client_ca_container_ref=said.get("trust"),
            client_crl_container_ref=said.get("revoked"),
        )
    return replace(listener, **known)


def l7_pool(pool: Pool, words: list[str]) -> Pool:
    said = _parse_options(words)
    if "HTTP_COOKIE" in said:
        pool = replace(pool, persistence=HttpCookiePersistence())
    if "APP_COOKIE" in said:
        pool = replace(pool, persistence=AppCookiePersistence(cookie_name=said["APP_COOKIE"]))
    if "members-tls" in said:
        pool = replace(pool, tls=PoolTls(enabled=True, ca_container_ref=said.get("members-trust")))
    return pool


def with_policy(balancer: LoadBalancer, words: list[str], common: dict[str, Any]) -> LoadBalancer:
    """Add a policy. `words` are the listener, the name, the action and the rules."""
    listener_id, name, action, *rules = words
    identity = f"{balancer.id}-{name}"
    policy = L7Policy(
        id=identity,
        action=_action(action),
        admin_state_up="off" not in rules,
        rules=tuple(_rule(f"{identity}-{place}", text, common) for place, text in enumerate(rules, 1) if text != "off"),
        **common,
    )
    listeners = [
        replace(each, l7policies=(*each.l7policies, policy)) if each.id == f"{balancer.id}-{listener_id}" else each
        for each in balancer.listeners
    ]
    return replace(balancer, listeners=tuple(listeners))


def _action(text: str) -> L7Action:
    kind, _, target = text.partition("=")
    target, _, code = target.partition("@")
    match kind:
        case "REDIRECT_TO_POOL":
            return RedirectToPool(pool_id=target)
        case "REDIRECT_TO_URL":
            return RedirectToUrl(url=target, code=int(code) if code else None)
        case "REDIRECT_PREFIX":
            return RedirectPrefix(prefix=target, code=int(code) if code else None)
        case _:
            return Reject()


def _rule(identity: str, text: str, common: dict[str, Any]) -> L7Rule:
    found = RULE.fullmatch(text)
    assert found, f"not a rule: {text}"
    invert, kind, key, comparison, value = found.groups()
    known = {"type": L7RuleType(kind), "compare_type": L7Comparison(comparison), "key": key, "value": value}
    return L7Rule(id=identity, invert=bool(invert), **known, **common)
