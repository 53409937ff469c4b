"""Ids derived from names, so the same name always has the same id.

The module `uuid` is not used, because it also reads clocks and random numbers.
"""

from hashlib import sha1


def id_of_name(namespace: bytes, name: str) -> str:
    """Return the version 5 UUID of a name within a namespace, which is a UUID in binary form (RFC 9562, 5.5)."""
    text = sha1(namespace + name.encode(), usedforsecurity=False).hexdigest()
    variant = f"{int(text[16], 16) & 0x3 | 0x8:x}"
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"
