"""Checks tenants' regular expressions: PCRE2, which HAProxy uses, must accept what Python accepts.

An expression that PCRE2 rejects would make the whole configuration unloadable, so only syntax with the same meaning
in both is accepted. PCRE2's match limit bounds the time: a match that exceeds it counts as no match.
"""

import re
from collections.abc import Iterable

from fairlead.dataplane.haproxy_words import Unwritable

_GROUP = re.compile(r"\(\?(?!:|=|!|<=|<!|P<[A-Za-z_]\w{0,30}>|i\))", re.ASCII)
"""Group syntax other than the accepted kinds."""
_REFERENCE = re.compile(r"\\[1-9gk]|\(\?P=|\(\?\(")
"""HAProxy compiles rules without captures (src/regex.c, PCRE2_NO_AUTO_CAPTURE), so backreferences cannot work."""
_IGNORING_CASE, _LOOK_BEHINDS = "(?i)", frozenset({"(?<=", "(?<!"})
_ESCAPE = re.compile(r"\\(?![dDsSwWbBAZnrtf0]|[^A-Za-z0-9])", re.ASCII)
_LARGE = re.compile(r"\{[^}]*\d{4,}[^}]*\}")
"""Repetition counts of 1,000 and more."""
MAX_REPETITIONS = 4
"""Maximum repetition counts in one expression. The costs of nested ones multiply."""
MAX_MATCH_STEPS = 20_000
"""PCRE2 match limit for one text: a step is a start position or a backtrack. An ordinary expression takes at most as
many steps as the text has characters, and HAProxy's buffer holds 16,000."""
_MIN_REPETITIONS = 2
"""Repetitions of an expression that gets the whole limit. A step may examine the rest of the text for each
repetition."""
MAX_SIZE = 20_000
"""Maximum size of a compiled expression, with repeated groups expanded as in PCRE2, which has a limit of 65,535
bytes (pcre2limits(3)). By this measure PCRE2 rejected none below 100,000 and had no memory for JIT code from 200,000
on; at 20,000 the JIT code has 130 KB."""
_GROUP_SIZE, _SET_SIZE, _CHARACTER_SIZE, _REPETITION_SIZE = 24, 44, 4, 8
"""Maximum bytes that PCRE2 uses for a group, a set, a byte of a character, and a repetition of anything but a group."""
_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?i\)|\((?:\?(?:P<\w+>|<?[=!]|:))?|\{(?:\d+,?\d*|,\d*)\}|.", re.DOTALL
)
"""Token of an expression: a character, a set, the start of a group, or a repetition."""
_SET = re.compile(r"\[\[|\[[:.=]|\[.*(--|&&|\|\||~~)", re.DOTALL)
"""Syntax inside brackets that is or may become a class or a set operation."""


def with_match_limit(text: str) -> str:
    """Check an expression and add its match limit (pcre2pattern(3), "Setting match resource limits"). Raises
    Unwritable."""
    check_expression(text)
    repetitions = sum(map(text.count, "*+{"))
    return f"(*LIMIT_MATCH={MAX_MATCH_STEPS * _MIN_REPETITIONS // max(_MIN_REPETITIONS, repetitions)}){text}"


def check_expression(text: str) -> None:
    """Reject an expression with other syntax or unbounded costs. Raises Unwritable."""
    plain = text.replace("\\\\", "")
    if _REFERENCE.search(plain):
        raise Unwritable("a regular expression with a back-reference, which HAProxy does not support")
    if plain.count("{") > MAX_REPETITIONS:
        raise Unwritable(f"a regular expression with more than {MAX_REPETITIONS} repetition counts in braces")
    if _LARGE.search(plain):
        raise Unwritable("a regular expression with a repetition count above 999")
    if any(each.search(plain) for each in (_GROUP, _ESCAPE, _SET)):
        raise Unwritable("a regular expression with syntax that PCRE2 and Python interpret differently")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise Unwritable("an invalid regular expression") from None
    _check_pieces(text)


def _check_pieces(text: str) -> None:
    """Reject look-behinds that PCRE2 rejects, and expressions that are too large. Raises Unwritable.

    PCRE2 counts the length of a look-behind in bytes, and does not treat an empty group as one of fixed length.
    """
    try:
        re.compile(text.encode())
    except re.error:
        raise Unwritable("a regular expression with a look-behind of variable length in bytes") from None
    pieces = _PIECE.findall(text)
    if _has_groups_in_look_behind(pieces):
        raise Unwritable("a regular expression with a group in a look-behind")
    if _size(pieces) > MAX_SIZE:
        raise Unwritable("a regular expression that is too large with its repetitions expanded")


def _has_groups_in_look_behind(pieces: Iterable[str]) -> bool:
    is_behind = False
    for piece in pieces:
        if is_behind and _begins_group(piece):
            return True
        is_behind = piece in _LOOK_BEHINDS or (is_behind and piece != ")")
    return False


def _begins_group(piece: str) -> bool:
    return piece[0] == "(" and piece != _IGNORING_CASE


def _size(pieces: Iterable[str]) -> int:
    sizes, last, is_group = [0], 0, False  # of open groups; of the last token, and whether it is a group
    for piece in pieces:
        if _begins_group(piece):
            sizes.append(0)
            continue
        if piece[0] == "{" and len(piece) > 1:
            sizes[-1] += _REPETITION_SIZE + (last * (_most(piece) - 1) if is_group else 0)
            continue
        is_group = piece == ")"
        last = sizes.pop() + _GROUP_SIZE if is_group else _size_of_one(piece)
        sizes[-1] += last
    return sizes[0]


def _most(repetition: str) -> int:
    return max(1, *map(int, re.findall(r"\d+", repetition) or ["1"]))


def _size_of_one(piece: str) -> int:
    return _SET_SIZE if piece[0] == "[" else _CHARACTER_SIZE * len(piece.encode())
