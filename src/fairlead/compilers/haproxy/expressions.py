"""Regular expressions of tenants: those that HAProxy's library (PCRE2) takes, whatever else Python's takes.

An expression that PCRE2 refuses makes the whole configuration one that cannot be loaded. So what is let through is
what both know. How long a good one takes is bounded by the process: it serves the project alone that asked for it.
"""

import re

from fairlead.dataplane.haproxy_words import Unwritable

_GROUP = re.compile(r"\(\?(?!:|=|!|<=|<!|P<[A-Za-z_]\w{0,30}>|i\))", re.ASCII)
"""A group of any other sort."""
_ESCAPE = re.compile(r"\\(?![dDsSwWbBAZnrtfv0-9]|[^A-Za-z0-9])", re.ASCII)
_LARGE = re.compile(r"\{[^}]*\d{4,}[^}]*\}")
MOST_REPEATED = 4
"""Numbers of repetitions in one expression: those that stand inside each other multiply what it takes."""


_SET = re.compile(r"\[\[|\[[:.=]|\[.*(--|&&|\|\||~~)", re.DOTALL)
"""What means, or may come to mean, a class or a set operation inside brackets."""


def check_expression(text: str) -> None:
    """Raises Unwritable."""
    plain = text.replace("\\\\", "")
    if any(each.search(plain) for each in (_GROUP, _ESCAPE, _LARGE, _SET)) or plain.count("{") > MOST_REPEATED:
        raise Unwritable("a regular expression with what PCRE2 and Python do not read alike")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError):
        raise Unwritable("a text that is no regular expression") from None
