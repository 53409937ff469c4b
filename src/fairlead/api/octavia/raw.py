"""Attribute `raw` of a listener, which Octavia lacks: required first bytes of a connection.

The bytes are hexadecimal, because they may not be text in any encoding.
"""

import re

from fairlead.api.http.front_end import JsonObject
from fairlead.model.documents import sizes
from fairlead.model.documents.loadbalancer import RawMatch
from fairlead.schema import (
    BadField,
    Field,
    MissingField,
    Spec,
    fields_schema,
    integer,
    mapping,
    read_fields,
    reads,
    text,
)

_BYTES = re.compile("(?:[0-9A-Fa-f]{2})+")


@reads({"type": "string", "maxLength": 2 * sizes.MAX_RAW_BYTES, "pattern": "^([0-9A-Fa-f]{2})+$"})
def hexadecimal(value: object) -> bytes:
    found = text(2 * sizes.MAX_RAW_BYTES)(value)
    if not _BYTES.fullmatch(found):
        raise ValueError("Value should be bytes in hexadecimal digits, two for each: 5353482d is SSH-.")
    return bytes.fromhex(found)


_RAW: Spec = {
    "location": Field(integer(0, sizes.MAX_RAW_OFFSET), required=True),
    "value": Field(hexadecimal, required=True),
}


@reads(fields_schema(_RAW))
def raw_match(value: object) -> RawMatch:
    try:
        return RawMatch(**read_fields(_RAW, mapping(value)))
    except MissingField as error:
        raise ValueError(f"Value should have a {error}.") from None
    except BadField as error:
        raise ValueError(f"{error}") from None


def encode_raw(raw: RawMatch | None) -> JsonObject | None:
    return None if raw is None else {"location": raw.location, "value": raw.value.hex()}
