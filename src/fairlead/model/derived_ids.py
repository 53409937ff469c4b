"""Ids that follow from names: whoever makes the same thing gives it the same id.

Nothing here asks the module `uuid`, which has clocks and chance as well.
"""

from hashlib import sha1


def id_of_name(namespace: bytes, name: str) -> str:
    """A UUID of a name within a namespace, itself a UUID (RFC 9562, 5.5)."""
    text = sha1(namespace + name.encode(), usedforsecurity=False).hexdigest()
    variant = f"{int(text[16], 16) & 0x3 | 0x8:x}"
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"
