"""Texts of Go's packages, which LXD and Incus return to clients: quoting of `fmt` (%q) and number errors of
`strconv`."""

import re
from collections.abc import Mapping

_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_UNSIGNED = re.compile(r"[0-9]+", re.ASCII)
_ESCAPES: Mapping[str, str] = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}
_MAX_DIGITS = 64
"""Maximum digits that are parsed; longer numbers are out of range."""


def quote(text: str) -> str:
    """Quote a text like %q (strconv.Quote)."""
    return '"' + "".join(_ESCAPES.get(letter) or _escape(letter) for letter in text) + '"'


def _escape(letter: str) -> str:
    if letter.isprintable():
        return letter
    code = ord(letter)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def parse_int(text: str) -> int:
    """Parse like strconv.ParseInt(text, 10, 64). Raises ValueError with its text."""
    return _parse("ParseInt", _NUMBER, text, -(2**63), 2**63 - 1)


def parse_uint32(text: str) -> int:
    """Parse like strconv.ParseUint(text, 10, 32). Raises ValueError with its text."""
    return _parse("ParseUint", _UNSIGNED, text, 0, 2**32 - 1)


def _parse(function: str, form: re.Pattern[str], text: str, least: int, most: int) -> int:
    why = "invalid syntax"
    if form.fullmatch(text):
        if len(text) <= _MAX_DIGITS and least <= int(text) <= most:
            return int(text)
        why = "value out of range"
    raise ValueError(f"strconv.{function}: parsing {quote(text)}: {why}")
