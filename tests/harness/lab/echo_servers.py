"""Machines of a lab that run `telling.py`."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fairlead.lab import Lab
from harness.lab import request_echo_server


@contextmanager
def echo_server_at(lab: Lab, machine: str, ports: Sequence[int], *more: str) -> Iterator[None]:
    """Run the server during the context."""
    words = [word for port in ports for word in ("--port", str(port))]
    command = lab.command(machine, [sys.executable, request_echo_server.__file__, "--name", machine, *words, *more])
    with subprocess.Popen(command.argv, env=command.full_environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield
        finally:
            process.kill()
