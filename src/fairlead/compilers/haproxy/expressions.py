"""Regular expressions of tenants: those that HAProxy's library (PCRE2) takes, whatever else Python's takes.

An expression that PCRE2 refuses makes the whole configuration one that cannot be loaded. So what is let through is
what both know. How long a good one takes is bounded by PCRE2: what it finds in no bounded time it does not find.
"""

import re

from fairlead.dataplane.haproxy_words import Unwritable

_GROUP = re.compile(r"\(\?(?!:|=|!|<=|<!|P<[A-Za-z_]\w{0,30}>|i\))", re.ASCII)
"""A group of any other sort."""
_REFERENCE = re.compile(r"\\[1-9gk]|\(\?P=|\(\?\(")
"""HAProxy remembers no group of a rule, so none can be referred to (src/regex.c, PCRE2_NO_AUTO_CAPTURE)."""
_ESCAPE = re.compile(r"\\(?![dDsSwWbBAZnrtfv0]|[^A-Za-z0-9])", re.ASCII)
_LARGE = re.compile(r"\{[^}]*\d{4,}[^}]*\}")
"""Repetitions of a thousand and more."""
MOST_REPEATED = 4
"""Numbers of repetitions in one expression: those that stand inside each other multiply what it takes."""
MOST_STEPS = 20_000
"""That PCRE2 takes for an expression in one text: one for each place at which it begins, and for each at which it tries
again. An ordinary one takes as many as the text has characters at most, and HAProxy has room for 16,000."""
_CHEAP = 2
"""Repetitions of an expression that may take all of them. A step may look at all that is left for each repetition."""
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
