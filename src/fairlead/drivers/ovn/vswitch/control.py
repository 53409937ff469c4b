"""Control socket of an Open vSwitch daemon, with the protocol of ovs-appctl(8) (JSON-RPC 1.0, lib/unixctl.c).

A process per command takes some ten milliseconds; hundreds of commands use one connection instead.
"""

import asyncio
import json
from pathlib import Path
from types import TracebackType

from fairlead.drivers.ovn.vswitch.database import COMMAND_TIMEOUT, SwitchError

MAX_RESPONSE_BYTES = 2**20
"""Maximum bytes of an answer; no listing is requested here."""


class UnixctlConnection:
    """Open connection to ovs-vswitchd, for one task at a time."""

    def __init__(self, run_dir: Path) -> None:
        """`run_dir` is the directory with Open vSwitch's sockets."""
        self._run_dir = run_dir

    async def __aenter__(self) -> "UnixctlConnection":
        """Connect. Raises SwitchError."""
        try:
            pid = int((self._run_dir / "ovs-vswitchd.pid").read_text())
            path = self._run_dir / f"ovs-vswitchd.{pid}.ctl"
            self._reader, self._writer = await asyncio.open_unix_connection(path)
        except (OSError, ValueError) as error:
            raise SwitchError(f"cannot connect to ovs-vswitchd: {error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    async def run(self, method: str, *words: str) -> str:
        """Run a command and return its output. Raises SwitchError."""
        question = {"id": 0, "method": method, "params": list(words)}
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                self._writer.write(json.dumps(question).encode())
                await self._writer.drain()
                answer = await self._read_response()
        except (OSError, TimeoutError) as error:
            raise SwitchError(f"ovs-vswitchd: {method} failed: {error}") from None
        if answer.get("error") is not None:
            raise SwitchError(f"{' '.join((method, *words))}: {str(answer['error']).strip()}")
        return str(answer.get("result") or "")

    async def _read_response(self) -> dict[str, object]:
        """Read one JSON value, which has no other delimiter. Raises OSError."""
        text = b""
        while True:
            octets = await self._reader.read(2**16)
            text += octets
            if not octets or len(text) > MAX_RESPONSE_BYTES:
                raise ConnectionResetError("incomplete response")
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if not isinstance(found, dict):
                raise ConnectionResetError("response is not a JSON object")
            return found
