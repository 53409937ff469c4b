"""Ownership and file modes of the folder of an HAProxy process.

The process's user reads the files, and creates sockets in one subfolder of its own. Everything else belongs to the
agent, because a user that can write or place links here would gain the agent's privileges. Other users can traverse the
parent folders and read nothing.
"""

import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.drivers.haproxy.state import write_atomic

_READABLE = 0o640


@dataclass(frozen=True, slots=True)
class FileOwnership:
    user: str
    """User of the process; empty if it runs as the agent's user."""

    def make(self, folder: Path, sockets: Path) -> None:
        """Create the folder of a process and its folder for sockets. Raises OSError."""
        for each in (*reversed(folder.parent.parents), folder.parent):
            if not each.exists():
                each.mkdir()
                each.chmod(0o755)  # independent of the agent's umask
        self._make_readable(folder)
        sockets.mkdir(mode=0o700, exist_ok=True)
        if self.user:
            os.chown(sockets, self._found().pw_uid, -1)

    def write(self, folder: Path, texts: Mapping[str, str]) -> None:
        """Write files that the process's user can read, except those that already have their text. Raises OSError."""
        group = self._group()
        for name, text in texts.items():
            path, content = folder / name, text.encode()
            if not path.parent.exists():
                self._make_readable(path.parent)
            if not _has(path, content, group):
                write_atomic(path, content, _READABLE, group=group)

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that only the process's user can read. Raises OSError."""
        if not path.parent.exists():
            self._make_readable(path.parent)
        write_atomic(path, text.encode(), 0o600, user=self._found().pw_uid if self.user else -1)

    def share(self, path: Path) -> None:
        """Let the process's user connect to a socket of the agent. Raises OSError."""
        path.chmod(0o660)
        os.chown(path, -1, self._group())

    def _make_readable(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        os.chown(folder, -1, self._group())
        folder.chmod(0o750)

    def _group(self) -> int:
        return self._found().pw_gid if self.user else -1

    def _found(self) -> pwd.struct_passwd:
        try:
            return pwd.getpwnam(self.user)
        except KeyError:
            raise FileNotFoundError(f"user {self.user}, configured to run HAProxy, does not exist") from None


def _has(path: Path, content: bytes, group: int) -> bool:
    """Whether a file has this content, and the mode and group of files that `FileOwnership.write` writes."""
    try:
        found = path.lstat()
        is_equal = found.st_size == len(content) and stat.S_ISREG(found.st_mode)
        has_rights = stat.S_IMODE(found.st_mode) == _READABLE and group in (-1, found.st_gid)
        return is_equal and has_rights and path.read_bytes() == content
    except OSError:
        return False
