"""Migration fence: a mark in the store that forbids writes, and its reason: a copy in progress or a finished move.

Each transaction of a server asserts that there is no seal, so running servers are fenced as well as starting ones.
"""

from enum import StrEnum

import msgspec

from fairlead.store.interface import StoreUnavailable


class State(StrEnum):
    FILLING = "filling"
    COPYING = "copying"
    MOVED = "moved"


WORDS = {
    State.FILLING: "it is being filled from {other} since {since}, and nobody serves from half of it: if that was"
    " interrupted, begin it again",
    State.COPYING: "it is being copied to {other} since {since}, and nothing is written meanwhile: if that was"
    " interrupted, begin it again, or stay with `fairlead store reopen`",
    State.MOVED: "the deployment has moved to {other} ({since}): start servers with that as store.url",
}


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    other: str
    """The store or file at the other end."""
    since: str
    id: str
    """Id of the copy, which distinguishes two copies between the same stores."""

    @property
    def words(self) -> str:
        return WORDS[self.state].format(other=self.other, since=self.since)


class Sealed(StoreUnavailable):
    """The store is sealed: nothing is written until the seal is removed."""


def encode_seal(seal: Seal) -> bytes:
    return msgspec.json.encode(seal)


def decode_seal(value: bytes) -> Seal:
    """Decode a seal. Raises Sealed for one of a newer version."""
    try:
        return msgspec.json.decode(value, type=Seal)
    except msgspec.DecodeError:
        raise Sealed("it is sealed by a newer version of Fairlead") from None


def sealed(where: object, value: bytes) -> Sealed:
    try:
        return Sealed(f"{where}: {decode_seal(value).words}")
    except Sealed as error:
        return Sealed(f"{where}: {error}")
