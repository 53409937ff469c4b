"""Enrolment of nodes: certificate authority of the deployment, and the token that an operator carries to a node."""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

MAX_TOKEN_LENGTH = 4096
REMEDY = "run `fairlead chassis enroll {}`, then `fairlead agent --enroll FILE` on the node"
"""Remedy for an expired certificate, which cannot be renewed."""


class BadRequest(Exception):
    """Certificate request that cannot be signed; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    pem: str
    fingerprint: str
    not_after: datetime


class Authority(Protocol):
    @property
    def pem(self) -> str:
        """Return the authority's certificate."""

    @property
    def fingerprint(self) -> str: ...

    def sign(self, request: str, chassis: str, now: datetime) -> Signed:
        """Sign a certificate request for a chassis. Raises BadRequest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """Enrolment settings of this server."""

    authority: Authority
    addresses: tuple[str, ...]
    """URLs of the servers for agents, as written into tokens."""
    token_seconds: int


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def write_token(chassis: str, secret: str, enrolment: Enrolment) -> str:
    """Encode a token: chassis, fingerprint of the authority, server URLs and secret."""
    told = {
        "chassis": chassis,
        "authority": enrolment.authority.fingerprint,
        "servers": enrolment.addresses,
        "secret": secret,
    }
    return base64.urlsafe_b64encode(msgspec.json.encode(told)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentToken:
    chassis: str
    authority: str
    servers: tuple[str, ...]
    secret: str


def read_token(text: str) -> EnrolmentToken:
    """Decode a token. Raises ValueError."""
    try:
        if len(text) > MAX_TOKEN_LENGTH:
            raise ValueError
        return msgspec.convert(msgspec.json.decode(base64.urlsafe_b64decode(text.strip())), EnrolmentToken)
    except (ValueError, binascii.Error, RecursionError):  # msgspec's errors are ValueErrors
        raise ValueError("not a token of `fairlead chassis enroll`") from None
