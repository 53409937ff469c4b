"""How a pool keeps its clients: what fits to its protocol."""

import re
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.loadbalancer import (
    DATAGRAMS,
    AppCookiePersistence,
    HttpCookiePersistence,
    PersistenceType,
    Pool,
    SourceIpPersistence,
)

COOKIE_NAME = re.compile(r"[!#$%&'*+\-.0-9^_`a-z|~]+", re.ASCII | re.IGNORECASE)
"""RFC 6265, section 4.1.1: a token, as RFC 9110, section 5.6.2, has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CookiesOfDatagrams(Refusal):
    """Datagrams carry no cookies."""

    type: PersistenceType


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutOfStreams(Refusal):
    """A timeout or a granularity is for datagrams: a connection has an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCookieName(Refusal):
    name: str


def check_persistence(pool: Pool) -> None:
    """Raises Refused."""
    match pool.persistence:
        case None:
            return
        case HttpCookiePersistence() | AppCookiePersistence() if pool.protocol in DATAGRAMS:
            raise Refused(CookiesOfDatagrams(type=pool.persistence.type))
        case AppCookiePersistence() if not COOKIE_NAME.fullmatch(pool.persistence.cookie_name):
            raise Refused(BadCookieName(name=pool.persistence.cookie_name))
        case SourceIpPersistence(timeout=None, granularity=None):
            return
        case SourceIpPersistence() if pool.protocol not in DATAGRAMS:
            raise Refused(TimeoutOfStreams())
