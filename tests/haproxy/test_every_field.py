"""Injection tests for every text field of a proxied listener or pool, found by traversing the model.

A text with a line break, NUL or quote is either rejected, or has no meaning to HAProxy beyond the text itself.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.compilers.haproxy.tls import ALPN, VERSIONS
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Process
from fairlead.dataplane.haproxy_text import CONFIGURATION, ProxySockets, read_sections, render_files
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy.secrets import secrets_of
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
    HttpMonitor,
    Listener,
    ListenerProtocol,
    ListenerTls,
    MonitorType,
    Pool,
    PoolTls,
)
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority
from harness.injection_texts import CIPHERS
from harness.language import COMMON
from harness.machines import request
from harness.ports import free_port
from harness.proxied import listener, member, needs_haproxy, pool, rows_of, running, validation_error, view, write_files
from harness.values import FEW_EXAMPLES

Path_: TypeAlias = tuple[str | int, ...]
NOTED = {**COMMON, "name": "n", "description": "d", "tags": ("t",)}
ACTIONS: tuple[L7Action, ...] = (
    Reject(),
    RedirectToUrl(url="https://a.example/"),
    RedirectPrefix(prefix="https://b.example"),
    RedirectToPool(pool_id="p"),
)


def rule(kind: L7RuleType, place: int = 0, how: L7Comparison = L7Comparison.STARTS_WITH) -> L7Rule:
    number = kind is L7RuleType.SSL_VERIFY_RESULT
    value, how = "1" if number else "v", L7Comparison.EQUAL_TO if number else how
    return L7Rule(id=f"r{place}-{kind}-{how}", type=kind, compare_type=how, key="k", value=value, **NOTED)


RULES = (*map(rule, L7RuleType), rule(L7RuleType.PATH, how=L7Comparison.REGEX))


def whole() -> tuple[Listener, Pool]:
    """A listener and a pool with a value in every text field."""
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
        L7Policy(id=f"l{place}", action=action, rules=(rule(L7RuleType.PATH, place),) if place else RULES, **NOTED)
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
    """Paths of all text fields."""
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
PLAIN = "plain77"
WRONG = [
    *("a\n    http-request use-service lua.evil", "a\0evil", "a\revil", "a\n\nfrontend evil\n    bind :1"),
    *("evil' lua.evil '${evil}%[evil]", "${HOME}' if TRUE", "evil\\' #", "evil\\", "# evil", "-f /etc/passwd"),
    *("evil%[env(HOME)]%%", ",evil)", "'#${evil}%[evil]", "\té\u2028evil"),
]
FORMS = {"alone": "{1}", "behind": "{0}{1}", "quoted": '"{0}{1}"'}
"""Combinations of the field's valid text with the tested one."""


def test_field_traversal_includes_every_relevant_text_field() -> None:
    """All text fields are included by name; values that are no text have a type of their own."""
    names = {str(path[-1] if isinstance(path[-1], str) else path[-2]) for path in FIELDS}
    assert names >= {
        *("id", "name", "description", "tags", "url", "prefix", "pool_id", "key", "value", "cookie_name", "ciphers"),
        *("versions", "alpn_protocols", "container_ref", "sni_container_refs", "client_ca_container_ref"),
        *("client_crl_container_ref", "ca_container_ref", "crl_container_ref", "url_path", "domain_name"),
    }


@pytest.mark.parametrize("text", WRONG)
def test_text_in_any_field_is_rejected_or_rendered_literally(text: str) -> None:
    """Everything else equals the result of a plain text: the same directives and words in the same sections."""
    for path in somewhere():
        for form in FORMS:
            found = directives(path, form, text)
            assert found is None or found == directives(path, form, PLAIN), (path, form)


@pytest.mark.parametrize("text", WRONG)
def test_text_in_unrendered_fields_changes_no_file(text: str) -> None:
    assert configuration(whole()) == configuration(changed(nowhere(), "alone", text))


def test_rendered_text_fields_are_the_expected_ones() -> None:
    """Fields that appear in the configuration, so the comparisons above are meaningful."""
    plain = [path for path in FIELDS if "<it>" in str([directives(path, form, PLAIN) for form in FORMS])]
    assert {"id", "url", "prefix", "key", "value", "cookie_name"} == {str(path[-1]) for path in plain}
    types = {at(whole(), path[:-1]).type for path in plain if path[-1] == "value"}
    assert set(L7RuleType) - {L7RuleType.SSL_CONN_HAS_CERT, L7RuleType.SSL_VERIFY_RESULT} == types


@cache
def nowhere() -> tuple[Path_, ...]:
    """Fields that never appear in the configuration."""
    return tuple(path for path in FIELDS if all(is_passed_over(path, text) for text in (PLAIN, WRONG[0])))


def is_passed_over(path: Path_, text: str) -> bool:
    with suppress(Unsupported):
        return configuration(whole()) == configuration(changed((path,), "alone", text))
    return False


@cache
def somewhere() -> tuple[Path_, ...]:
    return tuple(path for path in FIELDS if path not in nowhere())


@cache
def directives(path: Path_, form: str, text: str) -> list[tuple[str, ...]] | None:
    """Directives with their section, and a placeholder for the text; None if it is rejected."""
    try:
        found = configuration(changed((path,), form, text))
    except Unsupported:
        return None
    sections = [[shown(line, text) for line in section] for section in read_sections(found[CONFIGURATION])]
    maps = [
        shown((path, *line.split(" ")), text) for path in found if path != CONFIGURATION for line in lines(found[path])
    ]
    return sorted([*((*section[0], *line) for section in sections for line in section), *maps])


def lines(text: str) -> list[str]:
    """As HAProxy reads a list or a map."""
    return [line for line in text.split("\n") if line and not line.startswith("#")]


