"""How nodes become known: the deployment's authority, and the token that an operator carries to a node."""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import msgspec

LONGEST_TOKEN = 4096
REMEDY = "give the node another one by `fairlead chassis enroll {}`, and there `fairlead agent --enroll FILE`"
"""For a certificate that has expired: it renews none any more."""


class BadRequest(Exception):
    """A certificate request that cannot be signed; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    pem: str
    fingerprint: str
    not_after: datetime


class Authority(Protocol):
    @property
    def pem(self) -> str:
        """Its own certificate."""

    @property
    def fingerprint(self) -> str: ...

    def sign(self, request: str, chassis: str, now: datetime) -> Signed:
        """Raises BadRequest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """How nodes become known here."""

    authority: Authority
    addresses: tuple[str, ...]
    """URLs at which agents reach servers, as tokens say them."""
    token_seconds: int


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def write_token(chassis: str, secret: str, enrolment: Enrolment) -> str:
    """As an operator carries it to the node: for whom it is, how the deployment is known, where it is."""
    told = {
        "chassis": chassis,
        "authority": enrolment.authority.fingerprint,
        "servers": enrolment.addresses,
        "secret": secret,
    }
    return base64.urlsafe_b64encode(msgspec.json.encode(told)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedToken:
    chassis: str
    authority: str
    servers: tuple[str, ...]
    secret: str


def read_token(text: str) -> CarriedToken:
    """Raises ValueError."""
    try:
        if len(text) > LONGEST_TOKEN:
            raise ValueError
        return msgspec.convert(msgspec.json.decode(base64.urlsafe_b64decode(text.strip())), CarriedToken)
    except (ValueError, binascii.Error, RecursionError):  # msgspec's are ValueErrors
        raise ValueError("this is no token of `fairlead chassis enroll`") from None
