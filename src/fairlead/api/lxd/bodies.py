"""Parsers of bodies with the semantics of Go's decoder: null means missing, and unknown attributes are ignored."""

from collections.abc import Collection, Mapping
from typing import Any

from fairlead.schema import BadField, Field, Parser, Schema, Values, mapping, or_null, read_fields, reads
from fairlead.schema import text as any_text

MAX_KEY_LENGTH = 255
MAX_VALUE_LENGTH = 1024
"""Maximum characters of a config key and its value."""
MAX_FREE_KEYS, MAX_OTHER_KEYS = 128, 32
"""Maximum keys in a config: with free names (`user.*`, `fairlead.*`), and others. They count separately, because
responses contain keys that the client never set, and a client must be able to send back the config that it reads."""
FREE = ("user.", "fairlead.")


def struct(fields: Mapping[str, Field]) -> Parser[Values]:
    """Make a parser of an object with these attributes. Null optional attributes are dropped."""
    properties = {name: field.schema for name, field in fields.items()}
    required = sorted(name for name, field in fields.items() if field.required)
    schema: Schema = {"type": "object", "properties": properties, "required": required}

    @reads(schema)
    def read(value: object) -> Values:
        try:
            body = mapping(value)
        except ValueError as error:
            raise BadField("body", value, str(error)) from None
        known = {name: each for name, each in body.items() if name in fields}
        return {name: each for name, each in read_fields(fields, known).items() if each is not None}

    return read


def flag(default: Any = None) -> Parser[bool]:
    @reads({"type": "boolean"})
    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError("expected a boolean")
        return value

    return read


@reads(
    {
        "type": "object",
        "maxProperties": MAX_FREE_KEYS + MAX_OTHER_KEYS,
        "propertyNames": {"maxLength": MAX_KEY_LENGTH},
        "additionalProperties": or_null({"type": "string", "maxLength": MAX_VALUE_LENGTH}),
    }
)
def config(value: object) -> Mapping[str, str]:
    """Parse a config; null means an empty value. The resource defines the meaning of an empty value (removal)."""
    found = mapping(value)
    if fault := _too_many(found):
        raise ValueError(fault)
    read_key, read_value = any_text(MAX_KEY_LENGTH), any_text(MAX_VALUE_LENGTH)
    try:
        return {read_key(key): "" if each is None else read_value(each) for key, each in sorted(found.items())}
    except ValueError as error:
        raise BadField("config", value, str(error)) from None


def merged(stored: Mapping[str, str], said: Mapping[str, str]) -> Mapping[str, str]:
    """Return a config after a PATCH; missing keys are unchanged. Raises BadField if the result has more keys than a
    request may have, because it could not be written back."""
    found = {**stored, **said}
    fault = _too_many([key for key, value in found.items() if value])
    if said and fault:
        raise BadField("config", said, f"{fault} with those that are there")
    return found


def _too_many(keys: Collection[object]) -> str:
    free = sum(str(key).startswith(FREE) for key in keys)
    if free > MAX_FREE_KEYS:
        return f"expected at most {MAX_FREE_KEYS} keys of {' and '.join(f'{each}*' for each in FREE)}"
    return f"expected at most {MAX_OTHER_KEYS} other keys" if len(keys) - free > MAX_OTHER_KEYS else ""
