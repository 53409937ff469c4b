"""What is asked of etcd, as values: which keys there are, and how a transaction of any size becomes one of etcd's.

Etcd takes 128 operations in a list, and transactions as operations: their lists count from what their parents' leave.
So three levels of `WIDTH` are 74,088 operations, all or nothing, of one revision. How many bytes it takes is its own to
say.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from fairlead.store import etcd_pb2 as pb
from fairlead.store.interface import TooLarge

WIDTH = 42
LEVELS = 3
GUARDS = WIDTH - 3
"""That one transaction can have beside the three of our own; more are looked at before, and the head is the guard."""


class Keys:
    """All of a deployment begin with its prefix. Every transaction writes the head and its server's session."""

    def __init__(self, prefix: str, session: str) -> None:
        self.root = f"{prefix}/".encode()
        self.head = self.root + b"head"
        self.seal = self.root + b"seal"
        self.offset = self.root + b"offset"
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


def put(key: bytes, value: bytes) -> Any:
    return pb.Operation(put=pb.PutRequest(key=key, value=value))


def delete(key: bytes) -> Any:
    return pb.Operation(delete=pb.DeleteRequest(key=key))


def nested(operations: Sequence[Any]) -> Sequence[Any]:
    """The same, in lists that etcd takes. Raises TooLarge."""
    for _ in range(LEVELS):
        if len(operations) <= WIDTH:
            return operations
        operations = [
            pb.Operation(txn=pb.TxnRequest(success=operations[first : first + WIDTH]))
            for first in range(0, len(operations), WIDTH)
        ]
    raise TooLarge(f"one change of more than {WIDTH**LEVELS} documents and claims: make it in several")


def writes(keys: Keys, puts: Mapping[str, bytes], deletes: Iterable[str], token: str, version: bytes) -> Sequence[Any]:
    """The head comes last: with its event all of the transaction has come."""
    gone = list(deletes)
    operations = [put(keys.document(key), value) for key, value in puts.items()]
    operations += [delete(keys.document(key)) for key in gone]
    if gone:
        operations.append(put(keys.gone + token.encode(), msgspec.json.encode(gone)))
    return nested([*operations, put(keys.session, token.encode()), put(keys.head, version)])
