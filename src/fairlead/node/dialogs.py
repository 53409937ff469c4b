"""What a probe says and what it makes of the answer, for each kind of monitor. Pure: what arrives is an argument.

A dialog says something when its socket is connected, hears what the other end says, and comes to an `Outcome`. It reads
as much as it needs and no more: of an answer of HTTP its first line.
"""

import re
import ssl
import struct
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, assert_never

from fairlead.model.checks import Check, HttpCheck
from fairlead.model.health import Endpoint
from fairlead.model.loadbalancer import MonitorType
from fairlead.node import sctp

STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([0-9]{3})(?![0-9])")
"""RFC 9112, section 4: what an answer begins with, as far as it has to be read."""
LONG_ENOUGH = 13
"""Octets of an answer by which it is known whether it begins so."""
ALERT, HANDSHAKE = 21, 22
"""Content types of TLS (RFC 8446, appendix B.1)."""
LEAST_SOURCE = 1024
"""The least port from which SCTP is asked."""
ECHO, ECHO_REPLY = {4: 8, 6: 128}, {4: 0, 6: 129}
"""Types of ICMP (RFC 792) and ICMPv6 (RFC 4443)."""


@dataclass(frozen=True, slots=True)
class Right:
    """As the monitor wants it."""


@dataclass(frozen=True, slots=True)
class Wrong:
    why: str


@dataclass(frozen=True, slots=True)
class Last:
    """What is sent before the connection is closed. The answer is right, whatever becomes of it."""

    octets: bytes


Judgement: TypeAlias = Right | Wrong
Reply: TypeAlias = bytes | Judgement | Last
"""What is said next, which may be nothing; or what has come of it."""
RIGHT = Right()


class Dialog(Protocol):
    def connected(self) -> Reply: ...

    def heard(self, octets: bytes) -> Reply: ...

    def ended(self) -> Judgement:
        """The other end says no more."""

    @property
    def silence(self) -> Judgement | None:
        """What it means if nothing is heard for as long as somebody waits; None is the usual failure."""


@dataclass(slots=True)
class Connecting:
    """TCP: who opens a connection is there."""

    silence: None = None

    def connected(self) -> Reply:
        return RIGHT

    def heard(self, octets: bytes) -> Reply:
        return RIGHT

    def ended(self) -> Judgement:
        return RIGHT


@dataclass(slots=True)
class Datagram:
    """UDP: only a refusal is heard, so silence is as good as any answer."""

    silence: Judgement = RIGHT

    def connected(self) -> Reply:
        return b""

    def heard(self, octets: bytes) -> Reply:
        return RIGHT

    def ended(self) -> Judgement:
        return RIGHT


@dataclass(slots=True)
class Echo:
    """PING. The kernel gives the identifier and the checksum, and hands over what answers this socket alone."""

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
    """PING by a raw socket, where the kernel opens no other one for it (`net.ipv4.ping_group_range`): what is asked has
    to be told from what others ask, and in IPv4 has its checksum, and comes back with the header of IP."""

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
    """RFC 1071, of an even number of octets."""
    words = (int.from_bytes(octets[place : place + 2]) for place in range(0, len(octets), 2))
    total = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


@dataclass(slots=True)
class Association:
    """SCTP: who answers that they would open an association is there. The socket hands over all that the other end
    sends by this protocol, in IPv4 with the header of IP; what does not answer this question is somebody else's."""

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
    """HTTP."""

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
    """TLS-HELLO: whoever answers as TLS does, if only with an alert, as HAProxy's ssl-hello-chk."""

    silence: None = None

    def connected(self) -> Reply:
        return _Tls("").begin()

    def heard(self, octets: bytes) -> Reply:
        return RIGHT if octets[0] in (ALERT, HANDSHAKE) else Wrong("what it answers is no TLS")

    def ended(self) -> Judgement:
        return Wrong("it ended the connection before it answered")


class _Tls:
    """One end of a TLS connection, without its socket."""

    def __init__(self, name: str) -> None:
        self._from_there, self._from_here = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._end = CONTEXT.wrap_bio(self._from_there, self._from_here, server_hostname=name or None)
        self.is_open = self.is_over = False

    def begin(self) -> bytes:
        self._shake_hands()
        return self._from_here.read()

    def take(self, octets: bytes, say: bytes) -> tuple[bytes, bytes]:
        """What was heard, and what has to be sent; `say` is said when the connection is open. Raises ssl.SSLError."""
        self._from_there.write(octets)
        if not self.is_open and self._shake_hands():
            self._end.write(say)
        return self._read(), self._from_here.read()

    def _shake_hands(self) -> bool:
        """Whether it is open now."""
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
    """HTTPS."""

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
    """Any of those over TCP, after a header of the PROXY protocol. A member that answers nothing gets the header too:
    one that waits for it would log each probe as a failure."""

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
    """Which speaks with everybody: a probe asks whether somebody is there, not who."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


CONTEXT = _make_context()


def dialog(check: Check, endpoint: Endpoint, nonce: int, *, by_raw_socket: bool = False, header: bytes = b"") -> Dialog:
    """`nonce` is of 48 bits that nobody can guess: who answers shows that they have heard the question. `header` is
    the one that the check asks for."""
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
