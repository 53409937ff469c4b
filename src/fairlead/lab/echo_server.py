"""The server program of a workload, which replies with its name, so that a client can identify it.

- TCP: a line that starts with `GET ` is answered as HTTP/1.0. Any other line is echoed after the name, and the
  connection stays open.
- UDP: each datagram is echoed after the name, from its own destination address: replies from another address break
  virtual IPs.

The program listens before it detaches.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

MAX_LINE_BYTES = 1 << 24
MAX_DATAGRAM_BYTES = 1 << 16
BACKLOG = 4096
LINGER_SECONDS = 2.0
PKTINFO: Final = struct.Struct("@16sI")  # struct in6_pktinfo, ipv6(7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Listening sockets, one of each kind per port."""

    streams: tuple[socket.socket, ...]
    datagrams: tuple[socket.socket, ...]


def listen(ports: Sequence[int]) -> Sockets:
    """Open IPv6 sockets that accept IPv4 as well."""
    return Sockets(
        streams=tuple(_listen_stream(port) for port in ports),
        datagrams=tuple(_listen_datagram(port) for port in ports),
    )


def _listen_stream(port: int) -> socket.socket:
    listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    listener.setblocking(False)
    return listener


def _listen_datagram(port: int) -> socket.socket:
    receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    receiver.bind(("::", port))
    receiver.setblocking(False)
    return receiver


async def serve(name: str, sockets: Sockets) -> None:
    loop = asyncio.get_running_loop()
    for receiver in sockets.datagrams:
        loop.add_reader(receiver, echo_datagram, name.encode(), receiver)
    stream = partial(echo_stream, name.encode())
    servers = [await asyncio.start_server(stream, sock=sock, limit=MAX_LINE_BYTES) for sock in sockets.streams]
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def echo_stream(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, TimeoutError):
        while line := await reader.readline():
            if line.startswith(b"GET "):
                await _respond_http(name, reader, writer)
                break
            writer.write(name + b" " + line.rstrip(b"\r\n") + b"\n")
            await writer.drain()
    writer.close()


async def _respond_http(name: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the response, then drain the request: a close with unread headers would reset the connection (RFC 9112,
    section 9.6)."""
    body = name + b"\n"
    fields = b"Content-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n" % len(body)
    writer.write(b"HTTP/1.0 200 OK\r\n" + fields + b"\r\n" + body)
    await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(LINGER_SECONDS):
        while await reader.read(MAX_DATAGRAM_BYTES):
            pass


def echo_datagram(name: bytes, receiver: socket.socket) -> None:
    with contextlib.suppress(OSError):  # UDP may lose a datagram
        payload, ancillary, _, client = receiver.recvmsg(MAX_DATAGRAM_BYTES, socket.CMSG_SPACE(PKTINFO.size))
        receiver.sendmsg([name + b" " + payload], [_source_address_control(*item) for item in ancillary], 0, client)


def _source_address_control(level: int, kind: int, value: bytes) -> tuple[int, int, bytes]:
    address, _ = PKTINFO.unpack(value)
    return level, kind, PKTINFO.pack(address, 0)


def detach(pidfile: Path, log_file: Path) -> None:
    """Detach from the parent, which exits at once: its exit signals that the sockets listen."""
    if pid := os.fork():
        pidfile.write_text(f"{pid}\n")
        os._exit(0)
    os.setsid()
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.lab.echo_server",
        description="Answer each request with a name, on TCP and UDP, IPv4 and IPv6.",
        epilog="example: python -m fairlead.lab.echo_server --name web1 --port 8080",
    )
    parser.add_argument("--name", required=True, help="name to answer")
    parser.add_argument("--port", type=int, action="append", required=True, help="port to listen on; repeatable")
    parser.add_argument("--detach", action="store_true", help="run in the background once it listens")
    parser.add_argument(
        "--pidfile", type=Path, default=Path("answer.pid"), help="with --detach: file for the process id"
    )
    parser.add_argument("--log-file", type=Path, default=Path(os.devnull), help="with --detach: file for errors")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        sockets = listen(arguments.port)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if arguments.detach:
        detach(arguments.pidfile, arguments.log_file)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(arguments.name, sockets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
