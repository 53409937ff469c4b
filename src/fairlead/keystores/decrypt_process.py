"""Subprocess that decrypts PKCS#12 bundles and private keys with a passphrase; `opening.py` starts it and sends
requests.

The file itself determines the cost of decryption (RFC 8018, 4.2; RFC 9579), by its iteration counts and by nested
encrypted bags that cannot be inspected first. So decryption runs in this process, with a CPU time limit that terminates
it, independent of the machine's load. It imports nothing of Fairlead.
"""

import contextlib
import os
import re
import resource
import signal
import struct
import sys
from typing import BinaryIO

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

MAX_CPU_SECONDS = 1.0
"""CPU seconds for one file. RSA of 4096 bits takes 0.3 s, because the library tests the factors."""
MAX_MEMORY_BYTES = 2**29
"""Limit of the address space in bytes."""
FRAME = struct.Struct("!?II")
"""Frame header. Request: whether there is a passphrase, its length and the file's length. Response: whether it
succeeded, 0, and the length of the PEM or of the error message."""
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9 ]{0,30}PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_WRONG = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, MemoryError)


class DecryptError(Exception):
    """The file cannot be decrypted; the message gives the reason."""


def decrypt(content: bytes, phrase: bytes | None) -> bytes:
    """Return the key and all certificates as PEM. Raises Shut."""
    key, certificates = _open_pem(content, phrase) if b"-----BEGIN " in content else _open_bundle(content)
    try:
        text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined]
    except (AttributeError, *_WRONG):
        raise DecryptError("the type of the key is not supported; supported types: RSA, EC, Ed25519") from None
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates) + text


def _open_pem(content: bytes, phrase: bytes | None) -> tuple[object, list[x509.Certificate]]:
    found = _KEY.search(content)
    if found is None:
        raise DecryptError("it has no private key")
    for each in dict.fromkeys((phrase, None)):  # an unencrypted key rejects a passphrase
        try:
            key = load_pem_private_key(found[0], each, unsafe_skip_rsa_key_validation=True)  # see `material.py`
            return key, x509.load_pem_x509_certificates(content)
        except _WRONG:
            continue
    raise DecryptError("the passphrase is wrong, or the key is invalid")


def _open_bundle(content: bytes) -> tuple[object, list[x509.Certificate]]:
    for phrase in (None, b""):
        try:
            key, own, others = pkcs12.load_key_and_certificates(content, phrase)
        except _WRONG:
            continue
        if key is None or own is None:
            raise DecryptError("the PKCS#12 bundle has no key or no certificate")
        return key, [own, *others]
    raise DecryptError("it is neither PEM nor a PKCS#12 bundle without a passphrase")


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of a terminal: the parent process ends this one
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MAX_MEMORY_BYTES)):
        with contextlib.suppress(OSError, ValueError):  # an older systemd unit forbids it
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):
        os.nice(10)
    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    while head := asked.read(FRAME.size):
        _answer(FRAME.unpack(head), asked, answered)


def _answer(head: tuple[bool, int, int], asked: BinaryIO, answered: BinaryIO) -> None:
    has_phrase, *sizes = head
    phrase, content = map(asked.read, sizes)
    signal.setitimer(
        signal.ITIMER_PROF, MAX_CPU_SECONDS
    )  # without a handler SIGPROF terminates the process (signal(7))
    try:
        good, text = True, decrypt(content, phrase if has_phrase else None)
    except DecryptError as error:
        good, text = False, str(error).encode()
    signal.setitimer(signal.ITIMER_PROF, 0)
    answered.write(FRAME.pack(good, 0, len(text)) + text)
    answered.flush()


if __name__ == "__main__":
    main()
