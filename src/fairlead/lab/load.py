"""Steady traffic from a workload while the configuration changes: specification, result, and start.

The program that sends it is `fairlead.lab.load_generator`.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from fairlead.lab.client import Protocol
from fairlead.lab.errors import LabConnectionLost
from fairlead.lab.processes import LabCommand

STARTED_LINE = "= started"
STOP_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    to: str
    port: int
    protocol: Protocol = Protocol.TCP


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`rate` new connections per second, at most `count`; `held` established ones, each with an exchange every `period`
    seconds. Targets are used in rotation. The load ends by itself after `seconds`."""

    targets: tuple[LoadTarget, ...]
    rate: float
    count: int
    held: int
    seconds: float
    period: float = 2.0
    timeout: float = 5.0
    source_port_from: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedConnection:
    """A failed connection: its time (Unix), the error, and its member if it was established."""

    at: float
    kind: str
    target: LoadTarget
    source_port: int
    member: str = ""


@dataclass(slots=True, kw_only=True)
class LoadResult:
    """`answers`: new connections by answering member; `held`: surviving established ones, by member."""

    answers: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    exchanges: int = 0
    """Exchanges on established connections."""
    failed: list[FailedConnection] = field(default_factory=list)
    retransmissions: list[float] = field(default_factory=list)
    """Send times (Unix) of retransmitted packets: datagrams, and first TCP segments as inferred from timing."""

    @property
    def opened(self) -> int:
        return sum(self.answers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLoad:
    """A running load; `stop` ends it, `finish` waits for its own end, and both return its result."""

    process: "subprocess.Popen[str]"

    def stop(self) -> LoadResult:
        if self.process.stdin is not None:
            self.process.stdin.close()
        return self.finish()

    def finish(self) -> LoadResult:
        answer = self.process.stdout.read() if self.process.stdout is not None else ""
        self.process.wait(STOP_TIMEOUT)
        return msgspec.json.decode(answer, type=LoadResult)


@contextmanager
def run_load(command: LabCommand) -> Iterator[RunningLoad]:
    with subprocess.Popen(
        command.argv, env=command.full_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != STARTED_LINE:
                raise LabConnectionLost("the load generator did not start")
            yield RunningLoad(process=process)
        finally:
            process.kill()


def argv(load: Load) -> tuple[str, ...]:
    return (sys.executable, "-m", "fairlead.lab.load_generator", msgspec.json.encode(load).decode())


def sum_results(results: Sequence[LoadResult]) -> Mapping[str, int]:
    """Return the sums over several clients."""
    return {
        "opened": sum(result.opened for result in results),
        "held": sum(sum(result.held.values()) for result in results),
        "asked": sum(result.exchanges for result in results),
        "broken": sum(len(result.failed) for result in results),
        "again": sum(len(result.retransmissions) for result in results),
    }
