"""Lists of revoked certificates by which a proxy accepts no certificate at all: what the check says of them, and what
the real HAProxy does with certificates of clients and of members."""

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fairlead.keystores.material import MAX_SIGNATURES, lockout_of, normalize, valid_lists, weakness_of
from fairlead.model.queries.secrets import Role
from harness.certificates import Authority, SignedCertificate, key_pem
from harness.proxied import PROGRAM, needs_haproxy
from harness.waiting import eventually

ROOT, OTHER = Authority("root"), Authority("other")
INNER = Authority("inner", issuer=ROOT)
NAMESAKE = Authority("root")
SIGNS_NO_LIST = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)
WITHOUT_LISTS = Authority("root", usage=SIGNS_NO_LIST)
LISTS = ROOT.revoke()
EXPIRED, FUTURE = ROOT.revoke(begins=-60, ends=-5), ROOT.revoke(begins=60)
WITHOUT_END = ROOT.revoke(ends=None)
"""A list without nextUpdate (RFC 5280, 5.1.2.5, demands one; OpenSSL does not)."""
ACCEPTED: Mapping[str, tuple[Sequence[Authority], Sequence[str], Sequence[str]]] = {
    "its own": ([ROOT], [LISTS], ["root"]),
    "both of a chain": ([ROOT, INNER], [LISTS, INNER.revoke()], ["root", "inner"]),
    "the upper one's": ([ROOT, INNER], [LISTS], ["root"]),
    "of one of two": ([ROOT, OTHER], [LISTS], ["root"]),
    "an expired one beside": ([ROOT], [EXPIRED, LISTS], ["root"]),
    "an expired one of another beside": ([ROOT, OTHER], [LISTS, OTHER.revoke(begins=-60, ends=-5)], ["root"]),
    "without an end": ([ROOT], [WITHOUT_END], ["root"]),
    "one without an end beside an expired one": ([ROOT], [EXPIRED, WITHOUT_END], ["root"]),
}
"""Authorities, lists, and whose certificates come in."""
LOCKED_OUT: Mapping[str, tuple[Sequence[Authority], Sequence[str]]] = {
    "the lower one's": ([ROOT, INNER], [INNER.revoke()]),
    "another's": ([ROOT], [OTHER.revoke()]),
    "a namesake's": ([ROOT], [NAMESAKE.revoke()]),
    "expired": ([ROOT], [EXPIRED]),
    "not valid yet": ([ROOT], [FUTURE]),
    "not valid yet, without an end": ([ROOT], [ROOT.revoke(begins=60, ends=None)]),
    "no root": ([INNER], [INNER.revoke(), LISTS]),
    "may not revoke": ([WITHOUT_LISTS], [WITHOUT_LISTS.revoke()]),
}
CASES = {**{name: case[:2] for name, case in ACCEPTED.items()}, **LOCKED_OUT}
SHOWN: Mapping[str, tuple[SignedCertificate, str]] = {
    "root": (ROOT.issue("shown"), ""),
    "inner": (INNER.issue("shown"), INNER.pem),
    "other": (OTHER.issue("shown"), ""),
    "may not revoke": (WITHOUT_LISTS.issue("shown"), ""),
}
"""By issuer: a certificate, and what is between it and the root."""
HEAD = """
defaults
    mode http
    timeout client 10s
    timeout server 10s
    timeout connect 10s
    retries 0
"""


def said(authorities: Sequence[Authority], lists: Sequence[str]) -> str:
    bundle = normalize(Role.AUTHORITY, "".join(each.pem for each in authorities).encode())
    return lockout_of(bundle, normalize(Role.REVOCATIONS, "".join(lists).encode()), datetime.now(UTC))


@pytest.mark.parametrize("name", ACCEPTED)
def test_revocation_lists_that_admit_any_certificate_are_accepted(name: str) -> None:
    authorities, lists, _ = ACCEPTED[name]
    assert said(authorities, lists) == ""


@pytest.mark.parametrize("name", LOCKED_OUT)
def test_revocation_lists_that_block_all_certificates_name_the_remedy(name: str) -> None:
    words = "CN=root has no valid certificate revocation list, so every certificate is rejected; add that list"
    if name == "no root":
        words = (
            "no CA certificate is self-signed, so every certificate is rejected; add the root and its revocation list"
        )
    assert said(*LOCKED_OUT[name]) == words


def test_many_authorities_with_one_name_are_checked_in_bounded_time() -> None:
    """Of more signatures than are verified nothing is said."""
    lists = [NAMESAKE.revoke()] * (MAX_SIGNATURES + 1)
    assert said([ROOT], lists[:-1]) != ""
    assert said([ROOT], lists) == ""


