"""A real etcd cluster of three members on loopback, with its data in memory."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.ports import free_port
from harness.waiting import DEADLINE, wait_until

MEMBER_COUNT = 3
ATTEMPT_SECONDS = 5  # seconds for one of several attempts of etcdctl


class EtcdCluster:
    def __init__(self, folder: Path, options: tuple[str, ...], tls: tuple[str, ...]) -> None:
        """Start all members. `tls` has the options of etcdctl that are needed if members use TLS."""
        self._folder = folder
        self._options = options
        self._tls = tls
        self._scheme = "https" if tls else "http"
        self._ports = [(free_port(), free_port()) for _ in range(MEMBER_COUNT)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.hosts = [f"127.0.0.1:{port}" for port, _ in self._ports]
        self.url = f"etcd://{','.join(self.hosts)}"
        for member in range(MEMBER_COUNT):
            self.start(member)

    def start(self, member: int) -> None:
        """Start a member, for the first time or again with its existing data."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[member])
        client = client.replace("http", self._scheme)
        arguments = {
            "name": f"m{member}",
            "data-dir": str(self._folder / f"m{member}"),
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"m{each}=http://127.0.0.1:{p}" for each, (_, p) in enumerate(self._ports)),
            "logger": "zap",
        }
        with (self._folder / f"m{member}.log").open("ab") as log:
            self._running[member] = subprocess.Popen(
                ["etcd", *(f"--{name}={value}" for name, value in arguments.items()), *self._options],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )

    def signal(self, member: int, number: signal.Signals) -> None:
        """Send a signal to a member. Returns when a stopped process has stopped, and a killed one has exited."""
        process = self._running[member]
        process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        if number is signal.SIGKILL:
            self._running.pop(member).wait()

    def ctl(self, *arguments: str, given: str | None = None, members: Sequence[int] = range(MEMBER_COUNT)) -> str:
        """Run etcdctl once, with `given` as its input, and return its output."""
        return self._ctl(*arguments, given=given, members=members, seconds=int(DEADLINE))

    def _ctl(self, *arguments: str, given: str | None = None, members: Sequence[int], seconds: int) -> str:
        endpoints = ",".join(self.hosts[member] for member in members)
        bounds = f"--dial-timeout={seconds}s", f"--command-timeout={seconds}s"
        done = subprocess.run(
            ["etcdctl", f"--endpoints={endpoints}", *bounds, *self._tls, *arguments],
            env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
            capture_output=True,
            input=given,
            text=True,
            timeout=2 * DEADLINE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leader(self) -> int:
        return wait_until(self._leaders, "a leader")[0]

    def _leaders(self) -> list[int]:
        lines = self.ctl("endpoint", "status").splitlines()
        return [number for number, line in enumerate(lines) if line.split(", ")[4] == "true"]

    def wait(self) -> None:
        """Wait until the cluster accepts writes."""
        try:
            wait_until(
                lambda: self._ctl("put", "ready", "1", members=range(MEMBER_COUNT), seconds=ATTEMPT_SECONDS),
                "the cluster to write",
                retry=(AssertionError,),
            )
        except AssertionError as error:
            raise AssertionError(f"{error}; logs: {self._logs()}") from error

    def _logs(self) -> list[str]:
        return [path.read_text()[-500:] for path in self._folder.glob("*.log")]

    def save(self, path: Path) -> None:
        self.ctl("snapshot", "save", str(path), members=[0])

    def restore(self, saved: Path) -> None:
        """Restore a snapshot: all members start with its data as a new cluster, by etcd's documented procedure."""
        for member in list(self._running):
            self.signal(member, signal.SIGKILL)
        peers = [f"http://127.0.0.1:{port}" for _, port in self._ports]
        cluster = ",".join(f"m{member}={peer}" for member, peer in enumerate(peers))
        for member, peer in enumerate(peers):
            data = self._folder / f"m{member}"
            shutil.rmtree(data)
            whose = f"--name=m{member}", f"--initial-cluster={cluster}", f"--initial-advertise-peer-urls={peer}"
            self.ctl("snapshot", "restore", str(saved), f"--data-dir={data}", *whose)
            self.start(member)
        self.wait()

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
        for process in self._running.values():
            process.wait()


@contextmanager
def etcd_cluster(*options: str, tls: tuple[str, ...] = (), folder: Path | None = None) -> Iterator[EtcdCluster]:
    """Start a cluster, by default with its data in /dev/shm."""
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed here: scripts/setup lab does it")
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fairlead-etcd-", dir=folder or (memory if memory.is_dir() else None)))
    etcd = EtcdCluster(folder, options, tls)
    try:
        etcd.wait()
        yield etcd
    finally:
        etcd.stop()
        shutil.rmtree(folder)
