"""One HAProxy process: started as an unprivileged user, replaced without losing a connection, and watched.

The process continues when the agent ends, and the next agent finds it by its pid file. Because the kernel reuses pids,
the file also has the start time of the process (proc(5), starttime).
"""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.dataplane.haproxy import CRT_LIST_FOLDER
from fairlead.dataplane.haproxy_policies import MAP_FOLDER
from fairlead.dataplane.haproxy_text import CONFIGURATION, HARD_STOP_AFTER
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.runtime import running_pid
from fairlead.drivers.haproxy.state import PID, write_atomic
from fairlead.drivers.interface import DriverError
from fairlead.model.queries.secrets import FOLDER as SECRETS
from fairlead.runtime.subprocesses import kill as kill_child
from fairlead.runtime.threads import in_thread

START_TIMEOUT, POLL_INTERVAL = 10.0, 0.02
"""Seconds until a started process must respond, and between two checks."""
MEGABYTE = 2**20
MEMORY_MARGIN = MEGABYTE
"""Bytes below the memory limit at which a process counts as full: the next allocation may be larger than the rest."""
KILL_TIMEOUT = 5.0
"""Seconds between SIGTERM and SIGKILL."""
DRAFT = "draft"
"""Folder in which a configuration is checked before it is used."""
CONTROL, PEERS = "sockets/control", "sockets/peers"
MAX_REPLACED = 4
"""Maximum replaced processes of one network that still have connections; `retire` ends the excess. Each uses memory,
and a tenant creates one with each change of a listener that has long-lived connections."""


