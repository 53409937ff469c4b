"""Probe protocols: the bytes a probe sends and the evaluation of the response, for each monitor type. Pure: received
bytes are arguments.

A dialog sends bytes once its socket is connected, receives bytes, and ends in an `Outcome`. It reads as little as
possible: of an HTTP response only the status line.
"""

import re
import ssl
import struct
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, assert_never

from fairlead.model.documents.checks import Check, HttpCheck
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.node import sctp

STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?![0-9])")
"""Beginning of a response (RFC 9112, section 4), up to the part that is checked."""
STATUS_LINE_BYTES = 13
"""Octets that are needed to match STATUS_LINE."""
ALERT, HANDSHAKE = 21, 22
"""Content types of TLS (RFC 8446, appendix B.1)."""
MIN_SOURCE_PORT = 1024
"""Minimum source port of SCTP probes."""
ECHO, ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
"""Types of ICMP (RFC 792) and ICMPv6 (RFC 4443)."""


@dataclass(frozen=True, slots=True)
class ProtocolSuccess:
    """Success."""


@dataclass(frozen=True, slots=True)
class ProtocolFailure:
    reason: str


@dataclass(frozen=True, slots=True)
class SendAndSucceed:
    """Bytes to send before closing; the probe has succeeded already."""

    octets: bytes


ProtocolResult: TypeAlias = ProtocolSuccess | ProtocolFailure
Reply: TypeAlias = bytes | ProtocolResult | SendAndSucceed
"""Bytes to send next (possibly none), or the result."""
SUCCESS = ProtocolSuccess()


class ProbeProtocol(Protocol):
    def connected(self) -> Reply: ...

    def received(self, octets: bytes) -> Reply: ...

    def closed(self) -> ProtocolResult:
        """Evaluate the probe after the peer closed the connection."""

    @property
    def timeout_result(self) -> ProtocolResult | None:
        """Result of a timeout; None is the usual failure."""


@dataclass(slots=True)
class TcpConnect:
    """TCP: success when the connection is established."""

    timeout_result: None = None

    def connected(self) -> Reply:
        return SUCCESS

    def received(self, octets: bytes) -> Reply:
        return SUCCESS

    def closed(self) -> ProtocolResult:
        return SUCCESS


@dataclass(slots=True)
class UdpConnect:
    """UDP-CONNECT: only an ICMP error is a failure, so a timeout is a success."""

    timeout_result: ProtocolResult = SUCCESS

    def connected(self) -> Reply:
        return b""

    def received(self, octets: bytes) -> Reply:
        return SUCCESS

    def closed(self) -> ProtocolResult:
        return SUCCESS


@dataclass(slots=True)
class IcmpEchoProbe:
    """PING over an ICMP socket. The kernel sets identifier and checksum, and delivers only replies to this socket."""

    version: int
    timeout_result: None = None

    def connected(self) -> Reply:
        return struct.pack("!BBHHH", ECHO[self.version], 0, 0, 0, 1)

    def received(self, octets: bytes) -> Reply:
        return SUCCESS if octets[:1] == bytes([ECHO_REPLY[self.version]]) else b""

    def closed(self) -> ProtocolResult:
        return ProtocolFailure("no ICMP echo reply")


@dataclass(slots=True)
class RawIcmpEchoProbe:
    """PING over a raw socket, where `net.ipv4.ping_group_range` does not permit ICMP sockets. The probe identifies its
    own replies; for IPv4 it computes the checksum and receives the IP header."""

    version: int
    nonce: int
    timeout_result: None = None

    def connected(self) -> Reply:
        return self._message(ECHO[self.version])

    def received(self, octets: bytes) -> Reply:
        header = (octets[0] & 0x0F) * 4 if self.version == 4 and octets else 0
        said, answer = octets[header:], self._message(ECHO_REPLY[self.version])
        return SUCCESS if (said[:2], said[4:]) == (answer[:2], answer[4:]) else b""

    def closed(self) -> ProtocolResult:
        return ProtocolFailure("no ICMP echo reply")

    def _message(self, kind: int) -> bytes:
        asked = struct.pack("!BBHHHI", kind, 0, 0, self.nonce >> 32, 1, self.nonce & 0xFFFFFFFF)
        return asked if self.version == 6 else asked[:2] + struct.pack("!H", _checksum(asked)) + asked[4:]


