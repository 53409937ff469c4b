"""Arbitrary texts of tenants are rejected, or HAProxy accepts the configuration, and it has no other directive.

No front end validates the texts in these tests. The class of defects is that of CVE-2026-94571, CVE-2026-94572 and
CVE-2026-1784: directives in URLs, cipher lists and values of rules.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy_text import CONFIGURATION, read_sections
from fairlead.model.documents.l7 import (
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
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    Pool,
    PoolTls,
)
from harness.injection_texts import CIPHERS, TEXT_PIECES, TYPED_TEXTS
from harness.language import COMMON
from harness.proxied import listener, member, needs_haproxy, pool, rows_of, validation_error, view, write_files
from harness.values import FEW_EXAMPLES

EACH = settings(FEW_EXAMPLES, max_examples=FEW_EXAMPLES.max_examples // 3, suppress_health_check=[HealthCheck.too_slow])
"""Each example starts a process."""
URLS = st.one_of(TYPED_TEXTS, TYPED_TEXTS.map("https://example.com/{}".format))
NAMES = st.one_of(TYPED_TEXTS, st.from_regex(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,12}", fullmatch=True))
EXPRESSIONS = st.one_of(
    TYPED_TEXTS,
    st.lists(st.sampled_from([*TEXT_PIECES[20:40], "\\d", "\\", "(?", "(?:", "[[:x:]]", "{2}"])).map("".join),
)
ACTIONS = st.one_of(
    st.builds(Reject),
    st.builds(RedirectToUrl, url=URLS, code=st.sampled_from([None, 301, 308])),
    st.builds(RedirectPrefix, prefix=URLS),
    st.just(RedirectToPool(pool_id="p")),
)


@st.composite
def rules(draw: Any) -> L7Rule:
    compared = draw(st.sampled_from(L7Comparison))
    value = draw(EXPRESSIONS if compared is L7Comparison.REGEX else TYPED_TEXTS)
    known = {"type": draw(st.sampled_from(L7RuleType)), "compare_type": compared, "value": value}
    return L7Rule(id=f"r{draw(st.integers(0, 9))}", key=draw(NAMES), invert=draw(st.booleans()), **known, **COMMON)


@st.composite
def balancers(draw: Any) -> tuple[Listener, Pool]:
    persistence = draw(st.none() | st.builds(AppCookiePersistence, cookie_name=NAMES))
    tls = PoolTls(enabled=True, ciphers=draw(st.none() | CIPHERS))
    one = pool("p", member("m1", 9), persistence=persistence, tls=draw(st.sampled_from([None, tls])))
    several = draw(st.lists(rules(), max_size=3, unique_by=lambda rule: rule.id))
    policy = L7Policy(id="l", action=draw(ACTIONS), rules=tuple(several), **COMMON)
    headers = draw(st.just([]) | st.lists(st.tuples(NAMES, st.sampled_from(["true", "x"])), max_size=1))
    http = Http(insert_headers=tuple(headers))
    return listener("l", 2000, one, l7policies=(policy,), http=http), one


@needs_haproxy
@EACH
@given(balancers())
def test_arbitrary_configuration_is_rejected_or_valid(asked: tuple[Listener, Pool]) -> None:
    one, its_pool = asked
    check(one, its_pool)


def check(one: Listener, its_pool: Pool) -> None:
    try:
        rows = rows_of(view([one], [its_pool]))
    except Unsupported:
        return
    with tempfile.TemporaryDirectory() as name:
        text = write_files(rows, Path(name))[CONFIGURATION]
        assert validation_error(Path(name)) == ""
    sections = [section[0][0] for section in read_sections(text)]
    assert ["global", "defaults", "peers", "frontend", "backend"] == sections


@needs_haproxy
@EACH
@given(CIPHERS, st.lists(st.sampled_from(["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3", "SSLv3"]), unique=True))
@example("a\nfrontend evil", [])
def test_arbitrary_pool_ciphers_are_rejected_or_valid(ciphers: str, versions: list[str]) -> None:
    tls = PoolTls(enabled=True, ciphers=ciphers, versions=tuple(versions))
    check(listener("l", 2000, one := pool("p", member("m1", 9), tls=tls)), one)


@needs_haproxy
@pytest.mark.parametrize("ciphers", ["ECDHE-RSA-AES128-GCM-SHA256:!ALL", "ALL:-ALL", "AES128-SHA:!kRSA", "@STRENGTH"])
def test_cipher_lists_without_any_cipher_left_cause_no_haproxy_error(ciphers: str) -> None:
    tls = PoolTls(enabled=True, ciphers=ciphers)
    check(listener("l", 2000, one := pool("p", member("m1", 9), tls=tls)), one)


URL = "https://example.com/"
WRONG = "a\n    http-request use-service lua.evil"


def policy(action: Any, **known: Any) -> L7Policy:
    known = {"type": L7RuleType.PATH, "compare_type": L7Comparison.EQUAL_TO, "value": "/"} | known
    return L7Policy(id="l", action=action, rules=(L7Rule(id="r", **known, **COMMON),), **COMMON)


@pytest.mark.parametrize("text", ["a b", "a'", "a/b", "é", ""])
def test_ids_that_haproxy_does_not_accept_are_rejected(text: str) -> None:
    it = pool("p", member("m1", 9))
    plain = listener("l", 2000, it)
    asked = [
        (replace(plain, id=text), it),
        (plain, replace(it, members=(replace(it.members[0], id=text),))),
    ]
    for one, its_pool in asked:
        with pytest.raises(Unsupported):
            rows_of(view([one], [its_pool]))


@pytest.mark.parametrize("text", [WRONG, "a\0", "a\rb"])
def test_line_breaks_and_nul_are_rejected_in_every_field(text: str) -> None:
    it = pool("p", member("m1", 9))
    plain = listener("l", 2000, it)
    secure = replace(plain, protocol=ListenerProtocol.TERMINATED_HTTPS)
    asked: list[tuple[Listener, Pool]] = [
        *((replace(plain, l7policies=(policy(action),)), it) for action in (RedirectToUrl(url=URL + text),)),
        (replace(plain, l7policies=(policy(RedirectPrefix(prefix=URL + text)),)), it),
        *(
            (replace(plain, l7policies=(policy(Reject(), type=each, compare_type=how, value=text, key="k"),)), it)
            for each in (
                L7RuleType.PATH,
                L7RuleType.FILE_TYPE,
                L7RuleType.COOKIE,
                L7RuleType.HEADER,
                L7RuleType.HOST_NAME,
                L7RuleType.SSL_DN_FIELD,
            )
            for how in L7Comparison
        ),
        *(
            (replace(plain, l7policies=(policy(Reject(), type=each, key=text),)), it)
            for each in (L7RuleType.HEADER, L7RuleType.COOKIE, L7RuleType.SSL_DN_FIELD)
        ),
        (replace(plain, l7policies=(policy(Reject(), type=L7RuleType.SSL_VERIFY_RESULT, value=text),)), it),
        (replace(plain, http=Http(insert_headers=((text, "true"),))), it),
        (plain, replace(it, persistence=AppCookiePersistence(cookie_name=text))),
        (plain, replace(it, tls=PoolTls(enabled=True, ciphers=f"AES128-SHA:{text}"))),
        (plain, replace(it, tls=PoolTls(enabled=True, versions=(text,)))),
        (plain, replace(it, tls=PoolTls(enabled=True, alpn_protocols=(text,)))),
        (replace(secure, tls=ListenerTls(container_ref="c", ciphers=f"AES128-SHA:{text}")), it),
        (replace(secure, tls=ListenerTls(container_ref="c", alpn_protocols=(text,))), it),
        (replace(secure, tls=ListenerTls(container_ref="c", versions=(text,))), it),
        (replace(plain, id=text), it),
        (replace(plain, default_pool_id=text), replace(it, id=text)),
        (plain, replace(it, members=(replace(it.members[0], id=text),))),
    ]
    for one, its_pool in asked:
        with pytest.raises(Unsupported):
            rows_of(view([one], [its_pool]))


def test_policy_and_rule_ids_do_not_appear_in_rows() -> None:
    it, rejected = pool("p", member("m1", 9)), policy(Reject())
    odd = replace(rejected, id=WRONG, rules=(replace(rejected.rules[0], id=WRONG),))
    rows = [rows_of(view([replace(listener("l", 2000, it), l7policies=(each,))], [it])) for each in (rejected, odd)]
    assert rows[0] == rows[1]


def test_names_descriptions_and_tags_do_not_appear_in_rows() -> None:
    known = {"name": WRONG, "description": WRONG, "tags": (WRONG,)}
    it = replace(pool("p", replace(member("m1", 9), **known)), **known)
    one = replace(listener("l", 2000, it, l7policies=(replace(policy(Reject()), **known),)), **known)
    assert not any("lua.evil" in str(row) for row in rows_of(view([one], [it], **known)).values())


def test_secret_references_are_rendered_as_digests() -> None:
    it = pool("p", member("m1", 9))
    tls = ListenerTls(container_ref=WRONG, sni_container_refs=("../../etc/passwd",))
    one = listener("l", 2000, it, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)
    with tempfile.TemporaryDirectory() as name:
        texts = write_files(rows_of(view([one], [it])), Path(name))
    assert ["haproxy.cfg", "lists/l"] == sorted(texts)
    assert not any("evil" in text or "passwd" in text for text in texts.values())
