"""Ports of this machine for what tests start."""

import contextlib
import socket
from pathlib import Path

PORTS = range(20_000, 30_000)
"""Below those from which Linux makes connections (ip(7), ip_local_port_range)."""
_KEPT = dict[int, socket.socket]()


def free_port(host: str = "127.0.0.1") -> int:
    """One that no other test is given while this process lives, and that the kernel gives to nobody by itself.

    A port that is looked for and found free may be somebody's a moment later. And HAProxy binds its ports with
    SO_REUSEPORT: two that are given the same one both serve it, and each gets half of the connections (socket(7)). So
    who has a port also has an abstract socket of its name (unix(7)), which one can have.
    """
    for port in PORTS:
        if port not in _KEPT and _is_kept(port) and _is_free(host, port):
            return port
    raise AssertionError(f"all ports from {PORTS.start} to {PORTS.stop - 1} are taken")


def _is_kept(port: int) -> bool:
    kept = socket.socket(socket.AF_UNIX)
    try:
        kept.bind(f"\0fairlead-test-port-{port}")
    except OSError:
        kept.close()
        return False
    _KEPT[port] = kept
    return True


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as probe:
        probe.bind((host, port))
        return True
    return False


def is_listening(port: int) -> bool:
    """A socket of this machine listens at the port, by the table of proc(5). No connection is made to find out."""
    lines = (
        line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()[1:]
    )
    return any(state == "0A" and int(local.rpartition(":")[2], 16) == port for _, local, _, state, *_ in lines)
