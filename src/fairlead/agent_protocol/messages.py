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
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.neighbours import MAX_NEIGHBOURS, AnnouncedAddresses, Neighbour, NetworkAnnouncements
from fairlead.model.queries.statistics import (
    MAX_SAMPLE_INTERVAL_SECONDS,
    MAX_SERVICES_PER_REQUEST,
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
    enum_of,
    fields_schema,
    integer,
    list_of,
    mapping,
    read_fields,
    reads,
    text,
)

MAX_UNKNOWN_ATTRIBUTES = 16
"""Maximum attributes unknown to this release that a newer release may send in one object."""
MAX_LISTENERS = 15_000
"""Maximum listeners in one report. A body has at most 4 MiB and 100,000 values (`door.MAX_BODY_VALUES`); a listener
takes five."""
MAX_COUNTER = 2**63 - 1
MAX_NAME_LENGTH = 255
MAX_POLL_SECONDS = 60
"""Maximum seconds of a long poll."""
MAX_PORTS = 10_000
"""Maximum ports of one network on one node in a server's answer."""
MAX_DIGEST_LENGTH = 64
Message: TypeAlias = tuple[str, str, object]
"""HTTP method, path and body."""
_T = TypeVar("_T")


def object_of(spec: Spec) -> Parser[Mapping[str, object]]:
    """Make a parser of an object. It ignores unknown attributes, which a newer release may send. Raises ValueError with
    the attribute's name."""

    @reads({**fields_schema(spec), "additionalProperties": True, "maxProperties": len(spec) + MAX_UNKNOWN_ATTRIBUTES})
    def parse(value: object) -> Mapping[str, object]:
        found = mapping(value)
        if len(found) > len(spec) + MAX_UNKNOWN_ATTRIBUTES:
            raise ValueError(f"More than {MAX_UNKNOWN_ATTRIBUTES} unknown attributes; known are {', '.join(spec)}.")
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


@reads({"type": "string", "maxLength": MAX_NAME_LENGTH, "pattern": "^(datapath:[0-9]{1,10}|zone:[^\\u0000]+)$"})
def _place(value: object) -> CountingPlace:
    place = text(MAX_NAME_LENGTH)(value)
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
        "transport": Field(enum_of(Transport), required=True),
        "address": Field(address, required=True),
        "port": Field(integer(1, 65535), required=True),
    }
)
_FIGURES = object_of({each.name: Field(integer(0, MAX_COUNTER), nullable=False) for each in fields(TrafficCounters)})
LISTENER_LOOKUP = object_of(
    {
        "chassis": Field(text(MAX_NAME_LENGTH)),
        "sightings": Field(list_of(_SERVICE, MAX_SERVICES_PER_REQUEST), required=True),
    }
)
"""Request: find the listeners of the addresses for which a chassis has counters."""
COUNTER_REPORT = object_of(
    {
        "interval": Field(integer(1, MAX_SAMPLE_INTERVAL_SECONDS), required=True),
        "listeners": Field(_each(_FIGURES, MAX_LISTENERS), required=True),
    }
)
"""Report: all counters of a chassis, and the seconds until its next report."""


NEIGHBOURS_REQUEST = object_of(
    {
        "digest": Field(text(MAX_DIGEST_LENGTH)),
        "remembered": Field(_each(list_of(address, MAX_NEIGHBOURS), MAX_NEIGHBOURS), required=True),
        "wait": Field(integer(0, MAX_POLL_SECONDS)),
    }
)
"""Long poll: MACs under which a chassis must know its neighbours, if they differ from `digest` (that of the last
answer). `remembered` maps networks to the addresses that the chassis has announced; `wait` is the timeout in
seconds."""
_NAMES = list_of(text(MAX_NAME_LENGTH), MAX_PORTS)
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
        "neighbours": Field(list_of(_NEIGHBOUR, MAX_NEIGHBOURS), required=True),
    }
)
NEIGHBOURS_RESPONSE = object_of(
    {
        "digest": Field(text(MAX_DIGEST_LENGTH), required=True),
        "networks": Field(_each(_NEIGHBOURHOOD, MAX_NEIGHBOURS)),
    }
)
"""Answer: all neighbours by network; null if the digest has not changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredNeighbours:
    digest: str
    networks: Mapping[str, NetworkAnnouncements] | None
    """None if the digest has not changed."""


def render_service(service: CountedService) -> dict[str, object]:
    return {
        "place": str(service.place),
        "transport": service.transport.value,
        "address": str(service.address),
        "port": service.port,
    }


def render_listener_lookup(chassis: str, services: Iterable[CountedService]) -> Message:
    return "POST", "/agent/sightings", {"chassis": chassis, "sightings": [*map(render_service, services)]}


def read_services(question: Mapping[str, Any]) -> list[CountedService]:
    """Read the services of a message parsed by `QUESTION`."""
    return [CountedService(**each) for each in question["sightings"]]


def render_counter_report(chassis: str, interval: int, sums: Mapping[str, TrafficCounters]) -> Message:
    listeners = {listener: asdict(figures) for listener, figures in sums.items()}
    return "PUT", f"/agent/chassis/{quote(chassis, safe='')}", {"interval": interval, "listeners": listeners}


def render_neighbours_request(chassis: str, digest: str, remembered: AnnouncedAddresses, wait: int) -> Message:
    asked = {network: [*map(str, addresses)] for network, addresses in remembered.items()}
    body = {"digest": digest, "remembered": asked, "wait": wait}
    return "POST", f"/agent/chassis/{quote(chassis, safe='')}/neighbours", body


def render_neighbourhoods(found: Mapping[str, NetworkAnnouncements]) -> dict[str, object]:
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


def read_neighbours(answer: object) -> DesiredNeighbours:
    """Read an answer. Raises ValueError."""
    told: Mapping[str, Any] = NEIGHBOURS_RESPONSE(answer)
    if told.get("networks") is None:
        return DesiredNeighbours(digest=told["digest"], networks=None)
    networks = {
        network: NetworkAnnouncements(
            ports=frozenset(each["ports"]), neighbours=tuple(Neighbour(**one) for one in each["neighbours"])
        )
        for network, each in told["networks"].items()
    }
    return DesiredNeighbours(digest=told["digest"], networks=networks)
