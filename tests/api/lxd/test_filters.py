"""Incus filters and their patterns: matches, and bounded matching time."""

import re

import pytest
from hypothesis import given
from hypothesis.strategies import text
from starlette.requests import Request

from fairlead.api.door import ApiError
from fairlead.api.lxd.filters import LONGEST_FILTER, MOST_CLAUSES, is_recursive, read_filter
from fairlead.api.lxd.patterns import LONGEST_PATTERN, REST, BadPattern, compile_pattern
from fairlead.model.steps import at_once
from harness.step_counter import longest_between_yields, step

STEPS_PER_CHARACTER = 5
REGEXP = "Failed to parse value: error parsing regexp"
WEB = {"name": "web", "description": "Front End", "managed": True, "count": 7, "config": {"user.team": "red", "a": "b"}}


def request(query: bytes) -> Request:
    return Request({"type": "http", "query_string": query, "headers": []})


def admits(text: str) -> bool:
    from urllib.parse import quote

    return at_once(read_filter(request(b"filter=" + quote(text).encode())).admits(WEB))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("name eq web", True),
        ("name eq WEB", True),
        ("name ne web", False),
        ("not name eq web", False),
        ("name eq w.*", True),
        ("name eq eb", False),
        ("name eq eb$", True),
        ("name eq a,web", True),
        ("description eq 'front end'", True),
        ("description eq 'front'", False),
        ("config.user.team eq red", True),
        ("config.none eq x", False),
        ("managed eq true", True),
        ("count gt 6", True),
        ("count le 6", False),
        ("name eq x or name eq web", True),
        ("name eq web and count eq 1", False),
        ("name eq x and name eq x or name eq web", True),
        ("name eq (web,web", True),
        ("description eq 'front end' and managed ne f", True),
        (r"name eq \w+", True),
    ],
)
def test_what_is_admitted(text: str, expected: bool):
    assert admits(text) is expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("not", "incomplete not clause"),
        ("name", "clause has no operator"),
        ("name eq", "clause has no value"),
        ("name like x", "Unsupported operation"),
        ("name eq 'x y", "unterminated quote"),
        ("name eq x xor", "invalid clause composition"),
        ("name eq x and", "unterminated compound clause"),
        ("name gt x", 'Invalid operator "gt" for field "name"'),
        ("count eq x", 'Failed to parse value: strconv.ParseInt: parsing "x": invalid syntax'),
        ("count eq 1_0", 'Failed to parse value: strconv.ParseInt: parsing "1_0": invalid syntax'),
        ("managed eq maybe", 'Failed to parse value: strconv.ParseBool: parsing "maybe": invalid syntax'),
        ("managed gt true", 'Invalid operator "gt" for field "managed"'),
        ("config eq x", 'Invalid type for field "config"'),
        ("nam eq x", 'Invalid type "invalid" for field "nam"'),
        ("name eq x and nam eq x", 'Invalid type "invalid" for field "nam"'),
        ("(name eq web)", 'Invalid type "invalid" for field "(name"'),
        ("(((( eq web", 'Invalid type "invalid" for field "(((("'),
        ("name eq ((((", f"{REGEXP}: missing closing ): `((((`"),
        ("name eq 'a b' or name eq web)", f"{REGEXP}: unexpected ): `web)`"),
        ("name ne )(", f"{REGEXP}: unexpected ): `)(`"),
        ("name eq (web|x)", f"{REGEXP}: groups are not supported: `(web|x)`"),
        ("name eq a{2}", f"{REGEXP}: counts are not supported: `{{2}}`"),
        ("name eq [a", f"{REGEXP}: missing closing ]: `[a`"),
        ("name eq [(", f"{REGEXP}: missing closing ]: `[(`"),
        ("name eq [b-a]", f"{REGEXP}: invalid character class range: `b-a`"),
        ("name eq [[:alpha:]]", f"{REGEXP}: named classes are not supported: `[[:alpha:]]`"),
        ("name eq *", f"{REGEXP}: missing argument to repetition operator: `*`"),
        ("name eq a**", f"{REGEXP}: invalid nested repetition operator: `**`"),
        ("name eq web\\", f"{REGEXP}: trailing backslash at end of expression: ``"),
        (r"name eq \q", f"{REGEXP}: invalid escape sequence: `\\q`"),
        (f"name eq {'x' * LONGEST_PATTERN}.", f"{REGEXP}: a pattern has at most {LONGEST_PATTERN} characters"),
        (" and ".join(["name eq web"] * (MOST_CLAUSES + 1)), f"more than {MOST_CLAUSES} clauses"),
        ("x" * (LONGEST_FILTER + 1), f"more than {LONGEST_FILTER} characters"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, told: str):
    with pytest.raises(ApiError) as caught:
        admits(text)
    assert (caught.value.status, caught.value.message) == (400, f"Invalid filter: {told}")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("a.c", ["abc", "AXC"], ["ac", "abcd"]),
        ("a*b+c?", ["b", "aabbc"], ["ac", "a"]),
        ("[a-c0-9-]+", ["a0-c"], ["d", ""]),
        ("[^a]", ["b"], ["a"]),
        ("^web", ["web1"], ["aweb"]),
        ("web$", ["aweb"], ["web1"]),
        ("a|b", ["a", "b"], ["ab"]),
        (r"a\.b\|", ["a.b|"], ["axb|"]),
        (r"\d\D\S", ["1a_"], ["11a", "1a "]),
        (r"[\d.\]-]+", ["1.]-"], ["d"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("{a,b}|a{", ["{a,b}", "a{"], ["a"]),
        (r"\(a\)[()]", ["(a)("], ["a"]),
        ("a+?b*?", ["aab"], ["b"]),
        ("", [""], ["a"]),
    ],
)
def test_patterns(pattern: str, good: list[str], bad: list[str]):
    found = compile_pattern(pattern)
    assert [text for text in [*good, *bad] if at_once(found.matches(text))] == good


