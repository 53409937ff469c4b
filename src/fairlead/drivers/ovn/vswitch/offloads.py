"""Checksum offload of interfaces. A userspace datapath forwards packets unchanged, including missing checksums."""

import ctypes
import fcntl
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLONE_NEWNET = 0x40000000
"""setns(2)."""
SIOCETHTOOL = 0x8946
ETHTOOL_STXCSUM = 0x17
"""linux/sockios.h, linux/ethtool.h."""


def disable_checksums(device: str) -> None:
    """Disable transmit checksum offload in this thread's network namespace. Raises OSError."""
    value = ctypes.create_string_buffer(struct.pack("II", ETHTOOL_STXCSUM, 0))
    request = struct.pack("16sP", device.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, SIOCETHTOOL, request)


def disable_checksums_in(namespace: Path, device: str) -> None:
    """Disable transmit checksum offload in another network namespace. Raises OSError."""
    with ThreadPoolExecutor(1) as one:  # a separate thread, because it does not leave the namespace
        one.submit(_disable_in, namespace, device).result()


def _disable_in(namespace: Path, device: str) -> None:
    enter_namespace(namespace)
    disable_checksums(device)


def enter_namespace(namespace: Path) -> None:
    """Move only this thread into the namespace. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(namespace))
    finally:
        os.close(descriptor)
