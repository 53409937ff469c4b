"""Links of machines by tap devices: packets enter the chassis through a file, as those of a virtual machine do.

A packet that comes over a veth still belongs to the socket that sent it, and the kernel's Open vSwitch uses the hash of
that socket. A packet that is written to a tap device is new to the kernel, which computes a hash from its headers.
A program copies frames between two tap devices, one on the chassis and one in the workload; both go with the program.
"""

import argparse
import fcntl
import os
import select
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairlead.lab import namespaces, processes
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LabCommand, run

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
MAX_FRAME = 1 << 16
PIDFILE = "tap.pid"
TEMPORARY_PREFIX = "t-"
"""The first letters of the workload's device before it is moved into its namespace and gets its name."""


def create_tap_link(layout: Layout, name: str, near: namespaces.LinkEnd, far: namespaces.LinkEnd, mtu: int) -> None:
    """Return when both devices are up. `near` is the end that a switch takes."""
    directory = layout.node_directory(name)
    directory.mkdir(parents=True, exist_ok=True)
    waiting = f"{TEMPORARY_PREFIX}{near.device}"[:15]
    argv = (sys.executable, "-m", "fairlead.lab.taps", near.device, waiting, str(directory / PIDFILE))
    run(LabCommand(argv=namespaces.inside(near.namespace, argv), environment=layout.environment(name)))
    address = f" address {far.address}" if far.address else ""
    namespaces.configure(
        near.namespace,
        [
            f"link set {near.device} mtu {mtu} addrgenmode none up",
            f"link set {waiting} netns {far.namespace}",
        ],
    )
    namespaces.configure(far.namespace, [f"link set {waiting} name {far.device} mtu {mtu}{address} up"])


def remove_tap_link(layout: Layout, name: str) -> None:
    """End the program, if there is one; the devices are gone then."""
    pid = processes.read_pidfile(layout.node_directory(name) / PIDFILE)
    if pid is not None:
        processes.end([pid], lambda each: processes.is_marked(each, layout.directory))


def open_tap(device: str) -> int:
    """Make a tap device and return its file: a read or write is one Ethernet frame (tuntap.rst of the kernel)."""
    file = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    os.set_blocking(file, False)
    return file


def copy_frames(files: Sequence[int]) -> None:
    """Copy frames both ways until a device is gone."""
    one, other = files
    facing = {one: other, other: one}
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    while True:
        for file, event in poll.poll():
            if event & (select.POLLERR | select.POLLHUP | select.POLLNVAL):
                return
            with suppress(BlockingIOError):
                frame = os.read(file, MAX_FRAME)
                with suppress(OSError):  # a device that is down, or has no room, loses the frame
                    os.write(facing[file], frame)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Create two tap devices, and copy frames between them in the background."
    )
    parser.add_argument("devices", nargs=2)
    parser.add_argument("pidfile", type=Path)
    arguments = parser.parse_args()
    files = [open_tap(device) for device in arguments.devices]
    if pid := os.fork():
        arguments.pidfile.write_text(str(pid))
        return 0
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    with suppress(OSError):  # the device was deleted
        copy_frames(files)
    return 0


if __name__ == "__main__":
    sys.exit(main())
