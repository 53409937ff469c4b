"""The Northbound database's server as something that fails: killed, started again, frozen."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairlead.lab import Lab, central, processes
from fairlead.lab.layout import CENTRAL
from lab.servers import until


class Northbound:
    """The one of a lab. Whatever a test does to it, `mended` leaves it running."""

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
        """Returns when it is gone: nobody listens, no connection is left."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: not processes.is_marked(pid, self._lab.layout.directory))

    def start(self) -> None:
        """With the same command line; returns when it serves."""
        central.run_database(self._lab.layout, self._base)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self._base}.sock") == 0


@contextmanager
def breaking(lab: Lab) -> Iterator[Northbound]:
    """Whatever was done to it: in the end it runs."""
    northbound = Northbound(lab)
    try:
        yield northbound
    finally:
        with suppress(AssertionError):
            northbound.thaw()
        if not northbound.listens():
            northbound.start()
