"""PKCS#12 bundles and keys with a pass phrase are opened in a separate process with a time limit."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from fairlead.keystores.decryption import Decrypter
from fairlead.keystores.interface import Content, Unreadable
from fairlead.keystores.material import needs_decryption, normalize
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority, key_pem

CA = Authority()
WEB = CA.issue("web.example")
ABSURD = 80_000_000
"""Iterations, for about 20 s of CPU time."""


def locked(phrase: bytes) -> bytes:
    return WEB.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(phrase))


@pytest.fixture
async def opener() -> AsyncIterator[Decrypter]:
    opener = Decrypter()
    try:
        yield opener
    finally:
        await opener.close()


def made_by_openssl(folder: Path, *more: str) -> bytes:
    """Make a bundle as operators do, without a pass phrase."""
    (folder / "whole.pem").write_text(WEB.certificate_and_key)
    words = ["openssl", "pkcs12", "-export", "-in", folder / "whole.pem", "-passout", "pass:", *more]
    return subprocess.run(words, check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    "content",
    [
        Content(material=WEB.bundle),
        Content(material=WEB.pem.encode() + locked(b"secret"), phrase=b"secret"),
        Content(material=WEB.certificate_and_key.encode(), phrase=b"of no use"),
    ],
    ids=["pkcs12", "pass phrase", "not locked"],
)
async def test_opened_material_is_pem(opener: Decrypter, content: Content):
    assert needs_decryption(Role.CERTIFICATE, content)
    for _ in range(2):
        assert WEB.certificate_and_key == normalize(Role.CERTIFICATE, await opener.decrypt(content))


async def test_openssl_pkcs12_bundles_are_opened(opener: Decrypter, tmp_path: Path):
    for more in ((), ("-keypbe", "NONE", "-certpbe", "NONE"), ("-nomac",)):
        opened = await opener.decrypt(Content(material=made_by_openssl(tmp_path, *more)))
        assert WEB.certificate_and_key == normalize(Role.CERTIFICATE, opened)


def test_plain_certificates_authorities_and_crls_need_no_opening():
    plain = Content(material=WEB.certificate_and_key.encode())
    assert not needs_decryption(Role.CERTIFICATE, plain)
    assert not needs_decryption(Role.AUTHORITY, Content(material=WEB.bundle))
    assert not needs_decryption(Role.REVOCATIONS, Content(material=b"", phrase=b"secret"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Content(material=WEB.pem.encode() + locked(b"secret"), phrase=b"wrong"), "the passphrase is wrong"),
        (Content(material=WEB.pem.encode(), phrase=b"secret"), "no private key"),
        (Content(material=key_pem(WEB.key).encode() + b"-----BEGIN X", phrase=b"secret"), "the key is invalid"),
        (Content(material=b""), "neither PEM nor"),
        (Content(material=WEB.bundle[:-9]), "neither PEM nor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_unopenable_material_is_rejected_without_leaking_the_secret(
    opener: Decrypter, content: Content, why: str
):
    with pytest.raises(Unreadable, match=why) as refused:
        await opener.decrypt(content)
    assert "secret" not in str(refused.value)
    assert "secret" not in repr(content)
    assert refused.value.__cause__ is None


def with_rounds(bundle: bytes, known: int, rounds: int) -> bytes:
    """Change the MAC's iteration count, the last number of the file (RFC 7292, 4), to a value that is one byte
    longer."""
    old = known.to_bytes(3)
    assert bundle.endswith(b"\x02\x03" + old)
    size = len(bundle)
    mac = next(at for at in range(size - 100, size) if bundle[at] == 0x30 and at + 2 + bundle[at + 1] == size)
    grown = bytearray(bundle[: -len(old) - 1] + b"\x04" + rounds.to_bytes(4))
    grown[mac + 1] += 1
    grown[2:4] = (int.from_bytes(grown[2:4]) + 1).to_bytes(2)
    return bytes(grown)


async def test_slow_key_file_is_rejected_and_the_next_one_is_served(opener: Decrypter, tmp_path: Path):
    usual = made_by_openssl(tmp_path, "-iter", "70000")

    with pytest.raises(Unreadable, match=r"more than 1 s of CPU time"):
        await opener.decrypt(Content(material=with_rounds(usual, 70_000, ABSURD)))
    assert WEB.certificate_and_key == normalize(Role.CERTIFICATE, await opener.decrypt(Content(material=usual)))


async def test_cancelled_request_ends_the_opener_process(opener: Decrypter, tmp_path: Path):
    slow = with_rounds(made_by_openssl(tmp_path, "-iter", "70000"), 70_000, ABSURD)

    await opener.decrypt(Content(material=WEB.bundle))
    before = opener._process
    waiting = asyncio.create_task(opener.decrypt(Content(material=slow)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert before is not None
    assert before.returncode is not None
    assert WEB.certificate_and_key == normalize(Role.CERTIFICATE, await opener.decrypt(Content(material=WEB.bundle)))


async def test_closing_the_opener_ends_its_process(opener: Decrypter):
    await opener.decrypt(Content(material=WEB.bundle))
    process = opener._process
    await opener.close()
    assert process is not None
    assert process.returncode is not None
