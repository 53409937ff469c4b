"""Regular expressions of tenants: those that HAProxy's library (PCRE2) takes, whatever else Python's takes.

An expression that PCRE2 refuses makes the whole configuration one that cannot be loaded. So what is let through is
what both know. How long a good one takes is bounded by PCRE2: what it finds in no bounded time it does not find.
"""

import re
from collections.abc import Iterable

from fairlead.dataplane.haproxy_words import Unwritable

_GROUP = re.compile(r"\(\?(?!:|=|!|<=|<!|P<[A-Za-z_]\w{0,30}>|i\))", re.ASCII)
"""A group of any other sort."""
_REFERENCE = re.compile(r"\\[1-9gk]|\(\?P=|\(\?\(")
"""HAProxy remembers no group of a rule, so none can be referred to (src/regex.c, PCRE2_NO_AUTO_CAPTURE)."""
_IGNORING_CASE, _BEHIND = "(?i)", frozenset({"(?<=", "(?<!"})
_ESCAPE = re.compile(r"\\(?![dDsSwWbBAZnrtf0]|[^A-Za-z0-9])", re.ASCII)
_LARGE = re.compile(r"\{[^}]*\d{4,}[^}]*\}")
"""Repetitions of a thousand and more."""
MOST_REPEATED = 4
"""Numbers of repetitions in one expression: those that stand inside each other multiply what it takes."""
MOST_STEPS = 20_000
"""That PCRE2 takes for an expression in one text: one for each place at which it begins, and for each at which it tries
again. An ordinary one takes as many as the text has characters at most, and HAProxy has room for 16,000."""
_CHEAP = 2
"""Repetitions of an expression that may take all of them. A step may look at all that is left for each repetition."""
MOST_SIZE = 20_000
"""Of an expression whose groups are written down as often as they are repeated, as PCRE2 does it: it takes no more than
65,535 bytes (pcre2limits(3)). By this measure it refused none below 100,000, and had no room left for code of the
processor (JIT) from 200,000 on; at 20,000 that code has 130 KB."""
_GROUP_SIZE, _SET_SIZE, _CHARACTER_SIZE, _REPETITION_SIZE = 24, 44, 4, 8
"""As much as PCRE2 has for one at most, characters by their bytes; of what is no group repetitions are a number."""
_PIECE = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?i\)|\((?:\?(?:P<\w+>|<?[=!]|:))?|\{(?:\d+,?\d*|,\d*)\}|.", re.DOTALL
)
"""A character, a set, how a group begins, or how often something comes: of an expression that is one."""
_SET = re.compile(r"\[\[|\[[:.=]|\[.*(--|&&|\|\||~~)", re.DOTALL)
"""What means, or may come to mean, a class or a set operation inside brackets."""


def bounded(text: str) -> str:
    """As PCRE2 is given it (pcre2pattern(3), "Setting match resource limits"). Raises Unwritable."""
    check_expression(text)
    repetitions = sum(map(text.count, "*+{"))
    return f"(*LIMIT_MATCH={MOST_STEPS * _CHEAP // max(_CHEAP, repetitions)}){text}"


def check_expression(text: str) -> None:
    """Raises Unwritable."""
    plain = text.replace("\\\\", "")
    if _REFERENCE.search(plain):
        raise Unwritable("a regular expression that refers to a group (HAProxy remembers none)")
    if plain.count("{") > MOST_REPEATED:
        raise Unwritable(f"a regular expression with more than {MOST_REPEATED} braces, which count repetitions")
    if _LARGE.search(plain):
        raise Unwritable("a regular expression that repeats something more than 999 times")
    if any(each.search(plain) for each in (_GROUP, _ESCAPE, _SET)):
        raise Unwritable("a regular expression with what PCRE2 and Python do not read alike")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise Unwritable("a text that is no regular expression") from None
    _check_pieces(text)


def _check_pieces(text: str) -> None:
    """Raises Unwritable. PCRE2 is stricter than Python about how long what a look-behind looks for may be: for it a
    character is its bytes, and a group that is empty may be of any length."""
    try:
        re.compile(text.encode())
    except re.error:
        raise Unwritable("a regular expression that looks behind for what has no fixed number of bytes") from None
    pieces = _PIECE.findall(text)
    if _has_groups_behind(pieces):
        raise Unwritable("a regular expression that looks behind for what has groups in it")
    if _size(pieces) > MOST_SIZE:
        raise Unwritable("a regular expression that is too large with all that it repeats")


def _has_groups_behind(pieces: Iterable[str]) -> bool:
    is_behind = False
    for piece in pieces:
        if is_behind and _begins_group(piece):
            return True
        is_behind = piece in _BEHIND or (is_behind and piece != ")")
    return False


def _begins_group(piece: str) -> bool:
    return piece[0] == "(" and piece != _IGNORING_CASE


def _size(pieces: Iterable[str]) -> int:
    sizes, last, is_group = [0], 0, False  # of the groups that are open; of what stands last, and whether that is one
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
