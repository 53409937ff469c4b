"""HTTP servers as members of a real HAProxy on loopback, and clients that send requests through it."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fairlead.dataplane.rows import Rows
from fairlead.model.documents.loadbalancer import Listener, Member, Pool
from harness.proxied import RunningProxy, member, rows_of, running, view
from harness.waiting import DEADLINE


@dataclass
class RecordingMember:
    """A member that answers with its name and records the request headers."""

    name: str
    port: int
    received_headers: list[dict[str, str]] = field(default_factory=list)
    received_server_names: list[str | None] = field(default_factory=list)
    """Server names that clients sent (SNI), one per connection."""


@contextmanager
def machine(
    name: str, *, cookie: str = "", family: socket.AddressFamily = socket.AF_INET, tls: str = "", host: str = ""
) -> Iterator[RecordingMember]:
    """Run a member, by default on a loopback address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise a body waits 40 ms for the ACK of the head

        def do_GET(self) -> None:
            it.received_headers.append({name.title(): text for name, text in self.headers.items()})
            self.send_response(200)
            if cookie:
                self.send_header("Set-Cookie", cookie)
            self.send_header("Content-Length", str(len(name)))
            self.end_headers()
            self.wfile.write(name.encode())

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        address_family = family
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass  # the client closed the connection

    host = host or ("127.0.0.1" if family is socket.AF_INET else "::1")
    with Server((host, 0), Handler) as server:
        if tls:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(tls)
            context.sni_callback = lambda _, name, __: it.received_server_names.append(name)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        it = RecordingMember(name, server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield it
        finally:
            server.shutdown()


@contextmanager
def machines(*names: str, **known: Any) -> Iterator[list[RecordingMember]]:
    with ExitStack() as stack:
        yield [stack.enter_context(machine(name, **known)) for name in names]


def as_member(found: RecordingMember, **known: Any) -> Member:
    return member(found.name, found.port, **known)


def request(port: int, path: str = "/", *, host: str = "127.0.0.1", **headers: str) -> tuple[int, str, HTTPResponse]:
    connection = HTTPConnection(host, port, timeout=DEADLINE)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer
    finally:
        connection.close()


def names(port: int, times: int = 8, **known: Any) -> list[str]:
    return [request(port, **known)[1] for _ in range(times)]


@contextmanager
def served(one: Listener, *pools: Pool, **known: Any) -> Iterator[tuple[RunningProxy, Rows]]:
    rows = rows_of(view([one], pools, **known))
    with running(rows) as proxy:
        yield proxy, rows


class HexEchoServer(socketserver.ThreadingTCPServer):
    """TCP server that answers with the bytes it receives, as hexadecimal digits, and keeps the connection open."""

    daemon_threads, allow_reuse_address = True, True


@contextmanager
def hex_echo_server() -> Iterator[int]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while text := self.request.recv(100):
                    self.request.sendall(text.hex().encode())

    with HexEchoServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()
