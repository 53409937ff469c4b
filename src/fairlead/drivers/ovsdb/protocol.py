"""The OVSDB wire protocol (RFC 7047, ovsdb-server(7)) without I/O: bytes in, values out; time is an argument.

* The stream is a sequence of JSON texts without framing. Every byte is scanned once, wherever the stream is cut, so a
  database of any size is read in linear time.

* Encoding is deterministic: equal values give equal bytes.

* Retries, waits and logs are in `ovsdb.Client`.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from fairlead.drivers.ovsdb.errors import ProtocolError, RequestError, TransactionError
from fairlead.drivers.ovsdb.split_message import LARGE_MESSAGE, MESSAGE_DEPTH, ROWS_DEPTH, SplitMessage, decode
from fairlead.drivers.ovsdb.values import Json

MAX_MESSAGE = 1 << 30
NO_TXN = "00000000-0000-0000-0000-000000000000"

_NEUTRAL = b"__"  # replaces an escape with the same length
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"{}'))
_WITHOUT_BRACES = bytes.maketrans(b"{}", _NEUTRAL)


# Messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    id: Json
    method: str
    params: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    id: Json
    result: Json
    error: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    method: str
    params: Json


Message = Request | Reply | Notification


def encode_message(message: Request | Reply) -> bytes:
    return msgspec.json.encode(message)


def read_message(fields: Json) -> Message:
    """Classify one JSON text: the "id" of a notification is null (RFC 7047 section 4, JSON-RPC 1.0)."""
    match fields:
        case {"method": str(method), "params": params}:
            identifier = fields.get("id")
            if identifier is None:
                return Notification(method=method, params=params)
            return Request(id=identifier, method=method, params=params)
        case {"id": identifier}:
            return Reply(id=identifier, result=fields.get("result"), error=fields.get("error"))
        case _:
            raise ProtocolError("message is neither request, reply nor notification")


class Framer:
    """Splits the byte stream into messages; rejects one longer than `limit` before it is complete.

    It counts the braces outside of strings with one-pass methods of `bytes`. A regular expression without backtracking
    would need possessive groups, which CPython before 3.11.5 (Debian 12) ends at a wrong byte.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._buffer = bytearray()  # starts with the current message, or the rest that is not split off yet
        self._pieces: SplitMessage | None = None  # pieces of a large message that are split off
        self._depth = 0  # brace depth at the end of the buffer
        self._in_string = False
        self._in_escape = False

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that `data` completes. Consume it to the end before feeding more."""
        begin = -len(self._buffer)  # start of the buffer, relative to the start of `data`
        self._buffer += data
        for end, depth in self._find_ends(data):
            if depth == 0:
                self._check_length(end - begin)
                yield self._take(end - begin)
                begin = end
            elif depth == ROWS_DEPTH and end - begin > LARGE_MESSAGE:
                self._take_piece(end - begin)
                begin = end
            elif depth == MESSAGE_DEPTH and self._pieces is not None:
                self._pieces.record_close(end - begin)
        self._check_length(len(self._buffer))

    def _find_ends(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the position after each closing brace outside of strings that may end a message, with the depth
        there."""
        text = self._hide_strings(data)
        position = 0
        for part in text.split(b"}")[:-1]:
            position += len(part) + 1
            self._depth += part.count(b"{") - 1
            self._depth = max(0, self._depth)
            if self._depth in (0, MESSAGE_DEPTH, ROWS_DEPTH):
                yield position, self._depth
        self._depth += text.count(b"{", position)

    def _hide_strings(self, data: bytes) -> bytes:
        """Return `data` with escapes, and braces in strings, replaced by other bytes."""
        if not data:
            return data
        was_in_string, was_in_escape = self._in_string, self._in_escape
        text = b"_" + data[1:] if was_in_escape else data
        text = text.replace(b"\\\\", _NEUTRAL).replace(b'\\"', _NEUTRAL)
        structure = (b'"' * was_in_string + text).translate(None, _NOT_STRUCTURE).replace(b'""', b"")
        if b'"' in structure[:-1]:  # a string without braces is a pair of quotes; the last may be cut
            parts = text.split(b'"')
            inside = slice(0 if was_in_string else 1, None, 2)
            parts[inside] = b'"'.join(parts[inside]).translate(_WITHOUT_BRACES).split(b'"')
            text = b'"'.join(parts)
        self._in_string = was_in_string ^ (text.count(b'"') % 2 == 1)
        self._in_escape = text.endswith(b"\\")  # the other half of a cut escape follows
        return text

    def _check_length(self, length: int) -> None:
        if length + (self._pieces.length if self._pieces else 0) > self._limit:
            raise ProtocolError(f"message is longer than {self._limit} bytes")

    def _take_piece(self, length: int) -> None:
        self._pieces = self._pieces or SplitMessage()
        self._pieces.add(self._cut(length))

    def _take(self, length: int) -> Message:
        if self._pieces is not None:
            pieces, self._pieces = self._pieces, None
            return read_message(pieces.end(self._cut(length)))
        with memoryview(self._buffer) as view, view[:length] as part:
            fields = decode(part)
        del self._buffer[:length]
        return read_message(fields)

    def _cut(self, length: int) -> bytes:
        with memoryview(self._buffer) as view:
            text = bytes(view[:length])
        del self._buffer[:length]
        return text


