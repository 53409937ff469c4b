"""Header of the PROXY protocol, as a client of a member sends it (haproxy, doc/proxy-protocol.txt). Pure.

A probe is its own client: version 1 has the probe's own addresses, version 2 the command LOCAL (2.2) without addresses.
HAProxy's checks send the same.
"""

from typing import assert_never

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.checks import ProxyHeader

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_LOCAL = bytes((0x20, 0x00, 0x00, 0x00))
"""Version 2 and the command LOCAL, no family, no addresses."""
SocketAddress = tuple[IPAddress, int]


def proxy_header(version: ProxyHeader, source: SocketAddress, destination: SocketAddress) -> bytes:
    """Build the header. Scope ids are omitted, because the protocol has no field for them."""
    match version:
        case ProxyHeader.V1:
            (client, client_port), (member, port) = source, destination
            return f"PROXY TCP{member.version} {client} {member} {client_port} {port}\r\n".encode()
        case ProxyHeader.V2:
            return SIGNATURE + _LOCAL
        case unknown:
            assert_never(unknown)
