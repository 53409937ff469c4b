"""The words of an HAProxy configuration: the one place in which text is quoted, and the reader that takes it apart.

HAProxy reads a file line by line and a line word by word (configuration manual, 2.2 "Quoting and escaping"). Whatever
is not plain is put between single quotes, inside which nothing means anything but the quote itself. What no quotes can
carry is refused: the end of a line ends the directive, NUL ends the line for HAProxy, and an empty word ends its list
of words. A line is handed out only if the reader finds the same words in it.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

Line: TypeAlias = tuple[str, ...]
"""A directive: its keyword and what follows."""

MOST_WORDS = 64
"""In a line (HAProxy, MAX_LINE_ARGS)."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=@()\[\]{}%+*!-]+")
"""What HAProxy takes as it stands, whichever directive it is in."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""Of a section, a server or an ACL: HAProxy, invalid_char()."""
_BROKEN = re.compile(r"[\0\n\r]")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


class Unwritable(ValueError):
    """What no configuration can say. The text is a part of a sentence, without the value itself."""


def render_line(words: Line) -> str:
    """Raises Unwritable."""
    if not 0 < len(words) <= MOST_WORDS:
        raise Unwritable(f"a directive of {len(words)} words")
    text = " ".join(map(_quote, words))
    if read_line(text) != words:
        raise Unwritable("a text that would be read as another one")
    return text


def _quote(word: str) -> str:
    if not word:
        raise Unwritable("an empty text")
    if _BROKEN.search(word):
        raise Unwritable("a text of more than one line, or with a NUL")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise Unwritable("a text that is not Unicode") from None
    if _PLAIN.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def read_line(text: str) -> Line:
    """The words that HAProxy finds in a line, none in a comment. Raises Unwritable where it finds an error, and for a
    variable of its environment, which nothing here ever means."""
    words: list[str] = []
    word: str | None = None
    rest = iter(text.partition("\0")[0])
    for char in rest:
        if char == "#":
            break
        if char in " \t\n\r":
            words += [] if word is None else [word]
            word = None
            continue
        word = (word or "") + _piece(char, rest)
    return tuple(words if word is None else [*words, word])


def _piece(char: str, rest: Iterable[str]) -> str:
    """What one character means, and those that it takes with it."""
    if char == "'":
        return _until_quote(rest)
    if char == "\\":
        return _escaped(next(iter(rest), ""))
    if char in '"$':
        raise Unwritable("a text in which variables of the environment are replaced")
    return char


def _until_quote(rest: Iterable[str]) -> str:
    found: list[str] = []
    for char in rest:
        if char == "'":
            return "".join(found)
        found.append(char)
    raise Unwritable("a quote that is not closed")


def _escaped(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    if char in "\\\"'# $" and char:
        return char
    raise Unwritable("an escape that has no meaning")


def name(text: str) -> str:
    """The name of a section, a server or an ACL, as it is. Raises Unwritable."""
    if not _NAME.fullmatch(text):
        raise Unwritable("a name with characters that HAProxy does not take in one")
    return text


def literal(text: str) -> str:
    """A text where HAProxy expects a format, in which `%` means something (configuration manual, 8.2.4)."""
    return text.replace("%", "%%")
