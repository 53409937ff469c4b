"""A run of tempest in a separate process, and its outcomes."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from harness.conformance.cloud import CONFIGURATION_FILE

Outcome: TypeAlias = tuple[str, str, str]
"""Test, outcome, reason."""


def tempest(
    folder: Path, package: str, module: str, left_out: Iterable[str] = (), python: str = sys.executable
) -> list[Outcome]:
    """Run a module of a package of tests, except `left_out`, with the configuration in the folder.

    `python` is that of the environment with the packages.
    """
    program = [
        python,
        str(Path(__file__).with_name("run.py")),
        f"{package}.{module}",
        "--",
        *(f"{package}.{test}" for test in left_out),
    ]
    environment = {**os.environ, "TEMPEST_CONFIG": CONFIGURATION_FILE, "TEMPEST_CONFIG_DIR": str(folder)}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(program, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    log = (folder / "tempest.log").read_text()[-5000:] if (folder / "tempest.log").exists() else ""
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}{log}"
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(test.removeprefix(f"{package}."), outcome, reason) for test, outcome, reason in outcomes]


def functional(python: Path, address: str, module: str, left_out: Iterable[str] = ()) -> list[Outcome]:
    """Runs a module of Octavia's functional tests, without those left out, against the server there. `python` is that
    of Octavia's environment."""
    program = [python, "-P", "-W", "ignore", Path(__file__).with_name("functional.py"), address, module, *left_out]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(test, outcome, reason) for test, outcome, reason in outcomes]


def module_of(test: str) -> str:
    """scenario.v2.test_pool.PoolScenarioTest.test_x -> scenario.v2.test_pool"""
    return ".".join(test.split(".")[:3])


def summary(outcomes: Iterable[Outcome]) -> str:
    """Number of tests by module, outcome and reason."""
    counted = Counter(
        (module_of(test), outcome, reason.splitlines()[0] if reason else "") for test, outcome, reason in outcomes
    )
    lines = []
    for module, group in groupby(sorted(counted.items()), key=lambda entry: entry[0][0]):
        lines.append(module)
        for (_, outcome, reason), number in group:
            lines.append(f"    {number:3} {outcome}{': ' if reason else ''}{reason}")
    return "\n".join(lines) + "\n"
