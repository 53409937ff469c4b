"""A Fairlead process that notifies its supervisor when it is ready, as under systemd (sd_notify(3))."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.waiting import DEADLINE, wait_until


@dataclass(frozen=True)
class SupervisedProcess:
    process: "subprocess.Popen[bytes]"
    log: Path
    _notify_socket: socket.socket

    def wait_for(self, words: str) -> None:
        """Wait until the process has sent this notification."""

        def heard() -> list[str]:
            is_over = self.process.poll() is not None
            if select.select([self._notify_socket], [], [], 0)[0]:
                return self._notify_socket.recv(4096).decode().splitlines()
            assert not is_over, f"the process did not say {words}; its log:\n{self.log.read_text()}"
            return []

        wait_until(heard, f"{words} of {self.process.args!r}", is_enough=lambda lines: words in lines)

    def terminate(self) -> int:
        """Terminate the process and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE)


@contextmanager
def supervised(
    folder: Path, command: Sequence[str], environment: Mapping[str, str], through: Sequence[str] = ()
) -> Iterator[SupervisedProcess]:
    """Run `fairlead command...`, and yield when it is ready.

    `through` is a prefix that starts it with fewer privileges.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hears:
        where = folder / f"{command[0]}.notify"
        where.unlink(missing_ok=True)
        hears.bind(str(where))
        where.chmod(0o777)  # the process may run as another user
        log = folder / f"{command[0]}.log"
        with log.open("ab") as stream:
            process = subprocess.Popen(
                [*through, sys.executable, "-m", "fairlead.cli.main", *command],
                env={**os.environ, **environment, "NOTIFY_SOCKET": str(where)},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
            )
        try:
            made = SupervisedProcess(process, log, hears)
            made.wait_for("READY=1")
            yield made
        finally:
            process.kill()
            process.wait()
