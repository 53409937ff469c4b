"""Relay for programs in a namespace to a server of the machine, which stands for the hosts' management network.

It listens in the namespace and connects outside of it, to the same loopback address. It listens before it detaches.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from fairlead.lab.echo_server import BACKLOG, detach

CHUNK = 1 << 16
CLONE_NEWNET = 0x40000000
"""Flag of setns(2)."""


def listen_in(namespace: Path, host: str, port: int) -> socket.socket:
    """Listen in the namespace and return to the process's own one; a socket stays in the namespace of its creation.
    Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/ns/net").open("rb") as home, namespace.open("rb") as there:
        _enter(libc, there.fileno())
        try:
            return socket.create_server((host, port), backlog=BACKLOG)
        finally:
            _enter(libc, home.fileno())


def _enter(libc: ctypes.CDLL, namespace: int) -> None:
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


async def serve(listener: socket.socket, host: str, port: int) -> None:
    server = await asyncio.start_server(partial(relay, host, port), sock=listener)
    await server.serve_forever()


async def relay(host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Relay one connection until both directions or one peer have ended."""
    with contextlib.suppress(OSError):
        there = await asyncio.open_connection(host, port)
        with contextlib.suppress(OSError):
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        there[1].close()
    writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()
        raise


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fairlead.lab.relay", description="Forward TCP connections from a namespace to loopback."
    )
    parser.add_argument(
        "--namespace", type=Path, required=True, metavar="FILE", help="file of the namespace, below /run/netns"
    )
    parser.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="listen address in the namespace, and destination here"
    )
    parser.add_argument("--pidfile", type=Path, required=True)
    parser.add_argument("--log-file", type=Path, required=True, help="file for errors")
    arguments = parser.parse_args(argv)
    host, _, port = arguments.listen.rpartition(":")
    try:
        listener = listen_in(arguments.namespace, host, int(port))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    detach(arguments.pidfile, arguments.log_file)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(listener, host, int(port)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
