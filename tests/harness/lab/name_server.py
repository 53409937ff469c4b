"""A DNS server of one machine that answers every query, over UDP and TCP, with its own address.

So a client sees which backend answered. DNS is RFC 1035; over TCP a message is preceded by its length (section 4.2.2).
"""

import asyncio
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from ipaddress import IPv4Address
from subprocess import PIPE, Popen

from fairlead.lab import Lab
from fairlead.lab.echo_server import PKTINFO, listen

PORT = 53
HEADER = struct.Struct("!6H")
RESPONSE_FLAGS = 0x8580
"""Flags of an authoritative response with recursion desired and available, and no error."""


def compose_response(query: bytes, address: IPv4Address) -> bytes:
    """Response with the question and one A record with this address. Raises ValueError for an invalid query."""
    if len(query) <= HEADER.size:
        raise ValueError("shorter than its header")
    identity, *_ = HEADER.unpack_from(query)
    end = query.index(b"\0", HEADER.size) + 5
    record = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + address.packed
    return HEADER.pack(identity, RESPONSE_FLAGS, 1, 1, 0, 0) + query[HEADER.size : end] + record


def respond_datagram(address: IPv4Address, receiver: socket.socket) -> None:
    with suppress(OSError, ValueError):
        query, ancillary, _, client = receiver.recvmsg(4096, socket.CMSG_SPACE(PKTINFO.size))
        own = [(level, kind, PKTINFO.pack(PKTINFO.unpack(value)[0], 0)) for level, kind, value in ancillary]
        receiver.sendmsg([compose_response(query, address)], own, 0, client)


async def respond_stream(address: IPv4Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
        while True:
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            said = compose_response(await reader.readexactly(length), address)
            writer.write(struct.pack("!H", len(said)) + said)
            await writer.drain()
    writer.close()


async def serve(address: IPv4Address) -> None:
    sockets = listen([PORT])
    for receiver in sockets.datagrams:
        asyncio.get_running_loop().add_reader(receiver, respond_datagram, address, receiver)
    for sock in sockets.streams:
        await asyncio.start_server(partial(respond_stream, address), sock=sock)
    print("ready", flush=True)
    await asyncio.Event().wait()


@contextmanager
def name_server(lab: Lab, place: str, address: str) -> Iterator[None]:
    """Run the server in a workload of the lab. It answers when the context is entered."""
    command = lab.command(place, [sys.executable, __file__, address])
    with Popen(command.argv, env=command.full_environment(), stdout=PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve(IPv4Address(sys.argv[1])))
