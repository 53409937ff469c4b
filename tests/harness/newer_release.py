"""A hypothetical next release of Fairlead: one more document format, and additional fields in messages.

The fields are in each part of the messages between agents and servers. `harness/next_format.py` defines which documents
the previous format cannot express. Tests use this program only to check how two releases handle each other's documents
and messages.
"""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from fairlead.agent_protocol import reports, slice_lines
from fairlead.api.agents import keys, neighbours, routes
from fairlead.api.http import front_end
from fairlead.cli.main import main
from fairlead.http.server_client import ApiClient
from fairlead.node.connection import Connection
from fairlead.store import formats
from harness.next_format import NEWER

EXTRA_FIELDS: Mapping[str, object] = {"of-tomorrow": {"x": [1]}}
ENDPOINT = [*reports.Endpoint._fields]


def with_extra_fields(message: Any) -> Any:
    """Message with an additional field in each object.

    An object in an object is a mapping by name, so the fields are added to its values.
    """
    match message:
        case dict():
            return {**{name: _with_nested_fields(each) for name, each in message.items()}, **EXTRA_FIELDS}
        case list() if len(message) == len(ENDPOINT) and message[ENDPOINT.index("port")] in range(65536):
            return [*message, "of-tomorrow"]
        case list():
            return [with_extra_fields(each) for each in message]
        case _:
            return message


def _with_nested_fields(value: Any) -> Any:
    return (
        {name: with_extra_fields(each) for name, each in value.items()}
        if isinstance(value, dict)
        else with_extra_fields(value)
    )


def patch_messages() -> None:
    """Add fields to each request of agents, and to each response and line of servers."""
    begin, exchange, line = Connection._begin, ApiClient.exchange, slice_lines._line

    def asked(connection: Connection, method: str, path: str, body: object) -> Any:
        return begin(connection, method, path, with_extra_fields(body))

    def told(server: ApiClient, method: str, path: str, body: object = None) -> Any:
        return exchange(server, method, path, with_extra_fields(body))

    def answered(body: object, status: int = 200) -> Any:
        return front_end.json_response(with_extra_fields(msgspec.json.decode(msgspec.json.encode(body))), status)

    def another_line(one: slice_lines.SliceLine) -> bytes:
        more = msgspec.json.encode(EXTRA_FIELDS)
        return more + b"\n" + more[:-1] + b"," + line(one)[1:]

    Connection._begin = asked  # type: ignore[method-assign]
    ApiClient.exchange = told  # type: ignore[method-assign]
    slice_lines._line = another_line
    for each in (routes, neighbours, keys):
        each.json_response = answered  # type: ignore[attr-defined]


if __name__ == "__main__":
    formats.STEPS = NEWER
    patch_messages()
    sys.exit(main())