def test_renewed_revocation_list_replaces_an_expired_one() -> None:
    now = datetime.now(UTC)
    renewed = normalize(Role.REVOCATIONS, (EXPIRED + LISTS).encode())
    assert weakness_of(Role.REVOCATIONS, renewed, now) == ""
    assert "expired on" in weakness_of(Role.REVOCATIONS, renewed, now + timedelta(days=2))
    beside = normalize(Role.REVOCATIONS, (EXPIRED + OTHER.revoke()).encode())
    assert "expired on" in weakness_of(Role.REVOCATIONS, beside, now)


def test_revocation_list_without_an_end_does_not_expire() -> None:
    later = datetime.now(UTC) + timedelta(days=36_500)
    for lists in (WITHOUT_END, EXPIRED + WITHOUT_END, WITHOUT_END + EXPIRED):
        assert weakness_of(Role.REVOCATIONS, normalize(Role.REVOCATIONS, lists.encode()), later) == ""
    beside = normalize(Role.REVOCATIONS, (OTHER.revoke() + WITHOUT_END).encode())
    assert "expired on" in weakness_of(Role.REVOCATIONS, beside, later)


def test_validity_of_revocation_lists_is_returned_in_order() -> None:
    lists = normalize(Role.REVOCATIONS, (EXPIRED + WITHOUT_END + FUTURE + LISTS).encode())
    now = datetime.now(UTC)
    assert valid_lists(lists, now) == (False, True, False, True)
    assert valid_lists(lists, now + timedelta(hours=2)) == (False, True, True, True)


def test_error_about_long_authority_names_is_bounded() -> None:
    many = [Authority(f"{number:060}") for number in range(10)]
    assert len(said(many, [LISTS])) < 400


def write_shown(folder: Path) -> list[str]:
    names = [f"{place}.pem" for place in range(len(SHOWN))]
    for name, (issued, between) in zip(names, SHOWN.values(), strict=True):
        (folder / name).write_text(issued.pem + between + key_pem(issued.key))
    return names


@contextlib.contextmanager
def haproxy(folder: Path) -> Iterator[None]:
    """For each case: a socket for clients, `f<case>`, and for each certificate that a member shows one from which that
    member is reached, `l<case>.<certificate>`. Sockets have short paths (unix(7))."""
    (folder / "own.pem").write_text(OTHER.issue("own").certificate_and_key)
    lines = [HEAD]
    for place in range(len(SHOWN)):
        lines.append(f"frontend m{place}\n bind unix@{folder}/m{place} ssl crt {folder}/{place}.pem")
        lines.append(" http-request return status 200")
    for number, (authorities, lists) in enumerate(CASES.values()):
        (folder / f"ca{number}").write_text("".join(each.pem for each in authorities))
        (folder / f"crl{number}").write_text("".join(lists))
        trust = f"verify required ca-file {folder}/ca{number} crl-file {folder}/crl{number}"
        lines.append(f"frontend f{number}\n bind unix@{folder}/f{number} ssl crt {folder}/own.pem {trust}")
        lines.append(" http-request return status 200")
        for place in range(len(SHOWN)):
            lines.append(f"listen l{number}.{place}\n bind unix@{folder}/l{number}.{place}")
            lines.append(f" server s unix@{folder}/m{place} ssl {trust}")
    (folder / "haproxy.cfg").write_text("\n".join(lines) + "\n")
    with subprocess.Popen([PROGRAM, "-db", "-q", "-f", str(folder / "haproxy.cfg")]) as process:
        try:
            yield
        finally:
            process.terminate()


async def is_answered(path: Path, tls: ssl.SSLContext | None = None) -> bool:
    try:
        name = "shown" if tls else None
        reader, writer = await asyncio.open_unix_connection(str(path), ssl=tls, server_hostname=name)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.transport.abort()
    except OSError:
        return False
    return answer.split()[1:2] == [b"200"]


def showing(path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(path)
    return context


@needs_haproxy
async def test_lockout_check_agrees_with_haproxy(tmp_path: Path) -> None:
    wanted = [*(names for _, _, names in ACCEPTED.values()), *([] for _ in LOCKED_OUT)]
    shown = [showing(tmp_path / name) for name in write_shown(tmp_path)]
    with haproxy(tmp_path):
        await eventually(lambda: is_answered(tmp_path / "f0", shown[0]), "HAProxy")
        for number, name in enumerate(CASES):
            clients = [
                each for each, tls in zip(SHOWN, shown, strict=True) if await is_answered(tmp_path / f"f{number}", tls)
            ]
            assert (name, clients) == (name, wanted[number])
            members = [each for place, each in enumerate(SHOWN) if await is_answered(tmp_path / f"l{number}.{place}")]
            assert (name, members) == (name, wanted[number])
