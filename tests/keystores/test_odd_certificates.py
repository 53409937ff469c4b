"""The check of certificates, compared with a real HAProxy."""

import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fairlead.keystores.material import normalize, weakness_of
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority
from harness.proxied import PROGRAM, needs_haproxy
from harness.unusual_certificates import ACCEPTED, REJECTED

pytestmark = [needs_haproxy]
CONFIGURATION = """
defaults
    timeout client 1s
    timeout server 1s
    timeout connect 1s
frontend f
    bind 127.0.0.1:1 ssl crt one.pem
"""
NOW = datetime.now(UTC)
LOADED = {"secp256k1"}
"""Certificates that HAProxy loads although no client can use them."""


def is_loaded(folder: Path, pem: str) -> bool:
    (folder / "one.pem").write_text(pem)
    (folder / "haproxy.cfg").write_text(CONFIGURATION)
    words = [PROGRAM, "-c", "-q", "-C", str(folder), "-f", "haproxy.cfg"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("make", ACCEPTED.values(), ids=ACCEPTED)
def test_servable_certificate_is_loaded_by_haproxy(tmp_path: Path, make: Callable[[Path], str]) -> None:
    pem = normalize(Role.CERTIFICATE, make(tmp_path).encode())
    assert weakness_of(Role.CERTIFICATE, pem, NOW) == ""
    assert is_loaded(tmp_path, pem)


@pytest.mark.parametrize("name", REJECTED)
def test_weak_certificate_is_rejected_with_the_reason(tmp_path: Path, name: str) -> None:
    """The certificate is readable: if already in use, it is served when HAProxy loads it."""
    make, why = REJECTED[name]
    pem = normalize(Role.CERTIFICATE, make(tmp_path).encode())
    assert weakness_of(Role.CERTIFICATE, pem, NOW) == why
    assert is_loaded(tmp_path, pem) is (name in LOADED)


def test_an_expired_list_of_revoked_certificates_is_refused() -> None:
    """HAProxy treats it as an error of each client's certificate."""
    authority = Authority()
    pem = normalize(Role.REVOCATIONS, authority.revoke(authority.issue("client")).encode())
    end = NOW + timedelta(days=2)
    assert weakness_of(Role.REVOCATIONS, pem, NOW) == ""
    assert weakness_of(Role.REVOCATIONS, pem, end).startswith("a certificate revocation list expired on ")
