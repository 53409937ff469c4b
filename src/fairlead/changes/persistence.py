"""Checks of session persistence against the pool's protocol."""

import re
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import (
    DATAGRAM_PROTOCOLS,
    AppCookiePersistence,
    HttpCookiePersistence,
    PersistenceType,
    Pool,
    SourceIpPersistence,
)

COOKIE_NAME = re.compile(r"[!#$%&'*+\-.0-9^_`a-z|~]+", re.ASCII | re.IGNORECASE)
"""Cookie name: a token (RFC 6265, section 4.1.1; RFC 9110, section 5.6.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CookiePersistenceNotSupported(Refusal):
    """Cookie persistence is not possible for UDP and SCTP pools."""

    type: PersistenceType


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceTimeoutNotSupported(Refusal):
    """Timeout and granularity are only valid for UDP and SCTP pools, because TCP connections have an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCookieName(Refusal):
    name: str


def check_persistence(pool: Pool) -> None:
    """Check the persistence of a pool. Raises Refused."""
    match pool.persistence:
        case None:
            return
        case HttpCookiePersistence() | AppCookiePersistence() if pool.protocol in DATAGRAM_PROTOCOLS:
            raise Refused(CookiePersistenceNotSupported(type=pool.persistence.type))
        case AppCookiePersistence() if not COOKIE_NAME.fullmatch(pool.persistence.cookie_name):
            raise Refused(BadCookieName(name=pool.persistence.cookie_name))
        case SourceIpPersistence(timeout=None, granularity=None):
            return
        case SourceIpPersistence() if pool.protocol not in DATAGRAM_PROTOCOLS:
            raise Refused(PersistenceTimeoutNotSupported())
