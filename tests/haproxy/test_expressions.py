"""Regular expressions that are let through are such as HAProxy's library takes."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.compilers.haproxy.expressions import check_expression
from fairlead.dataplane.haproxy_words import Unwritable, render_line
from harness.proxied import needs_haproxy, refusal
from harness.values import FEW

PIECES = st.sampled_from(
    ["a", "b", ".", "*", "+", "?", "|", "^", "$", "(", ")", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i)", "(?P<n>",
     "(?P=n)", "(?#", "(?>", "(?a)", "(?-i:", "[", "]", "[^", "[[:alpha:]]", "[:", "-", "{2}", "{1,3}", "{,3}", "{",
     "}", "{99}", "{9999}", "\\d", "\\D", "\\1", "\\b", "\\Z", "\\A", "\\u0041", "\\x41", "\\N{DASH}", "\\.", "\\\\",
     "\\-", "\\Q", "\\E", "\\g1", "é", "/", " ", "'", '"', "#", "%", "\\0", "\\n", "*+", "++", "?+"]
)  # fmt: skip
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
]


@pytest.mark.parametrize("text", GOOD)
def test_what_both_libraries_know_is_let_through(text: str) -> None:
    check_expression(text)


@pytest.mark.parametrize("text", BAD)
def test_what_one_of_them_does_not_know_is_refused(text: str) -> None:
    with pytest.raises(Unwritable):
        check_expression(text)


@needs_haproxy
@settings(FEW, max_examples=2, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(PIECES, min_size=1, max_size=7).map("".join), min_size=60, max_size=60))
def test_haproxy_takes_whatever_is_let_through(texts: list[str]) -> None:
    passed = [text for text in (*texts, *GOOD) if _passes(text)]
    lines = [render_line(("acl", "x", "path", "-m", "reg", "--", text)) for text in passed]
    with tempfile.TemporaryDirectory() as name:
        text = "\n    ".join(
            ["frontend f", "mode http", "bind 127.0.0.1:2000", "timeout client 1s", *lines, "http-request deny if x"]
        )
        (Path(name) / "haproxy.cfg").write_text(f"defaults\n{text}\n")
        assert ("", passed) == (refusal(Path(name)), passed)


def _passes(text: str) -> bool:
    try:
        check_expression(text)
        render_line((text,))
    except Unwritable:
        return False
    return bool(re.compile(text))
