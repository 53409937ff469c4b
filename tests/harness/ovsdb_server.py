"""A real ovsdb-server with the OVN Northbound schema."""

import errno
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from fairlead.drivers.ovsdb.client import Timing
from harness.waiting import DEADLINE, wait_until

SERVER = Path("/usr/sbin/ovsdb-server")
SCHEMA = Path("/usr/share/ovn/ovn-nb.ovsschema")
DATABASE = "OVN_Northbound"
FAST_TIMING = Timing(probe=DEADLINE, connect=2.0, min_reconnect_interval=0.005, max_reconnect_interval=0.02)
"""Client timing: reconnect as soon as the server is back, and never time out on a busy server."""
KILL_ERRORS = ("closed by the server", f"[Errno {errno.ECONNRESET}] {os.strerror(errno.ECONNRESET)}")
"""Reasons for the end of a connection to a killed process.

The kernel resets a connection with unread input (RFC 1122, section 4.2.2.13).
"""


def require_ovsdb_server() -> None:
    if SERVER.exists() and SCHEMA.exists():
        return
    reason = f"needs {SERVER} and {SCHEMA} (packages ovn-common, openvswitch)"
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


class OvsdbServer:
    """One ovsdb-server process."""

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
