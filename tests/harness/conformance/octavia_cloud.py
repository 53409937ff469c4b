"""A real Octavia whose provider is Fairlead, in front of which tempest has a stand-in for Keystone (`keystone.py`).

Its API and its driver-agent are Octavia's own, and its Neutron is Fairlead's network door. It is told who calls in the
headers that Keystone's middleware would have written (`auth_strategy = testing`): its own policies and quotas hold.
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
from harness.octavia_plugin.cloud import CONF, DATABASE_TIMEOUT, LAUNCH, OCTAVIA, PROVIDERS, SETTLED
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal

ADMIN = user_name(PROJECTS[0], frozenset({"admin"}))
"""Whom Fairlead knows Octavia as."""
MORE = """
[api_settings]
auth_strategy = testing
"""
PATIENCE = 60
"""Seconds: nobody is killed here."""


@contextmanager
def on_octavia(folder: Path, counted: frozenset[str], proxied: str = "") -> Iterator[str]:
    """The address of its Keystone."""
    with (
        fairlead_server(folder, proxied) as server,
        octavia(folder, server) as address,
        keystone(server, counted, address) as found,
    ):
        yield found


@contextmanager
def octavia(folder: Path, fairlead: str) -> Iterator[str]:
    """Its address."""
    port, file = free_port(), folder / "octavia.conf"
    said = {"user": ADMIN, "password": PASSWORD, "url": fairlead, "port": port, "folder": folder}
    file.write_text(
        (CONF + MORE).format(providers=PROVIDERS, patience=PATIENCE, database_timeout=DATABASE_TIMEOUT, **said)
    )
    environment = {**os.environ, "OCTAVIA_SOCKETS": str(folder), "OCTAVIA_IS_BUSY": "1", "PYTHONWARNINGS": "ignore"}
    command = [OCTAVIA, LAUNCH]
    subprocess.run([*command, "database", "--config-file", file], check=True, env=environment, capture_output=True)
    with closing(connect(folder / "octavia.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")  # who reads does not hold up who writes
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
            seconds=SETTLED,
        )
        yield address


def _end(process: "subprocess.Popen[bytes]") -> None:
    """And all of its children."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
