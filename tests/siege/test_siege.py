"""All known attacks at the same time on one server with a working tenant, whose requests must succeed.

make siege                      each kind separately and all together, with a table; minutes
pytest -m siege tests/siege     all together, with reduced counts; seconds
"""

import os
from pathlib import Path

import pytest

from harness.fuzz.machine import SCHEMA, SERVER
from harness.siege.attackers import ATTACKERS
from harness.siege.town import MIBIBYTE, Report, Siege, town
from harness.siege.wire import summarize

pytestmark = pytest.mark.siege
SIEGE = Siege(
    seconds=float(os.environ.get("SIEGE_SECONDS", "10")), share=float(os.environ.get("SIEGE_SHARE", "0.2")), honest=10
)
MOST_MEMORY = 150 * MIBIBYTE
MOST_STORE = 60 * MIBIBYTE
MOST_LINES = 1000
EACH = [name for name in os.environ.get("SIEGE_EACH", "").split(",") if name]
"""Attackers that run separately, each with a new server; `each` stands for all of them."""


@pytest.fixture(autouse=True)
def _needs_databases() -> None:
    if not (SERVER.exists() and SCHEMA.exists()):
        reason = f"needs {SERVER} and {SCHEMA} (packages ovn-common, openvswitch)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def tell(name: str, report: Report) -> None:
    hold = "unknown" if report.hold is None else f"{1000 * report.hold:.0f} ms"
    print(
        f"\n{name}: writes p50/p99/max {report.writes}; reads {report.reads}; first log-ins {report.logins};"
        f" memory + {report.memory / MIBIBYTE:.0f} MiB; loop held {hold}; /metrics {1000 * report.metrics_took:.0f} ms,"
        f" {report.metrics_lines} lines; store {report.store / MIBIBYTE:.0f} MiB"
    )
    for attacker, outcomes in report.outcomes.items():
        print(f"    {attacker}: {summarize(outcomes)}")
    for kind, figures in (("write", report.writes), ("read", report.reads), ("log-in", report.logins)):
        for failure in sorted(set(figures.failed))[:5]:
            print(f"    {kind} failed: {failure}")


@pytest.mark.parametrize("name", ATTACKERS if EACH == ["each"] else EACH)
def test_one_kind(tmp_path: Path, name: str):
    with town(tmp_path) as place:
        tell(name, place.besiege([name], SIEGE))


def test_all_at_once(tmp_path: Path):
    """No regular request fails, and memory, store and metrics stay within limits.

    Durations depend on the machine: `make siege` prints them.
    """
    with town(tmp_path) as place:
        report = place.besiege(list(ATTACKERS), SIEGE)
        tell("all at once", report)
    assert report.outcomes.keys() == set(ATTACKERS)
    for attacker, outcomes in report.outcomes.items():
        assert outcomes, f"{attacker} has done nothing"
        assert not all(outcome.startswith("gave up") for outcome in outcomes), (attacker, outcomes)
    assert report.least() >= SIEGE.honest
    for figures in (report.writes, report.reads, report.logins):
        assert figures.failed == []
    assert report.memory < MOST_MEMORY
    assert report.metrics_lines < MOST_LINES
    assert report.store < MOST_STORE
    assert report.hold is not None, "the server reports how long its event loop was held"
