"""A client certificate signed by the operator's CA authenticates a user without a password, in all APIs."""

import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fairlead.http.server_client import ApiClient, ServerError
from fairlead.octavia_plugin.api_client import PluginApi
from harness.ports import free_port
from harness.waiting import wait_until

pytestmark = pytest.mark.client
NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)


class Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        basic = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self._name, self._key).add_extension(basic, critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, ends: datetime.timedelta = DAY) -> str:
        """Write a file with a certificate of this name, also valid for loopback, and its key; return its path."""
        key, subject = (
            ec.generate_private_key(ec.SECP256R1()),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        )
        loopback = x509.SubjectAlternativeName([x509.DNSName("localhost")])
        made = self._builder(subject, key, ends).add_extension(loopback, critical=False)
        signed = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file = self._folder / f"{name}-by-{self.file.stem}{ends.days}.pem"
        file.write_bytes(signed + secret)
        file.chmod(0o600)
        return str(file)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, ends: datetime.timedelta = DAY
    ) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(NOW - 2 * DAY).not_valid_after(NOW + ends)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    users = folder / "users"
    users.write_text("octavia:certificate:ops:admin\nmember:certificate:ops:member\n")
    users.chmod(0o600)
    own = authority.sign("localhost")
    settings = {
        "SERVER_LISTEN": f"127.0.0.1:{port}",
        "SERVER_AUTHENTICATION": "http_basic",
        "SERVER_PASSWORD_FILE": str(users),
        "SERVER_TLS_CERTIFICATE": own,
        "SERVER_TLS_KEY": own,
        "SERVER_CLIENT_CA": str(authority.file),
        "STORE_PATH": str(folder / "fairlead.db"),
        "OVN_NORTHBOUND": f"unix:{folder}/nobody.sock",
    }
    environment = {**os.environ, **{f"FAIRLEAD_{name}": value for name, value in settings.items()}}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "fairlead.cli.main", "server"], env=environment, stderr=log)
    try:
        made = f"https://localhost:{port}"
        wait_until(
            lambda: process.poll() is not None or "answer" not in refusal(ApiClient(url=made, ca=str(authority.file)))
        )
        assert process.poll() is None, (folder / "log").read_text()
        yield made
    finally:
        process.kill()
        process.wait()


def refusal(server: ApiClient) -> str:
    """Return the error text of a request, or an empty string."""
    try:
        PluginApi((server,)).profiles()
    except ServerError as error:
        return f"{error.status}: {error}"
    return ""


def test_client_certificate_authenticates_its_user(url: str, authority: Authority):
    for name, said in (("octavia", ""), ("member", "403: the plug-in API requires role"), ("stranger", "401:")):
        told = refusal(ApiClient(url=url, ca=str(authority.file), certificate=authority.sign(name)))
        assert told.startswith(said), told
        assert bool(told) == bool(said)


def test_client_certificate_of_another_ca_or_expired_gets_no_connection(url: str, authority: Authority, tmp_path: Path):
    wrong = Authority(tmp_path, "theirs").sign("octavia")
    for certificate in (wrong, authority.sign("octavia", -DAY)):
        told = refusal(ApiClient(url=url, ca=str(authority.file), certificate=certificate))
        assert told.startswith("None:"), told


def test_wrong_password_is_rejected_with_or_without_a_certificate(url: str, authority: Authority):
    ca = str(authority.file)
    assert refusal(ApiClient(url=url, ca=ca)).startswith("401:")
    for user in ("octavia", "stranger"):
        assert refusal(ApiClient(url=url, ca=ca, user=user, password="")).startswith("401:")
        assert refusal(ApiClient(url=url, ca=ca, user=user, password="certificate")).startswith("401:")
    both = ApiClient(url=url, ca=ca, certificate=authority.sign("octavia"), user="octavia", password="x")
    assert refusal(both).startswith("401:"), "who says a password is asked for that"


def test_unreadable_certificate_file_is_named(url: str, tmp_path: Path):
    told = refusal(ApiClient(url=url, certificate=str(tmp_path / "none.pem")))
    assert "none.pem: No such file" in told
