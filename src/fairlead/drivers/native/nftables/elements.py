"""Elements of nftables sets and maps as netlink messages, written and read in bulk.

libnftables needs 60 microseconds for each element in text form, and reads a set back to change one element: adding a
load balancer of ten members to 10,000 would take seconds. These functions need a tenth of a microsecond to a few.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fairlead.drivers.native.netlink import (
    MAX_ATTRIBUTE_BYTES,
    REQUEST,
    Message,
    Netlink,
    attribute,
    attributes,
    each_attribute,
    ignore_absent,
    nested,
    nftables,
    text,
)

_GET_SET = 10
_NEW, _GET, _DELETE = 12, 13, 14
_KEY_LENGTH, _DATA_LENGTH = 5, 7
_CREATE = 0x400
_TABLE, _SET, _ELEMENTS = 1, 2, 3
_ELEMENT = 1
_KEY, _DATA, _COMMENT, _EXPRESSION, _KEY_END = 1, 2, 6, 7, 10
_EXPRESSION_DATA, _BYTES, _PACKETS = 2, 1, 2
_VALUE = 1
_NESTED = 0x8000
_HEADS = struct.Struct("=HHHHHH")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shape:
    """A set or map: its name, and the size of keys and values in bytes, in whole words. Compared by identity."""

    name: str
    key: int
    data: int = 0
    commented: bool = False
    """Whether each element has a comment (shown by `nft list set`)."""
    ranges: bool = False
    """Whether a key is a range: the first and the last key, which form a range in each of their fields."""


Elements = Mapping[bytes, bytes]
"""Key -> value, or the comment in a set with comments."""


def added(shape: Shape, elements: Elements) -> Iterator[bytes]:
    """Yield the elements in the kernel's format."""
    if shape.commented:
        for key, comment in elements.items():
            yield _commented(key, comment)
    elif shape.ranges:
        yield from (_range(key) for key in elements)
    else:
        head, middle = _frame(shape.key, shape.data)
        for key, data in elements.items():
            yield head + key + middle + data


def removed(shape: Shape, keys: Iterable[bytes]) -> Iterator[bytes]:
    if shape.ranges:
        yield from map(_range, keys)
    else:
        head, _ = _frame(shape.key, 0)
        for key in keys:
            yield head + key


@lru_cache
def _frame(key: int, data: int) -> tuple[bytes, bytes]:
    """Return the bytes before the key, and those before the value."""
    whole = 4 + 8 + key + (8 + data if data else 0)
    head = _HEADS.pack(whole, _ELEMENT | _NESTED, 8 + key, _KEY | _NESTED, 4 + key, _VALUE)
    middle = struct.pack("=HHHH", 8 + data, _DATA | _NESTED, 4 + data, _VALUE) if data else b""
    return head, middle


def _commented(key: bytes, comment: bytes) -> bytes:
    """Encode a comment as nft does: type, length, text, and a zero byte."""
    said = bytes((0, len(comment) + 1)) + comment + b"\0"
    return nested(_ELEMENT, nested(_KEY, attribute(_VALUE, key)), attribute(_COMMENT, said))


def _range(key: bytes) -> bytes:
    half = len(key) // 2
    first, last = attribute(_VALUE, key[:half]), attribute(_VALUE, key[half:])
    return nested(_ELEMENT, nested(_KEY, first), nested(_KEY_END, last))


