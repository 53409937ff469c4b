"""Unnamed network namespaces, held by a file descriptor or by the processes in them.

The kernel removes an unused one.
"""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_CURRENT_NAMESPACE = "/proc/thread-self/ns/net"


def require_root(*programs: str) -> None:
    missing = [each for each in programs if not Path(each).exists()]
    if os.geteuid() == 0 and not missing:
        return
    reason = f"needs {', '.join(missing)}" if missing else "needs root: it makes network namespaces"
    pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)


class NetNamespace:
    """A network namespace.

    In `with namespace.inside()` the calling thread is inside; sockets created there stay there.
    """

    def __init__(self) -> None:
        before = os.open(_CURRENT_NAMESPACE, os.O_RDONLY)
        try:
            _check(_LIBC.unshare(_CLONE_NEWNET))
            self._file = os.open(_CURRENT_NAMESPACE, os.O_RDONLY)
        finally:
            _check(_LIBC.setns(before, _CLONE_NEWNET))
            os.close(before)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        """Path for `ip link set DEVICE netns PATH`."""
        self.ip("link set lo up")

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def inside(self) -> Iterator[None]:
        before = os.open(_CURRENT_NAMESPACE, os.O_RDONLY)
        _check(_LIBC.setns(self._file, _CLONE_NEWNET))
        try:
            yield
        finally:
            _check(_LIBC.setns(before, _CLONE_NEWNET))
            os.close(before)

    def run(self, *command: str, text: str = "") -> str:
        with self.inside():
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def ip(self, *lines: str) -> None:
        self.run("ip", "-batch", "-", text="".join(f"{line}\n" for line in lines))

    def nft(self, text: str) -> None:
        self.run("nft", "-f", "-", text=text)

    def set_sysctl(self, name: str, value: int) -> None:
        """Set a sysctl, named by its path below /proc/sys."""
        with self.inside():
            Path("/proc/sys", name).write_text(str(value))


@contextmanager
def net_namespace() -> Iterator[NetNamespace]:
    made = NetNamespace()
    try:
        yield made
    finally:
        made.close()


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