def changed(paths: tuple[Path_, ...], form: str, text: str) -> tuple[Listener, Pool]:
    asked = whole()
    for path in paths:
        asked = put(asked, path, FORMS[form].format(at(asked, path), text))
    return asked


def at(value: Any, path: Path_) -> Any:
    for each in path:
        value = value[each] if isinstance(each, int) else getattr(value, each)
    return value


def shown(line: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Normalize a line: references to secrets are digests, and quotes around a value are left out."""
    words = [word.replace(text.replace("%", "%%"), "<it>").replace(text, "<it>") for word in line]
    return tuple(re.sub("[0-9a-f]{32}", "<digest>", word).replace('"', "") for word in words)


def configuration(asked: tuple[Listener, Pool]) -> Mapping[str, str]:
    """Its files."""
    one, its = asked
    rows = rows_of(view([one], [its]))
    process = next(row for row in rows.values() if isinstance(row, Process))
    return render_files(process, rows.values(), ProxySockets(control="control", peers="peers"))


CA = Authority()
SHOWN = CA.issue("web.example")
PEMS = {Role.CERTIFICATE: SHOWN.certificate_and_key, Role.AUTHORITY: CA.pem, Role.REVOCATIONS: CA.revoke()}
EACH = settings(FEW_EXAMPLES, max_examples=FEW_EXAMPLES.max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
"""Each example starts a process."""


@needs_haproxy
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", WRONG)
def test_haproxy_accepts_every_accepted_text(text: str, form: str) -> None:
    """All fields that accept the text have it at the same time, except references between parts."""
    taken = [path for path in somewhere() if directives(path, form, text) is not None]
    one, its = changed(tuple(path for path in taken if not str(path[-1]).endswith("id")), form, text)
    assert refused(rows_of(view([one], [its]))) == ""


def refused(rows: Rows) -> str:
    """HAProxy's error for the rows, with the files that they name."""
    with tempfile.TemporaryDirectory() as folder:
        for secret in secrets_of(rows.values()):
            path = Path(folder, secret.path)
            path.parent.mkdir(exist_ok=True)
            path.write_text(PEMS[secret.role])
        write_files(rows, Path(folder))
        return validation_error(Path(folder))


MEANT = [
    *("'", "\\", "\\'", "'#", "'if'TRUE", "$HOME", "${HOME}", "`id`", "#", "\\n", "\\x41", "~", "<", "@", "!", "|"),
    *("%", "%%", "%ci", "%41", "%[src]", "{", "}", "[", "(", "*", "^", "&a=b", "-i", "-f", "--", "if", "lua.evil"),
    "x" * 300,
]
"""Texts of characters that are allowed in a header and in a URL."""
COMPARED = {L7RuleType.PATH: ("", "/"), L7RuleType.HEADER: ("k", ""), L7RuleType.COOKIE: ("k", "")}
"""Key, and prefix of the text, of each type of rule."""


@needs_haproxy
@pytest.mark.client
def test_running_haproxy_treats_texts_literally() -> None:
    """Exact redirect locations, and exact values that a rule matches."""
    ports = {text: free_port() for text in (*MEANT, '"', ";", ",")}
    with running(rows_of(view([meant(f"l{at}", port, text) for at, (text, port) in enumerate(ports.items())], []))):
        for text, port in ports.items():
            assert f"http://x/{text}" == location(port, "/url")
            assert f"http://x/{text}/prefix/it" == location(port, "/prefix/it")
        for text in MEANT:
            assert ["http://PATH/", "http://HEADER/", "http://COOKIE/"] == [
                "http://PATH/" if "#" in text else location(ports[text], f"/{text}"),  # HAProxy rejects such a request
                location(ports[text], "/", k=text),
                location(ports[text], "/", Cookie=f"k={text}"),
            ]


def meant(name: str, port: int, text: str) -> Listener:
    actions = (
        ("/url", RedirectToUrl(url=f"http://x/{text}")),
        ("/prefix", RedirectPrefix(prefix=f"http://x/{text}")),
    )
    looked_for = [
        (
            replace(rule(kind, how=L7Comparison.EQUAL_TO), key=key, value=before + text),
            RedirectToUrl(url=f"http://{kind}/"),
        )
        for kind, (key, before) in COMPARED.items()
    ]
    asked = [(replace(rule(L7RuleType.PATH), value=path), action) for path, action in actions]
    policies = [
        L7Policy(id=f"p{place}", action=action, rules=(replace(its, id=f"r{place}"),), **NOTED)
        for place, (its, action) in enumerate([*asked, *looked_for])
    ]
    return listener(name, port, l7policies=tuple(policies))


def location(port: int, path: str, **headers: str) -> str | None:
    return request(port, path, **headers)[2].getheader("Location")


REFERENCES = st.text(max_size=9, alphabet=st.characters(exclude_categories=["Cs"]))
"""Strings that JSON can contain, without unpaired surrogates."""


def several(known: Any) -> Any:
    return st.lists(st.sampled_from([*known, "a\nb", "TLSv1.4"]), unique=True, max_size=4).map(tuple)


@needs_haproxy
@EACH
@given(
    CIPHERS, several(VERSIONS), several(ALPN), st.text(max_size=9, alphabet=st.characters(exclude_categories=["Cs"]))
)
def test_haproxy_accepts_every_accepted_listener_tls_setting(
    ciphers: str, versions: tuple[str, ...], alpn: tuple[str, ...], reference: str
) -> None:
    one, its = whole()
    named = ListenerTls(container_ref=f"r{reference}", ciphers=ciphers, versions=versions, alpn_protocols=alpn)
    try:
        rows = rows_of(view([replace(one, tls=named)], [replace(its, tls=None)]))
    except Unsupported:
        return
    assert refused(rows) == ""
