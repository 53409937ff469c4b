"""Incus filters and their regular expressions: matches, and bounded matching time."""

import pytest
from starlette.requests import Request

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.expressions import (
    MAX_LENGTH,
    MAX_UNICODE_CLASSES,
    MAX_WORK,
    BadExpression,
    Expression,
)
from fairlead.api.lxd.filters import MAX_CLAUSES, MAX_FILTER_LENGTH, is_recursive, read_filter
from fairlead.runtime.steps import run_to_completion

REGEXP = "Failed to parse value: error parsing regexp"
WEB = {"name": "web", "description": "Front End", "managed": True, "count": 7, "config": {"user.team": "red", "a": "b"}}


def request(query: bytes) -> Request:
    return Request({"type": "http", "query_string": query, "headers": []})


def admits(text: str) -> bool:
    from urllib.parse import quote

    return run_to_completion(
        run_to_completion(read_filter(request(b"filter=" + quote(text).encode()))).matches_item(WEB)
    )


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
        ("name eq (web|x)", True),
        ("name eq [[:alpha:]]{3}", True),
        ("name ne w(?:eb){2}", True),
    ],
)
def test_filter_selects_matching_objects(text: str, expected: bool):
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
        ("name eq a)|(b", f"{REGEXP}: unexpected ): `a)|(b`"),
        ("name eq [a", f"{REGEXP}: missing closing ]: `[a`"),
        ("name eq [(", f"{REGEXP}: missing closing ]: `[(`"),
        ("name eq [b-a]", f"{REGEXP}: invalid character class range: `b-a`"),
        ("name eq [[:letter:]]", f"{REGEXP}: invalid character class range: `[:letter:]`"),
        ("name eq a{1001}", f"{REGEXP}: invalid repeat count: `{{1001}}`"),
        ("name eq (?=a)", f"{REGEXP}: invalid or unsupported Perl syntax: `(?=`"),
        (r"name eq (a)\1", f"{REGEXP}: invalid escape sequence: `\\1`"),
        (r"name eq \PL\pL", f"{REGEXP}: expression too large: `\\PL\\pL`"),
        (
            "name eq " + r"\pN" * (MAX_UNICODE_CLASSES + 1),
            f"{REGEXP}: an expression has at most {MAX_UNICODE_CLASSES} Unicode classes",
        ),
        ("name eq *", f"{REGEXP}: missing argument to repetition operator: `*`"),
        ("name eq a**", f"{REGEXP}: invalid nested repetition operator: `**`"),
        ("name eq web\\", f"{REGEXP}: trailing backslash at end of expression: ``"),
        (r"name eq \q", f"{REGEXP}: invalid escape sequence: `\\q`"),
        (f"name eq {'x' * MAX_LENGTH}.", f"{REGEXP}: an expression has at most {MAX_LENGTH} characters"),
        (" and ".join(["name eq web"] * (MAX_CLAUSES + 1)), f"more than {MAX_CLAUSES} clauses"),
        ("x" * (MAX_FILTER_LENGTH + 1), f"more than {MAX_FILTER_LENGTH} characters"),
    ],
)
def test_invalid_filter_is_rejected_with_a_reason(text: str, told: str):
    with pytest.raises(ApiError) as caught:
        admits(text)
    assert (caught.value.status, caught.value.message) == (400, f"Invalid filter: {told}")


@pytest.mark.parametrize(
    ("expression", "good", "bad"),
    [
        ("a.c", ["abc", "AXC"], ["ac", "abcd"]),
        ("[a-c0-9-]+", ["a0-c"], ["d", ""]),
        ("^web", ["web1"], ["aweb"]),
        ("web$", ["aweb"], ["web1"]),
        ("a|b", ["a", "b"], ["ab"]),
        ("(^a|b$)c?", ["ax", "xb"], ["xa", "bx"]),
        ("a^b|c$d", [], ["a^b", "ab", "cd", "c$d"]),
        (r"a\$", ["a$", "xa$x"], ["a", "xa"]),
        ("[]a|b]", ["]", "a", "|", "b"], ["a|b", "c"]),
        ("[Z-a]", ["Z", "z", "_", "a", "A"], ["b", "y"]),
        ("(?i)[Z-a]", ["Z", "z", "_", "a", "A"], ["b", "y"]),
        ("(?-i)A", ["A"], ["a"]),
        (r"\d\D\S", ["1a_"], ["11a", "1a "]),
        ("{a,b}|a{", ["{a,b}", "a{"], ["a"]),
        ("a+?b*?", ["aab"], ["b"]),
        ("É+", ["éÉ"], ["e"]),
        ("", [""], ["a"]),
    ],
)
def test_expressions_match_as_in_incus(expression: str, good: list[str], bad: list[str]):
    assert [text for text in [*good, *bad] if Expression(expression).matches(text)] == good


SLOW = ["(a|b)*a(a|b){900}c", "((a?){30}(b?){30}){11}c", "(.?){150}c", ".*a" * 85, ".*" * 128, "|" * MAX_LENGTH]


@pytest.mark.parametrize("expression", SLOW)
def test_matching_work_of_a_regular_expression_is_bounded(expression: str):
    """The longest text of the API is a certificate. RE2 needs its slowest algorithm for some of these."""
    found = Expression(expression)
    longest = MAX_WORK // found.size
    found.matches("ab" * (longest // 2))
    with pytest.raises(BadExpression) as caught:
        found.matches("a" * (longest + 1))
    assert str(caught.value) == f"expression too large for a text of {longest + 1} bytes: `{expression}`"


def test_lone_surrogate_matches_as_a_character():
    assert Expression("\ud800+").matches("\ud800")
    assert not Expression("a").matches("a\ud800")


def test_filter_clauses_are_evaluated_in_separate_steps():
    long = {"certificate": "ab" * 4_000}
    clauses = " or ".join(["certificate eq " + ".*a" * 13 + "c"] * MAX_CLAUSES)
    asked = request(b"filter=" + clauses.encode())
    for work in (read_filter(asked), run_to_completion(read_filter(asked)).matches_item(long)):
        assert len(list(work)) == MAX_CLAUSES


def test_expression_too_large_for_an_attribute_is_rejected():
    (clause,) = run_to_completion(read_filter(request(b"filter=certificate+eq+" + b".*a" * 80))).clauses
    with pytest.raises(ApiError) as caught:
        run_to_completion(clause.matches_item({"certificate": "ab" * 8_000}))
    told = f"Invalid filter: {REGEXP}: expression too large for a text of 16000 bytes: `{'.*a' * 80}`"
    assert (caught.value.status, caught.value.message) == (400, told)


@pytest.mark.parametrize(("query", "expected"), [(b"", False), (b"recursion=0", False), (b"recursion=1", True),
                                                 (b"recursion=2", True), (b"recursion=x", False),
                                                 (b"recursion=--1", False), (b"recursion=-1", True)])  # fmt: skip
def test_recursion_query_parameter_is_parsed_as_in_lxd(query: bytes, expected: bool):
    assert is_recursive(request(query)) is expected
