"""`fairlead alive`: health check of the server in this machine's configuration.

For container health checks and for failover scripts: it needs no other program, no password and no server address.
"""

import argparse
import http.client
import os
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from fairlead.runtime.terminal import print_error, print_lines

if TYPE_CHECKING:  # parsers are made for every command, options are read for few
    from fairlead.config.options import ServerOptions

TIMEOUT = 5.0
"""Seconds to wait for the answer."""
MAX_RESPONSE_BYTES = 1024


class _OnSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect(self._path)


def add_parser(commands: Any, add_file: Callable[[Any], None]) -> None:
    parser = commands.add_parser(
        "alive",
        help="check whether the server on this machine responds",
        epilog="Exit codes: 0 it responds, 1 it does not. A live server that is not ready recovers without a restart.",
    )
    parser.add_argument("--ready", action="store_true", help="check also whether changes can reach OVN")
    add_file(parser)
    parser.set_defaults(run=_alive)


def _alive(arguments: argparse.Namespace) -> int:
    from fairlead.config.load import read_configuration

    options = read_configuration(arguments.config, os.environ).server
    connection = _connection(options)
    try:
        connection.request("GET", "/readyz" if arguments.ready else "/healthz")
        answer = connection.getresponse()
        said = answer.read(MAX_RESPONSE_BYTES).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print_error(f"{options.listen} does not answer: {error}")
        return 1
    finally:
        connection.close()
    print_lines(said)
    return 0 if answer.status == http.client.OK else 1


def _connection(options: "ServerOptions") -> http.client.HTTPConnection:
    if options.listen.startswith("unix:"):
        return _OnSocket(options.listen.removeprefix("unix:"))
    from fairlead.config.load import split_listen

    host, port = split_listen(options.listen)
    host = _reached_at(host)
    if options.tls_certificate:
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT, context=_any_certificate())
    return http.client.HTTPConnection(host, port, timeout=TIMEOUT)


def _reached_at(host: str) -> str:
    """Return the loopback address for a server that listens on all addresses."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"


def _any_certificate() -> ssl.SSLContext:
    """Skip verification: no secret is sent, and the certificate is for the names that clients use."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
