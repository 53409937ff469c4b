"""Fixtures of the driver tests: databases, HAProxy sites and plain hosts."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harness.haproxy_site import HaproxySite, opened_site
from harness.machines import machine
from harness.native_host import plain_host
from harness.net_namespace import NetNamespace
from harness.ovsdb_server import SCHEMA, OvsdbServer, require_ovsdb_server


@pytest.fixture
def host() -> Iterator[NetNamespace]:
    with plain_host() as made:
        yield made


@pytest.fixture
def servers() -> Iterator[list[OvsdbServer]]:
    """Yield a list; servers that a test appends are stopped when the test ends."""
    require_ovsdb_server()
    started: list[OvsdbServer] = []
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def server(tmp_path: Path, servers: list[OvsdbServer]) -> OvsdbServer:
    """Start a standalone database."""
    subprocess.run(["ovsdb-tool", "create", tmp_path / "db", SCHEMA], check=True)
    servers.append(OvsdbServer(tmp_path))
    servers[0].start()
    return servers[0]


@pytest.fixture
def clustered(tmp_path: Path, servers: list[OvsdbServer]) -> OvsdbServer:
    """Start a cluster of one member, which keeps the history that `monitor_cond_since` needs."""
    subprocess.run(["ovsdb-tool", "create-cluster", tmp_path / "db", SCHEMA, f"unix:{tmp_path}/raft"], check=True)
    servers.append(OvsdbServer(tmp_path))
    servers[0].start()
    return servers[0]


@pytest.fixture
async def site() -> AsyncIterator[HaproxySite]:
    async with opened_site() as made:
        yield made


@pytest.fixture
def machines() -> Iterator[tuple[int, int]]:
    with machine("m1") as one, machine("m2") as two:
        yield one.port, two.port
