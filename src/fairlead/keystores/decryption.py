"""Decryption of PKCS#12 bundles and private keys with a passphrase, in a subprocess (`opener.py`).

The subprocess is started on first use, and again after a file that made it exceed its limits.
"""

import asyncio
import sys
from pathlib import Path

from fairlead.keystores import decrypt_process
from fairlead.keystores.interface import MAX_CONTENT_BYTES, Content, Unreadable
from fairlead.runtime.subprocesses import kill

_PROGRAM = (sys.executable, "-P", str(Path(decrypt_process.__file__)))
_MAX_RESPONSE_BYTES = 8 * MAX_CONTENT_BYTES
"""Bytes: PEM is longer than its source."""
TOO_LONG = (
    f"decryption takes more than {decrypt_process.MAX_CPU_SECONDS:g} s of CPU time, or too much memory: use fewer"
    " iterations of the key derivation, or PEM without a passphrase"
)


class Decrypter:
    """Runs the subprocess; decrypts one file at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def decrypt(self, content: Content) -> bytes:
        """Return the content as PEM. Raises Unreadable."""
        async with self._turn:
            process = self._process = await self._started()
            try:
                good, text = await _ask(process, content)
            except (asyncio.IncompleteReadError, ConnectionError):
                await self._end()
                raise Unreadable(TOO_LONG) from None
            except BaseException:  # the caller was cancelled: a late answer must not reach the next one
                await self._end()
                raise
        if not good:
            raise Unreadable(text.decode())
        return text

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        pipe, nowhere = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        return await asyncio.create_subprocess_exec(
            *_PROGRAM, stdin=pipe, stdout=pipe, stderr=nowhere, limit=_MAX_RESPONSE_BYTES
        )

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await kill(process)


async def _ask(process: asyncio.subprocess.Process, content: Content) -> tuple[bool, bytes]:
    """Send a request and read its answer. Raises IncompleteReadError and ConnectionError when the process ends."""
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    phrase = content.phrase or b""
    head = decrypt_process.FRAME.pack(content.phrase is not None, len(phrase), len(content.material))
    process.stdin.write(head + phrase + content.material)
    await process.stdin.drain()
    good, _, size = decrypt_process.FRAME.unpack(await process.stdout.readexactly(decrypt_process.FRAME.size))
    return good, await process.stdout.readexactly(size)
