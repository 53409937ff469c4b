"""OpenStack's own tests of Octavia's API, the package octavia-tempest-plugin, unmodified, against Fairlead.

Each run has a file beside this one that says, for each module, how many tests pass, and how many are skipped for which
reason; nothing may fail. Most reasons are Fairlead's own words of what the provider `ovn` cannot do (501), as the tests
expect of a provider that is not Octavia's own. So they are run again against a provider that refuses nothing: there the
doors are tested in all that the API has, and a 501 is a failure. The provider with proxies is between the two: what it
refuses are limits and counts of datagrams, which no proxy passes on. And all
are run against a real Octavia, whose only provider is Fairlead, and those of listeners and L7 again, where that has
proxies: there Octavia's API answers, and asks Fairlead.
`REWRITE=1` writes the files anew; read the diff.

Only what needs machines of Nova (the tests of traffic) is not here: real connections are the business of tests/lab.
"""

import importlib.util
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from harness.conformance.cloud import (
    PROVIDER_DESCRIPTIONS,
    PROXY_PROVIDER_DESCRIPTIONS,
    accepting_cloud,
    ovn_cloud,
    write_configuration,
)
from harness.conformance.keystone import KEYSTONE_ROLES, OCTAVIA_ROLES
from harness.conformance.node import PROXIES_ONLY, WITH_PROXIES
from harness.conformance.octavia_cloud import octavia_behind_keystone
from harness.conformance.running import Outcome, summary, tempest
from harness.fuzz.machine import SCHEMA, SERVER
from harness.octavia_plugin.cloud import PROVIDERS

pytestmark = pytest.mark.client

HERE = Path(__file__).parent
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
L7 = (
    "api.v2.test_listener",
    *(f"{sort}.v2.test_{name}" for sort in ("api", "scenario") for name in ("l7policy", "l7rule")),
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
    """`everything`: against the provider that refuses nothing. `proxies`: against the one with proxies. `octavia`:
    through a real Octavia with Fairlead in it. `roles` count: Keystone's, or Octavia's older ones."""

    everything: bool = False
    proxies: bool = False
    octavia: bool = False
    roles: frozenset[str] = KEYSTONE_ROLES
    ipv6: bool = True
    modules: tuple[str, ...] = (*LONG, *SCENARIOS, *SHORT)


RUNS = {
    "ovn": Run(),
    "ovn-ipv4": Run(ipv6=False, modules=MEMBERS),
    "everything": Run(everything=True),
    "proxies": Run(proxies=True),
    "octavia": Run(octavia=True),
    "octavia-proxies": Run(octavia=True, proxies=True, modules=L7),
    "octavia-short": Run(octavia=True, modules=("api.v2.test_load_balancer",)),
    "older-roles": Run(everything=True, roles=OCTAVIA_ROLES, modules=SHORT),
}
"""With IPv6 the tests of members ask for IPv4 members behind an IPv6 VIP, which OVN cannot do."""
CAPABILITIES = {
    "api.v2.test_flavor_capabilities.FlavorCapabilitiesAPITest.test_flavor_capabilities_list": NO_KEYS,
    "api.v2.test_availability_zone_capabilities.AvailabilityZoneCapabilitiesAPITest"
    ".test_availability_zone_capabilities_list": NO_KEYS,
}
MINUTES = ("octavia", "octavia-proxies", "ovn-ipv4", "proxies")
"""Runs of `make tempest` alone."""
LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "ovn": {**COMPUTE, **CAPABILITIES},
    "proxies": {**COMPUTE, **CAPABILITIES},
    "octavia": {**COMPUTE, **CAPABILITIES},
    "everything": COMPUTE,
}
"""Tests that are not run, and why."""


@pytest.fixture(scope="module", autouse=True)
def _wanted() -> None:
    there = importlib.util.find_spec("octavia_tempest_plugin") and SERVER.exists() and SCHEMA.exists()
    if not there:
        reason = f"needs octavia-tempest-plugin (scripts/setup installs it), {SERVER} and {SCHEMA}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.mark.parametrize(
    "called", [pytest.param(each, marks=pytest.mark.tempest if each in MINUTES else ()) for each in RUNS]
)
def test_octavia_tempest_tests_pass(called: str, tmp_path: Path):
    run = RUNS[called]
    left_out = LEFT_OUT.get(called, {})
    on_server = octavia_behind_keystone if run.octavia else ovn_cloud
    proxied = "" if not run.proxies else PROXIES_ONLY if run.octavia else WITH_PROXIES
    place = accepting_cloud if run.everything else partial(on_server, proxied=proxied)
    providers = (PROVIDERS,) if run.octavia else PROXY_PROVIDER_DESCRIPTIONS if run.proxies else PROVIDER_DESCRIPTIONS
    with place(tmp_path, run.roles) as address:

        def work(module: str) -> list[Outcome]:
            folder = tmp_path / module
            folder.mkdir()
            rbac = "advanced" if run.roles is OCTAVIA_ROLES else "keystone_default_roles"
            more = {"ipv6": run.ipv6, "everything": run.everything, "providers": providers, "tls": not run.octavia}
            more["interval"] = 0.5 if run.octavia else 0.1
            write_configuration(folder, address, rbac=rbac, **more)
            return tempest(folder, PACKAGE, module, left_out)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = [outcome for outcomes in pool.map(work, run.modules) for outcome in outcomes]
    failed = [f"{test}\n{reason}" for test, outcome, reason in found if outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    outcomes = [*found, *((test, "left out", reason) for test, reason in left_out.items())]
    expected = HERE / f"{called}.txt"
    if os.environ.get("REWRITE"):
        expected.write_text(summary(outcomes))
    assert summary(outcomes) == expected.read_text()
