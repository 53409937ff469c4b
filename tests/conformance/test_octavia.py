"""OpenStack's own tests of Octavia's API, the package octavia-tempest-plugin, unmodified, against Fairlead.

Each run has a file beside this one that says, for each module, how many tests pass, and how many are skipped for which
reason; nothing may fail. Most reasons are Fairlead's own words of what the provider `ovn` cannot do (501), as the tests
expect of a provider that is not Octavia's own. So they are run again against a provider that refuses nothing: there the
doors are tested in all that the API has, and a 501 is a failure. `REWRITE=1` writes the files anew; read the diff.

Only what needs machines of Nova (the tests of traffic) is not here: real connections are the business of tests/lab.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

import pytest

from conformance.cloud import CONFIGURATION_FILE, on_anything, on_ovn, write_configuration
from conformance.keystone import KEYSTONE_ROLES, OCTAVIA_ROLES
from fuzz.machine import SCHEMA, SERVER

pytestmark = pytest.mark.client

HERE = Path(__file__).parent
Outcome: TypeAlias = tuple[str, str, str]
"""Test, what came of it, reason."""
PACKAGE = "octavia_tempest_plugin.tests"
MEMBERS = ("api.v2.test_member.MemberAPITest1", "api.v2.test_member.MemberAPITest2")
LONG = (*MEMBERS, *(f"api.v2.test_{name}" for name in ("healthmonitor", "pool", "listener")))
CATALOG = ("flavor", "availability_zone")
SHORT = (
    *(f"api.v2.test_{name}" for name in ("load_balancer", "l7policy", "l7rule", "provider", "amphora")),
    *(f"api.v2.test_{name}{more}" for name in CATALOG for more in ("", "_profile", "_capabilities")),
)
SCENARIOS = tuple(
    f"scenario.v2.test_{name}"
    for name in ("member", "pool", "listener", "healthmonitor", "load_balancer", "l7policy", "l7rule")
)
AT_ONCE = 4
"""Processes, of which each runs a module; the long ones come first."""
NO_KEYS = "it tests a provider that has keys for profiles; ovn has none, and its list is empty"
NO_COMPUTE = "it makes a flavor of Nova for amphorae; there are none"
COMPUTE = {
    f"scenario.v2.test_load_balancer.LoadBalancerScenarioTest.test_load_balancer_{name}_with_compute_flavor": NO_COMPUTE
    for name in ("ipv4_CRUD", "ipv6_CRUD")
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """`everything`: against the provider that refuses nothing. `roles` count: Keystone's, or Octavia's older ones."""

    everything: bool = False
    roles: frozenset[str] = KEYSTONE_ROLES
    ipv6: bool = True
    modules: tuple[str, ...] = (*LONG, *SCENARIOS, *SHORT)


RUNS = {
    "ovn": Run(),
    "ovn-ipv4": Run(ipv6=False, modules=MEMBERS),
    "everything": Run(everything=True),
    "older-roles": Run(everything=True, roles=OCTAVIA_ROLES, modules=SHORT),
}
"""With IPv6 the tests of members ask for IPv4 members behind an IPv6 VIP, which OVN cannot do."""
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "ovn": {
        **COMPUTE,
        "api.v2.test_flavor_capabilities.FlavorCapabilitiesAPITest.test_flavor_capabilities_list": NO_KEYS,
        "api.v2.test_availability_zone_capabilities.AvailabilityZoneCapabilitiesAPITest"
        ".test_availability_zone_capabilities_list": NO_KEYS,
    },
    "everything": COMPUTE,
}
"""Tests that are not run, and why."""


@pytest.fixture(scope="module", autouse=True)
def _wanted() -> None:
    there = importlib.util.find_spec("octavia_tempest_plugin") and SERVER.exists() and SCHEMA.exists()
    if not there:
        reason = f"needs octavia-tempest-plugin (scripts/setup installs it), {SERVER} and {SCHEMA}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.mark.parametrize("called", RUNS)
def test_octavias_own_tests(called: str, tmp_path: Path):
    run = RUNS[called]
    left_out = LEFT_OUT.get(called, {})
    with (on_anything if run.everything else on_ovn)(tmp_path, run.roles) as address:

        def work(module: str) -> list[Outcome]:
            folder = tmp_path / module
            folder.mkdir()
            rbac = "advanced" if run.roles is OCTAVIA_ROLES else "keystone_default_roles"
            write_configuration(folder, address, rbac=rbac, ipv6=run.ipv6, everything=run.everything)
            return _tempest(folder, module, [f"{PACKAGE}.{test}" for test in left_out])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = [outcome for outcomes in pool.map(work, run.modules) for outcome in outcomes]
    failed = [f"{test}\n{reason}" for test, outcome, reason in found if outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    outcomes = [*found, *((test, "left out", reason) for test, reason in left_out.items())]
    expected = HERE / f"{called}.txt"
    if os.environ.get("REWRITE"):
        expected.write_text(_summary(outcomes))
    assert _summary(outcomes) == expected.read_text()


def _tempest(folder: Path, module: str, left_out: list[str]) -> list[Outcome]:
    """With the configuration in the folder."""
    program = [sys.executable, str(HERE / "run.py"), f"{PACKAGE}.{module}", "--", *left_out]
    environment = {**os.environ, "TEMPEST_CONFIG": CONFIGURATION_FILE, "TEMPEST_CONFIG_DIR": str(folder)}
    environment.pop("PYTHONPATH", None)
    ended = subprocess.run(program, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    log = (folder / "tempest.log").read_text()[-5000:] if (folder / "tempest.log").exists() else ""
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}{log}"
    outcomes = [json.loads(line) for line in ended.stdout.splitlines()]
    return [(test.removeprefix(f"{PACKAGE}."), outcome, reason) for test, outcome, reason in outcomes]


def module_of(test: str) -> str:
    """scenario.v2.test_pool.PoolScenarioTest.test_x -> scenario.v2.test_pool"""
    return ".".join(test.split(".")[:3])


def _summary(outcomes: Iterable[Outcome]) -> str:
    """How many tests of each module had which outcome for which reason."""
    counted = Counter(
        (module_of(test), outcome, reason.splitlines()[0] if reason else "") for test, outcome, reason in outcomes
    )
    lines = []
    for module, group in groupby(sorted(counted.items()), key=lambda entry: entry[0][0]):
        lines.append(module)
        for (_, outcome, reason), number in group:
            lines.append(f"    {number:3} {outcome}{': ' if reason else ''}{reason}")
    return "\n".join(lines) + "\n"