MANY_OBJECTS = 10_000


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable the garbage collector: a JSON text creates a million containers and no cycle, and collecting costs eight
    times the decoding.

    The collector counts its runs, not the objects it traverses. After a hundred steps, each with thousands of new
    objects, one run would traverse all of them, for 150 ms. So objects created by a large step are frozen; they are
    still freed by reference counting. Cycles among other objects alive at that moment are never freed, which is rare
    and small.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_count()[0] > MANY_OBJECTS:
                gc.freeze()
            gc.enable()


# Transactions and monitors


def read_results(reply: Reply, operations: int) -> list[Json]:
    """Return the result of each operation. Raises the error that stopped them (RFC 7047 section 4.1.3).

    An error after the last operation is one of the commit.
    """
    if reply.error is not None:
        raise TransactionError(*_read_error(reply.error), None)
    results: list[Json] = reply.result
    for index, result in enumerate(results):
        if type(result) is dict and "error" in result:
            raise TransactionError(*_read_error(result), index if index < operations else None)
    return results


def read_result(reply: Reply) -> Json:
    """Return the result of any other request. Raises RequestError."""
    if reply.error is not None:
        raise RequestError(*_read_error(reply.error))
    return reply.result


def _read_error(error: Json) -> tuple[str, str]:
    """Read an error. RFC 7047 requires objects; ovsdb-server sends strings for unknown methods."""
    match error:
        case {"error": str(name)}:
            return name, str(error.get("details", ""))
        case _:
            return str(error), ""


def assert_lock(name: str) -> Json:
    """Operation that fails the transaction unless this connection holds the lock (RFC 7047 section 5.2.10)."""
    return {"op": "assert", "lock": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMonitor:
    """Monitored part of a table; every row without `where` (ovsdb-server(7) section 4.1.12)."""

    columns: tuple[str, ...]
    where: tuple[Json, ...] = ()


def encode_monitors(tables: Mapping[str, TableMonitor]) -> Json:
    return {
        name: [{"columns": sorted(table.columns), "where": list(table.where)}] for name, table in sorted(tables.items())
    }


def merge_row(row: Mapping[str, Json] | None, change: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """Apply one <row-update2> to a row of scalar columns (ovsdb-server(7) section 4.1.14); None after a delete."""
    match change:
        case {"initial": new} | {"insert": new}:
            return {**new}
        case {"modify": new}:
            return {**(row or {}), **new}
        case _:
            return None


def find_error(row: Mapping[str, Json] | None) -> str | None:
    """Return why a server must not be used, from its row of the `_Server` table `NorthboundDatabase`; None if it may.

    A follower answers reads late, forwards writes, and has locks of its own (ovsdb-server(5)). A relay is never the
    leader. Columns with their default value are left out of an update.
    """
    if row is None:
        return "does not serve the database"
    if row.get("model") == "standalone":
        return None
    if not row.get("connected", False):
        return "is not connected to its cluster"
    if not row.get("leader", False):
        return "is not the leader"
    return None
