"""All known attacks at the same time on one server with a working tenant, whose requests must succeed.

make siege                      each kind separately and all together, with a table; minutes
pytest -m siege tests/siege     all together, with reduced counts; seconds
"""

import os
from pathlib import Path

import pytest

from harness.fuzz.machine import SCHEMA, SERVER
from harness.siege.attackers import ATTACKERS
from harness.siege.siege_server import MEBIBYTE, SiegeOptions, SiegeReport, siege_server
from harness.siege.wire import summarize

pytestmark = pytest.mark.siege
SIEGE = SiegeOptions(
    seconds=float(os.environ.get("SIEGE_SECONDS", "10")),
    share=float(os.environ.get("SIEGE_SHARE", "0.2")),
    min_regular_requests=10,
)
MAX_MEMORY = 150 * MEBIBYTE
MAX_STORE = 60 * MEBIBYTE
MAX_METRICS_LINES = 1000
EACH = [name for name in os.environ.get("SIEGE_EACH", "").split(",") if name]
"""Attackers that run separately, each with a new server; `each` stands for all of them."""


@pytest.fixture(autouse=True)
def _needs_databases() -> None:
    if not (SERVER.exists() and SCHEMA.exists()):
        reason = f"needs {SERVER} and {SCHEMA} (packages ovn-common, openvswitch)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


def print_report(name: str, report: SiegeReport) -> None:
    hold = "unknown" if report.loop_lag is None else f"{1000 * report.loop_lag:.0f} ms"
    print(
        f"\n{name}: writes p50/p99/max {report.writes}; reads {report.reads}; first log-ins {report.logins};"
        f" memory + {report.memory / MEBIBYTE:.0f} MiB; loop held {hold}; /metrics {1000 * report.metrics_took:.0f} ms,"
        f" {report.metrics_lines} lines; store {report.store / MEBIBYTE:.0f} MiB"
    )
    for attacker, outcomes in report.outcomes.items():
        print(f"    {attacker}: {summarize(outcomes)}")
    for kind, figures in (("write", report.writes), ("read", report.reads), ("log-in", report.logins)):
        for failure in sorted(set(figures.failed))[:5]:
            print(f"    {kind} failed: {failure}")


@pytest.mark.parametrize("name", ATTACKERS if EACH == ["each"] else EACH)
def test_one_kind_of_attack_is_measured(tmp_path: Path, name: str):
    with siege_server(tmp_path) as place:
        print_report(name, place.run_attack([name], SIEGE))


def test_regular_requests_succeed_under_all_attacks(tmp_path: Path):
    """No regular request fails, and memory, store and metrics stay within limits.

    Durations depend on the machine: `make siege` prints them.
    """
    with siege_server(tmp_path) as place:
        report = place.run_attack(list(ATTACKERS), SIEGE)
        print_report("all at once", report)
    assert report.outcomes.keys() == set(ATTACKERS)
    for attacker, outcomes in report.outcomes.items():
        assert outcomes, f"{attacker} has done nothing"
        assert not all(outcome.startswith("gave up") for outcome in outcomes), (attacker, outcomes)
    assert report.fewest_completed() >= SIEGE.min_regular_requests
    for figures in (report.writes, report.reads, report.logins):
        assert figures.failed == []
    assert report.memory < MAX_MEMORY
    assert report.metrics_lines < MAX_METRICS_LINES
    assert report.store < MAX_STORE
    assert report.loop_lag is not None, "the server reports how long its event loop was held"
