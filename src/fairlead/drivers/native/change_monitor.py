"""Notifications about changes of rules, routes, addresses and devices by other programs (rtnetlink(7)).

A host may have a million routes that change, so a filter in the kernel drops messages about unmanaged routes and about
own changes. Changes of nftables are not monitored, because the kernel creates some kilobytes of messages for each
element written.
"""

import ctypes
import socket
import struct
import time

from fairlead.drivers.native.netlink import ROUTE
from fairlead.drivers.native.routing import MANAGED_PROTOCOL

_LINK, _ADDRESS4, _ROUTE4, _RULE4, _ADDRESS6, _ROUTE6, _RULE6 = 1, 5, 7, 8, 9, 11, 19
_GROUPS = sum(1 << each - 1 for each in (_LINK, _ADDRESS4, _ROUTE4, _RULE4, _ADDRESS6, _ROUTE6, _RULE6))
_NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _DELETE_ADDRESS, _DELETE_ROUTE, _NEW_RULE, _DELETE_RULE = (
    16,
    17,
    20,
    21,
    25,
    32,
    33,
)
_KINDS = _NEW_LINK, _DELETE_LINK, _NEW_ADDRESS, _DELETE_ADDRESS, _NEW_RULE, _DELETE_RULE
"""Message types that may matter. A removed link is reported without its routes. A new address may be the first source
address for the host's own connections to VIPs."""
_KIND_AT, _SENDER_AT, _ROUTE_PROTOCOL_AT = 4, 12, 16 + 5
_SO_ATTACH_FILTER = 26
_WORD, _HALF, _BYTE = 0x20, 0x28, 0x30
_EQUAL, _RETURN = 0x15, 0x06
_INSTRUCTION = struct.Struct("=HBBI")
_ALL = 0xFFFFFFFF
PAUSE_FACTOR = 10
"""Pause after a check as a multiple of its duration, so checks take at most a tenth of the time."""


class ChangeMonitor:
    def __init__(self, sender: int) -> None:
        """`sender` is the port id of the socket for own changes (netlink(7), nl_pid). Raises OSError."""
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, ROUTE)
        _let_pass(self._socket, _filter(sender))
        self._socket.bind((0, _GROUPS))
        self._has_changed = False
        self._quiet_until = 0.0

    def close(self) -> None:
        self._socket.close()

    def needs_check(self) -> bool:
        """Whether something was changed since the last check, and the pause is over."""
        self._has_changed |= self._drain_socket()
        return self._has_changed and time.monotonic() >= self._quiet_until

    def record_check(self, seconds: float) -> None:
        """Record a check of this duration. Changes during it trigger another check."""
        self._has_changed = False
        self._quiet_until = time.monotonic() + PAUSE_FACTOR * seconds

    def _drain_socket(self) -> bool:
        heard = False
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return heard
            except OSError:  # ENOBUFS: messages were lost
                pass
            heard = True


def _filter(sender: int) -> bytes:
    """Return a classic BPF program (linux/filter.h), which reads numbers in network byte order."""
    ours = [(_WORD, 0, 0, _SENDER_AT), (_EQUAL, len(_KINDS) + 4, 0, _swapped("=I", sender)), (_HALF, 0, 0, _KIND_AT)]
    taken = [(_EQUAL, len(_KINDS) + 3 - place, 0, _swapped("=H", kind)) for place, kind in enumerate(_KINDS)]
    route = [(_EQUAL, 0, 2, _swapped("=H", _DELETE_ROUTE)), (_BYTE, 0, 0, _ROUTE_PROTOCOL_AT)]
    ends = [(_EQUAL, 1, 0, MANAGED_PROTOCOL), (_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ALL)]
    return b"".join(_INSTRUCTION.pack(*each) for each in (*ours, *taken, *route, *ends))


def _swapped(form: str, number: int) -> int:
    return int.from_bytes(struct.pack(form, number))


def _let_pass(where: socket.socket, program: bytes) -> None:
    held = ctypes.create_string_buffer(program)
    said = struct.pack("HL", len(program) // _INSTRUCTION.size, ctypes.addressof(held))
    where.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, said)
