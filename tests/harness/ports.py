"""TCP and UDP ports of this machine for programs that tests start."""

import contextlib
import socket
from pathlib import Path

PORTS = range(20_000, 30_000)
"""below Linux's range of ephemeral ports (ip(7), ip_local_port_range)"""
_RESERVED = dict[int, socket.socket]()


def free_port(host: str = "127.0.0.1") -> int:
    """A free port that no other test is given while this process lives, and that is not ephemeral.

    A port that is merely tested to be free may be bound by another process a moment later. HAProxy binds with
    SO_REUSEPORT, so two processes given the same port would both serve it, with half of the connections each
    (socket(7)). Therefore an abstract Unix socket named after the port, which one process can have, reserves it
    (unix(7)).
    """
    for port in PORTS:
        if port not in _RESERVED and _is_reserved(port) and _is_free(host, port):
            return port
    raise AssertionError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are taken")


def _is_reserved(port: int) -> bool:
    kept = socket.socket(socket.AF_UNIX)
    try:
        kept.bind(f"\0fairlead-test-port-{port}")
    except OSError:
        kept.close()
        return False
    _RESERVED[port] = kept
    return True


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        probe.bind((host, port))
        return True
    return False


def is_listening(port: int) -> bool:
    """Whether a socket of this machine listens on the port, by /proc/net/tcp (proc(5)), without a connection."""
    lines = (
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]
    )
    return any(state == "0A" and int(local.rpartition(":")[2], 16) == port for _, local, _, state, *_ in lines)
