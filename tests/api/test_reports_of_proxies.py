"""Bounds on an agent's report at both ends: a report is accepted whole or rejected whole."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.agent_protocol.reports import MOST_PROXIES, MOST_SERVED, REPORT, Report, read_report, render_report
from fairlead.model.documents.agent import Agent, Unapplied
from fairlead.model.documents.probe_result import LONGEST_ERROR
from harness.step_counter import step

AGENT = Agent(name="one", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)


def told(serving: dict[str, frozenset[int]]) -> dict[str, Any]:
    return dict(render_report(Report(agent=AGENT, sightings={}, whole=True, serving=serving))[2])


@pytest.mark.parametrize(
    "serving",
    [
        {},
        {"b": frozenset({2, 1}), "a": frozenset()},
        {f"p{number}": frozenset({80}) for number in range(MOST_PROXIES + 1)},
        {"a": frozenset(range(1, MOST_SERVED)), "b": frozenset({1, 2}), "c": frozenset({3})},
    ],
)
def test_what_an_agent_says_a_server_hears(serving: dict[str, frozenset[int]]):
    body = told(serving)
    heard = read_report("one", REPORT(body)).serving
    assert len(heard) == min(len(serving), MOST_PROXIES)
    assert sum(map(len, heard.values())) == min(
        sum(len(serving[each]) for each in sorted(serving)[:MOST_PROXIES]), MOST_SERVED
    )
    assert all(heard[each] <= serving[each] for each in heard)


@pytest.mark.parametrize(
    "proxies",
    [
        [{"port": f"p{number}", "serving": [1] * 32_768} for number in range(31)],
        [{"port": "p", "serving": [1] * (MOST_SERVED + 1)}],
    ],
)
def test_more_is_refused_before_it_is_looked_at(proxies: list[object]):
    """Oversized reports are refused before they are parsed, in steps that do not grow with the million ports of the
    body."""
    body = {**told({}), "proxies": proxies}
    before = step()
    with pytest.raises(ValueError, match=f"at most {MOST_SERVED} ports of proxies"):
        REPORT(body)
    assert step() - before < 200


@pytest.mark.parametrize("proxies", [{}, [1], [{"port": "p"}], [{"port": "p", "serving": {}}]])
def test_what_is_no_list_of_proxies(proxies: object):
    with pytest.raises(ValueError, match=r"Value should be|[Mm]issing|required|serving"):
        REPORT({**told({}), "proxies": proxies})


def test_none_is_as_if_nothing_was_said():
    assert read_report("one", REPORT({**told({}), "proxies": None})).serving == {}


def test_whatever_a_program_has_said_an_agent_is_heard():
    """Reports are accepted with any bytes in a program's output; a log truncated by another process contains NULs."""
    said = Unapplied(dataplane="haproxy", owner="network/net1", error="\0\0[ALERT] \x1b[31mno\udc80" + "x" * 1000)
    report = Report(agent=replace(AGENT, unapplied=(said,)), sightings={}, whole=True)
    [heard] = read_report("one", REPORT(dict(render_report(report)[2]))).agent.unapplied
    assert heard.error.startswith("[ALERT] [31mnox")
    assert len(heard.error) == LONGEST_ERROR
