"""Each text in what a tenant may ask of a proxy, found by looking through the model: so that none is forgotten.

A second line, a NUL, a quote: with it the whole is refused, or HAProxy is told nothing of it.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.compilers.haproxy.tls import ALPN, VERSIONS
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Process
from fairlead.dataplane.haproxy_text import CONFIGURATION, Sockets, files, read_sections
from fairlead.drivers.haproxy.secrets import secrets_of
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
from fairlead.model.loadbalancer import (
    AppCookiePersistence,
    ClientAuthentication,
    Http,
    HttpMonitor,
    Listener,
    ListenerProtocol,
    ListenerTls,
    MonitorType,
    Pool,
    PoolTls,
)
from fairlead.model.secrets import Role
from haproxy.test_typed import CIPHERS
from harness.certificates import Authority
from harness.language import COMMON
from harness.proxied import listener, member, needs_haproxy, pool, refusal, rows_of, view, written
from harness.values import FEW

Path_: TypeAlias = tuple[str | int, ...]
NOTED = {**COMMON, "name": "n", "description": "d", "tags": ("t",)}
ACTIONS: tuple[L7Action, ...] = (
    Reject(),
    RedirectToUrl(url="https://a.example/"),
    RedirectPrefix(prefix="https://b.example"),
    RedirectToPool(pool_id="p"),
)


def rule(kind: L7RuleType) -> L7Rule:
    number = kind is L7RuleType.SSL_VERIFY_RESULT
    value, how = "1" if number else "v", L7Comparison.EQUAL_TO if number else L7Comparison.STARTS_WITH
    return L7Rule(id=f"r-{kind}", type=kind, compare_type=how, key="k", value=value, **NOTED)


def whole() -> tuple[Listener, Pool]:
    """With a text wherever there may be one."""
    times = {"delay": 1, "timeout": 1, "max_retries": 1, "http_version": "1.1", "domain_name": "m.example"}
    monitor = HttpMonitor(id="h", type=MonitorType.HTTP, **times, **NOTED)
    its = pool(
        "p",
        replace(member("m1", 9), **{name: NOTED[name] for name in ("name", "tags")}),
        persistence=AppCookiePersistence(cookie_name="c"),
        tls=PoolTls(
            enabled=True,
            container_ref="r1",
            ca_container_ref="r2",
            crl_container_ref="r3",
            versions=("TLSv1.2",),
            ciphers="AES128-SHA",
            alpn_protocols=("h2",),
        ),
        health_monitor=monitor,
    )
    policies = (
        L7Policy(id=f"l{place}", action=action, rules=tuple(map(rule, () if place else L7RuleType)), **NOTED)
        for place, action in enumerate(ACTIONS)
    )
    tls = ListenerTls(
        container_ref="r4",
        sni_container_refs=("r5",),
        client_authentication=ClientAuthentication.OPTIONAL,
        client_ca_container_ref="r6",
        client_crl_container_ref="r7",
        versions=("TLSv1.3",),
        ciphers="AES128-SHA",
        alpn_protocols=("h2",),
    )
    http = Http(insert_headers=(("X-Forwarded-For", "true"),), hsts_max_age=1)
    secure = {"protocol": ListenerProtocol.TERMINATED_HTTPS, "tls": tls, "http": http}
    return replace(listener("l", 2000, its, l7policies=tuple(policies), **secure), name="n", tags=("t",)), its


def texts(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where they are."""
    if isinstance(value, str) and not isinstance(value, Enum):
        yield path
    elif isinstance(value, tuple):
        for place, each in enumerate(value):
            yield from texts(each, (*path, place))
    elif is_dataclass(value):
        for field in fields(value):
            yield from texts(getattr(value, field.name), (*path, field.name))


def put(value: Any, path: Path_, text: str) -> Any:
    if not path:
        return text
    first, *rest = path
    if isinstance(first, int):
        return (*value[:first], put(value[first], tuple(rest), text), *value[first + 1 :])
    return replace(value, **{first: put(getattr(value, first), tuple(rest), text)})


FIELDS = sorted(set(texts(whole())), key=str)
WRONG = ["a\n    http-request use-service lua.evil", "a\0evil", "a\revil", "evil' lua.evil '${evil}%[evil]"]


def test_all_that_matters_is_among_them() -> None:
    """By their names: whoever adds a text to the model has it tried; what is no text has a type of its own."""
    names = {str(path[-1] if isinstance(path[-1], str) else path[-2]) for path in FIELDS}
    assert names >= {
        *("id", "name", "description", "tags", "url", "prefix", "pool_id", "key", "value", "cookie_name", "ciphers"),
        *("versions", "alpn_protocols", "container_ref", "sni_container_refs", "client_ca_container_ref"),
        *("client_crl_container_ref", "ca_container_ref", "crl_container_ref", "url_path", "domain_name"),
    }


@pytest.mark.parametrize("text", WRONG)
def test_a_text_in_any_field_is_refused_or_in_no_file(text: str) -> None:
    """Or it is one word among the same directives: a path may have a quote."""
    plain = keywords(whole())
    for path in FIELDS:
        changed = put(whole(), path, text)
        try:
            found = keywords(changed)
        except Unsupported:
            continue
        assert [each for each in found if each not in plain] == [], path


def keywords(asked: tuple[Listener, Pool]) -> list[str]:
    """The first word of each directive."""
    one, its = asked
    rows = rows_of(view([one], [its]))
    process = next(row for row in rows.values() if isinstance(row, Process))
    text = files(process, rows.values(), Sockets(control="control", peers="peers"))[CONFIGURATION]
    return sorted({line[0] for section in read_sections(text) for line in section})


CA = Authority()
SHOWN = CA.issue("web.example")
PEMS = {Role.CERTIFICATE: SHOWN.whole, Role.AUTHORITY: CA.pem, Role.REVOCATIONS: CA.revoke()}
EACH = settings(FEW, max_examples=FEW.max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
"""Each example is a process."""


REFERENCES = st.text(max_size=9, alphabet=st.characters(exclude_categories=["Cs"]))
"""Of JSON, in which no half of a surrogate pair is let in."""


def several(known: Any) -> Any:
    return st.lists(st.sampled_from([*known, "a\nb", "TLSv1.4"]), unique=True, max_size=4).map(tuple)


@needs_haproxy
@EACH
@given(
    CIPHERS, several(VERSIONS), several(ALPN), st.text(max_size=9, alphabet=st.characters(exclude_categories=["Cs"]))
)
def test_haproxy_takes_whatever_tls_of_a_listener_is_let_through(
    ciphers: str, versions: tuple[str, ...], alpn: tuple[str, ...], reference: str
) -> None:
    """With the files that it names."""
    one, its = whole()
    named = ListenerTls(container_ref=f"r{reference}", ciphers=ciphers, versions=versions, alpn_protocols=alpn)
    try:
        rows = rows_of(view([replace(one, tls=named)], [replace(its, tls=None)]))
    except Unsupported:
        return
    with tempfile.TemporaryDirectory() as folder:
        for secret in secrets_of(rows.values()):
            path = Path(folder, secret.path)
            path.parent.mkdir(exist_ok=True)
            path.write_text(PEMS[secret.role])
        written(rows, Path(folder))
        assert refusal(Path(folder)) == ""
