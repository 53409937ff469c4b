"""JSON codec of documents: the fields of the model's dataclasses, addresses as text, times in ISO 8601.

A document has no class name, because its key determines the kind. The codec is lossless both ways; a test checks each
kind.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, AF_INET6, inet_pton
from sys import intern
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn, override

from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.l7 import L7Action
from fairlead.model.documents.loadbalancer import HealthMonitor, SessionPersistence
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.port_ranges import PortRange, Ports, TargetPort, one_port
from fairlead.model.registry.kinds import KINDS, owner_of
from fairlead.model.snapshot import Aggregate
from fairlead.store.formats import NewerDocument, upgraded, with_format
from fairlead.store.interface import StoreError


class BadDocument(StoreError):
    """The document does not match its kind; another program wrote it. The message names the owner."""


_T = TypeVar("_T")
MAX_ERROR_LENGTH = 300
"""Characters."""
Hook: TypeAlias = Callable[[Any, Any], Any]
"""cattrs structure hook: converts a decoded JSON value to a type."""
PLAIN = (str, int, bool)
CLASSES: Mapping[str, type[Aggregate]] = {kind.value: declared.document for kind, declared in KINDS.items()}


def encode(aggregate: Aggregate) -> bytes:
    return with_format(owner_of(aggregate).kind, _ENCODER.encode(aggregate))


def decode(owner: Owner, document: bytes) -> Aggregate:
    """Decode the document of an owner. Raises BadDocument if it does not match the owner's kind, and NewerDocument."""
    try:
        found = upgraded(str(owner), owner.kind, msgspec.json.decode(document))
        decoded: Aggregate = _CONVERTER.structure(found, CLASSES[owner.kind.value])
    except NewerDocument:
        raise
    except Exception as error:  # cattrs has no common base class for errors of structuring
        raise BadDocument(f"{owner}: invalid document: {error!r}") from error
    return decoded


def decode_stored(key: str, document: bytes) -> Aggregate:
    """Decode the document stored under a key. Raises BadDocument, and NewerDocument also for unknown kinds."""
    owner = owner_of_key(key)
    if owner is None:
        raise NewerDocument(key, "this version has no such kind")
    return decode(owner, document)


def owner_of_key(key: str) -> Owner | None:
    """Parse a key; None for a kind of a newer version."""
    try:
        return Owner.parse(key)
    except ValueError:
        return None


def encode_value(value: object) -> bytes:
    """Encode a model value that is not a document of its own as JSON."""
    return _ENCODER.encode(value)


def read_value(decoded: object, form: type[_T]) -> _T:
    """Convert decoded JSON to a value of class `form`. Raises ValueError."""
    try:
        found: _T = _CONVERTER.structure(decoded, form)
    except Exception as error:  # cattrs has no common base class for errors of structuring
        raise ValueError(f"not a {form.__name__}: {error!r}"[:MAX_ERROR_LENGTH]) from error
    return found


def _text(value: object) -> str:
    if isinstance(value, IPv4Address | IPv6Address | IPv4Network | IPv6Network):
        return str(value)
    raise NotImplementedError(type(value))


@lru_cache(maxsize=2**12)
def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address once and share the object, because a server is a member of many pools.

    Stored addresses are canonical. `inet_pton` reads those four times as fast as `ip_address`, which reads the rest.
    """
    try:
        return IPv6Address(inet_pton(AF_INET6, text)) if ":" in text else IPv4Address(inet_pton(AF_INET, text))
    except OSError:
        return ip_address(text)


@lru_cache(maxsize=2**12)
def _time(text: str) -> datetime:
    """Parse a time once and share the object, because all objects created in one request have the same time."""
    return datetime.fromisoformat(text)


@lru_cache(maxsize=2**12)
def _one(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Share equal tuples: pools with the same number of equal members start with the same slot tables."""
    return numbers


def _integers(numbers: list[object], _: object) -> tuple[int, ...]:
    """Check the hundreds of integers of a slot table in one pass instead of one by one."""
    if set(map(type, numbers)) <= {int}:
        return _one(tuple(numbers))
    raise TypeError(f"{numbers} must be integers")


