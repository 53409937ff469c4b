"""Certificates of kinds that some programs reject, made by OpenSSL: chain and private key as PEM."""

import shlex
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

CA = "basicConstraints=critical,CA:TRUE"
SIGN = "openssl x509 -req -CAcreateserial -days 9"


def _run(folder: Path, *commands: str) -> None:
    for command in commands:
        subprocess.run(shlex.split(command), cwd=folder, check=True, capture_output=True)


def _joined(folder: Path, *names: str) -> str:
    return "".join((folder / name).read_text() for name in names)


def _authority(folder: Path, digest: str = "sha256") -> None:
    _run(
        folder,
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 9 -subj /CN=CA -{digest}"
        f" -addext {CA}",
    )


def _leaf(folder: Path, generate: str, issuer: str = "ca") -> str:
    _run(
        folder,
        f"openssl {generate} -out leaf.key",
        "openssl req -new -key leaf.key -subj /CN=web.example -out leaf.csr",
        f"{SIGN} -in leaf.csr -CA {issuer}.pem -CAkey {issuer}.key -out leaf.pem",
    )
    return _joined(folder, "leaf.pem", f"{issuer}.pem", "leaf.key")


def _of_key(generate: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        _authority(folder)
        return _leaf(folder, generate)

    return make


RSA, CURVE = "genpkey -algorithm rsa -pkeyopt rsa_keygen_bits:2048", "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:"


def _intermediate_of_dsa(bits: int) -> Callable[[Path], str]:
    """Chain with an additional DSA intermediate, which did not sign the certificate."""

    def make(folder: Path) -> str:
        _authority(folder)
        (folder / "ca.ext").write_text(CA)
        _run(
            folder,
            f"openssl dsaparam -out dsa.params {bits}",
            "openssl gendsa -out dsa.key dsa.params",
            "openssl req -new -key dsa.key -subj /CN=DSA -out dsa.csr",
            f"{SIGN} -in dsa.csr -CA ca.pem -CAkey ca.key -extfile ca.ext -out dsa.pem",
        )
        _leaf(folder, RSA)
        return _joined(folder, "leaf.pem", "dsa.pem", "leaf.key")

    return make


def _root_of_sha1(folder: Path) -> str:
    _authority(folder, "sha1")
    return _leaf(folder, RSA)


def _rolled_over_with_sha1(folder: Path) -> str:
    """Chain of an authority with a new key, which its old key signed under the same name."""
    _authority(folder)
    (folder / "new.ext").write_text(CA)
    _run(
        folder,
        "openssl req -new -newkey rsa:2048 -nodes -keyout new.key -out new.csr -subj /CN=CA",
        f"{SIGN} -in new.csr -CA ca.pem -CAkey ca.key -sha1 -extfile new.ext -out new.pem",
    )
    return _leaf(folder, RSA, "new")


ACCEPTED: Mapping[str, Callable[[Path], str]] = {
    "RSA": _of_key(RSA),
    "P-256": _of_key(f"{CURVE}P-256"),
    "brainpool": _of_key(f"{CURVE}brainpoolP256r1"),
    "Ed25519": _of_key("genpkey -algorithm ed25519"),
    "a root that signs itself with SHA-1": _root_of_sha1,
    "an intermediate of DSA with 2048 bits": _intermediate_of_dsa(2048),
}
"""Certificates that HAProxy loads and clients accept."""
REJECTED: Mapping[str, tuple[Callable[[Path], str], str]] = {
    "RSA-PSS": (
        _of_key("genpkey -algorithm rsa-pss -pkeyopt rsa_keygen_bits:2048"),
        "the certificate has an RSA-PSS key, which HAProxy does not load; use an RSA key (rsaEncryption)",
    ),
    "secp256k1": (
        _of_key(f"{CURVE}secp256k1"),
        "the key is of curve secp256k1, which no client offers by default; use secp256r1",
    ),
    "SHA-1 by an older key of the same name": (
        _rolled_over_with_sha1,
        "a certificate is signed with sha1 by another key; use sha256",
    ),
    "an intermediate of DSA with 1024 bits": (
        _intermediate_of_dsa(1024),
        "a certificate has a DSA key of 1024 bits; the minimum is 2048",
    ),
}
"""Certificates that are rejected, with the reason."""
