"""Who may do what in the folder of a process.

The process's user reads what is in it, and makes sockets in a folder of its own there. Everything else is the agent's:
who could write here, or put links here, would have what the agent may. Others pass through, and read nothing.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from fairlead.drivers.haproxy.kept import write_whole


@dataclass(frozen=True, slots=True)
class Rights:
    user: str
    """The process's; empty: it is the agent's."""

    def make(self, folder: Path, sockets: Path) -> None:
        """Raises OSError."""
        for each in (*reversed(folder.parent.parents), folder.parent):
            if not each.exists():
                each.mkdir()
                each.chmod(0o755)  # whatever the agent's umask is
        self._make_readable(folder)
        sockets.mkdir(mode=0o700, exist_ok=True)
        if self.user:
            os.chown(sockets, self._found().pw_uid, -1)

    def write(self, path: Path, text: str) -> None:
        """Raises OSError."""
        if not path.parent.exists():
            self._make_readable(path.parent)
        write_whole(path, text.encode(), 0o640, group=self._group())

    def write_secret(self, path: Path, text: str) -> None:
        """Nobody but the process's user reads it. Raises OSError."""
        if not path.parent.exists():
            self._make_readable(path.parent)
        write_whole(path, text.encode(), 0o600, user=self._found().pw_uid if self.user else -1)

    def share(self, path: Path) -> None:
        """A socket of the agent's, at which the process's user asks. Raises OSError."""
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
