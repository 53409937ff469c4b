"""TLS that requests a client certificate and accepts any; authorization happens later.

Clients of LXD and Incus use self-signed certificates. Python's `ssl` rejects unknown certificates in the handshake,
while OpenSSL leaves the decision to the application. So this uses pyOpenSSL behind the interface that asyncio and
uvloop use: a context with a `wrap_bio` that returns the TLS object. The handshake proves that the client has the
certificate's key (RFC 8446, section 4.4.3).
"""

import contextlib
import ssl
from pathlib import Path
from typing import Any

from OpenSSL import SSL, crypto

MAX_RECORD_BYTES = 2**14
"""Bytes (RFC 8446, section 5.1)."""
AT_ONCE = 2**12
"""Bytes passed to OpenSSL before its output is read."""
MAX_OVERHEAD, MAX_OVERHEAD_PER_BYTE = MAX_RECORD_BYTES + 2**11, 32
"""Bytes that may be received without application data (an incomplete record), and additional bytes per byte of
application data. Without this limit a client could send key updates endlessly: each costs it 27 bytes, and the server
much more."""


def client_certificate(transport: Any) -> bytes | None:
    """Return the client certificate in DER of a connection with such a context; None without one."""
    found = transport.get_extra_info("ssl_object")
    return found.getpeercert(binary_form=True) if isinstance(found, _Session | ssl.SSLObject) else None


def verified_certificate(transport: Any) -> bytes | None:
    """Return the client certificate in DER if a configured CA has signed it (`server.client_ca`); None otherwise."""
    found = transport.get_extra_info("ssl_object")
    return found.getpeercert(binary_form=True) if isinstance(found, ssl.SSLObject) else None


class _Context(ssl.SSLContext):
    """SSL context with only the parts that event loops use."""

    inner: SSL.Context

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *_: Any, **__: Any) -> Any:
        return _Session(self.inner, incoming, outgoing)


def make_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for TLS 1.3 only, which all these clients support. Raises OSError for invalid files."""
    inner = SSL.Context(SSL.TLS_SERVER_METHOD)
    inner.set_min_proto_version(SSL.TLS1_3_VERSION)
    try:
        inner.use_certificate_chain_file(str(certificate))
        inner.use_privatekey_file(str(key))
        inner.check_privatekey()
    except SSL.Error:
        raise OSError(
            f"{certificate} and {key}: the files must contain a certificate and its private key in PEM"
        ) from None
    # A resumed session would carry an earlier certificate; each connection must present its own.
    inner.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    inner.set_options(SSL.OP_NO_TICKET)
    inner.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    inner.set_verify_depth(0)
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.inner = inner
    return context


class _Session:
    """One connection with the interface of `ssl.SSLObject`, which reads and writes the loop's buffers."""

    def __init__(self, context: SSL.Context, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._connection = SSL.Connection(context, None)
        self._connection.set_accept_state()
        self._incoming, self._outgoing = incoming, outgoing
        self._certificate: bytes | None = None
        self._overhead = 0
        """Bytes received without application data."""
        self._more = False
        """Whether more data than requested may be available."""
        self._ended = False
        """The client has closed its side, and the loop has not read the end yet."""

    def do_handshake(self) -> None:
        """Continue the handshake. Raises ssl.SSLWantReadError until the client has sent its part."""
        try:
            self._shake_hands()
        except SSL.Error as error:
            raise ssl.SSLError(f"handshake failed: {error}") from None
        finally:
            self._give_out()
        self._overhead, self._more = 0, True  # application data may have arrived with the handshake
        found = self._connection.get_peer_certificate()
        self._certificate = None if found is None else crypto.dump_certificate(crypto.FILETYPE_ASN1, found)

    def _shake_hands(self) -> None:
        while True:
            try:
                self._connection.do_handshake()
            except SSL.WantReadError:
                if not self._take_in():
                    raise ssl.SSLWantReadError from None
            else:
                return

    def read(self, size: int, buffer: Any = None) -> Any:
        """Return the available data, or empty data after the client's end. Raises ssl.SSLWantReadError."""
        found = self._read(size)
        self._give_out()
        if not found and not self._ended:
            raise ssl.SSLWantReadError
        if not found:
            self._ended = False
        if buffer is None:
            return found
        buffer[: len(found)] = found
        return len(found)

    def _read(self, size: int) -> bytes:
        """Raises ssl.SSLError for much traffic without application data."""
        found = bytearray()
        self._more = False
        while len(found) < size:
            try:
                said = self._connection.recv(min(size - len(found), MAX_RECORD_BYTES))
                found += said
                self._overhead = max(0, self._overhead - MAX_OVERHEAD_PER_BYTE * len(said))
            except SSL.WantReadError:
                if self._overhead > MAX_OVERHEAD:
                    raise ssl.SSLError("too many bytes without application data") from None
                if not self._take_in():
                    return bytes(found)
            except SSL.ZeroReturnError:
                self._ended = True
                return bytes(found)
            except SSL.Error as error:
                raise ssl.SSLError(f"read failed: {error}") from None
        self._more = True
        return bytes(found)

    def write(self, data: Any) -> int:
        try:
            return self._connection.send(data)
        except SSL.WantReadError:
            raise ssl.SSLWantReadError from None
        except SSL.Error as error:
            raise ssl.SSLError(f"write failed: {error}") from None
        finally:
            self._give_out()

    def unwrap(self) -> None:
        """Send a close notification, without waiting for the client's."""
        with contextlib.suppress(SSL.Error):
            self._connection.shutdown()
        self._give_out()

    def pending(self) -> int:
        """Bytes that can be read, or 1 if there may be some, because input has left the loop's buffer."""
        return max(self._connection.pending(), int(self._more or self._ended))

    def getpeercert(self, binary_form: bool = False) -> Any:
        return self._certificate if binary_form else {}

    def cipher(self) -> tuple[str, str, int] | None:
        name = self._connection.get_cipher_name()
        bits = self._connection.get_cipher_bits() or 0
        return (name, self._connection.get_protocol_version_name(), bits) if name else None

    def compression(self) -> None:
        return None

    def _take_in(self) -> bool:
        """Pass input to OpenSSL. Returns whether there was any."""
        data = self._incoming.read(AT_ONCE)
        if data:
            self._overhead += len(data)
            self._connection.bio_write(data)
        return bool(data)

    def _give_out(self) -> None:
        with contextlib.suppress(SSL.WantReadError):
            while True:
                self._outgoing.write(self._connection.bio_read(2**16))
