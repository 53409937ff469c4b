"""Interface of key stores."""

from dataclasses import dataclass, field
from typing import Protocol

MAX_CONTENT_BYTES = 2**16
"""Maximum bytes of the content of one reference."""


class Unreadable(Exception):
    """The reference cannot be read. The message gives the reason and contains nothing secret."""


class KeyStoreUnresponsive(Unreadable):
    """The key store does not answer, so no other reference can be read either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Client that names a reference."""

    token: str = field(default="", repr=False)
    """Keystone token of the client's request, for key stores that accept it."""
    is_service: bool = False
    """Whether the client is a service that has checked its users' access to the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Content of a reference: PEM or PKCS#12."""

    material: bytes = field(repr=False)
    phrase: bytes | None = field(default=None, repr=False)
    """Passphrase of the private key."""


class KeyStore(Protocol):
    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        """Read a reference of this project. `asker` is None if an authorized client has named it before.

        Raises Unreadable, with the same error for a missing reference and one of another project.
        """
