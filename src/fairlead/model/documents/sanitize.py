"""Sanitising of texts from tenants and other programs, for log lines and terminal output."""

import unicodedata

_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of control characters, direction changes and line ends."""


def shorten(text: str, most: int) -> str:
    """Return at most `most` characters, each visible or a space, so a text cannot end a line or start another one."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join("?" if unicodedata.category(letter) in _INVISIBLE_CATEGORIES else letter for letter in cut)
