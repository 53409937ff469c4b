"""A real Octavia with Fairlead as provider, and a stand-in for Keystone (`keystone.py`) for tempest.

API and driver-agent are Octavia's own; its Neutron is Fairlead's network front end. The caller is in the headers that
Keystone's middleware would write (`auth_strategy = testing`), so Octavia's own policies and quotas apply.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from sqlite3 import connect

import httpx

from harness.conformance.cloud import fairlead_server, keystone
from harness.conformance.keystone import PASSWORD, PROJECTS, user_name
from harness.octavia_plugin.cloud import CONF, DATABASE_TIMEOUT, LAUNCH, OCTAVIA, PROVIDERS, SETTLE_TIMEOUT
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal

ADMIN = user_name(PROJECTS[0], frozenset({"admin"}))
"""User as which Octavia calls Fairlead."""
TESTING_CONF = """
[api_settings]
auth_strategy = testing
"""
START_TIMEOUT = 60
"""Seconds; generous, because no process is killed in these tests."""


@contextmanager
def octavia_behind_keystone(folder: Path, counted: frozenset[str], proxied: str = "") -> Iterator[str]:
    """Run everything, and yield the address of its Keystone."""
    with (
        fairlead_server(folder, proxied) as server,
        octavia(folder, server) as address,
        keystone(server, counted, address) as found,
    ):
        yield found


@contextmanager
def octavia(folder: Path, fairlead: str) -> Iterator[str]:
    """Run Octavia, and yield its address."""
    port, file = free_port(), folder / "octavia.conf"
    said = {"user": ADMIN, "password": PASSWORD, "url": fairlead, "port": port, "folder": folder}
    file.write_text(
        (CONF + TESTING_CONF).format(
            providers=PROVIDERS, patience=START_TIMEOUT, database_timeout=DATABASE_TIMEOUT, **said
        )
    )
    environment = {**os.environ, "OCTAVIA_SOCKETS": str(folder), "OCTAVIA_IS_BUSY": "1", "PYTHONWARNINGS": "ignore"}
    command = [OCTAVIA, LAUNCH]
    subprocess.run([*command, "database", "--config-file", file], check=True, env=environment, capture_output=True)
    with closing(connect(folder / "octavia.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")  # readers do not block the writer
    with ExitStack() as stack:
        for name in ("agent", "api"):
            log = stack.enter_context((folder / f"octavia-{name}.log").open("wb"))
            arguments = [*command, name, "--config-file", file]
            process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment, start_new_session=True)
            stack.callback(_end, process)
        address = f"http://127.0.0.1:{port}"
        wait_equal(
            lambda: httpx.get(address, timeout=DEADLINE).status_code,
            200,
            retry=(httpx.TransportError,),
            seconds=SETTLE_TIMEOUT,
        )
        yield address


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and all its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
