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
LONG_ENOUGH = 13
"""Octets that are needed to match STATUS_LINE."""
ALERT, HANDSHAKE = 21, 22
"""Content types of TLS (RFC 8446, appendix B.1)."""
LEAST_SOURCE = 1024
"""Minimum source port of SCTP probes."""
ECHO, ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
"""Types of ICMP (RFC 792) and ICMPv6 (RFC 4443)."""


@dataclass(frozen=True, slots=True)
class Right:
    """Success."""


@dataclass(frozen=True, slots=True)
class Wrong:
    why: str


@dataclass(frozen=True, slots=True)
class Last:
    """Bytes to send before closing; the probe has succeeded already."""

    octets: bytes


Judgement: TypeAlias = Right | Wrong
Reply: TypeAlias = bytes | Judgement | Last
"""Bytes to send next (possibly none), or the result."""
RIGHT = Right()


class Dialog(Protocol):
    def connected(self) -> Reply: ...

    def heard(self, octets: bytes) -> Reply: ...

    def ended(self) -> Judgement:
        """The peer has closed the connection."""

    @property
    def silence(self) -> Judgement | None:
        """Result of a timeout; None is the usual failure."""


@dataclass(slots=True)
class Connecting:
    """TCP: success when the connection is established."""

    silence: None = None

    def connected(self) -> Reply:
        return RIGHT

    def heard(self, octets: bytes) -> Reply:
        return RIGHT

    def ended(self) -> Judgement:
        return RIGHT


@dataclass(slots=True)
class Datagram:
    """UDP-CONNECT: only an ICMP error is a failure, so a timeout is a success."""

    silence: Judgement = RIGHT

    def connected(self) -> Reply:
        return b""

    def heard(self, octets: bytes) -> Reply:
        return RIGHT

    def ended(self) -> Judgement:
        return RIGHT


@dataclass(slots=True)
class Echo:
    """PING over an ICMP socket. The kernel sets identifier and checksum, and delivers only replies to this socket."""

    version: int
    silence: None = None

    def connected(self) -> Reply:
        return struct.pack("!BBHHH", ECHO[self.version], 0, 0, 0, 1)

    def heard(self, octets: bytes) -> Reply:
        return RIGHT if octets[:1] == bytes([ECHO_REPLY[self.version]]) else b""

    def ended(self) -> Judgement:
        return Wrong("no answer to a ping")


@dataclass(slots=True)
class RawEcho:
    """PING over a raw socket, where `net.ipv4.ping_group_range` does not permit ICMP sockets. The probe identifies its
    own replies; for IPv4 it computes the checksum and receives the IP header."""

    version: int
    nonce: int
    silence: None = None

    def connected(self) -> Reply:
        return self._message(ECHO[self.version])

    def heard(self, octets: bytes) -> Reply:
        header = (octets[0] & 0x0F) * 4 if self.version == 4 and octets else 0
        said, answer = octets[header:], self._message(ECHO_REPLY[self.version])
        return RIGHT if (said[:2], said[4:]) == (answer[:2], answer[4:]) else b""

    def ended(self) -> Judgement:
        return Wrong("no answer to a ping")

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
class Association:
    """SCTP: success on an INIT ACK, failure on an ABORT. The socket delivers all SCTP packets of the peer, for IPv4
    with the IP header; packets of other associations are ignored."""

    version: int
    source: int
    port: int
    tag: int
    silence: None = None

    def connected(self) -> Reply:
        return sctp.init(self.source, self.port, self.tag)

    def heard(self, octets: bytes) -> Reply:
        header = (octets[0] & 0x0F) * 4 if self.version == 4 and octets else 0
        heard = sctp.read(octets[header:])
        if heard is None or (heard.source, heard.destination, heard.tag) != (self.port, self.source, self.tag):
            return b""
        if heard.chunk == sctp.INIT_ACK:
            return RIGHT
        return Wrong("it refuses") if heard.chunk == sctp.ABORT else b""

    def ended(self) -> Judgement:
        return Wrong("no answer")


@dataclass(slots=True)
class Request:
    """HTTP: success on a status code that the monitor expects."""

    check: HttpCheck
    silence: None = None
    _begun: bytes = b""

    def connected(self) -> Reply:
        check = self.check
        host = f"Host: {check.host}\r\n" if check.version != "1.0" else ""
        lines = f"{check.method} {check.path} HTTP/{check.version}\r\n{host}Connection: close\r\n\r\n"
        return lines.encode()

    def heard(self, octets: bytes) -> Reply:
        self._begun = (self._begun + octets)[:LONG_ENOUGH]
        if len(self._begun) < LONG_ENOUGH:
            return b""
        found = STATUS_LINE.match(self._begun)
        if found is None:
            return Wrong("what it answers is no HTTP")
        code = int(found[1])
        return RIGHT if code in self.check.codes else Wrong(f"it answers {code}")

    def ended(self) -> Judgement:
        return Wrong("it ended the connection before it answered" if not self._begun else "its answer ends too soon")


