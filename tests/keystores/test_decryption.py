"""PKCS#12 bundles and keys with a pass phrase are opened in a separate process with a time limit."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from fairlead.keystores.decryption import Opener
from fairlead.keystores.interface import Content, Unreadable
from fairlead.keystores.material import checked, has_to_be_opened
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority, key_pem

CA = Authority()
WEB = CA.issue("web.example")
ABSURD = 80_000_000
"""Iterations, for about 20 s of CPU time."""


def locked(phrase: bytes) -> bytes:
    return WEB.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(phrase))


@pytest.fixture
async def opener() -> AsyncIterator[Opener]:
    opener = Opener()
    try:
        yield opener
    finally:
        await opener.close()


def made_by_openssl(folder: Path, *more: str) -> bytes:
    """Make a bundle as operators do, without a pass phrase."""
    (folder / "whole.pem").write_text(WEB.whole)
    words = ["openssl", "pkcs12", "-export", "-in", folder / "whole.pem", "-passout", "pass:", *more]
    return subprocess.run(words, check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    "content",
    [
        Content(material=WEB.bundle),
        Content(material=WEB.pem.encode() + locked(b"secret"), phrase=b"secret"),
        Content(material=WEB.whole.encode(), phrase=b"of no use"),
    ],
    ids=["pkcs12", "pass phrase", "not locked"],
)
async def test_what_was_opened_is_pem(opener: Opener, content: Content):
    assert has_to_be_opened(Role.CERTIFICATE, content)
    for _ in range(2):
        assert WEB.whole == checked(Role.CERTIFICATE, await opener.open(content))


async def test_bundles_as_openssl_makes_them(opener: Opener, tmp_path: Path):
    for more in ((), ("-keypbe", "NONE", "-certpbe", "NONE"), ("-nomac",)):
        opened = await opener.open(Content(material=made_by_openssl(tmp_path, *more)))
        assert WEB.whole == checked(Role.CERTIFICATE, opened)


def test_what_has_to_be_opened():
    plain = Content(material=WEB.whole.encode())
    assert not has_to_be_opened(Role.CERTIFICATE, plain)
    assert not has_to_be_opened(Role.AUTHORITY, Content(material=WEB.bundle))
    assert not has_to_be_opened(Role.REVOCATIONS, Content(material=b"", phrase=b"secret"))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Content(material=WEB.pem.encode() + locked(b"secret"), phrase=b"wrong"), "pass phrase does not open"),
        (Content(material=WEB.pem.encode(), phrase=b"secret"), "no private key"),
        (Content(material=key_pem(WEB.key).encode() + b"-----BEGIN X", phrase=b"secret"), "cannot be read"),
        (Content(material=b""), "neither PEM nor"),
        (Content(material=WEB.bundle[:-9]), "neither PEM nor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_cannot_be_opened_is_refused_without_a_word_of_it(opener: Opener, content: Content, why: str):
    with pytest.raises(Unreadable, match=why) as refused:
        await opener.open(content)
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


async def test_a_file_that_takes_too_long_is_refused_and_the_next_is_served(opener: Opener, tmp_path: Path):
    usual = made_by_openssl(tmp_path, "-iter", "70000")

    with pytest.raises(Unreadable, match=r"more than 1 s of a processor"):
        await opener.open(Content(material=with_rounds(usual, 70_000, ABSURD)))
    assert WEB.whole == checked(Role.CERTIFICATE, await opener.open(Content(material=usual)))


async def test_who_waits_no_more_leaves_nothing_to_who_comes_next(opener: Opener, tmp_path: Path):
    slow = with_rounds(made_by_openssl(tmp_path, "-iter", "70000"), 70_000, ABSURD)

    await opener.open(Content(material=WEB.bundle))
    before = opener._process
    waiting = asyncio.create_task(opener.open(Content(material=slow)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert before is not None
    assert before.returncode is not None
    assert WEB.whole == checked(Role.CERTIFICATE, await opener.open(Content(material=WEB.bundle)))


async def test_nothing_is_left_when_nobody_asks_any_more(opener: Opener):
    await opener.open(Content(material=WEB.bundle))
    process = opener._process
    await opener.close()
    assert process is not None
    assert process.returncode is not None
