"""The Northbound database's server as a failing component: killed, restarted or stopped."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.lab import Lab, central, processes
from fairlead.lab.layout import CENTRAL
from harness.waiting import wait_equal, wait_until


class NorthboundServer:
    """Northbound database server of a lab. `breaking` leaves it running."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._base = lab.layout.node_directory(CENTRAL) / "ovnnb_db"

    @property
    def pid(self) -> int:
        pid = processes.read_pidfile(Path(f"{self._base}.pid"))
        assert pid is not None
        assert processes.is_marked(pid, self._lab.layout.directory), "not the lab's own"
        return pid

    def kill(self) -> None:
        """Kill the server. Returns when the process has exited, so no connection is left."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes.is_marked(pid, self._lab.layout.directory))

    def start(self) -> None:
        """Start the server with the same command line. Returns when it accepts connections."""
        central.run_database(self._lab.layout, self._base)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self._base}.sock") == 0


class OvnNorthd:
    """ovn-northd, killed and restarted."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def restart(self) -> None:
        pid = processes.read_pidfile(self._lab.layout.node_directory(CENTRAL) / "ovn-northd.pid")
        assert pid is not None
        assert processes.is_marked(pid, self._lab.layout.directory), "not the lab's own"
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not processes.is_marked(pid, self._lab.layout.directory))
        central.run_northd(self._lab.layout)


class NorthboundMonitor:
    """Every change of the Northbound database, as an independent client receives it.

    NB_Global is left out, because its counters (nb_cfg, sb_cfg, hv_cfg and their timestamps) are written by northd and
    by clients that wait for OVN. Two marker rows delimit the counted changes, and prove that the monitor receives them.
    """

    def __init__(self, lab: Lab, seen: Path) -> None:
        self._lab = lab
        self._seen = seen
        self._marks = 0
        self._begin = 0

    def begin(self) -> None:
        self._mark()
        self._begin = self._seen.stat().st_size

    def writes(self) -> list[str]:
        """Rows that changed since the beginning."""
        end = self._seen.stat().st_size
        name = self._mark()
        with self._seen.open() as file:
            file.seek(self._begin)
            lines = file.read().splitlines()
        assert end >= self._begin
        self._begin = self._seen.stat().st_size
        return [line for line in _changes(lines) if name not in line]

    def _mark(self) -> str:
        name = f"monitor-mark-{self._marks}"
        self._marks += 1
        self._lab.exec("central", ["ovn-nbctl", "ls-add", name])
        wait_until(lambda: name in self._seen.read_text())
        self._lab.exec("central", ["ovn-nbctl", "ls-del", name])
        wait_equal(lambda: self._seen.read_text().count(name), 2)
        return name


def _changes(lines: list[str]) -> Iterator[str]:
    for line in lines:
        table = json.loads(line)
        if table["caption"] != "NB_Global table":
            yield from (f"{table['caption']}: {row}" for row in table["data"])


@contextmanager
def monitoring(lab: Lab, folder: Path) -> Iterator[NorthboundMonitor]:
    seen = folder / "monitor"
    argv = ["ovsdb-client", "--format=json", "monitor", lab.northbound, "OVN_Northbound", "ALL"]
    with seen.open("wb") as output, subprocess.Popen(argv, stdout=output) as client:
        try:
            wait_until(lambda: seen.stat().st_size)
            monitor = NorthboundMonitor(lab, seen)
            monitor.begin()
            yield monitor
        finally:
            client.kill()


@contextmanager
def unreliable_northbound(lab: Lab) -> Iterator[NorthboundServer]:
    """Yield the server for tests that break it, and leave it running at the end."""
    northbound = NorthboundServer(lab)
    try:
        yield northbound
    finally:
        with suppress(AssertionError):
            northbound.thaw()
        if not northbound.listens():
            northbound.start()
