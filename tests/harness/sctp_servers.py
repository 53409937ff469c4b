"""SCTP servers in user space that answer the first packet of an association, for kernels without SCTP sockets."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator, Mapping

from fairlead.node import sctp
from fairlead.node.prober import IPPROTO_SCTP

REPLY_BY_PORT: Mapping[int, int] = {7001: sctp.INIT_ACK, 7002: sctp.ABORT, 7003: sctp.INIT_ACK}
"""Chunk with which each port answers. `OTHER_ADDRESS_PORT` answers with the tag of another association."""
OTHER_ADDRESS_PORT = 7003


def can_emulate_sctp() -> bool:
    """Whether raw sockets are allowed and the kernel has no SCTP of its own, which would answer too."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SCTP):
        return False
    with contextlib.suppress(PermissionError), socket.socket(socket.AF_INET, socket.SOCK_RAW, IPPROTO_SCTP):
        return True
    return False


@contextlib.contextmanager
def sctp_servers(address: str, speakers: Mapping[int, int] = REPLY_BY_PORT) -> Iterator[None]:
    """Answer at this address as a kernel with SCTP does. An INIT with a wrong checksum fails the test."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_RAW, IPPROTO_SCTP) as speaker:
        speaker.setblocking(False)
        speaker.bind((address, 0))

        def answer() -> None:
            octets, who = speaker.recvfrom(4096)
            octets = octets[(octets[0] & 15) * 4 :] if family is socket.AF_INET else octets
            heard = sctp.read(octets)
            assert heard is not None
            if heard.chunk != sctp.INIT or heard.destination not in speakers:
                return
            assert octets == sctp.packet(heard.source, heard.destination, 0, octets[12:])
            tag = int.from_bytes(octets[16:20]) ^ (heard.destination == OTHER_ADDRESS_PORT)
            chunk = struct.pack("!BBHIIHHI", speakers[heard.destination], 0, 20, 77, 65536, 1, 1, 1)
            speaker.sendto(
                sctp.packet(heard.destination, heard.source, tag, chunk), (who[0], 0, *who[2:])
            )  # with the scope id of a link-local address

        loop.add_reader(speaker, answer)
        try:
            yield
        finally:
            loop.remove_reader(speaker)
