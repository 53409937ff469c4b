"""The one place from which commands print. Tenants choose names, descriptions and words of errors: every line is
escaped, so that none of them moves a cursor, turns the direction of text round, or passes for a line of its own.

A value that has line breaks stays one line, unless the caller splits it.
"""

import json
import re
import sys
from collections.abc import Sequence

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0, C1 and DEL; line and paragraph separators; what turns the direction of text round; halves of surrogates."""


def escaped(text: str) -> str:
    """One line without control characters: these as Python writes them, `\\x1b` or `\\u202e`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def escaped_json(text: str) -> str:
    """JSON whose texts have no control characters, as JSON escapes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def say(*lines: str) -> None:
    """Results, to standard output."""
    sys.stdout.write("".join(f"{escaped(line)}\n" for line in lines))
    sys.stdout.flush()


def say_text(text: str) -> None:
    """A text whose line breaks are ours: it ends in one. An empty text is no line."""
    if text:
        say(*text.removesuffix("\n").split("\n"))


def complain(*lines: str) -> None:
    """To standard error."""
    sys.stderr.write("".join(f"{escaped(line)}\n" for line in lines))
    sys.stderr.flush()


def say_json(value: object, indent: int | None = None) -> None:
    """For programs: ASCII alone."""
    sys.stdout.write(f"{json.dumps(value, indent=indent)}\n")
    sys.stdout.flush()


def say_progress(text: str, end: str) -> None:
    """On standard error, in the place of the line before it."""
    sys.stderr.write(f"\r{escaped(text)}{end}")
    sys.stderr.flush()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines with columns as wide as their widest cell."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
