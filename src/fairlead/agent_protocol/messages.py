"""Messages between agents and servers, each declared once for both ends.

A message is JSON. `render_...` writes one. Its `Parser` reads it, has the schema for the OpenAPI document, and raises
ValueError with a sentence that names the valid form.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.neighbours import MOST_NEIGHBOURS, Neighbour, Neighbourhood, Remembered
from fairlead.model.queries.statistics import (
    LONGEST_INTERVAL,
    MOST_SERVICES,
    CountedService,
    CountingPlace,
    parse_place,
)
from fairlead.schema import (
    BadField,
    Field,
    MissingField,
    Parser,
    Schema,
    Spec,
    address,
    boolean,
    fields_schema,
    integer,
    list_of,
    mapping,
    read_fields,
    reads,
    text,
    word_of,
)

MOST_UNKNOWN = 16
"""Maximum attributes unknown to this release that a newer release may send in one object."""
MOST_LISTENERS = 15_000
"""Maximum listeners in one report. A body has at most 4 MiB and 100,000 values (`door.MOST_VALUES`); a listener takes
five."""
LARGEST_SUM = 2**63 - 1
LONGEST_NAME = 255
LONGEST_WAIT = 60
"""Maximum seconds of a long poll."""
MOST_PORTS = 10_000
"""Maximum ports of one network on one node in a server's answer."""
LONGEST_DIGEST = 64
Message: TypeAlias = tuple[str, str, object]
"""HTTP method, path and body."""
_T = TypeVar("_T")


def object_of(spec: Spec) -> Parser[Mapping[str, object]]:
    """Make a parser of an object. It ignores unknown attributes, which a newer release may send. Raises ValueError with
    the attribute's name."""

    @reads({**fields_schema(spec), "additionalProperties": True, "maxProperties": len(spec) + MOST_UNKNOWN})
    def parse(value: object) -> Mapping[str, object]:
        found = mapping(value)
        if len(found) > len(spec) + MOST_UNKNOWN:
            raise ValueError(f"More than {MOST_UNKNOWN} unknown attributes; there are {', '.join(spec)}")
        try:
            return read_fields(spec, {name: each for name, each in found.items() if name in spec})
        except MissingField as error:
            raise ValueError(f"{error.name} is missing.") from None
        except BadField as error:
            raise ValueError(str(error)) from None

    return parse


def _each(parse_item: Parser[_T], most: int) -> Parser[Mapping[str, _T]]:
    """Make a parser of an object with arbitrary names."""
    schema: Schema = {"type": "object", "additionalProperties": parse_item.schema, "maxProperties": most}

    @reads(schema)
    def parse(value: object) -> Mapping[str, _T]:
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


@reads({"type": "string", "pattern": "^([0-9a-f]{2}:){5}[0-9a-f]{2}$"})
def _mac(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", value):
        raise ValueError("Value should be a MAC address: 02:00:00:00:00:01.")
    return value


_SERVICE = object_of(
    {
        "place": Field(_place, required=True),
        "transport": Field(word_of(Transport), required=True),
        "address": Field(address, required=True),
        "port": Field(integer(1, 65535), required=True),
    }
)
_FIGURES = object_of({each.name: Field(integer(0, LARGEST_SUM), nullable=False) for each in fields(Figures)})
QUESTION = object_of(
    {
        "chassis": Field(text(LONGEST_NAME)),
        "sightings": Field(list_of(_SERVICE, MOST_SERVICES), required=True),
    }
)
"""Request: find the listeners of the addresses for which a chassis has counters."""
REPORT = object_of(
    {
        "interval": Field(integer(1, LONGEST_INTERVAL), required=True),
        "listeners": Field(_each(_FIGURES, MOST_LISTENERS), required=True),
    }
)
"""Report: all counters of a chassis, and the seconds until its next report."""


NEIGHBOURS_QUESTION = object_of(
    {
        "digest": Field(text(LONGEST_DIGEST)),
        "remembered": Field(_each(list_of(address, MOST_NEIGHBOURS), MOST_NEIGHBOURS), required=True),
        "wait": Field(integer(0, LONGEST_WAIT)),
    }
)
"""Long poll: MACs under which a chassis must know its neighbours, if they differ from `digest` (that of the last
answer). `remembered` maps networks to the addresses that the chassis has announced; `wait` is the timeout in
seconds."""
_NAMES = list_of(text(LONGEST_NAME), MOST_PORTS)
_NEIGHBOUR = object_of(
    {
        "address": Field(address, required=True),
        "mac": Field(_mac, required=True),
        "lasting": Field(boolean, required=True),
        "unheard": Field(_NAMES, required=True),
    }
)
_NEIGHBOURHOOD = object_of(
    {
        "ports": Field(_NAMES, required=True),
        "neighbours": Field(list_of(_NEIGHBOUR, MOST_NEIGHBOURS), required=True),
    }
)
NEIGHBOURS = object_of(
    {
        "digest": Field(text(LONGEST_DIGEST), required=True),
        "networks": Field(_each(_NEIGHBOURHOOD, MOST_NEIGHBOURS)),
    }
)
"""Answer: all neighbours by network; null if the digest has not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardNeighbours:
    digest: str
    networks: Mapping[str, Neighbourhood] | None
    """None if the digest has not changed."""


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
    """Read the services of a message parsed by `QUESTION`."""
    return [CountedService(**each) for each in question["sightings"]]


def render_report(chassis: str, interval: int, sums: Mapping[str, Figures]) -> Message:
    listeners = {listener: asdict(figures) for listener, figures in sums.items()}
    return "PUT", f"/agent/chassis/{quote(chassis, safe='')}", {"interval": interval, "listeners": listeners}


def render_neighbours_question(chassis: str, digest: str, remembered: Remembered, wait: int) -> Message:
    asked = {network: [*map(str, addresses)] for network, addresses in remembered.items()}
    body = {"digest": digest, "remembered": asked, "wait": wait}
    return "POST", f"/agent/chassis/{quote(chassis, safe='')}/neighbours", body


def render_neighbourhoods(found: Mapping[str, Neighbourhood]) -> dict[str, object]:
    return {
        network: {"ports": sorted(each.ports), "neighbours": [*map(_render_neighbour, each.neighbours)]}
        for network, each in found.items()
    }


def _render_neighbour(neighbour: Neighbour) -> dict[str, object]:
    return {
        "address": str(neighbour.address),
        "mac": neighbour.mac,
        "lasting": neighbour.lasting,
        "unheard": [*neighbour.unheard],
    }


def read_neighbours(answer: object) -> HeardNeighbours:
    """Read an answer. Raises ValueError."""
    told: Mapping[str, Any] = NEIGHBOURS(answer)
    if told.get("networks") is None:
        return HeardNeighbours(digest=told["digest"], networks=None)
    networks = {
        network: Neighbourhood(
            ports=frozenset(each["ports"]), neighbours=tuple(Neighbour(**one) for one in each["neighbours"])
        )
        for network, each in told["networks"].items()
    }
    return HeardNeighbours(digest=told["digest"], networks=networks)
