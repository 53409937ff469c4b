"""The process that opens bundles of PKCS#12 and keys with a pass phrase; `opening.py` starts it, and speaks to it.

How much work that is, a file says of itself (RFC 8018, 4.2; RFC 9579): its rounds, and its bags inside encrypted ones,
which nobody sees before. So it is done where it holds nobody, and this process ends itself when a file has used up its
time of the processor, on however busy a machine. It imports nothing of Fairlead.
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

SECONDS = 1.0
"""Of the processor, for one file: RSA of 4096 bits takes 0.3, as the library tests its factors."""
MEMORY = 2**29
"""Bytes of its address space."""
FRAME = struct.Struct("!?II")
"""Asked: whether there is a pass phrase, its bytes and those of the file. Answered: whether it was opened, 0, and the
bytes of PEM, or of why not."""
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9 ]{0,30}PRIVATE KEY)-----.*?-----END \1-----", re.DOTALL)
_WRONG = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, MemoryError)


class Shut(Exception):
    """The message says why."""


def opened(content: bytes, phrase: bytes | None) -> bytes:
    """PEM, of the key and of all certificates. Raises Shut."""
    key, certificates = _open_pem(content, phrase) if b"-----BEGIN " in content else _open_bundle(content)
    try:
        text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined]
    except (AttributeError, *_WRONG):
        raise Shut("the key is of a sort that nobody serves; RSA, EC and Ed25519 are") from None
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates) + text


def _open_pem(content: bytes, phrase: bytes | None) -> tuple[object, list[x509.Certificate]]:
    found = _KEY.search(content)
    if found is None:
        raise Shut("it has no private key")
    for each in dict.fromkeys((phrase, None)):  # one that is not encrypted takes no phrase
        try:
            key = load_pem_private_key(found[0], each, unsafe_skip_rsa_key_validation=True)  # `material.py` looks at it
            return key, x509.load_pem_x509_certificates(content)
        except _WRONG:
            continue
    raise Shut("the pass phrase does not open the key, or it cannot be read")


def _open_bundle(content: bytes) -> tuple[object, list[x509.Certificate]]:
    for phrase in (None, b""):
        try:
            key, own, others = pkcs12.load_key_and_certificates(content, phrase)
        except _WRONG:
            continue
        if key is None or own is None:
            raise Shut("the bundle of PKCS#12 has no key, or no certificate")
        return key, [own, *others]
    raise Shut("it is neither PEM nor a bundle of PKCS#12 without a pass phrase")


def main() -> None:
    """Until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: it ends with who asks
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MEMORY)):
        with contextlib.suppress(OSError, ValueError):  # an older unit of systemd forbids it
            resource.setrlimit(kind, (most, most))
    with contextlib.suppress(OSError):
        os.nice(10)
    asked, answered = sys.stdin.buffer, sys.stdout.buffer
    while head := asked.read(FRAME.size):
        _answer(FRAME.unpack(head), asked, answered)


def _answer(head: tuple[bool, int, int], asked: BinaryIO, answered: BinaryIO) -> None:
    has_phrase, *sizes = head
    phrase, content = map(asked.read, sizes)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends a process that does not ask for it (signal(7))
    try:
        good, text = True, opened(content, phrase if has_phrase else None)
    except Shut as error:
        good, text = False, str(error).encode()
    signal.setitimer(signal.ITIMER_PROF, 0)
    answered.write(FRAME.pack(good, 0, len(text)) + text)
    answered.flush()


if __name__ == "__main__":
    main()
