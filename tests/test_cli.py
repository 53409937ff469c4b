"""The command: help that a person can use, errors that say what is wrong, exit codes that a script can use."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairlead import __version__
from fairlead.cli import main


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("server",),
        ("agent",),
        ("plan",),
        ("show",),
        ("resync",),
        ("lab",),
        ("lab", "up"),
        ("lxd",),
        ("lxd", "token"),
        ("octavia",),
        ("octavia", "sync"),
        ("pool",),
        ("pool", "set"),
        ("pool", "show"),
        ("listener", "set"),
        ("listener", "show"),
        ("local-ip", "set"),
        ("local-ip", "show"),
    ],
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    code, out, _ = run(capsys, *argv, "--help")
    assert (code, "usage: fairlead" in out) == (0, True)


def test_the_version(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "--version") == (0, f"fairlead {__version__}\n", "")


def test_the_configuration_is_printed_and_checked(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    assert "[ovn]" in run(capsys, "config")[1]
    assert run(capsys, "server", "--check")[:2] == (0, "the configuration is right\n")
    assert run(capsys, "agent", "--check")[:2] == (0, "the configuration is right\n")
    monkeypatch.setenv("FAIRLEAD_SERVER_LISTEN", "0.0.0.0:1")
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, "can be reached from elsewhere" in err) == (2, "", True)


def test_a_password_file_is_checked_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_SERVER_AUTHENTICATION", "http_basic")
    monkeypatch.setenv("FAIRLEAD_SERVER_PASSWORD_FILE", str(tmp_path / "users"))
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, f"{tmp_path}/users" in err) == (1, "", True)
    (tmp_path / "users").touch(mode=0o600)
    (tmp_path / "users").write_text("x:y:z:nonsense\n")
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, "users:1: a line is user:bcrypt hash:project:role" in err) == (1, "", True)


def test_no_password_file_is_due_beside_a_keystone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("FAIRLEAD_SERVER_AUTHENTICATION", "keystone")
    monkeypatch.setenv("FAIRLEAD_KEYSTONE_URL", "http://127.0.0.1:5000")
    monkeypatch.setenv("FAIRLEAD_KEYSTONE_PASSWORD_FILE", str(tmp_path / "password"))
    assert run(capsys, "server", "--check") == (0, "the configuration is right\n", "")


@pytest.mark.parametrize("argv", [("plan",), ("show", "web"), ("resync",)])
def test_a_server_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    code, out, err = run(capsys, *argv, "--url", "http://127.0.0.1:1")
    assert (code, out, "http://127.0.0.1:1 does not answer" in err) == (1, "", True)


CHANGE = {"create": ["Row a"], "update": [["Row b 1", "Row b 2"]], "delete": ["Row c"]}
ANSWERS: dict[str, object] = {
    "/operator/plan": {"plan": {"network/n": {**CHANGE, "dataplanes": {"ovn": CHANGE}}}},
    "/operator/owners/web": {
        "owner": "loadbalancer/1", "name": "web", "generation": 7, "applied": 6, "error": "toy: refused",
        "status": "ERROR", "down": {}, "unknown": {}, "desired": {"a": "Row a"}, "actual": {},
        "dataplanes": {
            "ovn": {"applied": 7, "error": None, "desired": {"k": "Row k"}, "actual": {"k": "Row k"}},
            "toy": {"applied": 6, "error": "refused", "desired": {"a": "Row a"}, "actual": {}},
            "leaf": {"chassis": {"chassis1": {"applied": 7, "error": None}}},
        },
    },
    "/1.0/certificates": {"metadata": {"metadata": {"secret": "s", "fingerprint": "f", "addresses": ["h:1"],
                                                    "expiresAt": "2026-01-01T00:00:00Z"}}},
    "/1.0/operations?recursion=1": {"metadata": {"running": [
        {"id": "i", "metadata": {"expiresAt": "2026-01-01T00:00:00Z",
                                 "request": {"name": "laptop", "restricted": True, "projects": ["shop"]}}}]}},
    "/1.0/operations/i": {"metadata": None},
    "/1.0/certificates/ab": {"metadata": None},
    "/1.0/certificates?recursion=1": {"metadata": [
        {"fingerprint": "abcd", "name": "laptop", "restricted": False, "projects": []}]},
    "/operator/resync": {"changed": 3, "dataplanes": {"ovn": 1, "toy": 2}},
}  # fmt: skip


@pytest.fixture
def operator() -> Iterator[str]:
    """A server that has these answers alone; its address."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_what_is_not_as_it_should_be_is_told_by_dataplane(capsys: pytest.CaptureFixture[str], operator: str):
    code, out, err = run(capsys, "plan", "--url", operator)
    assert (code, out) == (3, "network/n in ovn\n  + Row a\n  - Row c\n  ~ Row b 1\n  > Row b 2\n")
    assert err == "1 owners differ\n"
    code, out, _ = run(capsys, "show", "web", "--url", operator)
    assert (code, out.splitlines()) == (
        3,
        [
            "loadbalancer/1 'web'  ERROR  generation 7, applied 6",
            "  toy: refused",
            "  ovn: applied 7",
            "    Row k",
            "  toy: applied 6, refused",
            "  + Row a",
            "  leaf on chassis1: applied 7",
        ],
    )
    code, out, _ = run(capsys, "resync", "--url", operator)
    assert (code, out) == (0, "3 owners differed and are being mended (ovn: 1, toy: 2)\n")


def test_who_may_come_in_by_lxds_api(capsys: pytest.CaptureFixture[str], operator: str):
    code, out, _ = run(capsys, "lxd", "token", "laptop", "--project", "shop", "--url", operator)
    assert code == 0
    token = json.loads(base64.b64decode(out))
    assert token == {
        "client_name": "laptop", "secret": "s", "fingerprint": "f", "addresses": ["h:1"],
        "expires_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    told = json.loads(run(capsys, "lxd", "token", "laptop", "--json", "--url", operator)[1])
    assert (told["token"], told["addresses"]) == (out.strip(), ["h:1"])
    line = "i  2026-01-01T00:00:00Z  restricted to shop  laptop\n"
    assert run(capsys, "lxd", "tokens", "--url", operator)[:2] == (0, line)
    assert json.loads(run(capsys, "lxd", "tokens", "--json", "--url", operator)[1])[0]["projects"] == ["shop"]
    assert json.loads(run(capsys, "lxd", "revoke", "laptop", "--json", "--url", operator)[1]) == {"revoked": ["i"]}
    assert run(capsys, "lxd", "certificates", "--url", operator)[:2] == (0, "abcd  administrator  laptop\n")
    assert run(capsys, "lxd", "forget", "ab", "--url", operator)[:2] == (0, "")


def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "bogus")[0] == 2


def test_a_switch_that_is_not_there_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_AGENT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_AGENT_BRIDGE", "br-nowhere")
    code, out, err = run(capsys, "agent", "--once")
    assert (code, out, "ovs-ofctl" in err) == (1, "", True)
