"""Large messages without I/O: the initial contents of a database may be a hundred megabytes of rows.

* A large message is split between rows while it is received, so it is never scanned in one go.

* A row is decoded when it is accessed.

* A message that does not consist of rows is reassembled and decoded as a whole.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import msgspec

from fairlead.drivers.ovsdb.errors import ProtocolError
from fairlead.drivers.ovsdb.values import Json

LARGE_MESSAGE = 1 << 18
"""Bytes above which a message is split. Decoding the 50 MB of ten thousand load balancers takes a third of a second, as
does finding the rows in the 130 MB of a hundred thousand ports."""
MESSAGE_DEPTH, ROWS_DEPTH = 1, 3
"""Brace depth at the end of {table: ...}, and between two rows of {table: {uuid: row}} in a message (ovsdb-server(7),
4.1.12 to 4.1.15)."""
ROWS_PER_YIELD = 2_000
"""Rows scanned without yielding."""
_Rows: TypeAlias = dict[str, dict[str, msgspec.Raw]]
_TABLE = re.compile(rb'("(?:[^"\\]|\\.)*")\s*:\s*\{')
_TABLES = msgspec.json.Decoder(_Rows)
_BETWEEN = b", \t\r\n"
_GONE = b'{"delete"'
_WHOLE = slice(None)


class LazyRows(Mapping[str, Json]):
    """Rows of a table by UUID, decoded on access. Raises ProtocolError."""

    def __init__(self, rows: Mapping[str, msgspec.Raw]) -> None:
        self._rows = rows

    def __getitem__(self, uuid: str) -> Json:
        return decode(self._rows[uuid])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def is_deleted(self, uuid: str) -> bool:
        """Whether the change deletes the row, without decoding it."""
        return bytes(memoryview(self._rows[uuid])[: len(_GONE)]) == _GONE


def split_rows(tables: Mapping[str, Mapping[str, Json]], rows: int) -> Iterator[Mapping[str, Mapping[str, Json]]]:
    """Split <table-updates> into parts of `rows` rows. Deletes come first, because a re-created row has another UUID.

    An empty part is an opportunity to yield.
    """
    if sum(map(len, tables.values())) <= rows:
        yield tables
        return
    for gone in (True, False):
        part: dict[str, dict[str, Json]] = {}
        count = scanned = 0
        for table, changes in tables.items():
            for uuid in changes:
                scanned += 1
                if _is_deleted(changes, uuid) is gone:
                    part.setdefault(table, {})[uuid] = changes[uuid]
                    count += 1
                if count == rows:
                    yield part
                    part, count = {}, 0
                elif scanned % ROWS_PER_YIELD == 0:
                    yield {}
        if part:
            yield part


def _is_deleted(changes: Mapping[str, Json], uuid: str) -> bool:
    return changes.is_deleted(uuid) if isinstance(changes, LazyRows) else "delete" in changes[uuid]


class SplitMessage:
    """A message that is split between two rows: `add` each piece, then `end`."""

    def __init__(self) -> None:
        self.length = 0
        """Bytes added."""
        self._texts: list[tuple[bytes, bytes, slice]] = []
        """For each piece: the prefix removed from it, the decoded text, and the slice of the text that is the original.
        Rows refer to the decoded text, so nothing is stored twice."""
        self._head = b""
        """Text before {table: ...}."""
        self._tables: dict[str, dict[str, msgspec.Raw]] = {}
        self._table = b""
        """Table that the next piece starts in: its name as JSON."""
        self._close: int | None = None
        self._is_other_structure = False
        """Whether the message has another structure."""

    def add(self, text: bytes) -> None:
        """Add a piece, which ends after a row."""
        self.length += len(text)
        self._is_other_structure = self._is_other_structure or self._close is not None
        rest = text if self._texts or self._is_other_structure else self._begin(text)
        if self._is_other_structure:
            self._texts.append((b"", text, _WHOLE))
        else:
            self._take(text[: len(text) - len(rest)], rest, b"}}")

    def record_close(self, position: int) -> None:
        """Record that {table: ...} ends at this position of the next piece, unless recorded before."""
        self._close = position if self._close is None else self._close

    def end(self, text: bytes) -> Json:
        """Add the last piece and return the message. Raises ProtocolError."""
        if not self._is_other_structure and self._close is not None:
            self._take(b"", text[: self._close], b"")
            text = text[self._close :]
            if not self._is_other_structure:
                tables = {table: LazyRows(rows) for table, rows in self._tables.items()}
                found = _put(_try_decode(self._head + b"{}" + text), tables)
                if found is not None:
                    return found
        return decode(b"".join([*(before + taken[rest] for before, taken, rest in self._texts), text]))

    def _begin(self, text: bytes) -> bytes:
        """Return the part of the first piece that belongs to rows."""
        begin = text.find(b"{", text.find(b"{") + 1)
        found = _TABLE.match(text, begin + 1)
        self._is_other_structure = found is None
        if found is None:
            return b""
        self._head, self._table = text[:begin], found[1]
        return text[found.end() :]

    def _take(self, before: bytes, rows: bytes, closing: bytes) -> None:
        """Decode the rows of a piece. `before` is text that precedes them and is not part of them."""
        begin, told = b"{" + self._table + b":{", rows.lstrip(_BETWEEN)
        text = begin + told + closing
        rest = slice(len(begin), len(begin) + len(told))
        self._texts.append((before + rows[: len(rows) - len(told)], text, rest))
        try:
            found = _TABLES.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._is_other_structure = True
            return
        for table, each in found.items():
            self._tables.setdefault(table, {}).update(each)
        self._table = msgspec.json.encode(next(reversed(found)))


def _put(message: Json, tables: Json) -> Json:
    """Return the message with its tables inserted as result, or as last element of the result or the parameters.

    None if it has no such place.
    """
    match message:
        case {"result": {}} if not message["result"]:
            return {**message, "result": tables}
        case {"result": [*others, {} as last]} if not last:
            return {**message, "result": [*others, tables]}
        case {"params": [*others, {} as last]} if not last:
            return {**message, "params": [*others, tables]}
        case _:
            return None


def _try_decode(text: bytes) -> Json:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def decode(text: bytes | memoryview | msgspec.Raw) -> Json:
    """Decode JSON. Raises ProtocolError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"message is not JSON: {error}") from error
