"""Whether an agent runs on this plain host: whoever would take away what it keeps asks first.

An agent has a socket with a name that no file has (unix(7), abstract). It is of the host's network, as all is that the
agent keeps, and gone with the process, however that ends. Several may run for a moment, when one follows another.
"""

import os
import re
import secrets
import socket
from pathlib import Path

_NAME = "fairlead-agent-"
_SOCKET = re.compile(f"@{_NAME}([0-9]{{1,9}})-[0-9a-f]{{16}}")
"""As it is listed. Others may have some with similar names."""


def be_present() -> socket.socket:
    """Until it is closed, or the process ends. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.bind(f"\0{_NAME}{os.getpid()}-{secrets.token_hex(8)}")  # in a container a process may have any number
    return made


def present_agents() -> list[int]:
    """The processes."""
    lines = Path("/proc/thread-self/net/unix").read_text().splitlines()
    found = (_SOCKET.fullmatch(line.split()[-1]) for line in lines)
    return sorted(int(each[1]) for each in found if each is not None)
