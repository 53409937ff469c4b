"""Programs: the one place of the lab that starts them and the one place that ends them.

Every program is started to its end; a daemon is one that detaches when it is ready, so that its start is the
readiness signal. Only Fairlead's own server and agents stay in the foreground. A process is ended only if it is ours:
it bears our mark in its environment or lives in a namespace that we made. It is held by a pidfd meanwhile, so that a
recycled process id is never hit.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from fairlead.lab.errors import CommandTimedOut, LabCommandFailed
from fairlead.lab.timeouts import scale_timeout

LAB_VARIABLE = "FAIRLEAD_LAB_DIR"
COMMAND_MODULE = "fairlead.cli.main"
"""A module."""
RUN_TIMEOUT = scale_timeout(60.0)
TERM_TIMEOUT = scale_timeout(2.0)
KILL_TIMEOUT = scale_timeout(10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabCommand:
    """What to execute, and what its environment has besides ours."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


def run(command: LabCommand, *, stdin: str = "", timeout: float = RUN_TIMEOUT) -> str:
    """Run a program to its end and give its standard output; anything but exit code 0 raises."""
    try:
        done = subprocess.run(
            command.argv,
            env=command.full_environment(),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandTimedOut(command.argv, timeout) from error
    except FileNotFoundError as error:
        raise LabCommandFailed(command.argv, 127, str(error)) from error
    if done.returncode != 0:
        raise LabCommandFailed(command.argv, done.returncode, done.stderr or done.stdout)
    return done.stdout


def launch(
    command: str, environment: Mapping[str, str], log: Path, program: str = COMMAND_MODULE, *, within: str = ""
) -> "subprocess.Popen[bytes]":
    """Start a command of Fairlead's own that goes on until it is ended; what it says is added to the log. `within` is a
    network namespace, if it is not to be in the machine's own."""
    inside = ("ip", "netns", "exec", within) if within else ()
    with log.open("ab") as stream:
        return subprocess.Popen(
            [*inside, sys.executable, "-m", program, command],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )


def is_marked(pid: int, directory: Path) -> bool:
    """Whether the process lives and was started for the lab of this directory."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return f"{LAB_VARIABLE}={directory}".encode() in environment.split(b"\0")


def read_pidfile(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (FileNotFoundError, ValueError):
        return None


def find_marked(directory: Path) -> frozenset[int]:
    """Every process that was started for the lab of this directory, wherever it is and whatever it has written yet."""
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return frozenset(pid for pid in pids if is_marked(pid, directory))


def select_by_name(pids: Iterable[int], program: str) -> Iterator[int]:
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                yield pid


def end(pids: Iterable[int], is_ours: Callable[[int], bool]) -> None:
    """TERM, then KILL what still runs; returns when all of them are gone."""
    with ExitStack() as held:
        pidfds = [pidfd for pid in sorted(set(pids)) if (pidfd := _open_pidfd(held, pid, is_ours)) is not None]
        for sign, seconds in ((signal.SIGTERM, TERM_TIMEOUT), (signal.SIGKILL, KILL_TIMEOUT)):
            for pidfd in pidfds:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, sign)
            pidfds = _wait_for_exit(pidfds, seconds)


def kill(pids: Iterable[int], is_ours: Callable[[int], bool]) -> None:
    """As a crash, or a lack of power: without a word before; returns when all of them are gone."""
    with ExitStack() as held:
        pidfds = [pidfd for pid in sorted(set(pids)) if (pidfd := _open_pidfd(held, pid, is_ours)) is not None]
        for pidfd in pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _wait_for_exit(pidfds, KILL_TIMEOUT)


def _open_pidfd(held: ExitStack, pid: int, is_ours: Callable[[int], bool]) -> int | None:
    """Ask whether it is ours only once it is held: before that the id may change hands."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    held.callback(os.close, pidfd)
    return pidfd if pid != os.getpid() and is_ours(pid) else None


def _wait_for_exit(pidfds: Sequence[int], seconds: float) -> list[int]:
    running = set(pidfds)
    poll = select.poll()
    for pidfd in running:
        poll.register(pidfd, select.POLLIN)
    deadline = monotonic() + seconds
    while running and (left := deadline - monotonic()) > 0:
        for pidfd, _ in poll.poll(left * 1000):
            poll.unregister(pidfd)
            running.discard(pidfd)
    return sorted(running)
