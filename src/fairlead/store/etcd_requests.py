"""What is asked of etcd, as values: which keys there are, and how a transaction of any size becomes one of etcd's.

Etcd takes 128 comparisons, 128 operations, and as many for when it fails; and transactions as operations, whose lists
count from what the longest of their parents' leaves. So three levels are 77,658 operations, all or nothing, of one
revision, or fewer beside many comparisons. How many bytes it takes is its own to say.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.interface import TooLarge

OPERATIONS = 128
"""In one list of an etcd whose --max-txn-ops is the default."""
OWN = 5
"""Comparisons of a transaction beside those of guards: its session, the seal, the precedence, the offset and the head.
It writes fewer keys beside documents."""
TOP = 42
"""At least, in the first list of several levels: a third of it."""
LOOKS = 4000
"""Keys whose revisions are asked at once."""


class Keys:
    """All of a deployment begin with its prefix. Every transaction writes the head and its server's session."""

    def __init__(self, prefix: str, session: str) -> None:
        self.root = f"{prefix}/".encode()
        self.head = self.root + b"head"
        self.seal = self.root + b"seal"
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
    """The first key behind all that begin so."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def holds(key: bytes, revision: int) -> Any:
    return pb.Compare(target=pb.Compare.MOD, key=key, mod_revision=revision)


def is_value(key: bytes, value: bytes) -> Any:
    return pb.Compare(target=pb.Compare.VALUE, key=key, value=value)


def look(key: bytes, revision: int = 0) -> Any:
    """At the revision of one key alone."""
    return pb.Operation(range=pb.RangeRequest(key=key, keys_only=True, revision=revision))


def read(key: bytes, revision: int = 0) -> Any:
    """With its value."""
    return pb.Operation(range=pb.RangeRequest(key=key, revision=revision))


def put(key: bytes, value: bytes) -> Any:
    return pb.Operation(put=pb.PutRequest(key=key, value=value))


def delete(key: bytes) -> Any:
    return pb.Operation(delete=pb.DeleteRequest(key=key))


def has_room(beside: int, operations: int) -> bool:
    """For so many in a transaction with so many comparisons."""
    top, middle, low = _widths(beside)
    return beside <= OPERATIONS and operations <= max(OPERATIONS, top * middle * low)


def _widths(beside: int) -> tuple[int, int, int]:
    """Of three levels."""
    top = min(max(beside, TOP), OPERATIONS)
    return top, (OPERATIONS - top) // 2, (OPERATIONS - top + 1) // 2


def nested(operations: Sequence[Any], beside: int = 0) -> Sequence[Any]:
    """The same, in lists that etcd takes. Raises TooLarge."""
    top, middle, low = _widths(beside)
    if not has_room(beside, len(operations)):
        raise TooLarge(f"one change of more than {top * middle * low} documents and claims: make it in several")
    if len(operations) <= OPERATIONS:
        return operations
    for width in (low, middle):
        operations = [
            pb.Operation(txn=pb.TxnRequest(success=operations[first : first + width]))
            for first in range(0, len(operations), width)
        ]
    return operations


def ranges(responses: Iterable[Any]) -> Iterator[Any]:
    """What was found by each of the operations that were nested, in their order."""
    for each in responses:
        if each.WhichOneof("response") == "txn":
            yield from ranges(each.txn.responses)
        else:
            yield each.range


def writes(keys: Keys, puts: Mapping[str, bytes], deletes: Iterable[str], token: str, version: bytes) -> list[Any]:
    """The head comes last: with its event all of the transaction has come."""
    gone = list(deletes)
    operations = [put(keys.document(key), value) for key, value in puts.items()]
    operations += [delete(keys.document(key)) for key in gone]
    if gone:
        operations.append(put(keys.gone + token.encode(), msgspec.json.encode(gone)))
    return [*operations, put(keys.session, token.encode()), put(keys.head, version)]
