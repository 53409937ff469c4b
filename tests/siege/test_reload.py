"""SIGHUP on a real server: passwords and certificates are read again, and invalid ones change nothing."""

import signal
import socket
import ssl
import subprocess
from pathlib import Path

import bcrypt
import httpx
import pytest

from harness.fuzz.machine import FuzzedServer, fuzzed_server
from harness.siege.attackers import NETWORK
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.siege


def user(name: str, password: str) -> str:
    return f"{name}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}:p:member\n"


def status(server: FuzzedServer, name: str, password: str) -> int:
    return httpx.get(f"{server.url}{NETWORK}/networks", auth=(name, password), timeout=DEADLINE).status_code


def test_sighup_rereads_passwords_and_keeps_the_old_ones_on_error(tmp_path: Path):
    users = tmp_path / "users"
    users.touch(mode=0o600)
    users.write_text(user("ann", "old"))
    options = {
        "FAIRLEAD_SERVER_AUTHENTICATION": "http_basic",
        "FAIRLEAD_SERVER_PASSWORD_FILE": str(users),
        "FAIRLEAD_LOG_AUDIT_FILE": str(tmp_path / "audit"),
    }
    with fuzzed_server(tmp_path, options) as server:
        assert status(server, "ann", "old") == 200
        for wrong in ("ann:x", None):
            if wrong:
                users.write_text(wrong)
            else:
                users.write_text(user("ann", "new"))
                users.chmod(0o644)
            server.process.send_signal(signal.SIGHUP)
            words = "expected user:bcrypt hash" if wrong else "accessible to other users"
            wait_until(server.log.read_text, words, is_enough=lambda log, words=words: words in log)
            assert status(server, "ann", "old") == 200
        users.chmod(0o600)
        server.process.send_signal(signal.SIGHUP)
        wait_equal(lambda: status(server, "ann", "old"), 401)
        assert status(server, "ann", "new") == 200
        (tmp_path / "audit").rename(tmp_path / "audit.1")
        server.process.send_signal(signal.SIGHUP)
        made = {"network": {"name": "n"}}
        assert server.client.post(f"{NETWORK}/networks", json=made, auth=("ann", "new")).status_code == 201
        assert '"log_in":"failed"' in (tmp_path / "audit.1").read_text()
        assert '"objects":["network/' in (tmp_path / "audit").read_text()


def certificate(folder: Path, name: str) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         f"/CN={name}", "-keyout", str(folder / "key"), "-out", str(folder / "certificate")],
        check=True, capture_output=True,
    )  # fmt: skip


def shown(server: FuzzedServer) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = server.url.rpartition("//")[2].split(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain) as connection:
        found = connection.getpeercert(binary_form=True)
        assert found is not None
        return found


def test_sighup_rereads_certificates_and_keeps_the_old_one_on_error(tmp_path: Path):
    certificate(tmp_path, "one")
    options = {
        "FAIRLEAD_SERVER_TLS_CERTIFICATE": str(tmp_path / "certificate"),
        "FAIRLEAD_SERVER_TLS_KEY": str(tmp_path / "key"),
    }
    with fuzzed_server(tmp_path, options, scheme="https") as server:
        first = shown(server)
        (tmp_path / "certificate").write_text("no certificate")
        server.process.send_signal(signal.SIGHUP)
        words = "the previous passwords and certificates stay in use"
        wait_until(server.log.read_text, words, is_enough=lambda log: words in log)
        assert shown(server) == first
        certificate(tmp_path, "two")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: shown(server) != first, "the new certificate")
        assert server.client.get("/readyz").status_code == 200
