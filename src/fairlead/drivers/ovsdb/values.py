"""OVSDB values in JSON, encoded and decoded (RFC 7047 section 5.1). No I/O."""

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.drivers.ovsdb.errors import ProtocolError

Json = Any  # any decoded JSON; callers narrow the type


def encode_uuid(uuid: str) -> Json:
    return ["uuid", uuid]


def encode_named_uuid(name: str) -> Json:
    """Reference to the "uuid-name" of an insert in the same transaction."""
    return ["named-uuid", name]


def encode_set(values: Iterable[Json]) -> Json:
    """Encode a set; a set with one element is the bare element."""
    ordered = sorted(values)
    return ordered[0] if len(ordered) == 1 else ["set", ordered]


def encode_uuids(uuids: Iterable[str]) -> Json:
    return encode_set(encode_uuid(uuid) for uuid in uuids)


def encode_optional(value: Json) -> Json:
    """Encode a column with at most one value: None is the empty set."""
    return ["set", []] if value is None else value


def encode_map(pairs: Mapping[Any, Json]) -> Json:
    return ["map", [[key, pairs[key]] for key in sorted(pairs)]]


def decode_uuid(value: Json) -> str:
    match value:
        case ["uuid", str(uuid)]:
            return uuid
        case _:
            raise ProtocolError(f"not a uuid: {value!r}")


def decode_set(value: Json) -> tuple[Json, ...]:
    """Return the elements in ascending order."""
    match value:
        case ["set", [*elements]]:
            return tuple(sorted(elements))
        case _:
            return (value,)


def decode_uuids(value: Json) -> tuple[str, ...]:
    return tuple(decode_uuid(element) for element in decode_set(value))


def decode_optional(value: Json) -> Json:
    return None if value == ["set", []] else value


def decode_map(value: Json) -> dict[Any, Json]:
    match value:
        case ["map", [*pairs]]:
            return {key: element for key, element in pairs}  # noqa: C416  # pairs are lists, dict() has no type for them
        case _:
            raise ProtocolError(f"not a map: {value!r}")


def patch_map(old: Mapping[Any, Json], difference: Json) -> dict[Any, Json]:
    """Apply a "modify" to a map column: equal pairs are removed, others set (ovsdb-server(7) section 4.1.14)."""
    new = dict(old)
    for key, value in decode_map(difference).items():
        if key in new and new[key] == value:
            del new[key]
        else:
            new[key] = value
    return new
