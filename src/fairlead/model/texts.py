"""Texts that somebody chose, for lines that people read: tenants name things, and others write where we write."""

import unicodedata

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode's control characters, those that change the direction of what follows, and ends of lines."""


def shorten(text: str, most: int) -> str:
    """At most `most` characters, each one visible or a space: no text can end a line, or begin another one."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join("?" if unicodedata.category(letter) in _UNSEEN else letter for letter in cut)
