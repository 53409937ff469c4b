"""Directory of files, with a subdirectory for each project: DIRECTORY/PROJECT/NAME.

A reference is a file name and never a path, so it cannot lead out of the project's directory. Symbolic links are not
followed, neither for the directory nor for the file. World-accessible files are rejected, because they are not secret.
"""

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairlead.keystores.interface import MAX_CONTENT_BYTES, Content, Requester, Unreadable

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""Names of files and of project directories."""
THREADS = 4
"""Threads of a separate pool: on an unavailable disk they hang, and must not block other work."""
WORLD_ACCESS = 0o007
"""Mode bits of world access."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # O_NONBLOCK: opening a FIFO must not block


class Directory:
    """Key store in a directory (`interface.py`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="keys")

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        """Read a project's file, for any requester: the directory determines the project. Raises Unreadable."""
        if not NAME.fullmatch(reference):
            raise Unreadable("the reference must be a file name of at most 128 letters, digits, dots, _ and -")
        if not NAME.fullmatch(project_id):
            raise Unreadable("the project id is not a valid folder name, so the project has no keys here")
        loop = asyncio.get_running_loop()
        return Content(material=await loop.run_in_executor(self._threads, self._read, project_id, reference))

    def _read(self, project_id: str, name: str) -> bytes:
        try:
            with (
                _opened(str(self._folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root,
                _opened(project_id, _FOLDER, root) as folder,
                _opened(name, _FILE, folder) as file,
            ):
                return _content(file)
        except FileNotFoundError:
            raise Unreadable("the project has no file of this name") from None
        except OSError as error:  # ELOOP: a symbolic link
            raise Unreadable(f"it cannot be opened ({error.strerror})") from None


@contextlib.contextmanager
def _opened(name: str, flags: int, within: int | None = None) -> Iterator[int]:
    """Open a file relative to a directory. Raises OSError."""
    descriptor = os.open(name, flags, dir_fd=within)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _content(file: int) -> bytes:
    """Check and read an open file. Raises Unreadable and OSError."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable("it is not a regular file")
    if found.st_mode & WORLD_ACCESS:
        raise Unreadable(f"all users of the server can access it (mode {stat.S_IMODE(found.st_mode):04o}); chmod 640")
    with os.fdopen(os.dup(file), "rb") as reader:
        content = reader.read(MAX_CONTENT_BYTES + 1)
    if len(content) > MAX_CONTENT_BYTES:
        raise Unreadable(f"it is larger than {MAX_CONTENT_BYTES} bytes")
    return content
