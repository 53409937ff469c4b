"""Declarative parsers of request bodies: each attribute has a parser, and one pass rejects unknown attributes.

A parser takes a JSON value and returns a value of the model, or raises ValueError with a sentence that names the valid
form. The front end adds its own error format. The parser's schema is also the source of the OpenAPI document, so each
limit is declared once.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address, parse_network

Schema: TypeAlias = Mapping[str, object]
"""JSON Schema in the dialect of OpenAPI 3.1."""
Values: TypeAlias = Mapping[str, Any]
UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
NULL: Schema = {"type": "null"}
_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parser(Generic[_T]):
    """Parser with its schema. `read` accepts every value of the schema, unless attributes conflict, and may accept
    more: the strings that OpenStack clients send for numbers and booleans."""

    schema: Schema
    read: Callable[[object], _T]

    def __call__(self, value: object) -> _T:
        return self.read(value)


def reads(schema: Schema) -> Callable[[Callable[[object], _T]], Parser[_T]]:
    """Decorator: make a parser of a function that reads a value of this schema."""
    return lambda read: Parser(schema, read)


@dataclass(frozen=True, slots=True)
class Field:
    """Attribute with its parser. A `required` attribute must be present and not null, except that `names_parent`
    accepts null: the lookup of the parent that follows then fails."""

    parse: Parser[Any]
    required: bool = False
    nullable: bool = True
    names_parent: bool = False

    @property
    def schema(self) -> Schema:
        return or_null(self.parse.schema) if self.nullable and not self.required else self.parse.schema


Spec: TypeAlias = Mapping[str, Field]


def or_null(schema: Schema) -> Schema:
    return schema if schema == NULL else {"anyOf": [schema, NULL]}


def object_schema(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    """Return the schema of an object that has only these attributes."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": sorted(required),
        "additionalProperties": False,
    }


def fields_schema(spec: Spec) -> Schema:
    """Return the schema of a body for `read_fields`."""
    required = (name for name, field in spec.items() if field.required)
    return object_schema({name: field.schema for name, field in spec.items()}, required)


class UnknownField(Exception):
    """Unknown attributes; `path` has the attributes that lead to their object."""

    def __init__(self, names: list[str], path: tuple[str, ...] = ()) -> None:
        super().__init__(", ".join(names))
        self.names = names
        self.path = path


class MissingField(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class BadField(Exception):
    def __init__(self, name: str, value: object, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.value = value
        self.reason = reason


def read_fields(spec: Spec, body: Mapping[str, object]) -> Values:
    """Parse the attributes of a body. Raises UnknownField, MissingField, BadField.

    A null is returned as None; the resource defines its meaning (default, or removal).
    """
    unknown = sorted(name for name in body if name not in spec)
    if unknown:
        raise UnknownField(unknown)
    values: dict[str, Any] = {}
    for name, field in spec.items():
        if body.get(name) is None:
            if field.required and not (field.names_parent and name in body):
                raise MissingField(name)
            if name in body:
                if not field.nullable:
                    raise BadField(name, None, "A value is required.")
                values[name] = None
            continue
        try:
            values[name] = field.parse(body[name])
        except UnknownField as error:
            raise UnknownField(error.names, (name, *error.path)) from None
        except ValueError as error:
            raise BadField(name, body[name], str(error)) from None
    return values


def text(longest: int = 255) -> Parser[str]:
    """Make a parser of a string of at most `longest` characters."""

    @reads({"type": "string", "maxLength": longest, "pattern": "^[^\\u0000]*$"})
    def parse(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError("Value should be string")
        if len(value) > longest:
            raise ValueError(f"Value should have a maximum character requirement of {longest}")
        if "\0" in value:
            raise ValueError("Value should have no null characters.")
        return value

    return parse


@reads({"type": "boolean"})
def boolean(value: object) -> bool:
    """Parse a boolean, or one of the strings and numbers that OpenStack clients send for it."""
    match value:
        case bool():
            return value
        case str() if value.lower() in ("true", "t", "yes", "y", "on", "1"):
            return True
        case str() if value.lower() in ("false", "f", "no", "n", "off", "0"):
            return False
        case 0 | 1:
            return bool(value)
        case _:
            raise ValueError("Value should be a boolean.")


def integer(least: int, most: int) -> Parser[int]:
    @reads({"type": "integer", "minimum": least, "maximum": most})
    def parse(value: object) -> int:
        number = as_integer(value)
        if number is None:
            raise ValueError("Value should be an integer.")
        if number < least:
            raise ValueError(f"Value should be greater or equal to {least}")
        if number > most:
            raise ValueError(f"Value should be lower or equal to {most}")
        return number

    return parse


def as_integer(value: object) -> int | None:
    """Return the integer of a JSON value: 80.0 is 80 (JSON Schema, "Numeric types"), and "80" is accepted, too. None
    for anything else."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if value.is_integer():
            return int(value)
        case str() if re.fullmatch(r"-?[0-9]{1,18}", value):
            return int(value)
        case _:
            return None


@reads({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]})
def address(value: object) -> IPAddress:
    """Parse an IP address. IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2) are rejected, because no packet carries
    them."""
    found = parse_address(value if isinstance(value, str) else repr(value))
    if found.version == 6 and found.ipv4_mapped is not None:
        raise ValueError(f"'{value}' is not a valid IP address: it is IPv4, and has to be written so.")
    return found


@dataclass(frozen=True, slots=True)
class WrittenAddress:
    """Address with the client's spelling; `text` is empty if that is the canonical one."""

    address: IPAddress
    text: str = ""


@reads(address.schema)
def written_address(value: object) -> WrittenAddress:
    found = address(value)
    return WrittenAddress(found) if value == str(found) else WrittenAddress(found, str(value))


@reads({"type": "string", "format": "cidr", "examples": ["10.0.0.0/24", "2001:db8::/64"]})
def cidr(value: object) -> IPNetwork:
    return parse_network(value if isinstance(value, str) else repr(value))


@reads({"type": "string", "format": "uuid"})
def uuid(value: object) -> str:
    """Parse a UUID without normalising it, because ids are compared as text."""
    if not isinstance(value, str) or not UUID.fullmatch(value):
        raise ValueError("Value should be UUID format")
    return value


def enum_schema(words: type[StrEnum]) -> Schema:
    return {"type": "string", "enum": [word.value for word in words]}


def enum_of(words: type[_E], but: Collection[_E] = ()) -> Parser[_E]:
    """Make a parser of an enum, without the members in `but`, which this API lacks."""
    known = {word.value: word for word in words if word not in but}

    @reads({"type": "string", "enum": list(known)})
    def parse(value: object) -> _E:
        try:
            return known[str(value)]
        except KeyError:
            raise ValueError(f"Value should be one of: {', '.join(known)}") from None

    return parse


def array_schema(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def list_of(parse_item: Parser[_T], most: int = 1000) -> Parser[tuple[_T, ...]]:
    @reads(array_schema(parse_item.schema, most))
    def parse(value: object) -> tuple[_T, ...]:
        if not isinstance(value, list):
            raise ValueError("Value should be a list.")
        if len(value) > most:
            raise ValueError(f"Value should have at most {most} items.")
        return tuple(parse_item(item) for item in value)

    return parse


@reads({"type": "object"})
def mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("Value should be an object.")
    return value