@pytest.mark.parametrize("pattern", ["(a+)+b", "a{9}", "*", "[a", "\\", "x" * (LONGEST_PATTERN + 1)])
def test_what_is_no_pattern_here(pattern: str):
    with pytest.raises(BadPattern):
        compile_pattern(pattern)


@given(text("ab.*+?|", max_size=12), text("ab", max_size=8))
def test_patterns_are_regular_expressions(pattern: str, found: str):
    try:
        compiled = compile_pattern(pattern)
    except BadPattern:
        return
    assert at_once(compiled.matches(found)) == (re.fullmatch(pattern, found) is not None)


@pytest.mark.parametrize(
    "pattern", [".*a" * 85, ".*" * 128, "a?" * 128, "|" * LONGEST_PATTERN, "a" * 127 + "|" + ".*b" * 42]
)
def test_no_pattern_takes_long(pattern: str):
    """The matching time is linear up to the length of a certificate, the longest text that the API shows."""
    text = "a" * 16_000 + "b"
    before = step()
    at_once(compile_pattern(pattern).matches(text))
    assert step() - before < STEPS_PER_CHARACTER * len(text)


def test_nobody_waits_for_a_filter():
    long = {"certificate": "ab" * 8_000}
    clauses = " or ".join(["certificate eq " + ".*a" * 14 + "c"] * MOST_CLAUSES)
    found = read_filter(request(b"filter=" + clauses.encode()))
    _, longest = longest_between_yields(found.admits(long))
    assert longest <= STEPS_PER_CHARACTER * REST


@pytest.mark.parametrize(("query", "expected"), [(b"", False), (b"recursion=0", False), (b"recursion=1", True),
                                                 (b"recursion=2", True), (b"recursion=x", False),
                                                 (b"recursion=--1", False), (b"recursion=-1", True)])  # fmt: skip
def test_recursion(query: bytes, expected: bool):
    assert is_recursive(request(query)) is expected
