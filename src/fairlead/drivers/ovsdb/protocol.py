"""The OVSDB wire protocol (RFC 7047, ovsdb-server(7)) without I/O: bytes in, values out; time is an argument.

* The stream is JSON texts one after another without any framing. Every byte is looked at once, wherever the network
  cut the stream, so a database of any size arrives in linear time.
* Encoding is deterministic: equal values give equal bytes.
* Nothing here retries, waits or logs: `ovsdb.Client` does.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from fairlead.drivers.ovsdb.errors import ProtocolError, RequestError, TransactionError
from fairlead.drivers.ovsdb.values import Json

MAX_MESSAGE = 1 << 30
LARGE_MESSAGE = 1 << 18
"""Bytes, from which on the rows in a message are decoded one by one: all at once take a third of a second for the
50 MB of ten thousand load balancers."""
NO_TXN = "00000000-0000-0000-0000-000000000000"

_NEUTRAL = b"__"  # stands for an escape, so that text keeps its length
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
    """Splits the byte stream into messages; refuses one longer than `limit` before it is whole.

    It counts the braces outside of strings with what `bytes` can do in one pass. A regular expression that never
    backtracks would need possessive groups, and CPython before 3.11.5, Debian 12's, ends these at a wrong byte.
    """

    def __init__(self, limit: int = MAX_MESSAGE) -> None:
        self._limit = limit
        self._buffer = bytearray()  # begins with the current message
        self._depth = 0  # of braces at the end of the buffer
        self._in_string = False
        self._in_escape = False

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that `data` completes. Consume it to the end before feeding more."""
        begin = -len(self._buffer)  # of the current message, counted from the begin of `data`
        self._buffer += data
        for end in self._find_ends(data):
            self._check_length(end - begin)
            yield self._take(end - begin)
            begin = end
        self._check_length(len(self._buffer))

    def _find_ends(self, data: bytes) -> Iterator[int]:
        """The positions behind the last braces of messages."""
        text = self._hide_strings(data)
        position = 0
        for part in text.split(b"}")[:-1]:
            position += len(part) + 1
            self._depth += part.count(b"{") - 1
            if self._depth <= 0:
                self._depth = 0
                yield position
        self._depth += text.count(b"{", position)

    def _hide_strings(self, data: bytes) -> bytes:
        """`data` with other bytes for the escapes, and for the braces in strings."""
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
        self._in_escape = text.endswith(b"\\")  # it is cut: its other half will come
        return text

    def _check_length(self, length: int) -> None:
        if length > self._limit:
            raise ProtocolError(f"message is longer than {self._limit} bytes")

    def _take(self, length: int) -> Message:
        if length > LARGE_MESSAGE:  # what is decoded later goes on using the buffer: it is left to it
            text, self._buffer = self._buffer, self._buffer[length:]
            del text[length:]
            return read_message(_decode_large(text))
        with memoryview(self._buffer) as view, view[:length] as part:
            fields = _decode(part)
        del self._buffer[:length]
        return read_message(fields)


class LateRows(Mapping[str, Json]):
    """Rows of a table by UUID, each decoded when it is asked for. Raises ProtocolError."""

    def __init__(self, rows: Mapping[str, msgspec.Raw]) -> None:
        self._rows = rows

    def __getitem__(self, uuid: str) -> Json:
        return _decode(self._rows[uuid])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def is_gone(self, uuid: str) -> bool:
        """Whether the change is that the row was deleted: it need not be decoded to see that."""
        return bytes(self._rows[uuid]).startswith(b'{"delete"')


def in_parts(tables: Mapping[str, Mapping[str, Json]], rows: int) -> Iterator[Mapping[str, Mapping[str, Json]]]:
    """<table-updates>, so many rows at a time. Rows that go come first: one that is made anew has another UUID."""
    if sum(map(len, tables.values())) <= rows:
        yield tables
        return
    for gone in (True, False):
        part: dict[str, dict[str, Json]] = {}
        count = 0
        for table, changes in tables.items():
            for uuid in changes:
                if _is_gone(changes, uuid) is gone:
                    part.setdefault(table, {})[uuid] = changes[uuid]
                    count += 1
                if count == rows:
                    yield part
                    part, count = {}, 0
        if part:
            yield part


