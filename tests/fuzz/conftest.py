"""One server for all tests of the folder. Without ovsdb-server they are skipped, or fail on CI."""

import os
from collections.abc import Iterator

import pytest

from harness.fuzz.machine import SCHEMA, SERVER, FuzzedServer, fuzzed_server
from harness.fuzz.world import FuzzObjects

NAMES = "fairlead=fairlead,ovn=ovn,native=native"
"""Provider names, each with its implementation."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzedServer]:
    if not (SERVER.exists() and SCHEMA.exists()):
        reason = f"needs {SERVER} and {SCHEMA} (packages ovn-common, openvswitch)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with fuzzed_server(tmp_path_factory.mktemp("fuzz"), {"FAIRLEAD_PROVIDERS_NAMES": NAMES}) as started:
        yield started


@pytest.fixture(scope="session")
def world(server: FuzzedServer) -> FuzzObjects:
    made = FuzzObjects(server.client)
    made.seed()
    return made
