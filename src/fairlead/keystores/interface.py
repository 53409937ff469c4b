"""What a server asks of a place that has keys and certificates."""

from dataclasses import dataclass, field
from typing import Protocol

LARGEST = 2**16
"""Bytes of what one reference names."""


class Unreadable(Exception):
    """The message says why, and has nothing of what is secret."""


class Silent(Unreadable):
    """It does not answer: nor would it about anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who names a reference."""

    token: str = field(default="", repr=False)
    """What they came in with, for those who may know it."""
    is_service: bool = False
    """It has asked for its own users, and has looked whether these may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a reference names: PEM or PKCS#12."""

    material: bytes = field(repr=False)
    phrase: bytes | None = field(default=None, repr=False)
    """That opens the key."""


class KeyStore(Protocol):
    async def read(self, project_id: str, reference: str, asker: Asker | None) -> Content:
        """If it is this project's, and the asker's to use; None where one who might has named it before. Raises
        Unreadable, where there is no such thing and where it is another's: who asks cannot tell one from the other."""
