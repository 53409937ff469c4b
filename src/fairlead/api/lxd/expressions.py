"""Regular expressions from clients, matched by RE2 in time linear in the text, as Go's package `regexp` does in Incus.

Both read the same syntax (github.com/google/re2/wiki/Syntax). RE2 runs without a break, so the size of an expression
times the length of a text is bounded. Error messages are those of Go.
"""

import re

import re2

MAX_LENGTH = 256  # characters of an expression
MAX_MEMORY = 32 * 2**10
"""Bytes of a compiled expression with its states (RE2::Options::max_mem), which is about 1,400 instructions. A class of
many Unicode characters such as `\\pL` fits once. The module `re2` keeps 128 expressions at most."""
MAX_WORK = 2**20
"""Instructions of an expression times bytes of a text: the steps of the slowest of RE2's algorithms, at 10 to 25 ns.
An expression of 23 instructions (`.*abc.*`) matches 44 KiB, and one of 1,000 a text of 1 KiB."""
MAX_UNICODE_CLASSES = 8  # `\p` and `\P` of an expression; RE2 needs up to 1 ms to compile one
SPECIAL = frozenset("\\.[](){}*+?|^$")
"""Characters with a special meaning."""
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_TOO_LARGE = "pattern too large - compile failed"
_GO_WORDS = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    _TOO_LARGE: "expression too large",
    "trailing \\": "trailing backslash at end of expression",
}
"""RE2's description of an error -> Go's (regexp/syntax, ErrorCode), where these differ."""


class BadExpression(ValueError):
    """Expression with invalid syntax, or too large."""


class Expression:
    """Compiled expression. Without `^` and `$` it matches whole texts only, as in Incus. Case is ignored."""

    def __init__(self, text: str) -> None:
        """Compile an expression. Raises BadExpression."""
        if len(text) > MAX_LENGTH:
            raise BadExpression(f"an expression has at most {MAX_LENGTH} characters")
        if sum(escaped in "pP" for escaped in _ESCAPE.findall(text)) > MAX_UNICODE_CLASSES:
            raise BadExpression(f"an expression has at most {MAX_UNICODE_CLASSES} Unicode classes")
        self._text = text
        try:
            self._compiled = re2.compile(text.encode(errors="surrogatepass"), _options())
        except re2.error as error:
            raise BadExpression(_in_go_words(error, text)) from None
        self._matches = self._compiled.fullmatch if {"^", "$"}.isdisjoint(text) else self._compiled.search

    @property
    def size(self) -> int:
        """Number of instructions."""
        return int(self._compiled.programsize)

    def matches(self, text: str) -> bool:
        """Whether the expression matches the text. Raises BadExpression if the expression is too large for it."""
        encoded = text.encode(errors="surrogatepass")
        if self.size * len(encoded) > MAX_WORK:
            raise BadExpression(f"expression too large for a text of {len(encoded)} bytes: `{self._text}`")
        return self._matches(encoded) is not None


def _options() -> re2.Options:
    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    return options


def _in_go_words(error: Exception, text: str) -> str:
    """Return Go's message for an error of RE2, such as `missing closing ): `(a``."""
    (said,) = error.args
    what, _, where = bytes(said).decode(errors="replace").partition(": ")
    if what not in _GO_WORDS:
        return f"{what}: `{where}`"
    return f"{_GO_WORDS[what]}: `{text if what == _TOO_LARGE else where}`"
