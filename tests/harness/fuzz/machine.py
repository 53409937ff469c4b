"""A Fairlead server with real ovsdb-servers, as processes of this test alone."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal, wait_until

SERVER, SCHEMA = Path("/usr/sbin/ovsdb-server"), Path("/usr/share/ovn/ovn-nb.ovsschema")
CHASSIS = "seed"
"""The only chassis in the Southbound database."""


@dataclass(frozen=True)
class FuzzedServer:
    url: str
    client: httpx.Client
    process: "subprocess.Popen[bytes]"
    log: Path

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def wait_idle(self) -> None:
        """Wait until the reconciler is idle."""
        wait_equal(lambda: self.get("/operator/statistics")["waiting"], 0)

    def memory(self) -> int:
        """Resident memory of the server in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s*(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def bug_reports(self) -> list[str]:
        """Log lines that report a bug of the server."""
        return [line for line in self.log.read_text().splitlines() if re.search(r"Traceback| ERROR | CRITICAL ", line)]

    def send_raw(self, request: bytes) -> bytes:
        """Response to bytes that need not be HTTP; empty if the server closes the connection."""
        found = b""
        with self.connect() as connection, contextlib.suppress(ConnectionError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
        return found

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=DEADLINE)


@contextmanager
def fuzzed_server(
    folder: Path, options: Mapping[str, str] | None = None, prefix: Sequence[str] = (), scheme: str = "http"
) -> Iterator[FuzzedServer]:
    """Run a server.

    `options` are environment variables with its configuration; `prefix` is a command that starts it.
    """
    with ExitStack() as stack:
        northbound, southbound = (stack.enter_context(_database(folder, name)) for name in ("nb", "sb"))
        log = stack.enter_context((folder / "log").open("wb"))
        listen = f"127.0.0.1:{free_port()}"
        environment = {
            "FAIRLEAD_SERVER_LISTEN": listen,
            "FAIRLEAD_STORE_PATH": str(folder / "fairlead.db"),
            "FAIRLEAD_OVN_NORTHBOUND": northbound,
            "FAIRLEAD_OVN_SOUTHBOUND": southbound,
            "FAIRLEAD_OVN_GATEWAY_CHASSIS": "gw1,gw2",
            **(options or {}),
        }
        argv = [*prefix, sys.executable, "-m", "fairlead.cli.main", "server"]
        process = subprocess.Popen(argv, env={**os.environ, **environment}, stderr=log, cwd=folder)
        stack.callback(_end, process)
        client = stack.enter_context(httpx.Client(base_url=f"{scheme}://{listen}", timeout=DEADLINE, verify=False))
        made = FuzzedServer(f"{scheme}://{listen}", client, process, folder / "log")
        _await_ready(made)
        yield made


def _await_ready(made: FuzzedServer) -> None:
    def readiness() -> int:
        assert made.process.poll() is None, made.log.read_text()
        return made.client.get("/readyz").status_code

    wait_equal(readiness, 200, retry=(httpx.TransportError,))


def _register(southbound: Path) -> None:
    """Write the rows by which ovn-controller registers its node (ovn-sb(5), Chassis and Encap)."""
    encap = {"type": "geneve", "ip": "192.0.2.1", "chassis_name": CHASSIS}
    chassis = {"name": CHASSIS, "hostname": CHASSIS, "encaps": ["named-uuid", "encap"]}
    rows = [
        {"op": "insert", "table": "Encap", "uuid-name": "encap", "row": encap},
        {"op": "insert", "table": "Chassis", "row": chassis},
    ]
    transaction = json.dumps(["OVN_Southbound", *rows])
    subprocess.run(["ovsdb-tool", "transact", str(southbound), transaction], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _database(folder: Path, name: str) -> Iterator[str]:
    database, remote = folder / f"{name}.db", folder / f"{name}.sock"
    subprocess.run(["ovsdb-tool", "create", str(database), SCHEMA.with_name(f"ovn-{name}.ovsschema")], check=True)
    if name == "sb":
        _register(database)
    options = [f"--remote=punix:{remote}", f"--unixctl={folder}/{name}.ctl", "--no-chdir", "-vconsole:off"]
    process = subprocess.Popen([SERVER, str(database), *options], env={**os.environ, "OVS_RUNDIR": str(folder)})
    try:
        wait_until(remote.exists, "ovsdb-server to start")
        yield f"unix:{remote}"
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
