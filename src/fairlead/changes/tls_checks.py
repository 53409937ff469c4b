"""Checks and defaults of TLS and HTTP attributes of listeners and pools.

The compiler of a provider rejects attributes that the provider does not support.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    Pool,
    PoolTls,
)

TLS_VERSIONS = ("SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
"""TLS versions, oldest first."""
ALPN_PROTOCOLS = ("h2", "http/1.1", "http/1.0")
FORWARDED_HEADERS = ("X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto")
CLIENT_HEADERS = (
    "X-SSL-Client-Verify",
    "X-SSL-Client-Has-Cert",
    "X-SSL-Client-DN",
    "X-SSL-Client-CN",
    "X-SSL-Issuer",
    "X-SSL-Client-SHA1",
    "X-SSL-Client-Not-Before",
    "X-SSL-Client-Not-After",
)
"""Headers with attributes of the client's certificate."""
DEFAULT_VERSIONS, MIN_TLS_VERSION = ("TLSv1.2", "TLSv1.3"), "TLSv1.2"
DEFAULT_CIPHERS = ":".join(
    [
        *("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
        *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        *("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        *("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"),
        *("DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES256-GCM-SHA384", "DHE-RSA-CHACHA20-POLY1305"),
    ]
)
"""OWASP's suite B, in the names of openssl-ciphers(1):
Octavia's `default_listener_ciphers` and `default_pool_ciphers`."""
DEFAULT_TLS: Mapping[str, Any] = {
    "versions": DEFAULT_VERSIONS,
    "ciphers": DEFAULT_CIPHERS,
    "alpn_protocols": ALPN_PROTOCOLS,
}
"""Defaults of a listener that terminates TLS and of a pool that uses TLS, for absent or null attributes."""
_CIPHERS = re.compile(r"[A-Za-z0-9+!:@=_.-]+")
_DATAGRAMS = frozenset({ListenerProtocol.UDP, ListenerProtocol.SCTP})
_HEADER_PROTOCOLS = frozenset({ListenerProtocol.HTTP, ListenerProtocol.TERMINATED_HTTPS})
_T = TypeVar("_T", ListenerTls, PoolTls)
_NO_LISTENER_TLS, _NO_HTTP = ListenerTls(), Http()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadersNotInserted(Refusal):
    """A listener of this protocol cannot insert headers."""

    protocol: ListenerProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownHeaders(Refusal):
    """At least one of these headers is not supported."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCertificateHeadersNotSupported(Refusal):
    """Only a listener that terminates TLS has certificates of clients."""

    names: tuple[str, ...]
    protocol: ListenerProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BadHeaderSwitch(Refusal):
    """The value of a header must be true or false."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsNotSupportedForDatagrams(Refusal):
    """A UDP or SCTP listener cannot terminate TLS. An existing one (`is_there`) gets this refusal for headers too; a
    new one with headers gets `HeadersNotInserted`."""

    protocol: ListenerProtocol
    is_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateNotUsed(Refusal):
    """A listener of this protocol does not terminate TLS."""

    protocol: ListenerProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCertificate(Refusal):
    """A listener that terminates TLS, or authenticates clients, needs a server certificate."""

    for_clients: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoClientCa(Refusal):
    """A CA for client certificates is missing: client authentication is enabled, or there is a revocation list."""

    authentication: ClientAuthentication | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoMemberCa(Refusal):
    """A pool with a revocation list needs a CA.
    `was_there`: the pool had one before this change; None for a new pool."""

    was_there: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HstsWithoutAge(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class HstsWithoutTls(Refusal):
    """The header is only allowed in responses over TLS (RFC 6797, section 7.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadCiphers(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTlsVersions(Refusal):
    versions: tuple[str, ...]
    least: str = MIN_TLS_VERSION


def complete_listener_tls(known: Listener | None, listener: Listener) -> Listener:
    """Return the listener with TLS defaults; `known` is its previous version.
    Raises Refused for invalid combinations."""
    ends_tls = listener.protocol is ListenerProtocol.TERMINATED_HTTPS
    if listener.tls is None and listener.http is None and not ends_tls:
        return listener
    tls, http = listener.tls or _NO_LISTENER_TLS, listener.http or _NO_HTTP
    _check_versions_and_ciphers(tls)
    if known is not None and http.insert_headers and listener.protocol in _DATAGRAMS:
        raise Refused(TlsNotSupportedForDatagrams(protocol=listener.protocol, is_there=True))
    _check_headers(listener.protocol, http)
    _check_references(listener.protocol, tls, is_there=known is not None)
    _check_hsts(listener.protocol, http)
    return replace(listener, tls=_with_defaults(tls)) if ends_tls else listener


def complete_pool_tls(known: Pool | None, pool: Pool) -> Pool:
    """Return the pool with TLS defaults; `known` is its previous version. Raises Refused."""
    if pool.tls is None:
        return pool
    _check_versions_and_ciphers(pool.tls)
    if pool.tls.crl_container_ref and not pool.tls.ca_container_ref:
        raise Refused(NoMemberCa(was_there=None if known is None else _has_ca(known)))
    return replace(pool, tls=_with_defaults(pool.tls)) if pool.tls.enabled else pool


def _has_ca(pool: Pool) -> bool:
    return pool.tls is not None and bool(pool.tls.ca_container_ref)


def _with_defaults(tls: _T) -> _T:
    missing = {name: value for name, value in DEFAULT_TLS.items() if not getattr(tls, name)}
    return replace(tls, **missing) if missing else tls


def _check_versions_and_ciphers(tls: ListenerTls | PoolTls) -> None:
    if tls.ciphers and not _CIPHERS.fullmatch(tls.ciphers):
        raise Refused(BadCiphers())
    order = TLS_VERSIONS.index
    old = tuple(each for each in tls.versions if order(each) < order(MIN_TLS_VERSION))
    if old:
        raise Refused(OldTlsVersions(versions=old))


def _check_references(protocol: ListenerProtocol, tls: ListenerTls, *, is_there: bool) -> None:
    ends_tls = protocol is ListenerProtocol.TERMINATED_HTTPS
    certificate = tls.container_ref or tls.sni_container_refs
    if protocol in _DATAGRAMS and (certificate or tls.client_ca_container_ref):
        raise Refused(TlsNotSupportedForDatagrams(protocol=protocol, is_there=is_there))
    if not ends_tls and certificate:
        raise Refused(CertificateNotUsed(protocol=protocol))
    if not certificate and (tls.client_ca_container_ref or ends_tls):
        raise Refused(NoCertificate(for_clients=bool(tls.client_ca_container_ref)))
    if tls.client_authentication is not ClientAuthentication.NONE and not tls.client_ca_container_ref:
        raise Refused(NoClientCa(authentication=tls.client_authentication))
    if tls.client_crl_container_ref and not tls.client_ca_container_ref:
        raise Refused(NoClientCa(authentication=None))


def _check_headers(protocol: ListenerProtocol, http: Http) -> None:
    names = tuple(name for name, _ in http.insert_headers)
    if names and protocol not in _HEADER_PROTOCOLS:
        raise Refused(HeadersNotInserted(protocol=protocol))
    if set(names) - {*FORWARDED_HEADERS, *CLIENT_HEADERS}:
        raise Refused(UnknownHeaders(names=names))
    of_clients = tuple(name for name in names if name in CLIENT_HEADERS)
    if of_clients and protocol is not ListenerProtocol.TERMINATED_HTTPS:
        raise Refused(ClientCertificateHeadersNotSupported(names=of_clients, protocol=protocol))
    for name, value in http.insert_headers:
        if value.lower() not in ("true", "false"):
            raise Refused(BadHeaderSwitch(name=name, value=value))


def _check_hsts(protocol: ListenerProtocol, http: Http) -> None:
    if (http.hsts_include_subdomains or http.hsts_preload) and http.hsts_max_age is None:
        raise Refused(HstsWithoutAge())
    if http.hsts_max_age is not None and protocol is not ListenerProtocol.TERMINATED_HTTPS:
        raise Refused(HstsWithoutTls())
