"""TCP resets for connections that are redirected to this node because their pool has no member left
(`model/queries/connection_resets.py`).

The kernel would look up a route for its reset, and the devices of all networks are in one namespace, so the reset could
reach another tenant. The frames are therefore read here and answered on the device on which they arrived. A listening
socket with a filter that drops everything prevents a reset by the kernel.
"""

import asyncio
import contextlib
import ctypes
import logging
import socket
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairlead.drivers.ovn.vswitch.offloads import enter_namespace
from fairlead.drivers.ovn.vswitch.probe_ports import device_name
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.queries.connection_resets import RESET_PORT
from fairlead.model.queries.probe_devices import ProbeDevice
from fairlead.node.tcp_resets import reset_of
from fairlead.node.threads import run_in_daemon_thread

LOG = logging.getLogger(__name__)
MAX_RESETS, RATE_PERIOD = 32, 0.032
"""Rate limit per network and IP version: frames, and seconds of the period; 1,000 per second. Clients without an answer
retransmit."""
MAX_FRAME_BYTES = 2**16
SO_ATTACH_FILTER = 26
ETH_P_IP, ETH_P_IPV6 = 0x0800, 0x86DD
"""EtherTypes (linux/if_ether.h). A packet socket bound to one of them receives incoming frames only."""
_Program = Sequence[tuple[int, int, int, int]]
_LOAD_BYTE, _LOAD_HALF, _LOAD_HALF_AFTER, _HEADER_LENGTH = 0x30, 0x28, 0x48, 0xB1
_IS, _HAS, _RETURN = 0x15, 0x45, 0x06
"""Operations of a classic BPF filter (linux/bpf_common.h); an instruction is code, jump if true, jump if false,
operand."""
FILTERS: Mapping[int, _Program] = {
    ETH_P_IP: (
        (_LOAD_BYTE, 0, 0, 23),
        (_IS, 0, 6, socket.IPPROTO_TCP),
        (_LOAD_HALF, 0, 0, 20),
        (_HAS, 4, 0, 0x1FFF),
        (_HEADER_LENGTH, 0, 0, 14),
        (_LOAD_HALF_AFTER, 0, 0, 16),
        (_IS, 0, 1, RESET_PORT),
        (_RETURN, 0, 0, MAX_FRAME_BYTES),
        (_RETURN, 0, 0, 0),
    ),
    ETH_P_IPV6: (
        (_LOAD_BYTE, 0, 0, 20),
        (_IS, 0, 3, socket.IPPROTO_TCP),
        (_LOAD_HALF, 0, 0, 56),
        (_IS, 0, 1, RESET_PORT),
        (_RETURN, 0, 0, MAX_FRAME_BYTES),
        (_RETURN, 0, 0, 0),
    ),
}
"""Filters for TCP segments to the reset port, so that no other traffic wakes up the agent."""
DROP_ALL: _Program = ((_RETURN, 0, 0, 0),)


@dataclass(frozen=True, slots=True)
class _DeviceSockets:
    device: ProbeDevice
    packet_sockets: tuple[socket.socket, ...]
    listening_sockets: tuple[socket.socket, ...]

    def close(self) -> None:
        for each in self.packet_sockets:
            asyncio.get_running_loop().remove_reader(each)
        for each in (*self.packet_sockets, *self.listening_sockets):
            each.close()


class Resetter:
    def __init__(self, namespace: Path) -> None:
        """`namespace` is the file of the network namespace with the devices."""
        self._namespace = namespace
        self._sockets: dict[str, _DeviceSockets] = {}
        """Device name -> its sockets."""

    async def apply(self, devices: Collection[ProbeDevice], made: Collection[str]) -> None:
        """Reset connections on exactly these devices; `made` are the names of new ones. Raises OSError."""
        wanted = {device_name(each.network_id): each for each in devices}
        for name in [name for name, each in self._sockets.items() if name in made or wanted.get(name) != each.device]:
            self._sockets.pop(name).close()
        missing = [each for name, each in wanted.items() if name not in self._sockets]
        if missing:
            for opened in await run_in_daemon_thread(partial(_open_all, self._namespace, missing)):
                self._sockets[device_name(opened.device.network_id)] = opened
                for each in opened.packet_sockets:
                    asyncio.get_running_loop().add_reader(each, self._send_resets, each)

    def _send_resets(self, hearing: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(MAX_RESETS):
            try:
                frame = hearing.recv(MAX_FRAME_BYTES)
                answer = reset_of(frame)
                if answer is not None:
                    hearing.send(answer)
            except BlockingIOError:
                return
            except OSError as error:  # the device was removed; its successor is opened again
                LOG.debug("device closed, its connections are no longer reset: %s", error)
                loop.remove_reader(hearing)
                return
        loop.remove_reader(hearing)
        loop.call_later(RATE_PERIOD, self._resume, hearing)

    def _resume(self, hearing: socket.socket) -> None:
        if hearing.fileno() >= 0:
            asyncio.get_running_loop().add_reader(hearing, self._send_resets, hearing)


def _open_all(namespace: Path, devices: Iterable[ProbeDevice]) -> list[_DeviceSockets]:
    """Open all sockets, or with OSError none. It runs in its own thread, which stays in the namespace."""
    enter_namespace(namespace)
    with contextlib.ExitStack() as stack:
        found = [_open(each, stack) for each in devices]
        stack.pop_all()
    return found


def _open(device: ProbeDevice, stack: contextlib.ExitStack) -> _DeviceSockets:
    name = device_name(device.network_id)
    silencing = [_open_listening_socket(name, each, stack) for each in device.addresses if not each.is_link_local]
    hearing = [_open_packet_socket(name, kind, stack) for kind in FILTERS]
    return _DeviceSockets(device, tuple(hearing), tuple(silencing))


def _open_packet_socket(name: str, kind: int, stack: contextlib.ExitStack) -> socket.socket:
    """Open a packet socket (packet(7)). It is bound after the filter is attached, so no unfiltered frame arrives."""
    found = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    _attach(found, FILTERS[kind])
    found.bind((name, kind))
    found.setblocking(False)
    return found


def _open_listening_socket(name: str, address: IPAddress, stack: contextlib.ExitStack) -> socket.socket:
    """Open a listening socket, so that the kernel sends no reset; its filter drops all segments."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    found = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    _attach(found, DROP_ALL)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind((str(address), RESET_PORT))
    found.listen()
    return found


def _attach(to: socket.socket, program: _Program) -> None:
    """Attach a filter (socket(7), SO_ATTACH_FILTER)."""
    lines = b"".join(struct.pack("=HBBI", *line) for line in program)
    kept = ctypes.create_string_buffer(lines)
    to.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", len(program), ctypes.addressof(kept)))
