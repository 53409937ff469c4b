"""A real ovsdb-server with the schema of OVN, for the tests of the drivers."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.haproxy_site import Site
from harness.machines import machine

SERVER = Path("/usr/sbin/ovsdb-server")
SCHEMA = Path("/usr/share/ovn/ovn-nb.ovsschema")
DATABASE = "OVN_Northbound"


class Server:
    """One ovsdb-server process; ended by its own pid."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.remote = f"unix:{folder}/db.sock"
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        listen, control = f"--remote=punix:{self.folder}/db.sock", f"--unixctl={self.folder}/ctl"
        command = [str(SERVER), listen, control, "-vconsole:off", *self.options, str(self.folder / "db")]
        self.process = subprocess.Popen(command, cwd=self.folder)
        wait_until(self.answers)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "db.sock")) == 0

    def send(self, number: signal.Signals) -> None:
        if self.process:
            self.process.send_signal(number)

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def control(self, *command: str) -> str:
        done = subprocess.run(
            ["ovs-appctl", "-t", f"{self.folder}/ctl", *command], check=True, capture_output=True, text=True
        )
        return done.stdout


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what is awaited happens in another process
            await asyncio.sleep(0.005)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Whatever a test starts and puts here is ended."""
    if not (SERVER.exists() and SCHEMA.exists()):
        reason = f"needs {SERVER} and {SCHEMA} (packages ovn-common, openvswitch)"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def server(tmp_path: Path, servers: list[Server]) -> Server:
    """A standalone database."""
    subprocess.run(["ovsdb-tool", "create", tmp_path / "db", SCHEMA], check=True)
    servers.append(Server(tmp_path))
    servers[0].start()
    return servers[0]


@pytest.fixture
def clustered(tmp_path: Path, servers: list[Server]) -> Server:
    """A cluster of one: it keeps the history that `monitor_cond_since` needs."""
    subprocess.run(["ovsdb-tool", "create-cluster", tmp_path / "db", SCHEMA, f"unix:{tmp_path}/raft"], check=True)
    servers.append(Server(tmp_path))
    servers[0].start()
    return servers[0]


@pytest.fixture
def site() -> Iterator[Site]:
    """In a folder whose name is short enough for sockets in it (unix(7))."""
    with TemporaryDirectory() as folder:
        yield Site(Path(folder) / "p")


@pytest.fixture
def machines() -> Iterator[tuple[int, int]]:
    with machine("m1") as one, machine("m2") as two:
        yield one.port, two.port
