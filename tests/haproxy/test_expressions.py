"""Accepted regular expressions are valid in HAProxy's library, and match in bounded time."""

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairlead.compilers.haproxy.expressions import MAX_MATCH_STEPS, check_expression, with_match_limit
from fairlead.dataplane.haproxy_text import CONFIGURATION
from fairlead.dataplane.haproxy_words import Unwritable, render_line
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, RedirectToUrl
from fairlead.model.documents.loadbalancer import Listener
from fairlead.model.documents.sizes import MAX_L7RULES
from harness.language import COMMON
from harness.machines import request
from harness.ports import free_port
from harness.proxied import listener, needs_haproxy, rows_of, running, validation_error, view
from harness.values import FEW_EXAMPLES

UNSHRUNK = (Phase.explicit, Phase.generate)
"""HAProxy's error names the invalid expression, so a smaller list would not help."""
PIECES = st.sampled_from(
    ["a", "b", ".", "*", "+", "?", "|", "^", "$", "(", ")", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i)", "(?P<n>",
     "(?P=n)", "(?#", "(?>", "(?a)", "(?-i:", "[", "]", "[^", "[[:alpha:]]", "[:", "-", "{2}", "{1,3}", "{,3}", "{",
     "}", "{99}", "{9999}", "\\d", "\\D", "\\1", "\\b", "\\Z", "\\A", "\\u0041", "\\x41", "\\N{DASH}", "\\.", "\\\\",
     "\\-", "\\Q", "\\E", "\\g1", "é", "/", " ", "'", '"', "#", "%", "\\0", "\\n", "*+", "++", "?+"]
)  # fmt: skip
NASTY = [
    "((ab){999}){999}",
    "(?:[^ab]{3}c){999}",
    "(?:(?:a|b){99}){99}",
    "(?:(?:a{1,9}|b){1,999}c){1,3}",
    "(){999}",
    "(?!(?=){999}){9}",
    r"(?i)(?P<n>(?:[\]{2}(]*a){99}){9}",
    r"[\v-x]",
    r"\v",
    "(?<=(é|a))b",
    "(?<=(?:é{2}|abc))b",
    "(?<=é|a)b",
    "(?<!()*)a",
    "(?<!()?+)a",
    "(?<=(?:a{999}){999})b",
    "(?<=a(?=b*))b",
]
"""Expressions that Python accepts, and PCRE2 mostly rejects, each for another reason."""
GOOD = [
    "^/api/v[0-9]+/",
    r"\.(jpg|png)$",
    "(?i)^abc",
    "^[^/]+$",
    "a{1,3}b",
    r"^\d{4}-\d\d$",
    "(?:a|b)+",
    "é+",
    r"^\/x\-y$",
    "(?<!é)[a-c]{999}",
    "(?<=[a-c]{3}|bcd)x",
    r"([a-z0-9-]{1,63}\.){1,126}[a-z]{2,}",
    r"^(?:[0-9]{1,3}\.){3}[0-9]{1,3}$",
    "a{1,999}[b]{999}.{999}",
    r"[](){9}\]]{9}",
]
BAD = [
    "(",
    "[a",
    "*",
    "a**",
    r"\u0041",
    "[[:foo:]]",
    "(?a)x",
    "(?P=n)",
    "a{99999}",
    "((a{99}){99}){99}{9}{9}",
    r"\Q",
    "(?#",
    r"(a)\1",
    *NASTY,
]
SLOW = [
    "^/(a+)+$",
    "^/(a|a)*$",
    "a*a*a*a*a*(?:b|c)$",
    "(?!.*[bc]).*[hi]",
    r"(?:(?!\w*[!?]|\w*[#:]|\w*[,;]|\w*[<>])\w)+[!?]",
    f"(?:{'|'.join(f'a*[{end}]' for end in 'bcdefghijklmnopqrstuvwxyz')}|a)*[!?]",
]
"""Each of these, or a few together, blocked HAProxy for longer than its watchdog allows, which then kills it."""


@pytest.mark.parametrize("text", GOOD)
def test_expression_valid_in_both_libraries_is_accepted(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize("text", BAD)
def test_unsupported_expression_is_rejected(text: str) -> None:
    with pytest.raises(Unwritable):
        check_expression(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (r"(a)\1", "with a back-reference, which HAProxy does not support"),
        ("(?P<n>a)(?P=n)", "with a back-reference, which HAProxy does not support"),
        ("((a{99}){99}){99}{9}{9}", "with more than 4 repetition counts in braces"),
        ("a{99999}", "with a repetition count above 999"),
        (r"a\\Z\z", "with syntax that PCRE2 and Python interpret differently"),
        ("((ab){999}){999}", "that is too large with its repetitions expanded"),
        ("(?<=(a|b))c", "with a group in a look-behind"),
        ("(?<=é|a)c", "with a look-behind of variable length in bytes"),
        (r"\Qa", "with syntax that PCRE2 and Python interpret differently"),
    ],
)
def test_rejection_of_an_expression_names_the_reason(text: str, why: str) -> None:
    with pytest.raises(Unwritable) as refused:
        check_expression(text)
    assert str(refused.value) == f"a regular expression {why}"