def _checksum(octets: bytes) -> int:
    """Compute the checksum of RFC 1071 over an even number of octets."""
    words = (int.from_bytes(octets[place : place + 2]) for place in range(0, len(octets), 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@dataclass(slots=True)
class SctpInit:
    """SCTP: success on an INIT ACK, failure on an ABORT. The socket delivers all SCTP packets of the peer, for IPv4
    with the IP header; packets of other associations are ignored."""

    version: int
    source: int
    port: int
    tag: int
    timeout_result: None = None

    def connected(self) -> Reply:
        return sctp.init(self.source, self.port, self.tag)

    def received(self, octets: bytes) -> Reply:
        header = (octets[0] & 0x0F) * 4 if self.version == 4 and octets else 0
        heard = sctp.read(octets[header:])
        if heard is None or (heard.source, heard.destination, heard.tag) != (self.port, self.source, self.tag):
            return b""
        if heard.chunk == sctp.INIT_ACK:
            return SUCCESS
        return ProtocolFailure("connection refused") if heard.chunk == sctp.ABORT else b""

    def closed(self) -> ProtocolResult:
        return ProtocolFailure("no response")


@dataclass(slots=True)
class HttpRequest:
    """HTTP: success on a status code that the monitor expects."""

    check: HttpCheck
    timeout_result: None = None
    _received: bytes = b""

    def connected(self) -> Reply:
        check = self.check
        host = f"Host: {check.host}\r\n" if check.version != "1.0" else ""
        lines = f"{check.method} {check.path} HTTP/{check.version}\r\n{host}Connection: close\r\n\r\n"
        return lines.encode()

    def received(self, octets: bytes) -> Reply:
        self._received = (self._received + octets)[:STATUS_LINE_BYTES]
        if len(self._received) < STATUS_LINE_BYTES:
            return b""
        found = STATUS_LINE.match(self._received)
        if found is None:
            return ProtocolFailure("response is not HTTP")
        code = int(found[1])
        return SUCCESS if code in self.check.codes else ProtocolFailure(f"unexpected HTTP status {code}")

    def closed(self) -> ProtocolResult:
        return ProtocolFailure("connection closed before a response" if not self._received else "incomplete response")


@dataclass(slots=True)
class TlsHello:
    """TLS-HELLO: success on any TLS response, even an alert, as HAProxy's ssl-hello-chk."""

    timeout_result: None = None

    def connected(self) -> Reply:
        return _Tls("").begin()

    def received(self, octets: bytes) -> Reply:
        return SUCCESS if octets[0] in (ALERT, HANDSHAKE) else ProtocolFailure("response is not TLS")

    def closed(self) -> ProtocolResult:
        return ProtocolFailure("connection closed before a response")


class _Tls:
    """TLS client without a socket."""

    def __init__(self, name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = CONTEXT.wrap_bio(self._incoming, self._outgoing, server_hostname=name or None)
        self.is_open = self.is_closed = False

    def begin(self) -> bytes:
        self._do_handshake()
        return self._outgoing.read()

    def receive(self, octets: bytes, say: bytes) -> tuple[bytes, bytes]:
        """Process received bytes; return the plaintext and the bytes to send. `say` is sent once the handshake is
        complete. Raises ssl.SSLError."""
        self._incoming.write(octets)
        if not self.is_open and self._do_handshake():
            self._end.write(say)
        return self._read(), self._outgoing.read()

    def _do_handshake(self) -> bool:
        """Continue the handshake, and return whether it is complete."""
        try:
            self._end.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_open = True
        return True

    def _read(self) -> bytes:
        if not self.is_open:
            return b""
        try:
            found = self._end.read(STATUS_LINE_BYTES)
        except ssl.SSLWantReadError:
            return b""
        self.is_closed = not found
        return found


@dataclass(slots=True)
class HttpsRequest:
    """HTTPS: an HTTP request over TLS."""

    request: HttpRequest
    timeout_result: None = None
    _tls: _Tls = field(init=False)

    def __post_init__(self) -> None:
        host = self.request.check.host
        self._tls = _Tls("" if _is_address(host) else host)

    def connected(self) -> Reply:
        return self._tls.begin()

    def received(self, octets: bytes) -> Reply:
        asked = self.request.connected()
        try:
            heard, sent = self._tls.receive(octets, asked if isinstance(asked, bytes) else b"")
        except ssl.SSLError as error:
            return ProtocolFailure(f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")
        if self._tls.is_closed:
            return self.request.closed()
        found = self.request.received(heard) if heard else b""
        return found if isinstance(found, ProtocolSuccess | ProtocolFailure) else sent

    def closed(self) -> ProtocolResult:
        return (
            self.request.closed()
            if self._tls.is_open
            else ProtocolFailure("connection closed before the TLS handshake was complete")
        )


@dataclass(slots=True)
class WithProxyHeader:
    """TCP-based dialog after a PROXY protocol header. The header is sent even if no response is needed, because a
    member that waits for it would log each probe as an error."""

    protocol: ProbeProtocol
    header: bytes
    timeout_result: None = None

    def connected(self) -> Reply:
        reply = self.protocol.connected()
        return self.header + reply if isinstance(reply, bytes) else SendAndSucceed(self.header)

    def received(self, octets: bytes) -> Reply:
        return self.protocol.received(octets)

    def closed(self) -> ProtocolResult:
        return self.protocol.closed()


def _is_address(host: str) -> bool:
    return host.startswith("[") or host.replace(".", "").isdigit()


def _make_context() -> ssl.SSLContext:
    """Make a context that accepts every certificate, version and cipher, because a probe checks reachability, not
    identity."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


CONTEXT = _make_context()


def make_protocol(
    check: Check, endpoint: Endpoint, nonce: int, *, by_raw_socket: bool = False, header: bytes = b""
) -> ProbeProtocol:
    """Return the dialog of a check. `nonce` has 48 random bits, so that a response proves that the request was
    received. `header` is the PROXY protocol header of the check."""
    asked = _make_protocol(check, endpoint, nonce, by_raw_socket=by_raw_socket)
    return WithProxyHeader(asked, header) if header else asked


def _make_protocol(check: Check, endpoint: Endpoint, nonce: int, *, by_raw_socket: bool) -> ProbeProtocol:
    version = endpoint.address.version
    if isinstance(check, HttpCheck):
        request = HttpRequest(check)
        return HttpsRequest(request) if check.is_tls else request
    match check.type:
        case MonitorType.TCP:
            return TcpConnect()
        case MonitorType.SCTP:
            source = MIN_SOURCE_PORT + (nonce >> 32) % (0x10000 - MIN_SOURCE_PORT)
            return SctpInit(version, source, endpoint.port, (nonce & 0xFFFFFFFF) or 1)
        case MonitorType.UDP_CONNECT:
            return UdpConnect()
        case MonitorType.PING:
            return RawIcmpEchoProbe(version, nonce) if by_raw_socket else IcmpEchoProbe(version)
        case MonitorType.TLS_HELLO:
            return TlsHello()
        case MonitorType.HTTP | MonitorType.HTTPS:
            raise TypeError(f"monitor type {check.type} needs an HttpCheck")
        case unknown:
            assert_never(unknown)
