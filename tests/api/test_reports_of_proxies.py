"""Bounds on an agent's report at both ends: a report is accepted whole or rejected whole."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead.agent_protocol.reports import (
    MAX_PROXIES,
    MAX_PROXY_PORTS,
    REPORT,
    AgentReport,
    read_report,
    render_report,
)
from fairlead.model.documents.agent import Agent, ApplyFailure
from fairlead.model.documents.probe_result import MAX_ERROR_LENGTH
from harness.step_counter import step

AGENT = Agent(name="one", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)


def told(serving: dict[str, frozenset[int]]) -> dict[str, Any]:
    return dict(render_report(AgentReport(agent=AGENT, probe_results={}, is_complete=True, serving=serving))[2])


@pytest.mark.parametrize(
    "serving",
    [
        {},
        {"b": frozenset({2, 1}), "a": frozenset()},
        {f"p{number}": frozenset({80}) for number in range(MAX_PROXIES + 1)},
        {"a": frozenset(range(1, MAX_PROXY_PORTS)), "b": frozenset({1, 2}), "c": frozenset({3})},
    ],
)
def test_proxy_report_is_truncated_to_limits_that_the_server_accepts(serving: dict[str, frozenset[int]]):
    body = told(serving)
    heard = read_report("one", REPORT(body)).serving
    assert len(heard) == min(len(serving), MAX_PROXIES)
    assert sum(map(len, heard.values())) == min(
        sum(len(serving[each]) for each in sorted(serving)[:MAX_PROXIES]), MAX_PROXY_PORTS
    )
    assert all(heard[each] <= serving[each] for each in heard)


@pytest.mark.parametrize(
    "proxies",
    [
        [{"port": f"p{number}", "serving": [1] * 32_768} for number in range(31)],
        [{"port": "p", "serving": [1] * (MAX_PROXY_PORTS + 1)}],
    ],
)
def test_oversized_proxy_report_is_rejected_before_parsing(proxies: list[object]):
    """Oversized reports are refused before they are parsed, in steps that do not grow with the million ports of the
    body."""
    body = {**told({}), "proxies": proxies}
    before = step()
    with pytest.raises(ValueError, match=f"at most {MAX_PROXY_PORTS} proxy ports"):
        REPORT(body)
    assert step() - before < 200


@pytest.mark.parametrize("proxies", [{}, [1], [{"port": "p"}], [{"port": "p", "serving": {}}]])
def test_invalid_proxy_list_is_rejected(proxies: object):
    with pytest.raises(ValueError, match=r"Value should be|[Mm]issing|required|serving"):
        REPORT({**told({}), "proxies": proxies})


def test_null_proxy_list_is_read_as_empty():
    assert read_report("one", REPORT({**told({}), "proxies": None})).serving == {}


def test_report_accepts_arbitrary_bytes_in_apply_errors():
    """Reports are accepted with any bytes in a program's output; a log truncated by another process contains NULs."""
    said = ApplyFailure(dataplane="haproxy", owner="network/net1", error="\0\0[ALERT] \x1b[31mno\udc80" + "x" * 1000)
    report = AgentReport(agent=replace(AGENT, apply_failures=(said,)), probe_results={}, is_complete=True)
    [heard] = read_report("one", REPORT(dict(render_report(report)[2]))).agent.apply_failures
    assert heard.error.startswith("[ALERT] [31mnox")
    assert len(heard.error) == MAX_ERROR_LENGTH
