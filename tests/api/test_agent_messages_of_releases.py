"""Agents and servers of different releases interoperate: each ignores unknown fields, within bounds."""

from typing import Any

import pytest

from fairlead.agent_protocol import reports
from fairlead.agent_protocol.messages import (
    COUNTER_REPORT,
    LISTENER_LOOKUP,
    MAX_UNKNOWN_ATTRIBUTES,
    NEIGHBOURS_REQUEST,
    read_neighbours,
)
from fairlead.agent_protocol.reports import read_endpoint
from fairlead.agent_protocol.slice_lines import SliceBuilder, at_line, list_line, read_line
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.schema import Parser

SERVICE = {"place": "datapath:1", "transport": "tcp", "address": "fd00::1", "port": 80}
MESSAGES = {
    "question": (LISTENER_LOOKUP, {"chassis": "one", "sightings": [SERVICE]}),
    "report": (COUNTER_REPORT, {"interval": 10, "listeners": {}}),
    "neighbours": (NEIGHBOURS_REQUEST, {"digest": "", "remembered": {}, "wait": 5}),
}


@pytest.mark.parametrize(("read", "message"), MESSAGES.values(), ids=MESSAGES)
def test_server_ignores_a_bounded_number_of_unknown_agent_fields(read: Parser[Any], message: dict[str, Any]):
    assert read({**message, "of-tomorrow": {"x": [1]}}) == read(message)
    with pytest.raises(ValueError, match=f"More than {MAX_UNKNOWN_ATTRIBUTES} unknown attributes; known are"):
        read({**message, **dict.fromkeys(map(str, range(MAX_UNKNOWN_ATTRIBUTES + len(message) + 1)))})


def test_unknown_fields_in_nested_message_parts_are_ignored():
    message = {"sightings": [SERVICE]}
    assert LISTENER_LOOKUP({"sightings": [{**SERVICE, "of-tomorrow": 1}]}) == LISTENER_LOOKUP(message)


def test_agent_ignores_unknown_fields_of_neighbour_responses():
    one = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01", "lasting": True, "unheard": []}
    plain = {"digest": "d", "networks": {"n": {"ports": ["p"], "neighbours": [one]}}}
    more = {"digest": "d", "networks": {"n": {"ports": ["p"], "neighbours": [{**one, "y": 1}], "x": 1}}, "z": None}
    assert read_neighbours(more) == read_neighbours(plain)


def test_server_ignores_unknown_endpoint_and_probe_result_values():
    endpoint = ["port", "fd00::1", 80, "tcp", "network", "asker"]
    seen = {"health": reports.Health.ERROR.value, "chassis": "c", "since": "2026-01-01T12:00:00Z"}
    report = {
        "version": "9",
        "host": "one",
        "since": "2026-01-01T12:00:00Z",
        "heartbeat": 5000,
        "unapplied": [],
        "sightings": [[endpoint, seen]],
        "whole": True,
    }
    newer = {**report, "sightings": [[[*endpoint, "of-tomorrow"], {**seen, "x": 1}]], "x": {}}
    assert reports.REPORT(newer) == reports.REPORT(report)
    with pytest.raises(ValueError, match=f"more than {MAX_UNKNOWN_ATTRIBUTES} unknown values"):
        read_endpoint([*endpoint, *["x"] * (MAX_UNKNOWN_ATTRIBUTES + 1)])


def test_agent_ignores_unknown_lines_of_the_push_channel():
    given, first = SliceBuilder("one"), list_line(Snapshot(agents_probe=True))
    for line in (first, b'{"of-tomorrow": {"x": [1]}}', at_line("1.1", 1)[:-2] + b',"x":1}'):
        run_to_completion(given.take(read_line(line)))
    assert (given.cursor, given.snapshot.agents_probe) == ("1.1", True)
