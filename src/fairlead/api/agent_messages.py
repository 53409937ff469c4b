"""What agents and servers say to each other: each message declared once, for the end that writes it and the end that
reads it.

A message is JSON. `render_...` makes one; its `Parser` reads it, raises ValueError with a sentence that says what would
be right, and has the schema of the OpenAPI document.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeAlias
from urllib.parse import quote

from fairlead.api.fields import (
    BadField,
    Field,
    MissingField,
    Parser,
    Schema,
    Spec,
    UnknownField,
    address,
    fields_schema,
    integer,
    list_of,
    mapping,
    read_fields,
    reads,
    text,
    word_of,
)
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import (
    LONGEST_INTERVAL,
    MOST_SERVICES,
    CountedService,
    CountingPlace,
    Figures,
    parse_place,
)

MOST_LISTENERS = 15_000
"""In one report. A body has 4 MiB and 100,000 values (`door.MOST_VALUES`), of which each listener takes five."""
LARGEST_SUM = 2**63 - 1
LONGEST_NAME = 255
Message: TypeAlias = tuple[str, str, object]
"""Method, path and body."""


def _object(spec: Spec) -> Parser[Mapping[str, object]]:
    """Raises ValueError that names the attribute."""

    @reads(fields_schema(spec))
    def parse(value: object) -> Mapping[str, object]:
        try:
            return read_fields(spec, mapping(value))
        except UnknownField as error:
            raise ValueError(f"Unknown attribute: {error}; there are {', '.join(spec)}") from None
        except MissingField as error:
            raise ValueError(f"{error.name} is missing.") from None
        except BadField as error:
            raise ValueError(str(error)) from None

    return parse


def _each(parse_item: Parser[Mapping[str, object]], most: int) -> Parser[Mapping[str, Mapping[str, object]]]:
    """An object with any names."""
    schema: Schema = {"type": "object", "additionalProperties": parse_item.schema, "maxProperties": most}

    @reads(schema)
    def parse(value: object) -> Mapping[str, Mapping[str, object]]:
        found = mapping(value)
        if len(found) > most:
            raise ValueError(f"Value should have at most {most} attributes.")
        return {name: parse_item(item) for name, item in found.items()}

    return parse


@reads({"type": "string", "maxLength": LONGEST_NAME, "pattern": "^(datapath:[0-9]{1,10}|zone:[^\\u0000]+)$"})
def _place(value: object) -> CountingPlace:
    place = text(LONGEST_NAME)(value)
    if not re.fullmatch(r"datapath:[0-9]{1,10}|zone:.+", place, re.DOTALL):
        raise ValueError("Value should be datapath:KEY or zone:NAME.")
    return parse_place(place)


_SERVICE = _object(
    {
        "place": Field(_place, required=True),
        "transport": Field(word_of(Transport), required=True),
        "address": Field(address, required=True),
        "port": Field(integer(1, 65535), required=True),
    }
)
_FIGURES = _object({each.name: Field(integer(0, LARGEST_SUM), nullable=False) for each in fields(Figures)})
QUESTION = _object(
    {
        "chassis": Field(text(LONGEST_NAME)),
        "sightings": Field(list_of(_SERVICE, MOST_SERVICES), required=True),
    }
)
"""Whose are the addresses that a chassis has counted for?"""
REPORT = _object(
    {
        "interval": Field(integer(1, LONGEST_INTERVAL), required=True),
        "listeners": Field(_each(_FIGURES, MOST_LISTENERS), required=True),
    }
)
"""All sums of a chassis, and after how many seconds it will tell them again."""


def render_service(service: CountedService) -> dict[str, object]:
    return {
        "place": str(service.place),
        "transport": service.transport.value,
        "address": str(service.address),
        "port": service.port,
    }


def render_question(chassis: str, services: Iterable[CountedService]) -> Message:
    return "POST", "/agent/sightings", {"chassis": chassis, "sightings": [*map(render_service, services)]}


def read_services(question: Mapping[str, Any]) -> list[CountedService]:
    """Of a message that `QUESTION` has read."""
    return [CountedService(**each) for each in question["sightings"]]


def render_report(chassis: str, interval: int, sums: Mapping[str, Figures]) -> Message:
    listeners = {listener: asdict(figures) for listener, figures in sums.items()}
    return "PUT", f"/agent/chassis/{quote(chassis, safe='')}", {"interval": interval, "listeners": listeners}
