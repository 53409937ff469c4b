"""Request bodies, declared: each attribute with its parser, read in one pass that refuses what it does not know.

A parser takes a JSON value and returns a value of the model, or raises ValueError with a sentence that says what would
be right. The door puts its own words around the sentence. A parser's schema says the same to clients: the OpenAPI
document of a door is made of what the door reads with, so a limit is written down once.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

from fairlead.model.addresses import IPAddress, IPNetwork, parse_address, parse_network

Schema: TypeAlias = Mapping[str, object]
"""JSON Schema, as OpenAPI 3.1 has it."""
Values: TypeAlias = Mapping[str, Any]
UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")
NULL: Schema = {"type": "null"}
_E = TypeVar("_E", bound=StrEnum)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parser(Generic[_T]):
    """`schema` is the form that a value should have; `read` may take more: the texts that OpenStack's clients write for
    a number or a boolean. What the schema allows is read, unless attributes do not fit together."""

    schema: Schema
    read: Callable[[object], _T]

    def __call__(self, value: object) -> _T:
        return self.read(value)


def reads(schema: Schema) -> Callable[[Callable[[object], _T]], Parser[_T]]:
    """Makes a function that reads a value of this schema a parser."""
    return lambda read: Parser(schema, read)


@dataclass(frozen=True, slots=True)
class Field:
    """An attribute with its parser. One that is `required` may be neither missing nor null; but a null in one that
    `names_parent` is read, since the parent is looked up next, and nothing has that id."""

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
    """Of an object with no other attributes than these."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": sorted(required),
        "additionalProperties": False,
    }


def fields_schema(spec: Spec) -> Schema:
    """What `read_fields` takes."""
    required = (name for name, field in spec.items() if field.required)
    return object_schema({name: field.schema for name, field in spec.items()}, required)


class UnknownField(Exception):
    """`path` is the attributes that lead to the object which has them."""

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
    """The attributes that the body has, parsed. Raises UnknownField, MissingField, BadField.

    A null stays None: what it means ("the default", "take it away") is the resource's to say.
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
    """`longest` in characters, not in bytes."""

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
    """true and false, and the texts and numbers that OpenStack's clients write for them."""
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
        number = whole(value)
        if number is None:
            raise ValueError("Value should be an integer.")
        if number < least:
            raise ValueError(f"Value should be greater or equal to {least}")
        if number > most:
            raise ValueError(f"Value should be lower or equal to {most}")
        return number

    return parse


def whole(value: object) -> int | None:
    """The number that a JSON value is: 80.0 is 80 (JSON Schema, "Numeric types"), and clients write "80" as well."""
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
    """An IPv4 address inside an IPv6 one (RFC 4291, 2.5.5.2) is refused: no packet ever carries it."""
    found = parse_address(value if isinstance(value, str) else repr(value))
    if found.version == 6 and found.ipv4_mapped is not None:
        raise ValueError(f"'{value}' is not a valid IP address: it is IPv4, and has to be written so.")
    return found


@dataclass(frozen=True, slots=True)
class Written:
    """An address, and the text that was written for it; no text where that is the canonical one."""

    address: IPAddress
    text: str = ""


@reads(address.schema)
def written_address(value: object) -> Written:
    found = address(value)
    return Written(found) if value == str(found) else Written(found, str(value))


@reads({"type": "string", "format": "cidr", "examples": ["10.0.0.0/24", "2001:db8::/64"]})
def cidr(value: object) -> IPNetwork:
    return parse_network(value if isinstance(value, str) else repr(value))


@reads({"type": "string", "format": "uuid"})
def uuid(value: object) -> str:
    """Kept as it was written: ids are compared as text."""
    if not isinstance(value, str) or not UUID.fullmatch(value):
        raise ValueError("Value should be UUID format")
    return value


def words_schema(words: type[StrEnum]) -> Schema:
    return {"type": "string", "enum": [word.value for word in words]}


def word_of(words: type[_E], but: Collection[_E] = ()) -> Parser[_E]:
    """One of these words, `but` those that this API does not have."""
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
