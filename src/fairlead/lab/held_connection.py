"""A connection that a workload keeps open while the configuration changes.

The program that holds it is `fairlead.lab.traffic --hold`; every reply is bounded by that program's own timeout.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fairlead.lab.errors import LabConnectionLost
from fairlead.lab.processes import LabCommand

CONNECTED_PREFIX = "= connected"
FAILED_PREFIX = "! failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldConnection:
    """An established connection; `source_port` is its key."""

    process: subprocess.Popen[str]
    source_port: int

    def exchange(self, line: str) -> str:
        """Send a line and return the reply, `<name> <line>`."""
        return _exchange(self.process, line)


def _exchange(process: subprocess.Popen[str], line: str | None) -> str:
    if process.stdin is None or process.stdout is None:
        raise LabConnectionLost("no pipe")
    if line is not None:
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise LabConnectionLost("ended") from None
    answer = process.stdout.readline().rstrip("\n")
    if not answer or answer.startswith(FAILED_PREFIX):
        raise LabConnectionLost(answer.removeprefix(FAILED_PREFIX).strip() or "ended")
    return answer


@contextmanager
def holding(command: LabCommand) -> Iterator[HeldConnection]:
    """Open a connection, which is reset at the end of the block."""
    with subprocess.Popen(
        command.argv,
        env=command.full_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            source_port = int(_exchange(process, None).removeprefix(CONNECTED_PREFIX))
            yield HeldConnection(process=process, source_port=source_port)
        finally:
            process.kill()
