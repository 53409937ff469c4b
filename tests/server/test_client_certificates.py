"""The adapter between OpenSSL and the event loops, with misbehaving clients.

Python's `ssl` cannot request a key update, so the client is the OpenSSL library that Python has loaded.
"""

import _ssl
import contextlib
import ctypes
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.server.client_certificates import MAX_OVERHEAD, MAX_OVERHEAD_PER_BYTE, make_context
from harness.front_ends.lxd_keys import make_certificate

LIBRARY = ctypes.CDLL(_ssl.__file__)
for _name in ("TLS_client_method", "SSL_CTX_new", "SSL_new", "BIO_new", "BIO_s_mem"):
    getattr(LIBRARY, _name).restype = ctypes.c_void_p
REQUESTED, NOT_REQUESTED = 1, 0
"""Values of request_update, which requests new keys of the peer too (RFC 8446, section 4.6.3)."""
AT_ONCE = 2**18
"""Bytes that the event loops pass on at a time."""


class Client:
    def __init__(self) -> None:
        context = ctypes.c_void_p(LIBRARY.SSL_CTX_new(ctypes.c_void_p(LIBRARY.TLS_client_method())))
        self._ssl = ctypes.c_void_p(LIBRARY.SSL_new(context))
        self._in, self._out = (ctypes.c_void_p(LIBRARY.BIO_new(ctypes.c_void_p(LIBRARY.BIO_s_mem()))) for _ in "io")
        LIBRARY.SSL_set_bio(self._ssl, self._in, self._out)
        LIBRARY.SSL_set_connect_state(self._ssl)
        self._buffer = ctypes.create_string_buffer(2**16)

    def shake_hands(self, heard: bytes) -> bool:
        LIBRARY.BIO_write(self._in, heard, len(heard))
        return int(LIBRARY.SSL_do_handshake(self._ssl)) == 1

    def renew_keys(self, how: int) -> bytes:
        assert LIBRARY.SSL_key_update(self._ssl, how) == 1
        LIBRARY.SSL_do_handshake(self._ssl)
        return self.said()

    def say(self, text: bytes) -> bytes:
        assert LIBRARY.SSL_write(self._ssl, text, len(text)) == len(text)
        return self.said()

    def said(self) -> bytes:
        length = LIBRARY.BIO_read(self._out, self._buffer, len(self._buffer))
        return self._buffer.raw[: max(0, length)]


class Server:
    """The server's end, as an event loop uses it."""

    def __init__(self, folder: Path) -> None:
        der, key = make_certificate()
        path = folder / "server.pem"
        path.write_text(ssl.DER_cert_to_PEM_cert(der) + key.decode())
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session: Any = make_context(path, path).wrap_bio(self.into, self.out, server_side=True)

    def take(self, data: bytes) -> bytes:
        """Decrypt the data and return the plaintext."""
        self.into.write(data)
        found = b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while True:
                found += self.session.read(2**18)
        return found


def meet(server: Server, after: Callable[[Client], bytes] = lambda _: b"") -> Client:
    """Run the handshake; `after` makes the bytes that arrive together with its end."""
    client = Client()
    while not client.shake_hands(server.out.read()):
        server.into.write(client.said())
        with pytest.raises(ssl.SSLWantReadError):
            server.session.do_handshake()
    server.into.write(client.said() + after(client))
    server.session.do_handshake()
    return client


def flood(client: Client, how: int) -> bytes:
    found = bytearray()
    while len(found) < AT_ONCE:
        found += client.renew_keys(how)
    return bytes(found)


@pytest.mark.parametrize("how", [REQUESTED, NOT_REQUESTED])
@pytest.mark.parametrize("at_once", [False, True])
def test_endless_tls_key_updates_end_the_connection(tmp_path: Path, how: int, at_once: bool):
    server = Server(tmp_path)
    if at_once:
        meet(server, lambda client: flood(client, how))
    else:
        server.into.write(flood(meet(server), how))
    server.out.read()
    waiting = server.into.pending
    with pytest.raises(ssl.SSLError, match="without application data"):
        server.session.read(2**18)
    taken = waiting - server.into.pending
    assert taken < 2 * MAX_OVERHEAD, "bytes that OpenSSL was given before the end"
    assert len(server.out.read()) < 2 * MAX_OVERHEAD


def test_tls_key_updates_with_data_are_accepted(tmp_path: Path):
    server = Server(tmp_path)
    client = meet(server)
    words = b"x" * (27 // MAX_OVERHEAD_PER_BYTE + 1)
    each = [client.renew_keys(REQUESTED) + client.say(words + b"y") for _ in range(2 * MAX_OVERHEAD // 27)]
    assert server.take(b"".join(each)) == (words + b"y") * len(each)


def test_tls_data_is_received_in_any_fragmentation(tmp_path: Path):
    server = Server(tmp_path)
    client = meet(server)
    text = bytes(range(256)) * 600
    data = b"".join(client.say(text[place : place + 2**14]) for place in range(0, len(text), 2**14))
    found = b"".join(server.take(data[place : place + 999]) for place in range(0, len(data), 999))
    assert found == text
