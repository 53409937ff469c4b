"""Messages to the kernel and its answers (netlink(7)): attributes, requests, dumps, and transactions of nftables.

A call holds its thread until the kernel has answered.
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
LARGEST = 60_000
"""Bytes of one attribute that holds others: the kernel counts them in 16 bits."""
_TOGETHER = 100
"""Messages that are sent at once: as many answers as the socket has room for by far."""
ATTEMPTS = 20
"""To read something while nobody changes it."""
_T = TypeVar("_T")
_ROOM = 1 << 17
"""Bytes of an answer that is read at once: the kernel fills 32 kB of a dump."""


class Message(NamedTuple):
    kind: int
    body: bytes
    flags: int = 0


class Interrupted(Exception):
    """What was dumped has changed meanwhile: the answer is of no one moment."""


def attribute(kind: int, value: bytes) -> bytes:
    length = len(value) + 4
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def nested(kind: int, *values: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(values))


def u8(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=B", value))


def u16(kind: int, value: int) -> bytes:
    """As the network has it."""
    return attribute(kind, struct.pack(">H", value))


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def be32(kind: int, value: int) -> bytes:
    """As nftables has numbers."""
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
    """A message about tables of family inet (NFPROTO_INET)."""
    return Message(_NFTABLES << 8 | kind, struct.pack(">BBH", 1, 0, 0) + b"".join(values), flags)


def _each_message(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + 16 <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, place)
        yield kind, data[place + 16 : place + length]
        place += length + 3 & ~3


def steadily(work: Callable[[], _T]) -> _T:
    """Again where somebody has come between. Raises Unavailable, and what `work` does."""
    for _ in range(ATTEMPTS):
        try:
            return work()
        except Interrupted:
            continue
    raise Unavailable("somebody keeps changing what is read of the kernel")


@contextmanager
def absent() -> Iterator[None]:
    """What is not there is no error: whoever asked for it goes on after this."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise


class Netlink:
    """A socket. What the kernel refuses is an OSError with its number."""

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
        """By which others know who asked for a change."""
        return int(self._socket.getsockname()[0])

    def close(self) -> None:
        self._socket.close()

    def ask(self, message: Message) -> None:
        """Returns when it was done."""
        self._send([message._replace(flags=message.flags | REQUEST | ACK)])
        for _ in self._answers(self._number):
            pass

    def ask_all(self, messages: Sequence[Message]) -> list[int]:
        """Each by itself, one after the other: the number of its error, 0 for none."""
        found: list[int] = []
        for first in range(0, len(messages), _TOGETHER):
            some = messages[first : first + _TOGETHER]
            self._send([each._replace(flags=each.flags | REQUEST | ACK) for each in some])
            while len(found) < first + len(some):
                data = self._socket.recv(_ROOM)
                found += (-struct.unpack_from("=i", body)[0] for kind, body in _each_message(data) if kind == _ERROR)
        return found

    def find(self, message: Message) -> bytes:
        """The one thing that was asked for."""
        self._send([message._replace(flags=message.flags | REQUEST | ACK)])
        return next(iter([body for _, body in self._answers(self._number)]), b"")

    def dump(self, message: Message) -> Iterator[tuple[int, bytes]]:
        """Kind and body of all that there is. Raises Interrupted."""
        self._send([message._replace(flags=message.flags | REQUEST | DUMP)])
        yield from self._answers(self._number)

    def read(self, message: Message) -> list[tuple[int, bytes]]:
        """What a dump says of one moment, however often others come between. Raises Unavailable."""
        return steadily(lambda: list(self.dump(message)))

    def transact(self, messages: Sequence[Message]) -> None:
        """All of them in one transaction of nftables, or none."""
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
        """Until the one of this number is answered. An error of one before ends it: no transaction was made."""
        interrupted = False
        while True:
            data = self._socket.recv(_ROOM)
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
        """Each message of a transaction that failed has its own."""
        try:
            while self._socket.recv(_ROOM, socket.MSG_DONTWAIT):
                pass
        except BlockingIOError:
            pass


class ReadOnly(Netlink):
    """It asks, and leaves out whatever would change anything."""

    def ask(self, message: Message) -> None:
        """Nothing."""

    def ask_all(self, messages: Sequence[Message]) -> list[int]:
        return [0] * len(messages)

    def transact(self, messages: Sequence[Message]) -> None:
        """Nothing."""
