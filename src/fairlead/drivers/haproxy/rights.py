"""Ownership and file modes of the folder of an HAProxy process.

The process's user reads the files, and creates sockets in one subfolder of its own. Everything else belongs to the
agent, because a user that can write or place links here would gain the agent's privileges. Other users can traverse the
parent folders and read nothing.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from fairlead.drivers.haproxy.kept import write_whole


@dataclass(frozen=True, slots=True)
class Rights:
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

    def write(self, path: Path, text: str) -> None:
        """Write a file that the process's user can read. Raises OSError."""
        if not path.parent.exists():
            self._make_readable(path.parent)
        write_whole(path, text.encode(), 0o640, group=self._group())

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that only the process's user can read. Raises OSError."""
        if not path.parent.exists():
            self._make_readable(path.parent)
        write_whole(path, text.encode(), 0o600, user=self._found().pw_uid if self.user else -1)

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
            raise FileNotFoundError(f"there is no user {self.user}, who is to run HAProxy") from None
