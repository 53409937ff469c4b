"""Words of an HAProxy configuration: the only place that quotes text, and a parser for the result.

HAProxy reads a file line by line and a line word by word (configuration manual, 2.2 "Quoting and escaping"). Words with
special characters are put in single quotes, which escape everything but the quote itself. Text that cannot be quoted is
rejected: a newline ends the directive, NUL ends the line for HAProxy, and an empty word ends its list of words. A line
is returned only if the parser reads the same words from it.
"""

import re
from collections.abc import Iterable
from typing import TypeAlias

Line: TypeAlias = tuple[str, ...]
"""A directive: its keyword and arguments."""

MAX_WORDS = 64
"""Maximum words in a line (HAProxy, MAX_LINE_ARGS)."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=@()\[\]{}%+*!-]+")
"""Words that need no quotes in any directive."""
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
"""Valid name of a section, server or ACL (HAProxy, invalid_char())."""
_BROKEN = re.compile(r"[\0\n\r]")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


class Unwritable(ValueError):
    """Text that no configuration can express. The message is part of a sentence, without the value."""


def render_line(words: Line) -> str:
    """Render a directive as a line. Raises Unwritable."""
    if not 0 < len(words) <= MAX_WORDS:
        raise Unwritable(f"directive has {len(words)} words; 1 to {MAX_WORDS} are allowed")
    text = " ".join(map(_quote, words))
    if read_line(text) != words:
        raise Unwritable("directive cannot be represented: HAProxy would read it differently")
    return text


def _quote(word: str) -> str:
    if not word:
        raise Unwritable("word is empty")
    if _BROKEN.search(word):
        raise Unwritable("word has a line break or a NUL")
    try:
        word.encode()
    except UnicodeEncodeError:
        raise Unwritable("word is not valid Unicode") from None
    if _PLAIN.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\\''") + "'"


def read_line(text: str) -> Line:
    """Parse a line into words; none for a comment.

    Raises Unwritable for a syntax error, and for an environment variable, which Fairlead never uses.
    """
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
    """Parse one character and any that belong to it."""
    if char == "'":
        return _until_quote(rest)
    if char == "\\":
        return _escaped(next(iter(rest), ""))
    if char in '"$':
        raise Unwritable("word refers to environment variables")
    return char


def _until_quote(rest: Iterable[str]) -> str:
    found: list[str] = []
    for char in rest:
        if char == "'":
            return "".join(found)
        found.append(char)
    raise Unwritable("unclosed quote")


def _escaped(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    if char in "\\\"'# $" and char:
        return char
    raise Unwritable("unknown escape sequence")


def name(text: str) -> str:
    """Check the name of a section, server or ACL and return it unchanged. Raises Unwritable."""
    if not _NAME.fullmatch(text):
        raise Unwritable("name has characters that HAProxy does not allow in names")
    return text
