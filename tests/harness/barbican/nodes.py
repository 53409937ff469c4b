"""A real Keystone, a real Barbican, a Fairlead server that trusts both, and a node with TLS-terminating proxies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairlead.lab import Lab
from harness.barbican import cloud as barbican_cloud
from harness.barbican.cloud import Barbican, barbican, octavia_options
from harness.conformance.node import PROXIES_ONLY, node, options_of, start_agent
from harness.fuzz.machine import FuzzedServer, fuzzed_server
from harness.keystone.cloud import INSTALLED, KeystoneServer, keystone

AGENT = ("octavia", "plugged in")
"""User and password of agents and of Octavia."""


@dataclass(frozen=True)
class NodeWithBarbican:
    lab: Lab
    cloud: KeystoneServer
    barbican: Barbican
    server: FuzzedServer


@contextmanager
def node_with_barbican(folder: Path) -> Iterator[NodeWithBarbican]:
    """Run everything, with the node's agent connected.

    Services are not in the catalogue yet, so a test may add its own.
    """
    there = (INSTALLED, barbican_cloud.INSTALLED)
    if not all(each.exists() for each in there):
        reason = f"needs {', '.join(map(str, there))}: scripts/setup makes them"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with node() as lab, keystone(folder) as cloud, barbican(folder, cloud) as secrets:
        cloud.create_service_user("octavia")
        said = {**octavia_options(cloud, secrets, folder), **options_of(lab, PROXIES_ONLY)}
        with fuzzed_server(folder, said) as server:
            agent = start_agent(lab, server.url, folder, *AGENT)
            try:
                yield NodeWithBarbican(lab, cloud, secrets, server)
            finally:
                agent.stop()
            assert server.bug_reports() == []
            assert "PRIVATE KEY" not in server.log.read_text()
