"""Finds IP addresses in the output of programs."""

import re

BOUNDARIES = {4: (r"(?<![\d.])", r"(?!\.?\d)"), 6: (r"(?<![\da-fA-F:])", r"(?!:{0,2}[\da-fA-F])")}
"""Lookbehind and lookahead, by IP version: characters that must not adjoin an address for it to be a whole address."""


def holds_address(text: str, address: str) -> bool:
    """Whether `text` contains exactly this address, and not as the beginning or the end of a longer one.

    203.0.113.3 is in `203.0.113.3:80`, not in `203.0.113.30`.
    """
    before, after = BOUNDARIES[6 if ":" in address else 4]
    return re.search(before + re.escape(address) + after, text) is not None
