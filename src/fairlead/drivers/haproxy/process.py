"""One HAProxy: started in its place as a user that may do nothing else, replaced without a lost connection, watched.

It goes on when the agent ends, and the next agent finds it by the file of its number. The number alone may be another
process's by then, so the moment at which it began is kept with it (proc(5), starttime).
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

from fairlead.dataplane.haproxy import LISTS
from fairlead.dataplane.haproxy_policies import MAPS
from fairlead.dataplane.haproxy_text import CONFIGURATION, OUTLIVES
from fairlead.drivers.haproxy.kept import PID, write_whole
from fairlead.drivers.haproxy.rights import Rights
from fairlead.drivers.haproxy.runtime import running_pid
from fairlead.drivers.interface import DriverError
from fairlead.model.secrets import FOLDER as SECRETS
from fairlead.subprocesses import kill as kill_child

READY, POLL = 10.0, 0.02
"""Seconds until a process answers that was started, and between two looks whether it does."""
MEGABYTE = 2**20
MARGIN = MEGABYTE
"""Bytes below its limit at which a process is full: the next allocation may be larger than what is left."""
GONE = 5.0
"""Seconds until one is killed that was asked to end."""
DRAFT = "draft"
"""A folder, in which a configuration is tried."""
CONTROL, PEERS = "sockets/control", "sockets/peers"
MAX_REPLACED = 4
"""Of one network, that were replaced and still have connections: of more some are ended (`retire`). Each is memory of
the node, and a tenant who changes a listener again and again under connections that stay makes them."""


class NotStarted(DriverError):
    """The message has what the program said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    path: str = "/usr/sbin/haproxy"
    user: str = "haproxy"
    """Empty: whoever the agent is."""
    files: int = 65_536
    """File descriptors that a process may have, if the agent may have as many."""
    memory: int = 1024
    """MB of data that a process may have (setrlimit(2), RLIMIT_DATA)."""
    outlives: int = OUTLIVES
    """Seconds for which a process that was replaced goes on with its connections."""

    def words(self, *more: str) -> Sequence[str]:
        """Those that run it with no right that its user has not."""
        files = min(self.files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        limited = ("prlimit", f"--data={self.memory * MEGABYTE}", *((f"--nofile={files}",) if self.user else ()), "--")
        changed = ("setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups") if self.user else ()
        bare = ("--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--") if self.user else ()
        return *limited, *changed, *bare, self.path, *more

    def has_filled(self, running: "Running") -> bool:
        """Whether a process has all the memory that it may have."""
        return data_of(running.pid) > self.memory * MEGABYTE - MARGIN

    @property
    def file(self) -> str:
        """Which one has its name now; empty while there is none. An upgrade of a package puts another one there."""
        try:
            found = Path(shutil.which(self.path) or self.path).stat()
        except OSError:
            return ""
        return f"{found.st_dev}.{found.st_ino}"


def data_of(pid: int) -> int:
    """Bytes that RLIMIT_DATA counts of a process (proc(5), VmData); 0 if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), 0)


@dataclass(frozen=True, slots=True)
class Running:
    """A process by its number, and by when it began."""

    pid: int
    began: str
    program: str = field(default="", compare=False)
    """Its file (`Program.file`), as it was before the process was started: another user's process shows its own to
    nobody without CAP_SYS_PTRACE. Empty: nobody has written it down."""

    @property
    def is_there(self) -> bool:
        return began_of(self.pid) == self.began

    def __str__(self) -> str:
        return f"{self.pid}.{self.began}"


def is_running(process: str) -> bool:
    """Of one as `str` writes it."""
    pid, _, began = process.partition(".")
    return pid.isdecimal() and bool(began) and began_of(int(pid)) == began


def began_of(pid: int) -> str:
    """Empty for a process that is not there, or that has ended and waits for who started it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def read_running(folder: Path) -> Running | None:
    """The one that the folder names, if it is there."""
    found = _written(folder)
    return found if found is not None and found.is_there else None


def _written(folder: Path) -> Running | None:
    try:
        pid, began, *program = (folder / PID).read_text().split()
        return Running(int(pid), str(int(began)), *program)
    except (OSError, ValueError, TypeError):
        return None


def all_running(folder: Path) -> list[Running]:
    """All processes with this folder's configuration, the oldest first: those that were replaced, and one that was
    started by an agent which ended before it could write down its number."""
    found = list[Running]()
    mark = f"\0-f\0{folder / CONFIGURATION}\0".encode()
    for each in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if each.name.isdecimal() and mark in (each / "cmdline").read_bytes():
                found.append(Running(int(each.name), began_of(int(each.name))))
    return sorted((each for each in found if each.began), key=lambda each: int(each.began))


def retire(others: Sequence[Running], expendable: Sequence[Running]) -> None:
    """Processes that were replaced, the oldest first, take no new connections and end when they have none. If there are
    too many, the oldest of the `expendable` ones are ended immediately, then the oldest of the others."""
    for each in others:
        _signal(each, signal.SIGUSR1)
    order = [*expendable, *(each for each in others if each not in expendable)]
    for each in order[: max(len(others) - MAX_REPLACED, 0)]:
        _signal(each, signal.SIGTERM)


def write_files(folder: Path, texts: Mapping[str, str], rights: Rights) -> None:
    """No other lists and maps are there then. A process has read them when it began, and is told of them by their names
    alone; before each start all files are written. Raises OSError."""
    for name, text in texts.items():
        rights.write(folder / name, text)
    forget_files(folder, texts)


def forget_files(folder: Path, named: Container[str] = ()) -> None:
    """Lists of certificates, and maps of L7 policies, that are not named: each listener has its own."""
    for kind in (LISTS, MAPS):
        with contextlib.suppress(OSError):
            for path in (folder / kind).iterdir():
                if f"{kind}/{path.name}" not in named:
                    path.unlink()


async def check_beside(folder: Path, texts: Mapping[str, str], rights: Rights, program: Program) -> None:
    """In a folder beside, for paths are relative; with the secrets that are there. Raises NotStarted and OSError."""
    draft = folder / DRAFT
    write_files(draft, texts, rights)
    link = draft / SECRETS
    if not link.is_symlink() and (folder / SECRETS).exists():
        link.symlink_to(folder / SECRETS)
    await check(draft, program, CONFIGURATION)


async def check(folder: Path, program: Program, configuration: str) -> None:
    """Raises NotStarted for a configuration that the program does not take, and OSError.

    Whoever reads a tenant's words has no more rights than who serves them."""
    words = program.words("-c", "-f", configuration)
    process = await asyncio.create_subprocess_exec(
        *words, cwd=folder, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(READY):
            _, said = await process.communicate()
    except TimeoutError:
        raise NotStarted(f"HAProxy has not read the configuration after {READY:.0f} s") from None
    finally:
        await kill_child(process)
    if process.returncode != 0:
        raise NotStarted(f"HAProxy does not take the configuration: {_first_complaint(said)}")


async def start(folder: Path, program: Program, inside: Sequence[str], before: Running | None = None) -> Running:
    """Returns when it takes connections. Who serves hands over its sockets, whoever that is; it and who was `before`
    take no new connections, and end when they have none.

    Raises NotStarted; then the one before goes on, unless it was told already: it does not answer then.
    """
    control = folder / CONTROL
    serves = await running_pid(control)  # who does not answer has none to hand over
    others = dict.fromkeys(pid for pid in (serves, before.pid if before is not None else None) if pid is not None)
    more = (*(("-x", str(control)) if serves is not None else ()), *(("-sf", *map(str, others)) if others else ()))
    here = ("-C", str(folder))  # where it looks for what it shows to members: default-path does not say so
    words = [*inside, *program.words("-db", *here, "-f", str(folder / CONFIGURATION), *more)]
    running, said = _spawn(words, program.file)
    try:
        await _answered(running, control, said)
    finally:
        os.close(said)
    try:
        write_whole(folder / PID, f"{running.pid} {running.began} {running.program}\n".encode())
    except OSError:  # it serves; the next agent finds it by `left_running`
        (folder / PID).unlink(missing_ok=True)
    return running


async def _answered(running: Running, control: Path, said: int) -> None:
    """Raises NotStarted."""
    end = time.monotonic() + READY
    while await running_pid(control) != running.pid:
        if not running.is_there:
            raise NotStarted(f"HAProxy has ended: {_first_complaint(_read(said))}")
        if time.monotonic() > end:
            _signal(running, signal.SIGKILL)
            raise NotStarted(f"HAProxy does not answer after {READY:.0f} s: {_first_complaint(_read(said))}")
        await asyncio.sleep(POLL)


def _spawn(words: list[str], program: str) -> tuple[Running, int]:
    """With where it says why it does not start. Nobody reads there afterwards: each member that comes or goes is words,
    and a file of them would fill the node's memory. HAProxy goes on when it cannot say them.

    Not by asyncio, which ends its children with its loop. Raises NotStarted and OSError.
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
    return Running(pid, began_of(pid), program), said


def _read(said: int) -> bytes:
    try:
        return os.read(said, 2**16)
    except BlockingIOError:
        return b""


async def left_running(folder: Path) -> Running | None:
    """Who serves, of those that an earlier agent left. It may have ended while another one was written down than it had
    started: who is asked at the socket knows. One that is starting is waited for, since it takes the others' place."""
    end, written = time.monotonic() + READY, _written(folder)
    while True:
        there = await asyncio.to_thread(all_running, folder)
        answers = await running_pid(folder / CONTROL)
        newer = [each for each in there if written is None or int(each.began) > int(written.began)]
        if not newer or newer[-1].pid == answers or time.monotonic() > end:
            break
        await asyncio.sleep(POLL)
    named = written if written in there else None
    return next((each for each in (named, *there) if each is not None and each.pid == answers), named)


async def stop(running: Running) -> None:
    """Its connections end."""
    _signal(running, signal.SIGTERM)
    end = time.monotonic() + GONE
    while running.is_there:
        if time.monotonic() > end:
            _signal(running, signal.SIGKILL)
        await asyncio.sleep(POLL)


async def ended(running: Running) -> None:
    """Returns when the process has ended, whoever started it."""
    try:
        descriptor = os.pidfd_open(running.pid)
    except ProcessLookupError:
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(descriptor, gone.set)
        if running.is_there:
            await gone.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def kill(running: Running) -> None:
    """At once, whatever it is at."""
    _signal(running, signal.SIGKILL)


def _signal(running: Running, number: int) -> None:
    if running.is_there:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, number)


def _first_complaint(said: bytes) -> str:
    lines = said.decode(errors="replace").splitlines()
    return next((line for line in lines if "[ALERT]" in line), lines[-1] if lines else "it says nothing")[:200]
