"""TLS of listeners and pools: options of `bind` and `server` lines, and the secrets that they need.

A frontend's certificates are in a crt-list, so they can be added, removed and renewed without a reload.
"""

import re
import ssl
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Certificate, list_path
from fairlead.dataplane.haproxy_words import Line
from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    Listener,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    Pool,
    PoolTls,
)
from fairlead.model.queries.secrets import Role, Secret, certificate_references

VERSIONS = {"TLSv1": "TLSv1.0", "TLSv1.1": "TLSv1.1", "TLSv1.2": "TLSv1.2", "TLSv1.3": "TLSv1.3"}
"""Maps Octavia's version names to HAProxy's, oldest first. HAProxy's TLS libraries no longer have older versions."""
ALPN = ("h2", "http/1.1", "http/1.0")
DEFAULT_ALPN = ("h2", "http/1.1")
"""Used if a listener sets none."""
SUITES = frozenset(
    {
        *("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
        *("TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"),
    }
)
"""Cipher suites of TLS 1.3 (RFC 8446, B.4), which OpenSSL configures separately from older ciphers."""
_CIPHER = re.compile(r"[!+-]?[A-Za-z0-9+_-]+|@STRENGTH|@SECLEVEL=[0-5]")
_NO_TLS = ListenerTls()


def refuse(balancer: LoadBalancer, listener: Listener) -> None:
    """Reject TLS settings of a listener that HAProxy cannot have. Raises Unsupported."""
    said = listener.tls or _NO_TLS
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS:
        return
    if not (said.container_ref or said.sni_container_refs):
        raise Unsupported("TERMINATED_HTTPS without a certificate", balancer.provider)
    authenticates = said.client_authentication is not ClientAuthentication.NONE
    if authenticates and said.client_ca_container_ref is None:
        raise Unsupported("client_authentication without client_ca_tls_container_ref", balancer.provider)
    _refuse_words(balancer, said)


def _refuse_words(balancer: LoadBalancer, said: ListenerTls | PoolTls) -> None:
    for version in said.versions:
        if version not in VERSIONS:
            raise Unsupported(f"TLS version {version!r}", balancer.provider)
    for protocol in said.alpn_protocols:
        if protocol not in ALPN:
            raise Unsupported(f"ALPN protocol {protocol!r}", balancer.provider)
    names = [each for each in (said.ciphers or "").split(":") if each]
    if not all(map(_CIPHER.fullmatch, names)) or any(each.startswith("TLS_") for each in names if each not in SUITES):
        raise Unsupported("an invalid OpenSSL cipher list", balancer.provider)
    older = [each for each in names if each not in SUITES]
    if older and not _leaves_any(":".join(older)):
        raise Unsupported("a cipher list without any cipher of OpenSSL", balancer.provider)


@lru_cache(maxsize=1000)
def _leaves_any(ciphers: str) -> bool:
    """Whether OpenSSL selects any cipher up to TLS 1.2. HAProxy does not start with a list that selects none. TLS 1.3
    has a separate list (SSL_CTX_set_cipher_list(3))."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(ciphers)
    except ssl.SSLError:
        return False
    return True


def bind_words(listener: Listener) -> Line:
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS:
        return ()
    said = listener.tls or _NO_TLS
    return (
        *("ssl", "crt-list", list_path(listener.id), "alpn", ",".join(said.alpn_protocols or DEFAULT_ALPN)),
        *_ciphers(said),
        *_authentication(said),
    )


def _authentication(said: ListenerTls) -> Line:
    if said.client_authentication is ClientAuthentication.NONE or said.client_ca_container_ref is None:
        return ()
    asks = "required" if said.client_authentication is ClientAuthentication.MANDATORY else "optional"
    return "verify", asks, *_trusted(said.client_ca_container_ref, said.client_crl_container_ref)


def _trusted(authority: str, revocations: str | None) -> Line:
    files = ("ca-file", Secret(role=Role.AUTHORITY, reference=authority).path)
    if revocations is None:
        return files
    return *files, "crl-file", Secret(role=Role.REVOCATIONS, reference=revocations).path


def _ciphers(said: ListenerTls | PoolTls) -> Line:
    names = [each for each in (said.ciphers or "").split(":") if each]
    older, suites = [each for each in names if each not in SUITES], [each for each in names if each in SUITES]
    return (
        *_versions(said.versions),
        *(("ciphers", ":".join(older)) if older else ()),
        *(("ciphersuites", ":".join(suites)) if suites else ()),
    )


def _versions(said: tuple[str, ...]) -> Line:
    """Minimum and maximum of the newest named versions without a gap.

    HAProxy serves a range. With `ssl-min-ver` it ignores `no-tlsv11`, so a version in a gap would be served although it
    was left out; without it, HAProxy serves the versions above the gap, as here (ssl_sock.c, "hole").
    """
    if not said:
        return ()
    newest_first = list(reversed(VERSIONS))
    first = min(newest_first.index(each) for each in said)
    run = list(takewhile(said.__contains__, newest_first[first:]))
    return "ssl-min-ver", VERSIONS[run[-1]], "ssl-max-ver", VERSIONS[run[0]]


def certificates(listener: Listener) -> Iterator[Certificate]:
    """Yield the listener's certificates. The default certificate is `container_ref`, or else the first SNI
    certificate."""
    for place, reference in enumerate(certificate_references(listener)):
        yield Certificate(frontend=listener.id, reference=reference, is_default=place == 0)


def member_words(balancer: LoadBalancer, listener: Listener, pool: Pool, *, inside: bool) -> Line:
    """Return the TLS options of a member's server line. Raises Unsupported.

    - Without an authority, member certificates are not verified, as in Octavia. With one, HAProxy also verifies the
      host name if the client's SNI is passed on.
    - ALPN is only offered if HAProxy speaks HTTP itself. For a TCP pool the member could otherwise select HTTP/2,
      which the client has not negotiated.
    """
    said = pool.tls
    if said is None or not said.enabled:
        return ()
    _refuse_words(balancer, said)
    own = Secret(role=Role.CERTIFICATE, reference=said.container_ref).path if said.container_ref else None
    authority = said.ca_container_ref
    return (
        "ssl",
        *(("verify", "none") if authority is None else ("verify", "required")),
        *(() if authority is None else _trusted(authority, said.crl_container_ref)),
        *(() if own is None else ("crt", own)),
        *(("sni", "ssl_fc_sni") if listener.protocol is ListenerProtocol.TERMINATED_HTTPS else ()),
        *_ciphers(said),
        *(("alpn", ",".join(said.alpn_protocols)) if inside and said.alpn_protocols else ()),
    )
