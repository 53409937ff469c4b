"""What a server asks of a place that has keys and certificates."""

from typing import Protocol

LARGEST = 2**16
"""Bytes of what one reference names."""


class Unreadable(Exception):
    """The message says why, and has nothing of what is secret."""


class Silent(Unreadable):
    """It does not answer: nor would it about anything else."""


class KeyStore(Protocol):
    async def read(self, project_id: str, reference: str) -> bytes:
        """What the reference names, PEM or PKCS#12, if it is this project's. Raises Unreadable, where there is no such
        thing and where it is another project's: who asks cannot tell one from the other."""