def _is_union_of(*members: type) -> Callable[[Any], bool]:
    """Return a predicate over types: true for the union of `members`, with or without None."""
    wanted = set(members)

    def holds(form: Any) -> bool:
        origin: object = get_origin(form)
        return (origin is Union or origin is UnionType) and wanted <= set(get_args(form)) <= {*wanted, type(None)}

    return holds


def _is_one_or_none(form: Any) -> bool:
    """Whether a type is the union of one class and None."""
    members = get_args(form)
    return get_origin(form) in (Union, UnionType) and len(members) == 2 and type(None) in members


def _or_none(form: Any, converter: Converter) -> Hook:
    (some,) = (member for member in get_args(form) if member is not type(None))
    if some in PLAIN:
        return _plain_or_none(some)
    hook = converter.get_structure_hook(some)
    return lambda value, _: None if value is None else hook(value, some)


def _plain_or_none(some: type) -> Hook:
    def structure(value: object, _: object) -> object:
        if value is None or type(value) is some:
            return value
        raise TypeError(f"{value!r} is not a {some.__name__}")

    return structure


def _is_tuple(form: Any) -> bool:
    return get_origin(form) is tuple and get_args(form)[1:] == (Ellipsis,)


def _tuple_of(form: Any, converter: Converter) -> Hook:
    item = get_args(form)[0]
    hook = converter.get_structure_hook(item)
    return lambda values, _: tuple([hook(value, item) for value in values]) if values else ()


def _is_resource(form: Any) -> bool:
    return isinstance(form, type) and issubclass(form, Resource)


def _resource(form: Any, converter: Converter) -> Hook:
    """Structure a resource, interning its project id, because all objects of a project share it."""
    once = override(struct_hook=lambda text, _: intern(text))
    return make_dict_structure_fn(form, converter, _cattrs_detailed_validation=False, project_id=once)


def _ports(ranges: list[list[int]]) -> Ports:
    found = tuple(PortRange(_number(first), _number(last)) for first, last in ranges)
    return one_port(found[0].first) if len(found) == 1 and found[0].first == found[0].last else found


def _target(value: object, _: object) -> TargetPort:
    return value if value is None or type(value) is int else _ports(value)  # type: ignore[arg-type]


def _number(value: object) -> int:
    if type(value) is int:
        return value
    raise TypeError(f"{value!r} is not an int")


def _register_union(converter: Converter, union: Any) -> None:
    """Register a union of classes that a Literal field `type` distinguishes."""
    classes = {word: each for each in get_args(union) for word in get_args(get_type_hints(each)["type"])}

    def structure(document: Any, _: object) -> Any:
        return None if document is None else converter.structure(document, classes[document["type"]])

    converter.register_structure_hook_func(_is_union_of(*get_args(union)), structure)


def _register_parser(converter: Converter, union: Any, parse: Callable[[str], object]) -> None:
    """Register a union of classes that one function parses from a text."""
    converter.register_structure_hook_func(
        _is_union_of(*get_args(union)), lambda text, _: None if text is None else parse(text)
    )


def _make_converter() -> Converter:
    """Return a converter with fast hooks for common types, because a start decodes hundreds of thousands of members."""
    converter = Converter(detailed_validation=False)
    converter.register_structure_hook_factory(_is_one_or_none, _or_none)
    converter.register_structure_hook_factory(_is_tuple, _tuple_of)
    converter.register_structure_hook_func(lambda form: form == tuple[int, ...], _integers)
    converter.register_structure_hook_factory(_is_resource, _resource)
    for union, parse in ((IPAddress, _address), (IPNetwork, ip_network)):
        _register_parser(converter, union, parse)
    converter.register_structure_hook(bytes, lambda text, _: b64decode(text, validate=True))
    converter.register_structure_hook(datetime, lambda text, _: _time(text))
    converter.register_structure_hook_func(
        lambda form: isinstance(form, type) and issubclass(form, StrEnum), lambda text, form: form(text)
    )
    for union in (L7Action, HealthMonitor, SessionPersistence):
        _register_union(converter, union)
    converter.register_structure_hook_func(lambda form: form == Ports, lambda ranges, _: _ports(ranges))
    converter.register_structure_hook_func(lambda form: form == TargetPort, _target)
    return converter


_ENCODER = msgspec.json.Encoder(enc_hook=_text)
_CONVERTER = _make_converter()
