"""Open vSwitch of this node through its tools: ovs-vsctl(8), ovs-ofctl(8), ovs-appctl(8)."""

import asyncio
import os
import socket
from pathlib import Path

from fairlead.runtime.subprocesses import kill

COMMAND_TIMEOUT = 30.0
"""Seconds for one command."""


class SwitchError(Exception):
    """Open vSwitch does not answer; the message has the tool's output."""


class OvsTools:
    def __init__(self, run_dir: Path) -> None:
        """`run_dir` is the directory with Open vSwitch's sockets."""
        self._run_dir = run_dir

    async def chassis(self) -> str:
        """Return this node's name in OVN (system-id). Raises SwitchError."""
        found = await self.run("ovs-vsctl", "--no-wait", "get", "Open_vSwitch", ".", "external_ids:system-id")
        return found.strip().strip('"')

    async def run(self, *words: str, said: str = "") -> str:
        """Run a tool with `said` as input, and return its output. Raises SwitchError."""
        environment = {**os.environ, "OVS_RUNDIR": str(self._run_dir)}
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise SwitchError(f"{words[0]}: {error.strerror}") from None
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT):
                output, complaint = await process.communicate(said.encode())
        except TimeoutError:
            raise SwitchError(f"{words[0]} timed out after {COMMAND_TIMEOUT:.0f} s") from None
        finally:
            await kill(process)
        if process.returncode != 0:
            raise SwitchError(f"{' '.join(words)}: {complaint.decode(errors='replace').strip()}")
        return output.decode()

    async def run_in_switch_namespace(self, bridge: str, *words: str, said: str = "") -> str:
        """Run a tool in the network namespace of the switch, if it is another than the agent's.

        Only in that case the namespace is looked up, which needs CAP_SYS_PTRACE. Raises SwitchError.
        """
        if any(name == bridge for _, name in socket.if_nameindex()):
            return await self.run(*words, said=said)
        try:
            pid = int((self._run_dir / "ovs-vswitchd.pid").read_text())
        except (OSError, ValueError) as error:
            raise SwitchError(f"cannot read the process id of ovs-vswitchd: {error}") from None
        return await self.run("nsenter", f"--net=/proc/{pid}/ns/net", *words, said=said)