class NotStarted(DriverError):
    """HAProxy did not start or rejected a configuration. The message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    path: str = "/usr/sbin/haproxy"
    user: str = "haproxy"
    """User of the process; empty for the agent's user."""
    files: int = 65_536
    """Maximum open files of a process, capped by the agent's own hard limit."""
    memory: int = 1024
    """Maximum MB of data of a process (setrlimit(2), RLIMIT_DATA)."""
    hard_stop_after: int = HARD_STOP_AFTER
    """Seconds that a replaced process may continue to serve its connections."""

    def command(self, *more: str) -> Sequence[str]:
        """Return the command that runs the program with the limits, the user, and no capabilities."""
        files = min(self.files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        limited = ("prlimit", f"--data={self.memory * MEGABYTE}", *((f"--nofile={files}",) if self.user else ()), "--")
        changed = ("setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups") if self.user else ()
        bare = ("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--") if self.user else ()
        return *limited, *changed, *bare, self.path, *more

    def is_out_of_memory(self, running: "RunningProcess") -> bool:
        """Whether a process has reached its memory limit."""
        return data_of(running.pid) > self.memory * MEGABYTE - MEMORY_MARGIN

    @property
    def file(self) -> str:
        """Device and inode of the program; empty if it does not exist. A package upgrade changes the inode."""
        try:
            found = Path(shutil.which(self.path) or self.path).stat()
        except OSError:
            return ""
        return f"{found.st_dev}.{found.st_ino}"


def data_of(pid: int) -> int:
    """Return the bytes that count for RLIMIT_DATA (proc(5), VmData); 0 if the process does not exist."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


@dataclass(frozen=True, slots=True)
class RunningProcess:
    """A process, identified by its pid and start time."""

    pid: int
    start_time: str
    program: str = field(default="", compare=False)
    """Program file (`Program.file`) read before the start, because reading another user's /proc/PID/exe needs
    CAP_SYS_PTRACE. Empty if unknown."""

    @property
    def is_alive(self) -> bool:
        return start_time_of(self.pid) == self.start_time

    def __str__(self) -> str:
        return f"{self.pid}.{self.start_time}"


def is_running(process: str) -> bool:
    """Whether the process with this text form (`str(Running)`) still runs."""
    pid, _, began = process.partition(".")
    return pid.isdecimal() and bool(began) and start_time_of(int(pid)) == began


def start_time_of(pid: int) -> str:
    """Return the start time of a process; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def read_running(folder: Path) -> RunningProcess | None:
    """Return the process in the folder's pid file, if it runs."""
    found = _read_pid_file(folder)
    return found if found is not None and found.is_alive else None


def _read_pid_file(folder: Path) -> RunningProcess | None:
    try:
        pid, began, *program = (folder / PID).read_text().split()
        return RunningProcess(int(pid), str(int(began)), *program)
    except (OSError, ValueError, TypeError):
        return None


def find_processes(folder: Path) -> list[RunningProcess]:
    """Return all processes with this folder's configuration, oldest first.

    These include replaced processes, and a process whose agent ended before it wrote the pid file.
    """
    found = list[RunningProcess]()
    mark = f"\0-f\0{folder / CONFIGURATION}\0".encode()
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdecimal() and mark in (each / "cmdline").read_bytes():
                found.append(RunningProcess(int(each.name), start_time_of(int(each.name))))
    return sorted((each for each in found if each.start_time), key=lambda each: int(each.start_time))


def retire(others: Sequence[RunningProcess], expendable: Sequence[RunningProcess]) -> None:
    """Make replaced processes, oldest first, close their listeners and end with their last connection. Those above
    `MAX_REPLACED` are ended immediately."""
    for each in others:
        _signal(each, signal.SIGUSR1)
    for each in superfluous(others, expendable):
        _signal(each, signal.SIGTERM)


def superfluous(others: Sequence[RunningProcess], expendable: Sequence[RunningProcess]) -> Sequence[RunningProcess]:
    """Return the replaced processes above `MAX_REPLACED`: the oldest `expendable` ones, then the oldest of the others.

    A process with unknown connections, because it does not respond or an earlier agent replaced it, is one of the
    others. If it were ended last, each further change would end the process that it has just replaced.
    """
    order = [*expendable, *(each for each in others if each not in expendable)]
    return order[: max(len(others) - MAX_REPLACED, 0)]


def write_files(folder: Path, texts: Mapping[str, str], rights: FileOwnership) -> None:
    """Write the configuration, crt-lists and maps that differ, and remove the lists and maps that `texts` lacks.

    HAProxy reads them only at its start; commands refer to them by name. All are written before each start. The work
    grows with the listeners, so it runs in a thread. Raises OSError.
    """
    rights.write(folder, texts)
    remove_stale_files(folder, texts)


def remove_stale_files(folder: Path, named: Container[str] = ()) -> None:
    """Remove crt-lists and maps of L7 policies that are not in `named`. Each listener has its own."""
    for kind in (CRT_LIST_FOLDER, MAP_FOLDER):
        with contextlib.suppress(OSError):
            for path in (folder / kind).iterdir():
                if f"{kind}/{path.name}" not in named:
                    path.unlink()


async def check_draft(folder: Path, texts: Mapping[str, str], rights: FileOwnership, program: Program) -> None:
    """Check files in a separate folder, with the secrets of the process. The configuration has relative paths. Raises
    NotStarted and OSError."""
    draft = folder / DRAFT
    await in_thread(write_files, draft, texts, rights)
    link = draft / SECRETS
    if not link.is_symlink() and (folder / SECRETS).exists():
        link.symlink_to(folder / SECRETS)
    await check(draft, program, CONFIGURATION)


async def check(folder: Path, program: Program, configuration: str) -> None:
    """Check a configuration with `haproxy -c`. Raises NotStarted if it is rejected, and OSError.

    The check runs with the same restricted privileges as the process, because it parses a tenant's text.
    """
    words = program.command("-c", "-f", configuration)
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(START_TIMEOUT):
            _, said = await process.communicate()
    except TimeoutError:
        raise NotStarted(f"HAProxy timed out after {START_TIMEOUT:.0f} s reading the configuration") from None
    finally:
        await kill_child(process)
    if process.returncode != 0:
        raise NotStarted(f"HAProxy rejected the configuration: {_first_error(said)}")


async def start(
    folder: Path, program: Program, inside: Sequence[str], before: RunningProcess | None = None
) -> RunningProcess:
    """Start a process; return when it accepts connections.

    A process that serves on the control socket passes its listening sockets on. That process and `before` accept no new
    connections and end with their last one.

    Raises NotStarted. The old process then continues, unless it has already been signalled; in that case it no longer
    responds on its control socket.
    """
    control = folder / CONTROL
    serves = await running_pid(control)  # a process that does not respond has no sockets to pass on
    others = dict.fromkeys(pid for pid in (serves, before.pid if before is not None else None) if pid is not None)
    more = (*(("-x", str(control)) if serves is not None else ()), *(("-sf", *map(str, others)) if others else ()))
    here = ("-C", str(folder))  # base of paths of client certificates, which default-path does not cover
    words = [*inside, *program.command("-db", *here, "-f", str(folder / CONFIGURATION), *more)]
    running, said = _spawn(words, program.file)
    try:
        await _wait_responding(running, control, said)
    finally:
        os.close(said)
    try:
        write_atomic(folder / PID, f"{running.pid} {running.start_time} {running.program}\n".encode())
    except OSError:  # the process serves; the next agent finds it by `find_serving`
        (folder / PID).unlink(missing_ok=True)
    return running


async def _wait_responding(running: RunningProcess, control: Path, said: int) -> None:
    """Wait until the process responds. Raises NotStarted."""
    end = time.monotonic() + START_TIMEOUT
    while await running_pid(control) != running.pid:
        if not running.is_alive:
            raise NotStarted(f"HAProxy exited: {_first_error(_read(said))}")
        if time.monotonic() > end:
            _signal(running, signal.SIGKILL)
            raise NotStarted(
                f"HAProxy sent no response within {START_TIMEOUT:.0f} s of its start: {_first_error(_read(said))}"
            )
        await asyncio.sleep(POLL_INTERVAL)


def _spawn(words: list[str], program: str) -> tuple[RunningProcess, int]:
    """Start a process; return it and the read end of a pipe with its output.

    The pipe is closed after the start, because HAProxy logs each change of a server and a log file would fill the
    node's memory. HAProxy continues when a write fails.

    The process is not an asyncio child, because asyncio kills its children when the loop closes. Raises NotStarted and
    OSError.
    """
    said, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    actions = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, told, 1),
        (os.POSIX_SPAWN_DUP2, told, 2),
    )
    try:
        pid = os.posix_spawnp(words[0], words, os.environ, file_actions=actions, setsid=True)
    except OSError as error:
        os.close(said)
        raise NotStarted(f"{words[0]}: {error.strerror}") from None
    finally:
        os.close(told)
    loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(pid)

    def reap() -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    loop.add_reader(descriptor, reap)
    return RunningProcess(pid, start_time_of(pid), program), said


