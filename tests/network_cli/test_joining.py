"""How a client joins a server: with what is no token, with none that answers, and with another's certificate."""

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from fairlead.cli import main
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.joining import Token, make_certificate, read_token
from fairlead.network_cli.remotes import Folder


def write_token(*addresses: str, fingerprint: str = "00" * 32) -> str:
    said = {"client_name": "x", "fingerprint": fingerprint, "addresses": addresses, "secret": "s"}
    return base64.b64encode(json.dumps(said).encode()).decode()


def test_a_token_says_where_the_server_is_and_who():
    assert read_token(write_token("192.0.2.1:8443")) == Token(addresses=("192.0.2.1:8443",), fingerprint="00" * 32)


@pytest.mark.parametrize(
    "text", ["", "x", "e30=", base64.b64encode(b"[]").decode(), base64.b64encode(b"\xff").decode()]
)
def test_what_is_no_token(text: str):
    with pytest.raises(Failure, match="this is no token"):
        read_token(text)


def test_a_key_is_made_once_and_is_nobody_elses_to_read(tmp_path: Path):
    folder = Folder(path=tmp_path / "new")
    make_certificate(folder)
    first = folder.certificate.read_text()
    assert folder.key.stat().st_mode & 0o777 == 0o600
    make_certificate(folder)
    assert folder.certificate.read_text() == first
    ssl.create_default_context().load_cert_chain(folder.certificate, folder.key)


@contextmanager
def secured_server(folder: Folder) -> Iterator[str]:
    """Somebody with a certificate of their own, who is no Fairlead server."""
    make_certificate(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.certificate, folder.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_another_server_is_not_believed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_CLIENT", str(tmp_path / "client"))
    with secured_server(Folder(path=tmp_path / "server")) as address:
        assert main(["network", "remote", "add", "city", write_token("127.0.0.1:1", address)]) == 1
    assert "Certificate fingerprint mismatch" in capsys.readouterr().err
    assert not (tmp_path / "client").exists(), "nothing is left of it"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("a:b", write_token()), 'Invalid remote name "a:b"'),
        (("city", write_token()), "no address of the server answers: the token has none"),
        (("city", write_token("127.0.0.1:1")), "no address of the server answers: 127.0.0.1:1: "),
        (("old", write_token()), "Remote old exists as <https://192.0.2.1>"),
    ],
)
def test_what_cannot_be_joined(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    words: tuple[str, str],
    complaint: str,
):
    monkeypatch.setenv("FAIRLEAD_CLIENT", str(tmp_path))
    (tmp_path / "config.yml").write_text("remotes: {old: {addr: 'https://192.0.2.1'}}\n")
    assert main(["network", "remote", "add", *words]) == 1
    assert f"Error: {complaint}" in capsys.readouterr().err