@dataclass(slots=True)
class Hello:
    """TLS-HELLO: success on any TLS response, even an alert, as HAProxy's ssl-hello-chk."""

    silence: None = None

    def connected(self) -> Reply:
        return _Tls("").begin()

    def heard(self, octets: bytes) -> Reply:
        return RIGHT if octets[0] in (ALERT, HANDSHAKE) else Wrong("what it answers is no TLS")

    def ended(self) -> Judgement:
        return Wrong("it ended the connection before it answered")


class _Tls:
    """TLS client without a socket."""

    def __init__(self, name: str) -> None:
        self._from_there, self._from_here = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = CONTEXT.wrap_bio(self._from_there, self._from_here, server_hostname=name or None)
        self.is_open = self.is_over = False

    def begin(self) -> bytes:
        self._shake_hands()
        return self._from_here.read()

    def take(self, octets: bytes, say: bytes) -> tuple[bytes, bytes]:
        """Process received bytes; return the plaintext and the bytes to send. `say` is sent once the handshake is
        complete. Raises ssl.SSLError."""
        self._from_there.write(octets)
        if not self.is_open and self._shake_hands():
            self._end.write(say)
        return self._read(), self._from_here.read()

    def _shake_hands(self) -> bool:
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
            found = self._end.read(LONG_ENOUGH)
        except ssl.SSLWantReadError:
            return b""
        self.is_over = not found
        return found


@dataclass(slots=True)
class SecureRequest:
    """HTTPS: an HTTP request over TLS."""

    request: Request
    silence: None = None
    _tls: _Tls = field(init=False)

    def __post_init__(self) -> None:
        host = self.request.check.host
        self._tls = _Tls("" if _is_address(host) else host)

    def connected(self) -> Reply:
        return self._tls.begin()

    def heard(self, octets: bytes) -> Reply:
        asked = self.request.connected()
        try:
            heard, sent = self._tls.take(octets, asked if isinstance(asked, bytes) else b"")
        except ssl.SSLError as error:
            return Wrong(f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}")
        if self._tls.is_over:
            return self.request.ended()
        found = self.request.heard(heard) if heard else b""
        return found if isinstance(found, Right | Wrong) else sent

    def ended(self) -> Judgement:
        return self.request.ended() if self._tls.is_open else Wrong("it ended the connection before it spoke TLS")


@dataclass(slots=True)
class Introduced:
    """TCP-based dialog after a PROXY protocol header. The header is sent even if no response is needed, because a
    member that waits for it would log each probe as an error."""

    dialog: Dialog
    header: bytes
    silence: None = None

    def connected(self) -> Reply:
        reply = self.dialog.connected()
        return self.header + reply if isinstance(reply, bytes) else Last(self.header)

    def heard(self, octets: bytes) -> Reply:
        return self.dialog.heard(octets)

    def ended(self) -> Judgement:
        return self.dialog.ended()


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


def dialog(check: Check, endpoint: Endpoint, nonce: int, *, by_raw_socket: bool = False, header: bytes = b"") -> Dialog:
    """Return the dialog of a check. `nonce` has 48 random bits, so that a response proves that the request was
    received. `header` is the PROXY protocol header of the check."""
    asked = _dialog(check, endpoint, nonce, by_raw_socket=by_raw_socket)
    return Introduced(asked, header) if header else asked


def _dialog(check: Check, endpoint: Endpoint, nonce: int, *, by_raw_socket: bool) -> Dialog:
    version = endpoint.address.version
    if isinstance(check, HttpCheck):
        request = Request(check)
        return SecureRequest(request) if check.is_tls else request
    match check.type:
        case MonitorType.TCP:
            return Connecting()
        case MonitorType.SCTP:
            source = LEAST_SOURCE + (nonce >> 32) % (0x10000 - LEAST_SOURCE)
            return Association(version, source, endpoint.number, (nonce & 0xFFFFFFFF) or 1)
        case MonitorType.UDP_CONNECT:
            return Datagram()
        case MonitorType.PING:
            return RawEcho(version, nonce) if by_raw_socket else Echo(version)
        case MonitorType.TLS_HELLO:
            return Hello()
        case MonitorType.HTTP | MonitorType.HTTPS:
            raise TypeError(f"{check.type} says what it asks")
        case unknown:
            assert_never(unknown)
