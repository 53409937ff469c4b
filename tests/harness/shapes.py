"""Shapes of documents, derived from their types, and a sample of each kind with a value in every field."""

import types
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fairlead.model.documents.owner import Kind
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.registry.kinds import KINDS
from fairlead.model.snapshot import Aggregate

PLAIN: dict[Any, Any] = {
    str: "text",
    int: 7,
    bool: True,
    bytes: b"octets",
    float: 1.5,
    datetime: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    IPv4Address: IPv4Address("192.0.2.7"),
    IPv6Address: IPv6Address("2001:db8::7"),
    IPv4Network: IPv4Network("192.0.2.0/24"),
    IPv6Network: IPv6Network("2001:db8::/64"),
}


def shape(form: Any) -> Any:
    """Shape as JSON: names and types of fields, and values of enumerations."""
    if is_dataclass(form) and isinstance(form, type):
        hints = get_type_hints(form)
        return {each.name: [shape(hints[each.name]), _default(each)] for each in fields(form) if each.init}
    if isinstance(form, type) and issubclass(form, Enum):
        return sorted(str(each.value) for each in form)
    if get_origin(form) in (Union, types.UnionType):
        return {"one of": sorted((shape(each) for each in get_args(form)), key=str)}
    if get_origin(form) is Literal:
        return list(map(str, get_args(form)))
    if get_origin(form) is not None:
        return {get_origin(form).__name__: [shape(each) for each in get_args(form)]}
    return getattr(form, "__name__", str(form))


def _default(field: Any) -> str:
    """Value that a missing field is read as. A different default changes the meaning of stored documents."""
    if field.default is not MISSING:
        return str(field.default)
    return "required" if field.default_factory is MISSING else "made"


def sample_document(kind: Kind) -> Aggregate:
    """A document with a value in every field."""
    made: Aggregate = sample(KINDS[kind].document)
    return made


def sample(form: Any) -> Any:
    if form in PLAIN:
        return PLAIN[form]
    if form is PortRange:
        return PortRange(80, 81)
    if is_dataclass(form) and isinstance(form, type):
        hints = get_type_hints(form)
        return form(**{each.name: sample(hints[each.name]) for each in fields(form) if each.init})
    if isinstance(form, type) and issubclass(form, Enum):
        return next(iter(form))
    if isinstance(form, type) and issubclass(form, tuple):
        return form(*(sample(each) for each in get_type_hints(form).values()))
    origin, inner = get_origin(form), get_args(form)
    if origin in (Union, types.UnionType):
        return sample(next(each for each in inner if each is not type(None)))
    if origin is Literal:
        return inner[0]
    if origin is tuple and inner[1:] == (Ellipsis,):
        return tuple(map(sample, _alternatives(inner[0])))
    if origin is tuple:
        return tuple(map(sample, inner))
    if origin in (frozenset, set):
        return origin(map(sample, _alternatives(inner[0])))
    if origin is not None and len(inner) == 2:
        return {sample(inner[0]): sample(inner[1])}
    raise TypeError(form)


def _alternatives(form: Any) -> tuple[Any, ...]:
    """All alternatives of a union, without None; otherwise the type itself."""
    if get_origin(form) in (Union, types.UnionType):
        return tuple(each for each in get_args(form) if each is not type(None))
    return (form,)
