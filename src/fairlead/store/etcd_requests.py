"""etcd keys and requests as values, including transactions with more operations than one etcd transaction allows.

etcd (--max-txn-ops) allows 128 comparisons, 128 success and 128 failure operations. An operation may be a nested
transaction, with lists limited by what the longest list of its parents leaves. So three levels hold up to 77,658
operations, atomic and with one revision; fewer with many comparisons. The size in bytes (--max-request-bytes) is
checked by etcd.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.interface import TooLarge

MAX_OPERATIONS = 128
"""Maximum operations in one list with etcd's default --max-txn-ops."""
OWN_COMPARISONS = 5
"""Comparisons of a transaction in addition to its guards: session, seal, precedence, offset and head.

It writes fewer keys than that in addition to documents.
"""
MIN_TOP_OPERATIONS = 42
"""Minimum length of the first list of several levels: a third of `MAX_OPERATIONS`."""
MAX_KEYS_PER_REQUEST = 4000
"""Maximum keys in one request for revisions."""


class EtcdKeys:
    """Keys of a deployment; all start with its prefix. Every transaction writes the head and its server's session."""

    def __init__(self, prefix: str, session: str) -> None:
        self.root = f"{prefix}/".encode()
        self.head = self.root + b"head"
        self.fence = self.root + b"seal"
        self.offset = self.root + b"offset"
        self.precedence = self.root + b"precedence"
        self.documents = self.root + b"doc/"
        self.gone = self.root + b"gone/"
        self.sessions = self.root + b"session/"
        self.session = self.sessions + session.encode()

    def document(self, key: str) -> bytes:
        return self.documents + key.encode()

    def name(self, key: bytes) -> str:
        return key[len(self.documents) :].decode()


def after_all(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def revision_is(key: bytes, revision: int) -> Any:
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=revision)


def is_value(key: bytes, value: bytes) -> Any:
    return pb.Compare(target=pb.Compare.VALUE, key=key, value=value)


def read_revision(key: bytes, revision: int = 0) -> Any:
    """Operation that reads only the revision of a key."""
    return pb.Operation(range=pb.RangeRequest(key=key, keys_only=True, revision=revision))


def read(key: bytes, revision: int = 0) -> Any:
    """Operation that reads a key with its value."""
    return pb.Operation(range=pb.RangeRequest(key=key, revision=revision))


def put(key: bytes, value: bytes) -> Any:
    return pb.Operation(put=pb.PutRequest(key=key, value=value))


def delete(key: bytes) -> Any:
    return pb.Operation(delete=pb.DeleteRequest(key=key))


def has_room(beside: int, operations: int) -> bool:
    """Whether a transaction with `beside` comparisons can hold this many operations."""
    top, middle, low = _widths(beside)
    return beside <= MAX_OPERATIONS and operations <= max(MAX_OPERATIONS, top * middle * low)


def _widths(beside: int) -> tuple[int, int, int]:
    """Lengths of the operation lists at the three levels."""
    top = min(max(beside, MIN_TOP_OPERATIONS), MAX_OPERATIONS)
    return top, (MAX_OPERATIONS - top) // 2, (MAX_OPERATIONS - top + 1) // 2


def nest(operations: Sequence[Any], beside: int = 0) -> Sequence[Any]:
    """Nest operations into lists that etcd accepts. Raises TooLarge."""
    top, middle, low = _widths(beside)
    if not has_room(beside, len(operations)):
        raise TooLarge(f"a change has at most {top * middle * low} documents and claims: split it")
    if len(operations) <= MAX_OPERATIONS:
        return operations
    for width in (low, middle):
        operations = [
            pb.Operation(txn=pb.TxnRequest(success=operations[first : first + width]))
            for first in range(0, len(operations), width)
        ]
    return operations


def range_responses(responses: Iterable[Any]) -> Iterator[Any]:
    """Yield the range responses of nested operations, in order."""
    for each in responses:
        if each.WhichOneof("response") == "txn":
            yield from range_responses(each.txn.responses)
        else:
            yield each.range


def write_operations(
    keys: EtcdKeys, puts: Mapping[str, bytes], deletes: Iterable[str], token: str, version: bytes
) -> list[Any]:
    """Operations of a transaction. The head comes last, so its event marks the end of the transaction."""
    gone = list(deletes)
    operations = [put(keys.document(key), value) for key, value in puts.items()]
    operations += [delete(keys.document(key)) for key in gone]
    if gone:
        operations.append(put(keys.gone + token.encode(), msgspec.json.encode(gone)))
    return [*operations, put(keys.session, token.encode()), put(keys.head, version)]
