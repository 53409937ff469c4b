"""`fairlead alive` queries the server of this machine's configuration, at any listen address."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from fairlead.cli.main import main
from harness.certificates import Authority
from harness.ports import free_port


class Answers(BaseHTTPRequestHandler):
    """Server that is alive, but not ready."""

    def do_GET(self) -> None:
        status, said = {"/healthz": (200, b"well\n")}.get(self.path, (503, b"not ready: OVN is away\n"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Drop the log."""


class OnSocket(UnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("", 0)


@contextmanager
def serving(server: HTTPServer | UnixStreamServer) -> Iterator[None]:
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["alive", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("kind", ["http", "https", "everywhere", "unix"])
def test_liveness_command_queries_the_configured_listen_address(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    port = free_port()
    listen = {"unix": f"unix:{tmp_path}/it.socket", "everywhere": f"0.0.0.0:{port}"}.get(kind, f"127.0.0.1:{port}")
    monkeypatch.setenv("FAIRLEAD_SERVER_LISTEN", listen)
    server = OnSocket(f"{tmp_path}/it.socket", Answers) if kind == "unix" else HTTPServer(("127.0.0.1", port), Answers)
    if kind in ("https", "everywhere"):
        issued = Authority().issue("elsewhere.example")  # valid for the name that callers use
        (tmp_path / "it.pem").write_text(issued.certificate_and_key)
        (tmp_path / "users").write_text("")
        for name, path in (("TLS_CERTIFICATE", "it.pem"), ("TLS_KEY", "it.pem"), ("PASSWORD_FILE", "users")):
            monkeypatch.setenv(f"FAIRLEAD_SERVER_{name}", str(tmp_path / path))
        monkeypatch.setenv("FAIRLEAD_SERVER_AUTHENTICATION", "http_basic")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "it.pem")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server):
        assert asked(capsys) == (0, "well\n", "")
        assert asked(capsys, "--ready") == (1, "not ready: OVN is away\n", "")
    code, out, err = asked(capsys)
    assert (code, out, f"{listen} does not answer: " in err) == (1, "", True)