def _read(said: int) -> bytes:
    try:
        return os.read(said, 2**16)
    except BlockingIOError:
        return b""


async def find_serving(folder: Path) -> RunningProcess | None:
    """Return the serving process that an earlier agent left.

    That agent may have ended while the pid file named another process than the one it had just started, so the process
    that responds on the control socket is the right one. A process that is still starting is awaited, because it will
    replace the others.
    """
    end, written = time.monotonic() + START_TIMEOUT, _read_pid_file(folder)
    while True:
        there = await asyncio.to_thread(find_processes, folder)
        answers = await running_pid(folder / CONTROL)
        newer = [each for each in there if written is None or int(each.start_time) > int(written.start_time)]
        if not newer or newer[-1].pid == answers or time.monotonic() > end:
            break
        await asyncio.sleep(POLL_INTERVAL)
    named = written if written in there else None
    return next((each for each in (named, *there) if each is not None and each.pid == answers), named)


async def stop(running: RunningProcess) -> None:
    """End a process and its connections."""
    _signal(running, signal.SIGTERM)
    end = time.monotonic() + KILL_TIMEOUT
    while running.is_alive:
        if time.monotonic() > end:
            _signal(running, signal.SIGKILL)
        await asyncio.sleep(POLL_INTERVAL)


async def wait_ended(running: RunningProcess) -> None:
    """Return when the process has ended. It does not need to be a child of the agent."""
    try:
        descriptor = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, gone.set)
        if running.is_alive:
            await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def kill(running: RunningProcess) -> None:
    """End a process immediately with SIGKILL."""
    _signal(running, signal.SIGKILL)


def _signal(running: RunningProcess, number: int) -> None:
    if running.is_alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, number)


def _first_error(said: bytes) -> str:
    lines = said.decode(errors="replace").splitlines()
    return next((line for line in lines if "[ALERT]" in line), lines[-1] if lines else "no error message")[:200]
