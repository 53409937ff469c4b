"""The unmodified stock `openstack` command, started once, so that each command line takes a fraction of a second.

As a program it reads command lines, one JSON list per line, and answers each with [exit code, output, errors].
"""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import split
from typing import Any


class OpenStackShell:
    """Interactive `openstack` session: runs one command line after the other."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def run(self, line: str) -> tuple[int, str, str]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(split(line)) + "\n")
        self._process.stdin.flush()
        code, printed, complaint = json.loads(self._process.stdout.readline())
        return code, printed.strip(), complaint.strip()

    def code_and_text(self, line: str) -> tuple[int, str]:
        code, printed, complaint = self.run(line)
        return code, f"{printed}{complaint}"

    def run_ok(self, line: str) -> Any:
        """Output of a command that must succeed, parsed if it is JSON."""
        code, printed, complaint = self.run(line)
        assert code == 0, (line, complaint)
        return json.loads(printed) if printed.startswith(("{", "[")) else printed

    def run_error(self, line: str, words: str) -> None:
        code, _, complaint = self.run(line)
        assert (code, words in complaint) == (1, True), (line, complaint)


class LoadBalancerShell:
    """`openstack loadbalancer ...`, with a record of all command lines."""

    def __init__(self, typed: OpenStackShell) -> None:
        self._shell = typed
        self.lines: list[str] = []

    def run_ok(self, line: str) -> Any:
        self.lines.append(line)
        return self._shell.run_ok(f"loadbalancer {line}")

    def run_error(self, line: str, words: str) -> None:
        self.lines.append(line)
        self._shell.run_error(f"loadbalancer {line}", words)

    def run_other(self, line: str) -> None:
        """Run a command of another service."""
        self._shell.run_ok(line)


@contextmanager
def shell(clouds: Path) -> Iterator[OpenStackShell]:
    environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds), "OS_CLOUD": "fairlead"}
    command = [sys.executable, __file__]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield OpenStackShell(process)
        assert process.stdin
        process.stdin.close()
        process.wait()


def _serve() -> None:
    from openstackclient.shell import main

    answers, place = sys.stdout, sys.path[0]
    sys.path.remove(place)  # the client must not import modules of this file's folder
    for line in sys.stdin:
        printed, complaint = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            try:
                code = main(json.loads(line))
            except SystemExit as end:
                code = end.code
        answers.write(json.dumps([code, printed.getvalue(), complaint.getvalue()]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
