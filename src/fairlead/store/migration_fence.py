"""Migration fence: a mark in the store that forbids writes, and its reason: a copy in progress or a finished move.

Each transaction of a server asserts that there is no seal, so running servers are fenced as well as starting ones.
"""

from enum import StrEnum

import msgspec

from fairlead.store.interface import StoreUnavailable


class FenceState(StrEnum):
    FILLING = "filling"
    COPYING = "copying"
    MOVED = "moved"


MESSAGES = {
    FenceState.FILLING: "an incomplete copy from {other}, started {since}, cannot be served: if the copy was"
    " interrupted, restart it",
    FenceState.COPYING: "read-only during the copy to {other}, started {since}: if the copy was interrupted,"
    " restart it, or cancel it with `fairlead store reopen`",
    FenceState.MOVED: "the deployment moved to {other} ({since}): set store.url to {other}",
}


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    state: FenceState
    other: str
    """The store or file at the other end."""
    since: str
    id: str
    """Id of the copy, which distinguishes two copies between the same stores."""

    @property
    def words(self) -> str:
        return MESSAGES[self.state].format(other=self.other, since=self.since)


class StoreFenced(StoreUnavailable):
    """The store is sealed: nothing is written until the seal is removed."""


def encode_fence(seal: Fence) -> bytes:
    return msgspec.json.encode(seal)


def decode_fence(value: bytes) -> Fence:
    """Decode a seal. Raises Sealed for one of a newer version."""
    try:
        return msgspec.json.decode(value, type=Fence)
    except msgspec.DecodeError:
        raise StoreFenced("fenced by a newer version of Fairlead") from None


def fenced_error(where: object, value: bytes) -> StoreFenced:
    try:
        return StoreFenced(f"{where}: {decode_fence(value).words}")
    except StoreFenced as error:
        return StoreFenced(f"{where}: {error}")