def _is_gone(changes: Mapping[str, Json], uuid: str) -> bool:
    return changes.is_gone(uuid) if isinstance(changes, LateRows) else "delete" in changes[uuid]


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS = msgspec.json.Decoder(list[msgspec.Raw])
_TABLES = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])


def _decode_large(text: bytearray) -> Json:
    """As `_decode`, but the rows of <table-updates>, which a result or the last of parameters may be, are decoded
    when they are asked for."""
    try:
        fields = _FIELDS.decode(text)
        return {
            name: _decode_late(value) if name in ("params", "result") else _decode(value)
            for name, value in fields.items()
        }
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"message is not JSON: {error}") from error


def _decode_late(value: msgspec.Raw) -> Json:
    try:
        *others, last = _ITEMS.decode(value)
    except (msgspec.ValidationError, ValueError):
        return _decode_tables(value)
    return [*map(_decode, others), _decode_tables(last)]


def _decode_tables(value: msgspec.Raw) -> Json:
    try:
        return {table: LateRows(rows) for table, rows in _TABLES.decode(value).items()}
    except msgspec.ValidationError:
        return _decode(value)


def _decode(text: memoryview | msgspec.Raw) -> Json:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"message is not JSON: {error}") from error


MANY_OBJECTS = 10_000


@contextmanager
def without_collector() -> Iterator[None]:
    """A JSON text makes a million containers and no cycle: looking for one costs eight times the decoding.

    The collector counts its runs, not what they look at. After a hundred steps, each with thousands of new objects, one
    run would look at them all, for 150 ms. So what a large step has made is frozen: it goes when nothing refers to it.
    Of what others had in hand at that moment, a cycle among it would stay for good; that is little, and rare.
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
    """The result of each operation, or the error that stopped them all (RFC 7047 section 4.1.3).

    An error behind the last operation is one of the commit.
    """
    if reply.error is not None:
        raise TransactionError(*_read_error(reply.error), None)
    results: list[Json] = reply.result
    for index, result in enumerate(results):
        if type(result) is dict and "error" in result:
            raise TransactionError(*_read_error(result), index if index < operations else None)
    return results


def read_result(reply: Reply) -> Json:
    """The result of any other request."""
    if reply.error is not None:
        raise RequestError(*_read_error(reply.error))
    return reply.result


def _read_error(error: Json) -> tuple[str, str]:
    """RFC 7047 has objects; ovsdb-server sends bare strings for a method it does not know."""
    match error:
        case {"error": str(name)}:
            return name, str(error.get("details", ""))
        case _:
            return str(error), ""


def assert_lock(name: str) -> Json:
    """The operation that makes a transaction fail unless this connection owns the lock (RFC 7047 section 5.2.10)."""
    return {"op": "assert", "lock": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMonitor:
    """What to follow of one table; without `where`, every row (ovsdb-server(7) section 4.1.12)."""

    columns: tuple[str, ...]
    where: tuple[Json, ...] = ()


def encode_monitors(tables: Mapping[str, TableMonitor]) -> Json:
    return {
        name: [{"columns": sorted(table.columns), "where": list(table.where)}] for name, table in sorted(tables.items())
    }


def merge_row(row: Mapping[str, Json] | None, change: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """A row of scalar columns after one <row-update2> (ovsdb-server(7) section 4.1.14); None when it is gone."""
    match change:
        case {"initial": new} | {"insert": new}:
            return {**new}
        case {"modify": new}:
            return {**(row or {}), **new}
        case _:
            return None


def find_refusal(row: Mapping[str, Json] | None) -> str | None:
    """Why a server must not be used for the database of this row of `_Server` table `Database`; None if it may.

    A server that is not the leader answers reads late and forwards writes, and has locks of its own
    (ovsdb-server(5)). A relay never leads. Columns with their default value are left out of an update.
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
