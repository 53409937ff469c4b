"""Output of all commands. Control characters are escaped, because names, descriptions and errors are tenants' text.

So no text can move the cursor, change the text direction, or imitate a line of its own. A value with line breaks stays
one line, unless the caller splits it.
"""

import json
import re
import sys
from collections.abc import Sequence

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0, C1 and DEL; line and paragraph separators; bidirectional controls; surrogates."""


def escaped(text: str) -> str:
    """Escape control characters as in Python literals, such as `\\x1b` or `\\u202e`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def escaped_json(text: str) -> str:
    """Escape control characters in a JSON text, as JSON does."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_lines(*lines: str) -> None:
    """Print result lines to standard output."""
    sys.stdout.write("".join(f"{escaped(line)}\n" for line in lines))
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Print a text with trusted line breaks and a final newline; nothing for an empty text."""
    if text:
        print_lines(*text.removesuffix("\n").split("\n"))


def print_file(text: str) -> None:
    """Print a file of the operator's own byte for byte, for redirection; a missing line break at its end is added."""
    sys.stdout.write(text if text.endswith("\n") or not text else f"{text}\n")
    sys.stdout.flush()


def print_error(*lines: str) -> None:
    """Print error lines to standard error."""
    sys.stderr.write("".join(f"{escaped(line)}\n" for line in lines))
    sys.stderr.flush()


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in ASCII."""
    sys.stdout.write(f"{json.dumps(value, indent=indent)}\n")
    sys.stdout.flush()


def print_progress(text: str, end: str) -> None:
    """Print to standard error, in place of the previous line."""
    sys.stderr.write(f"\r{escaped(text)}{end}")
    sys.stderr.flush()


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns as wide as their widest cell."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
