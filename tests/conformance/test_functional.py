"""Octavia's own functional tests of its API, of the installed package and unmodified, against Fairlead over HTTP.

The file beside this one says, for each module, how many tests pass, how many are skipped for which reason, and which
ones differ, with the reason (`harness.conformance.functional_differences`); no other test may fail, and none of those
may pass. `REWRITE=1` writes it anew; read the diff. What the tests do below the API is in
`harness.conformance.functional`.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.conformance.functional_differences import DIFFERENT, LEFT_OUT
from harness.conformance.functional_server import functional_server
from harness.conformance.running import Outcome, functional, summary

pytestmark = pytest.mark.client

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-octavia"
MODULES = (
    "load_balancer",
    "listener",
    "pool",
    "health_monitor",
    "member",
    "l7policy",
    "l7rule",
    "quotas",
    "flavor_profiles",
    "availability_zone_profiles",
    "flavors",
    "availability_zones",
    "provider",
    "amphora",
)
"""Slow modules come first."""
PROCESSES = 2


def _of_modules(reasons: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Test -> reason, of the modules that are run."""
    run = {f"test_{module}" for module in MODULES}
    return {test: why for why, tests in reasons.items() for test in tests if test.partition(".")[0] in run}


WHY, NOT_RUN = _of_modules(DIFFERENT), _of_modules(LEFT_OUT)


def test_octavia_functional_tests_pass_as_recorded(tmp_path: Path):
    if not (ENVIRONMENT / ".installed").exists():
        reason = "needs .venv-octavia (scripts/octavia makes it)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)

    def work(module: str) -> list[Outcome]:
        folder, name = tmp_path / module, f"test_{module}"
        folder.mkdir()
        left_out = [test for test in NOT_RUN if test.startswith(f"{name}.")]
        with functional_server(folder) as address:
            return functional(ENVIRONMENT / "bin" / "python", address, name, left_out)

    with ThreadPoolExecutor(PROCESSES) as pool:
        found = [outcome for outcomes in pool.map(work, MODULES) for outcome in outcomes]
    failed = {test: reason for test, outcome, reason in found if outcome == "failed"}
    ours, passed = failed.keys() - WHY.keys(), WHY.keys() - failed.keys()
    assert not ours, "\n\n".join(f"{test}\n{failed[test]}" for test in sorted(ours))
    assert not passed, f"these are named as different, and pass: {sorted(passed)}"
    outcomes = [(test, "differ", WHY[test]) if test in WHY else (test, *rest) for test, *rest in found]
    outcomes += ((test, "left out", reason) for test, reason in NOT_RUN.items())
    text = summary((f"api.v2.{test}", outcome, reason) for test, outcome, reason in outcomes)
    expected = HERE / "functional.txt"
    if os.environ.get("REWRITE"):
        expected.write_text(text)
    assert text == expected.read_text()
