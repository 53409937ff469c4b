"""Netlink messages (netlink(7)): attributes, requests, dumps, and transactions of nftables.

A call blocks its thread until the kernel has answered.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from fairlead.drivers.interface import Unavailable

NETFILTER = 12
ROUTE = 0
REQUEST, ACK, DUMP, REPLACE, EXCLUSIVE, CREATE = 0x1, 0x4, 0x300, 0x100, 0x200, 0x400
_MULTI, _INTERRUPTED = 0x2, 0x10
_ERROR, _DONE = 2, 3
_SOL_NETLINK, _CAP_ACK, _STRICT = 270, 10, 12
_SO_SNDBUFFORCE = 32
_BATCH_BEGIN, _BATCH_END, _NFTABLES = 16, 17, 10
_NESTED = 0x8000
_TYPE = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
MAX_ATTRIBUTE_BYTES = 60_000
"""Maximum bytes of a nested attribute, because the kernel has a 16-bit length."""
_BATCH_SIZE = 100
"""Messages sent in one batch; their answers easily fit into the socket buffer."""
ATTEMPTS = 20
"""Attempts to read a consistent dump."""
_T = TypeVar("_T")
_READ_BYTES = 1 << 17
"""Read buffer for an answer; the kernel fills 32 kB of a dump."""


class Message(NamedTuple):
    kind: int
    body: bytes
    flags: int = 0


class Interrupted(Exception):
    """The dumped data changed during the dump, so the answer is inconsistent."""


def attribute(kind: int, value: bytes) -> bytes:
    length = len(value) + 4
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nested(kind: int, *values: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(values))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    """Attribute in network byte order."""
    return attribute(kind, struct.pack(">H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def be32(kind: int, value: int) -> bytes:
    """Attribute in network byte order, as nftables has numbers."""
    return attribute(kind, struct.pack(">I", value))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def attributes(data: bytes) -> dict[int, bytes]:
    return dict(each_attribute(data))


def each_attribute(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 4 <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, place)
        yield kind & _TYPE, data[place + 4 : place + length]
        place += max(length + 3 & ~3, 4)


def nftables(kind: int, *values: bytes, flags: int = 0) -> Message:
    """Message for tables of family inet (NFPROTO_INET)."""
    return Message(_NFTABLES << 8 | kind, struct.pack(">BBH", 1, 0, 0) + b"".join(values), flags)


def _each_message(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 16 <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, place)
        yield kind, data[place + 16 : place + length]
        place += length + 3 & ~3


def retry_interrupted(work: Callable[[], _T]) -> _T:
    """Retry work that was interrupted by concurrent changes. Raises Unavailable, and the errors of `work`."""
    for _ in range(ATTEMPTS):
        try:
            return work()
        except Interrupted:
            continue
    raise Unavailable("netlink dumps are interrupted by changes of another process")


@contextmanager
def ignore_absent() -> Iterator[None]:
    """Ignore ENOENT."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


class Netlink:
    """Netlink socket. Errors of the kernel are raised as OSError."""

    def __init__(self, protocol: int) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC
        self._socket = socket.socket(socket.AF_NETLINK, kind, protocol)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
        if protocol == ROUTE:
            self._socket.setsockopt(_SOL_NETLINK, _STRICT, 1)
        self._number = 0
        self._space = 0

    @property
    def port(self) -> int:
        """Port id, which identifies this socket in notifications."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        self._socket.close()

    def request(self, message: Message) -> None:
        """Send a request and wait for its acknowledgement."""
        self._send([message._replace(flags=message.flags | REQUEST | ACK)])
        for _ in self._answers(self._number):
            pass

    def request_all(self, messages: Sequence[Message]) -> list[int]:
        """Send independent requests, and return the error number of each, 0 for success."""
        found: list[int] = []
        for first in range(0, len(messages), _BATCH_SIZE):
            some = messages[first : first + _BATCH_SIZE]
            self._send([each._replace(flags=each.flags | REQUEST | ACK) for each in some])
            while len(found) < first + len(some):
                data = self._socket.recv(_READ_BYTES)
                found += (-struct.unpack_from("=i", body)[0] for kind, body in _each_message(data) if kind == _ERROR)
        return found

    def find(self, message: Message) -> bytes:
        """Request a single object."""
        self._send([message._replace(flags=message.flags | REQUEST | ACK)])
        return next(iter([body for _, body in self._answers(self._number)]), b"")

    def dump(self, message: Message) -> Iterator[tuple[int, bytes]]:
        """Yield type and body of all dumped messages. Raises Interrupted."""
        self._send([message._replace(flags=message.flags | REQUEST | DUMP)])
        yield from self._answers(self._number)

    def read(self, message: Message) -> list[tuple[int, bytes]]:
        """Return a consistent dump, retrying after concurrent changes. Raises Unavailable."""
        return retry_interrupted(lambda: list(self.dump(message)))

    def transact(self, messages: Sequence[Message]) -> None:
        """Send messages as one nftables transaction."""
        begin, end = (
            Message(kind, struct.pack(">BBH", 0, 0, _NFTABLES), REQUEST) for kind in (_BATCH_BEGIN, _BATCH_END)
        )
        wanted = [each._replace(flags=each.flags | REQUEST) for each in messages]
        wanted[-1] = wanted[-1]._replace(flags=wanted[-1].flags | ACK)
        self._send([begin, *wanted, end])
        last = self._number - 1
        try:
            for _ in self._answers(last):
                pass
        finally:
            self._forget_answers()

    def _send(self, messages: Iterable[Message]) -> None:
        parts = []
        for each in messages:
            self._number += 1
            parts.append(_HEADER.pack(16 + len(each.body), each.kind, each.flags, self._number, 0))
            parts.append(each.body + bytes(-len(each.body) % 4))
        data = b"".join(parts)
        if len(data) > self._space:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, len(data) + 1024)
            self._space = len(data)
        self._socket.send(data)

    def _answers(self, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield answers until this message is acknowledged. An earlier error aborts the transaction and is raised."""
        interrupted = False
        while True:
            data = self._socket.recv(_READ_BYTES)
            place = 0
            while place + 16 <= len(data):
                length, kind, flags, number, _ = _HEADER.unpack_from(data, place)
                body = data[place + 16 : place + length]
                place += length + 3 & ~3
                interrupted |= bool(flags & _INTERRUPTED)
                if kind in (_ERROR, _DONE):
                    error = -struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
                    if error:
                        raise OSError(error, os.strerror(error))
                    if number >= last:
                        if interrupted:
                            raise Interrupted
                        return
                else:
                    yield kind, body

    def _forget_answers(self) -> None:
        """Discard the remaining answers; each message of a failed transaction has one."""
        try:
            while self._socket.recv(_READ_BYTES, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass


class ReadOnly(Netlink):
    """Socket that sends read requests and ignores changes."""

    def request(self, message: Message) -> None:
        """Do nothing."""

    def request_all(self, messages: Sequence[Message]) -> list[int]:
        return [0] * len(messages)

    def transact(self, messages: Sequence[Message]) -> None:
        """Do nothing."""
