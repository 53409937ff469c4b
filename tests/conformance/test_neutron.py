"""Neutron's own acceptance tests of Local IPs, the package neutron-tempest-plugin, unmodified, against Fairlead.

It is on OVN's databases, behind the same stand-in for Keystone as for Octavia's tests.

A file beside this one says which pass; nothing may fail. `REWRITE=1` writes it anew. The plug-in's test of traffic
(`scenario.test_local_ip`) starts machines of Nova and logs in to them: real connections are the business of tests/lab.
"""

import os
from pathlib import Path

import httpx
import pytest

from harness.conformance.cloud import ovn_cloud, write_configuration
from harness.conformance.keystone import KEYSTONE_ROLES, PASSWORD
from harness.conformance.running import summary, tempest
from harness.fuzz.machine import SCHEMA, SERVER
from harness.waiting import DEADLINE

pytestmark = pytest.mark.client

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[1] / ".venv-neutron"
INSTALLED = ENVIRONMENT / ".installed"
MODULE = "api.test_local_ip"
NO_MACHINES = [
    ("scenario.test_local_ip.LocalIPTest.test_local_ip_connectivity", "left out", "it needs machines of Nova, and SSH")
]


def test_neutron_tempest_tests_pass(tmp_path: Path):
    if not (INSTALLED.exists() and SERVER.exists() and SCHEMA.exists()):
        reason = f"needs .venv-neutron (scripts/neutron makes it), {SERVER} and {SCHEMA}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with ovn_cloud(tmp_path, KEYSTONE_ROLES) as address:
        public = _make_public_network(address)
        folder = tmp_path / MODULE
        folder.mkdir()
        rbac = "keystone_default_roles"
        write_configuration(folder, address, rbac=rbac, ipv6=True, everything=False, public=public)
        found = tempest(folder, "neutron_tempest_plugin", MODULE, python=str(ENVIRONMENT / "bin/python"))
    failed = [f"{test}\n{reason}" for test, outcome, reason in found if outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    expected = HERE / "neutron.txt"
    if os.environ.get("REWRITE"):
        expected.write_text(summary([*found, *NO_MACHINES]))
    assert summary([*found, *NO_MACHINES]) == expected.read_text()


def _make_public_network(address: str) -> str:
    """The tests name it wherever a Local IP is made for a port, and Neutron looks at the port alone. Its id."""
    user = {"name": "admin", "password": PASSWORD, "domain": {"id": "default"}}
    scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
    auth = {"identity": {"methods": ["password"], "password": {"user": user}}, "scope": scope}
    token = (
        httpx.post(f"{address}/v3/auth/tokens", json={"auth": auth}, timeout=DEADLINE)
        .raise_for_status()
        .headers["X-Subject-Token"]
    )
    body = {"network": {"name": "public", "router:external": True}}
    made = httpx.post(f"{address}/network/v2.0/networks", json=body, headers={"X-Auth-Token": token}, timeout=DEADLINE)
    public: str = made.raise_for_status().json()["network"]["id"]
    return public