class ElementChanges:
    """Changes of a table's elements in one transaction. Deletes precede inserts."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._removed: dict[Shape, list[bytes]] = {}
        self._added: dict[Shape, list[bytes]] = {}

    def __bool__(self) -> bool:
        return bool(self._removed or self._added)

    def add(self, shape: Shape, elements: Elements) -> None:
        if elements:
            self._added.setdefault(shape, []).extend(added(shape, elements))

    def remove(self, shape: Shape, keys: Iterable[bytes]) -> None:
        if found := list(removed(shape, keys)):
            self._removed.setdefault(shape, []).extend(found)

    def change(self, shape: Shape, before: Elements, after: Elements) -> None:
        """Add only the differences."""
        if not before or not after:
            self.remove(shape, before)
            self.add(shape, after)
        elif before != after:
            self.remove(shape, (key for key, data in before.items() if after.get(key) != data))
            self.add(shape, {key: data for key, data in after.items() if before.get(key) != data})

    def change_all(self, before: Mapping[Shape, Elements], after: Mapping[Shape, Elements]) -> None:
        for shape, elements in after.items():
            self.change(shape, before.get(shape, {}), elements)
        for shape in before.keys() - after.keys():
            self.remove(shape, before[shape])

    @property
    def count(self) -> int:
        """Number of changed elements."""
        return sum(len(each) for changed in (self._removed, self._added) for each in changed.values())

    def messages(self) -> list[Message]:
        removed = (each for shape, found in self._removed.items() for each in self._parts(_DELETE, shape, found, 0))
        added = (each for shape, found in self._added.items() for each in self._parts(_NEW, shape, found, _CREATE))
        return [*removed, *added]

    def _parts(self, kind: int, shape: Shape, elements: Sequence[bytes], flags: int) -> Iterator[Message]:
        where = text(_TABLE, self._table), text(_SET, shape.name)
        many = max(1, MAX_ATTRIBUTE_BYTES // max(map(len, elements)))
        for first in range(0, len(elements), many):
            listed = nested(_ELEMENTS, *elements[first : first + many])
            yield nftables(kind, *where, listed, flags=flags | REQUEST)


def read_elements(netlink: Netlink, table: str, shape: Shape) -> dict[bytes, bytes]:
    """Read all elements. Raises Interrupted and OSError."""
    found: dict[bytes, bytes] = {}
    asked = nftables(_GET, text(_TABLE, table), text(_SET, shape.name))
    for _, body in netlink.dump(asked):
        listed = attributes(body[4:]).get(_ELEMENTS, b"")
        if shape.commented or shape.ranges:
            found.update(_read(element, shape) for _, element in each_attribute(listed))
        else:
            found.update(_read_framed(listed, shape))
    return found


def read_shape(netlink: Netlink, table: str, shape: Shape) -> Shape | None:
    """Return the sizes of keys and values in the kernel's set; None if it does not exist. Raises OSError."""
    found: Mapping[int, bytes] = {}
    with ignore_absent():
        found = attributes(netlink.find(nftables(_GET_SET, text(_TABLE, table), text(_SET, shape.name)))[4:])
    if not found:
        return None
    key, data = int.from_bytes(found[_KEY_LENGTH]), int.from_bytes(found.get(_DATA_LENGTH, b""))
    return replace(shape, key=2 * key if shape.ranges else key, data=data)


def read_counters(netlink: Netlink, table: str, shape: Shape) -> dict[bytes, tuple[int, int] | None]:
    """Return packets and bytes of each element; None for one without a counter, which no rule has created.

    Raises Interrupted and OSError.
    """
    found: dict[bytes, tuple[int, int] | None] = {}
    asked = nftables(_GET, text(_TABLE, table), text(_SET, shape.name))
    for _, body in netlink.dump(asked):
        for _, element in each_attribute(attributes(body[4:]).get(_ELEMENTS, b"")):
            parts = attributes(element)
            counted = attributes(attributes(parts.get(_EXPRESSION, b"")).get(_EXPRESSION_DATA, b""))
            is_counter = counted.keys() >= {_PACKETS, _BYTES}
            figures = (int.from_bytes(counted[_PACKETS]), int.from_bytes(counted[_BYTES])) if is_counter else None
            found[attributes(parts[_KEY])[_VALUE]] = figures
    return found


def flushed(table: str, shape: Shape) -> Message:
    """Message that deletes all elements of a set."""
    return nftables(_DELETE, text(_TABLE, table), text(_SET, shape.name))


def _read_framed(listed: bytes, shape: Shape) -> Iterable[tuple[bytes, bytes]]:
    """Read elements of equal length without parsing each; falls back to parsing for manually added ones with more
    attributes, such as a comment."""
    size = 12 + shape.key + (8 + shape.data if shape.data else 0)
    low, high = (bytes([each]) * (len(listed) // size) for each in struct.pack("=H", size))
    if len(listed) % size or (listed[::size], listed[1::size]) != (low, high):
        return [_read_plain(attributes(element), shape) for _, element in each_attribute(listed)]
    if not shape.data:
        return ((key, b"") for (key,) in struct.iter_unpack(f"=12x{shape.key}s", listed))
    return struct.iter_unpack(f"=12x{shape.key}s8x{shape.data}s", listed)


def _read_plain(parts: Mapping[int, bytes], shape: Shape) -> tuple[bytes, bytes]:
    return attributes(parts[_KEY])[_VALUE], attributes(parts[_DATA])[_VALUE] if shape.data else b""


def _read(element: bytes, shape: Shape) -> tuple[bytes, bytes]:
    parts = attributes(element)
    key = attributes(parts[_KEY])[_VALUE]
    if shape.ranges:
        return key + attributes(parts.get(_KEY_END, parts[_KEY]))[_VALUE], b""
    said = parts.get(_COMMENT, b"\0\0")
    return key, said[2 : 2 + said[1]].rstrip(b"\0")
