"""HTTP server that returns each request in JSON; with `--pods`, a node of a Kubernetes cluster as proxies see it.

It runs by the path of this file. A response has the server's name, the peer's address, the content of a PROXY header,
and the request's headers. `/slow` is never answered, and the response to `/login` sets a cookie.

A port in `--greeted` requires a PROXY header: a connection without one is closed without a response.

`--pods` is a file with the number of a Service's pods on this node, and `--health` the port of kube-proxy's health
check for the Service. With `externalTrafficPolicy: Local` a node without a pod drops connections (here: closes them),
and the health check returns 503 instead of 200.
"""

import argparse
import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""Signature of PROXY protocol version 2 (haproxy, doc/proxy-protocol.txt, section 2.2)."""
LOCAL = 0x20
"""Version 2 with the LOCAL command, which health checks send (haproxy, doc/proxy-protocol.txt, section 2.2)."""
TLS = 0x20
"""PP2_TYPE_SSL."""
COOKIE = "SESSION"


async def _read_proxy_header(reader: asyncio.StreamReader) -> tuple[dict[str, object], bytes]:
    """Content of a PROXY header, and the first bytes after it."""
    first = await reader.readexactly(1)
    if first == b"P":  # beginning of PROXY; no client here sends POST
        words = (first + await reader.readline()).decode().split()
        return {"version": 1, "client": words[2], "to": [words[3], int(words[5])]}, b""
    if first != SIGNATURE[:1]:
        return {}, first
    await reader.readexactly(len(SIGNATURE) - 1)
    command, family, *size = await reader.readexactly(4)
    said = await reader.readexactly(int.from_bytes(bytes(size)))
    if command == LOCAL:
        return {"version": 2}, b""
    length = 4 if family >> 4 == 1 else 16
    client, to = (str(ip_address(said[start : start + length])) for start in (0, length))
    port = int.from_bytes(said[2 * length + 2 : 2 * length + 4])
    tls = TLS in _tlv_types(said[2 * length + 4 :])
    return {"version": 2, "client": client, "to": [to, port], "tls": tls}, b""


def _tlv_types(more: bytes) -> Iterator[int]:
    """Types of the TLVs after the addresses, each with a length of two bytes and a value."""
    while more:
        yield more[0]
        more = more[3 + int.from_bytes(more[1:3]) :]


async def _answer(
    name: str, pods: Path | None, requires: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer requests on a connection. `requires` demands a PROXY header first."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        greeting, first = await _read_proxy_header(reader)
        head = first + await reader.readuntil(b"\r\n\r\n")
        if _count(pods) and (greeting or not requires):
            asked, *lines = head.decode().split("\r\n")
            if " /slow " in asked:
                await reader.read()  # until the client closes the connection
            headers = {key.lower(): text.strip() for key, _, text in (line.partition(":") for line in lines if line)}
            peer = ip_address(writer.get_extra_info("peername")[0])
            told = {"node": name, "peer": str(getattr(peer, "ipv4_mapped", None) or peer), "said": greeting}
            cookie = f"Set-Cookie: {COOKIE}={name}" if " /login " in asked else ""
            _write(writer, "200 OK", json.dumps({**told, "headers": headers}), cookie)
            await writer.drain()
    writer.close()


def _count(pods: Path | None) -> int:
    return int(pods.read_text()) if pods is not None else 1


async def _serve_health_checks(pods: Path | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer health checks as kube-proxy does (pkg/proxy/healthcheck)."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        count = _count(pods)
        good = count and head.startswith(b"GET /healthz ")
        _write(writer, "200 OK" if good else "503 Service Unavailable", json.dumps({"localEndpoints": count}))
        await writer.drain()
    writer.close()


def _write(writer: asyncio.StreamWriter, status: str, body: str, *fields: str) -> None:
    fields = (f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *filter(None, fields))
    writer.write("\r\n".join((*fields, "", body)).encode())


async def _serve(asked: argparse.Namespace) -> None:
    answers = [(port, partial(_answer, asked.name, asked.pods, False)) for port in asked.port]
    answers += [(port, partial(_answer, asked.name, asked.pods, True)) for port in asked.greeted]
    answers += [(port, partial(_serve_health_checks, asked.pods)) for port in asked.health]
    servers = []
    for port, answer in answers:
        listener = socket.create_server(("::", port), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True)
        servers.append(await asyncio.start_server(answer, sock=listener))
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True)
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--greeted", type=int, action="append", default=[])
    parser.add_argument("--health", type=int, action="append", default=[])
    parser.add_argument("--pods", type=Path)
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
