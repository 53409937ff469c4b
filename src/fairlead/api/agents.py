"""The agents' door: a node asks whose the addresses are that it has counted for, and tells the sums.

For administrators and for those with the role `service`. Errors: {"error": sentence}.
"""

import re
from collections.abc import Mapping
from dataclasses import fields

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.door import ApiError, House, identity, json_response
from fairlead.api.fields import (
    BadField,
    Field,
    MissingField,
    Parser,
    Schema,
    Spec,
    UnknownField,
    address,
    array_schema,
    fields_schema,
    integer,
    list_of,
    mapping,
    object_schema,
    or_null,
    read_fields,
    reads,
    text,
    word_of,
)
from fairlead.api.openapi import IDENTITY, TEXT, Operation, read_body, with_document
from fairlead.drivers.interface import DriverError
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import LONGEST_INTERVAL, MOST_SIGHTINGS, Figures, Sighting, find_listeners

MAY_TELL = frozenset({"admin", "service"})
LISTENERS = 20_000
"""In one report; a body has 4 MiB."""
LARGEST_SUM = 2**63 - 1
LONGEST_NAME = 255


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


def _whole(parser: Parser[Mapping[str, object]]) -> Parser[Mapping[str, object]]:
    """A body. Raises ApiError."""

    @reads(parser.schema)
    def parse(value: object) -> Mapping[str, object]:
        try:
            return parser(value)
        except ValueError as error:
            raise ApiError(400, str(error)) from None

    return parse


@reads({"type": "string", "maxLength": LONGEST_NAME, "pattern": "^(datapath:[0-9]{1,10}|zone:[^\\u0000]+)$"})
def _place(value: object) -> str:
    place = text(LONGEST_NAME)(value)
    if not re.fullmatch(r"datapath:[0-9]{1,10}|zone:.+", place, re.DOTALL):
        raise ValueError("Value should be datapath:KEY or zone:NAME.")
    return place


_SIGHTING = _object(
    {
        "place": Field(_place, required=True),
        "transport": Field(word_of(Transport), required=True),
        "address": Field(address, required=True),
        "port": Field(integer(1, 65535), required=True),
    }
)
_FIGURES = _object({each.name: Field(integer(0, LARGEST_SUM), nullable=False) for each in fields(Figures)})
_ASKED = _whole(_object({"sightings": Field(list_of(_SIGHTING, MOST_SIGHTINGS), required=True)}))
_TOLD = _whole(
    _object(
        {
            "interval": Field(integer(1, LONGEST_INTERVAL), required=True),
            "listeners": Field(_each(_FIGURES, LISTENERS), required=True),
        }
    )
)
_ANSWER = object_schema({"listeners": array_schema(or_null(IDENTITY), MOST_SIGHTINGS)}, ["listeners"])
_UNKNOWN = object_schema({"unknown": array_schema(TEXT, LISTENERS)}, ["unknown"])


def make_door(house: House) -> Starlette:
    async def find(request: Request) -> Response:
        """Whose each is: a listener, or null for what is nobody's."""
        _only_agents(request)
        asked = await read_body(request)
        sightings = [Sighting(**each) for each in asked["sightings"]]
        found = find_listeners(house.model.snapshot, ((house.locate(each.place), each) for each in sightings))
        return json_response({"listeners": found})

    async def tell(request: Request) -> Response:
        """All sums of a node. What is told of listeners that are not there is not kept, and they are named."""
        _only_agents(request)
        told = await read_body(request)
        known = house.model.snapshot.listener_owner
        figures = {listener: Figures(**sums) for listener, sums in told["listeners"].items() if listener in known}
        house.ledger.report(request.path_params["chassis"], figures, told["interval"])
        return json_response({"unknown": [listener for listener in told["listeners"] if listener not in known]})

    routes = with_document(
        "Fairlead: agents",
        object_schema({"error": TEXT}, ["error"]),
        [
            Operation("POST", "/sightings", find, takes=_ASKED, gives={200: _ANSWER}),
            Operation("PUT", "/chassis/{chassis}", tell, takes=_TOLD, gives={200: _UNKNOWN}),
        ],
    )
    handlers = {
        ApiError: _api_error,
        DriverError: _unavailable,
        HTTPException: _http_error,
    }
    return Starlette(routes=routes, exception_handlers=handlers)  # type: ignore[arg-type]


def _only_agents(request: Request) -> None:
    if not identity(request).roles & MAY_TELL:
        raise ApiError(403, "this is for agents: the role is 'service' or 'admin'")


async def _api_error(request: Request, error: ApiError) -> Response:
    return json_response({"error": error.message}, error.status)


async def _unavailable(request: Request, error: DriverError) -> Response:
    return json_response({"error": f"OVN cannot be asked: {error}"}, 503)


async def _http_error(request: Request, error: HTTPException) -> Response:
    response = json_response({"error": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response
