"""Presence of running agents on this plain host, checked before an operator removes their state.

An agent binds a socket in the abstract namespace (unix(7)). Such a socket belongs to the network namespace, as all
state of the agent does, and disappears with the process. Several agents may run for a moment during a restart.
"""

import os
import re
import secrets
import socket
from pathlib import Path

_NAME = "fairlead-agent-"
_SOCKET = re.compile(f"@{_NAME}([0-9]{{1,9}})-[0-9a-f]{{16}}")
"""Socket name in /proc/net/unix; other programs may have similar names."""


def mark_running() -> socket.socket:
    """Mark this process as a running agent until the socket is closed. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"\0{_NAME}{os.getpid()}-{secrets.token_hex(8)}")  # a PID is not unique across containers
    return made


def find_running_agents() -> list[int]:
    """Return the PIDs of running agents."""
    lines = Path("/proc/thread-self/net/unix").read_text().splitlines()
    found = (_SOCKET.fullmatch(line.split()[-1]) for line in lines)
    return sorted(int(each[1]) for each in found if each is not None)
