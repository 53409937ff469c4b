"""Addresses in what programs print."""

import re

AROUND = {4: (r"(?<![\d.])", r"(?!\.?\d)"), 6: (r"(?<![\da-fA-F:])", r"(?!:{0,2}[\da-fA-F])")}
"""What is neither before nor after an address, by its version, for it to be the whole of one."""


def holds_address(text: str, address: str) -> bool:
    """Whether this address itself is in `text`, and not as the beginning or the end of another.

    203.0.113.3 is in `203.0.113.3:80`, not in `203.0.113.30`.
    """
    before, after = AROUND[6 if ":" in address else 4]
    return re.search(before + re.escape(address) + after, text) is not None
