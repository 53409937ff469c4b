"""The stock clients of LXD's API, `incus` and `lxc`.

Each has its own home directory, so it neither reads nor writes files of the machine's user, and an empty standard
input, which `create` reads to its end.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest


def require(program: str) -> str:
    """Path of a client. Without it the test is skipped, or fails on CI."""
    found = shutil.which(program)
    if found is None:
        reason = f"`{program}` is not here; scripts/clients {program} installs it, as root"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """Output and exit code of one command."""

    out: str = ""
    error: str = ""
    code: int = 0


@dataclass(frozen=True, kw_only=True)
class LxdCommand:
    """A client program, and the variables added to its environment."""

    name: str
    program: str
    environment: Mapping[str, str] = field(default_factory=dict)
    remote: str = ""
    """`NAME:` of the server, or empty if the environment selects it."""

    def run(self, *words: str, stdin: str = "") -> CommandResult:
        done = subprocess.run(
            [self.program, *words],
            env={**os.environ, **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return CommandResult(out=done.stdout, error=done.stderr, code=done.returncode)

    def run_ok(self, *words: str, stdin: str = "") -> str:
        """Standard output of a command that must succeed."""
        said = self.run(*words, stdin=stdin)
        assert said.code == 0, (words, said)
        return said.out

    def run_error(self, *words: str, stdin: str = "") -> str:
        """Error of a command that must fail without other output."""
        said = self.run(*words, stdin=stdin)
        assert (said.code, said.out) == (1, ""), (words, said)
        return said.error.removeprefix("Error: ").removesuffix("\n")

    def for_network(self, network: str) -> str:
        return f"{self.remote}{network}"


def incus(home: Path, socket: Path | None = None) -> LxdCommand:
    environment = {"HOME": str(home), "INCUS_CONF": str(home)}
    if socket:
        environment["INCUS_SOCKET"] = str(socket)
    return LxdCommand(name="incus", program=require("incus"), environment=environment)


def lxc(home: Path, socket: Path | None = None) -> LxdCommand:
    environment = {"HOME": str(home), "LXD_CONF": str(home)}
    if socket:
        environment["LXD_SOCKET"] = str(socket)
    return LxdCommand(name="lxc", program=require("lxc"), environment=environment)
