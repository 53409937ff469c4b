"""Agents and servers of different releases interoperate: each ignores unknown fields, within bounds."""

from typing import Any

import pytest

from fairlead.agent_protocol import reports
from fairlead.agent_protocol.messages import MOST_UNKNOWN, NEIGHBOURS_QUESTION, QUESTION, REPORT, read_neighbours
from fairlead.agent_protocol.reports import read_endpoint
from fairlead.agent_protocol.slice_lines import Slice, at_line, list_line, read_line
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
from fairlead.schema import Parser

SERVICE = {"place": "datapath:1", "transport": "tcp", "address": "fd00::1", "port": 80}
MESSAGES = {
    "question": (QUESTION, {"chassis": "one", "sightings": [SERVICE]}),
    "report": (REPORT, {"interval": 10, "listeners": {}}),
    "neighbours": (NEIGHBOURS_QUESTION, {"digest": "", "remembered": {}, "wait": 5}),
}


@pytest.mark.parametrize(("read", "message"), MESSAGES.values(), ids=MESSAGES)
def test_a_server_leaves_out_what_a_newer_agent_says_more(read: Parser[Any], message: dict[str, Any]):
    assert read({**message, "of-tomorrow": {"x": [1]}}) == read(message)
    with pytest.raises(ValueError, match=f"More than {MOST_UNKNOWN} unknown attributes; there are"):
        read({**message, **dict.fromkeys(map(str, range(MOST_UNKNOWN + len(message) + 1)))})


def test_parts_of_a_message_too():
    message = {"sightings": [SERVICE]}
    assert QUESTION({"sightings": [{**SERVICE, "of-tomorrow": 1}]}) == QUESTION(message)


def test_an_agent_leaves_out_what_a_newer_server_answers_more():
    one = {"address": "10.0.0.1", "mac": "02:00:00:00:00:01", "lasting": True, "unheard": []}
    plain = {"digest": "d", "networks": {"n": {"ports": ["p"], "neighbours": [one]}}}
    more = {"digest": "d", "networks": {"n": {"ports": ["p"], "neighbours": [{**one, "y": 1}], "x": 1}}, "z": None}
    assert read_neighbours(more) == read_neighbours(plain)


def test_a_server_reads_what_a_newer_agent_has_seen_of_an_endpoint_that_says_more():
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
    with pytest.raises(ValueError, match=f"more than {MOST_UNKNOWN} values that are not known"):
        read_endpoint([*endpoint, *["x"] * (MOST_UNKNOWN + 1)])


def test_an_agent_passes_over_lines_that_are_of_a_newer_server():
    given, first = Slice("one"), list_line(Snapshot(agents_probe=True))
    for line in (first, b'{"of-tomorrow": {"x": [1]}}', at_line("1.1", 1)[:-2] + b',"x":1}'):
        at_once(given.take(read_line(line)))
    assert (given.cursor, given.snapshot.agents_probe) == ("1.1", True)