@needs_haproxy
def test_haproxy_check_reports_an_invalid_expression() -> None:
    """Precondition of the two tests below."""
    assert "regular expression is too large" in refusal_of(["((ab){999}){999}"])
    assert refusal_of(GOOD) == ""


@needs_haproxy
@settings(FEW_EXAMPLES, max_examples=2, phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(PIECES, min_size=1, max_size=7).map("".join), min_size=60, max_size=60))
def test_haproxy_accepts_every_accepted_expression(texts: list[str]) -> None:
    refuses_none_that_passes([*texts, *GOOD, *NASTY])


ATOMS = st.sampled_from(
    ["a", "b", "é", "ab", ".", r"\d", r"\w", r"\v", r"\n", r"\0", r"\07", r"\.", r"\é", r"\b", r"\A", r"\Z", "^", "$",
     "[ab]", "[^a]", "[]a]", "[^]]", "[a-]", r"[\d-]", "[a-é]", "[é-ü]", r"[\v-x]", r"[\b-x]", r"[\0-x]", r"[\-x]",
     "[*+{2}]", "[a-c-e]", "{", "}", "{,3}", "]", "-", "", "a|"]
)  # fmt: skip
BEGINNINGS = st.sampled_from(["(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?P<n>", "(?P<m>"])
REPETITIONS = st.sampled_from(
    ["", "", "", "*", "+", "?", "*?", "*+", "?+", "{2}", "{1,3}", "{,3}", "{2,}", "{0}", "{99}", "{999}", "{0,99}",
     "{2}+", "{9,9}?", "{999}", "{0,999}"]
)  # fmt: skip
GROUPED = st.recursive(
    st.lists(st.builds(str.__add__, ATOMS, REPETITIONS), max_size=3).map("".join),
    lambda inner: st.builds("{}{}){}{}".format, BEGINNINGS, inner, REPETITIONS, inner),
    max_leaves=8,
).filter(lambda text: 0 < len(text) < 256)
"""Mostly well-formed: nested groups with repetitions."""


@needs_haproxy
@settings(FEW_EXAMPLES, max_examples=4, phases=UNSHRUNK, suppress_health_check=list(HealthCheck))
@given(st.lists(GROUPED, min_size=100, max_size=100))
def test_haproxy_accepts_every_accepted_expression_with_repeated_groups(texts: list[str]) -> None:
    refuses_none_that_passes(texts)


def refuses_none_that_passes(texts: Iterable[str]) -> None:
    passed = [text for text in texts if _passes(text)]
    assert ("", passed) == (refusal_of(map(with_match_limit, passed)), passed)


def refusal_of(expressions: Iterable[str]) -> str:
    lines = [render_line(("acl", "x", "path", "-m", "reg", "--", text)) for text in expressions]
    with tempfile.TemporaryDirectory() as name:
        text = "\n    ".join(
            ["frontend f", "mode http", "bind 127.0.0.1:2000", "timeout client 1s", *lines, "http-request deny if x"]
        )
        (Path(name) / "haproxy.cfg").write_text(f"defaults\n{text}\n")
        return validation_error(Path(name))


@needs_haproxy
@pytest.mark.client
def test_slow_expressions_have_a_bounded_match_time_per_request() -> None:
    """Without a limit the first request kills the process. The rules are inverted, so each one is evaluated."""
    rules = [_rule(f"r{place}", text, invert=True) for place, text in enumerate(SLOW * (MAX_L7RULES // len(SLOW)))]
    paths = ["/" + "a" * length + "-" for length in (40, 3_000, 15_000)]
    with running(rows_of(view([one := _listener(*rules)], []))) as proxy:
        assert [302] * len(paths) == [request(one.proxy_port, path)[0] for path in paths]
        limits = re.findall(r"\(\*LIMIT_MATCH=(\d+)\)", (proxy.folder / CONFIGURATION).read_text())
        # free slots have the expressions of slots in use
        assert (len(limits) % len(rules), max(map(int, limits)) <= MAX_MATCH_STEPS) == (0, True)
        assert proxy.process.poll() is None


@needs_haproxy
@pytest.mark.client
@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("^/.*?x$", "/" + "a" * 15_000 + "x"),
        (r"\.(jpg|png)$", "/" + "a.b/" * 3_700 + ".png"),
        ("^(/[a-z0-9-]+)*/?$", "/" + "ab-1/" * 500),
        ("^/(?:[a-z]+=[a-z]*&?)+$", "/" + "ab=c&" * 500),
    ],
)
def test_expression_matches_a_long_path(text: str, path: str) -> None:
    with running(rows_of(view([one := _listener(_rule("r", text))], []))):
        assert (302, 503) == (request(one.proxy_port, path)[0], request(one.proxy_port, path + "!")[0])


def _rule(name: str, text: str, **known: Any) -> L7Rule:
    kind = {"type": L7RuleType.PATH, "compare_type": L7Comparison.REGEX}
    return L7Rule(id=name, value=text, **kind, **known, **COMMON)


def _listener(*rules: L7Rule) -> Listener:
    policy = L7Policy(id="l", action=RedirectToUrl(url="http://x/"), rules=rules, **COMMON)
    return listener("l", free_port(), l7policies=(policy,))


def _passes(text: str) -> bool:
    try:
        check_expression(text)
        render_line((text,))
    except Unwritable:
        return False
    return bool(re.compile(text))
