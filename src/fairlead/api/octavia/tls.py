"""What a listener or a pool says about TLS and HTTP: read, held against each other, and shown again.

A provider that cannot do it refuses it in its compiler, by the names that are used here.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fairlead.api.door import ApiError, JsonObject
from fairlead.api.fields import Values
from fairlead.api.octavia import texts
from fairlead.api.octavia.errors import bad_request
from fairlead.api.octavia.options import LISTENER_HTTP, LISTENER_TLS, POOL_TLS
from fairlead.model.loadbalancer import (
    ClientAuthentication,
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    Pool,
    PoolTls,
)

_T = TypeVar("_T", ListenerTls, PoolTls)
_NO_LISTENER_TLS, _NO_POOL_TLS, _NO_HTTP = ListenerTls(), PoolTls(), Http()
DEFAULT_VERSIONS, LEAST_VERSION = ("TLSv1.2", "TLSv1.3"), "TLSv1.2"
DEFAULT_CIPHERS = ":".join(
    [
        *("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
        *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        *("ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        *("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-RSA-CHACHA20-POLY1305"),
        *("DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES256-GCM-SHA384", "DHE-RSA-CHACHA20-POLY1305"),
    ]
)
"""OWASP's suite B, in the names of openssl-ciphers(1): Octavia's `default_listener_ciphers`, `default_pool_ciphers`."""
DEFAULT_TLS: Mapping[str, Any] = {
    "versions": DEFAULT_VERSIONS,
    "ciphers": DEFAULT_CIPHERS,
    "alpn_protocols": texts.ALPN_PROTOCOLS,
}
"""Of a listener that ends TLS and of a pool that speaks it: what nobody names, or takes back with a null."""
_CIPHERS = re.compile(r"[A-Za-z0-9+!:@=_.-]+")
_DATAGRAMS = frozenset({ListenerProtocol.UDP, ListenerProtocol.SCTP})
_INSERTING = frozenset({ListenerProtocol.HTTP, ListenerProtocol.TERMINATED_HTTPS})


def decode_listener_tls(listener: Listener, values: Values) -> Listener:
    """Raises ApiError for what does not fit together."""
    _check_lists(values)
    tls = replace(listener.tls or _NO_LISTENER_TLS, **_changes(values, LISTENER_TLS, _NO_LISTENER_TLS))
    if listener.protocol is ListenerProtocol.TERMINATED_HTTPS:
        tls = _with_defaults(tls)
    http = replace(listener.http or _NO_HTTP, **_changes(values, LISTENER_HTTP, _NO_HTTP))
    _check_headers(listener.protocol, http)
    _check_references(listener.protocol, tls)
    _check_hsts(listener.protocol, http)
    return replace(listener, tls=None if tls == _NO_LISTENER_TLS else tls, http=None if http == _NO_HTTP else http)


def decode_pool_tls(pool: Pool, values: Values) -> Pool:
    """Raises ApiError."""
    _check_lists(values)
    old = pool.tls or _NO_POOL_TLS
    tls = replace(old, **_changes(values, POOL_TLS, _NO_POOL_TLS))
    if tls.crl_container_ref and not tls.ca_container_ref:
        raise bad_request(
            "A CA reference cannot be removed when a certificate revocation list is present."
            if old.ca_container_ref
            else "A CA certificate reference is required to specify a revocation list."
        )
    if tls.enabled:
        tls = _with_defaults(tls)
    return replace(pool, tls=None if tls == _NO_POOL_TLS else tls)


def encode_listener_tls(listener: Listener) -> JsonObject:
    tls, http = listener.tls or _NO_LISTENER_TLS, listener.http or _NO_HTTP
    return {
        **{name: getattr(tls, field) for name, field in LISTENER_TLS.items()},
        **{name: getattr(http, field) for name, field in LISTENER_HTTP.items()},
        "insert_headers": dict(http.insert_headers),
        "client_authentication": tls.client_authentication.value,
        "tls_versions": tls.versions or None,
        "alpn_protocols": tls.alpn_protocols or None,
    }


def encode_pool_tls(pool: Pool) -> JsonObject:
    tls = pool.tls or _NO_POOL_TLS
    return {
        **{name: getattr(tls, field) for name, field in POOL_TLS.items()},
        "tls_versions": tls.versions or None,
        "alpn_protocols": tls.alpn_protocols or None,
    }


def _changes(values: Values, names: Mapping[str, str], defaults: object) -> dict[str, Any]:
    return {
        field: getattr(defaults, field) if values[name] is None else values[name]
        for name, field in names.items()
        if name in values
    }


def _with_defaults(tls: _T) -> _T:
    return replace(tls, **{name: value for name, value in DEFAULT_TLS.items() if not getattr(tls, name)})


def _check_lists(values: Values) -> None:
    versions, protocols = values.get("tls_versions"), values.get("alpn_protocols")
    if values.get("tls_ciphers") and not _CIPHERS.fullmatch(values["tls_ciphers"]):
        raise bad_request(
            "Invalid characters in cipher string. Only alphanumeric, -, +, !, :, @, =, _, and . are allowed."
        )
    if versions == ():
        raise bad_request(
            "Empty TLS version list. Either specify at least one TLS version or remove this parameter to use the"
            " default."
        )
    if unknown := [each for each in versions or () if each not in texts.TLS_VERSIONS]:
        raise bad_request(f"Invalid TLS versions: {', '.join(unknown)}")
    order = texts.TLS_VERSIONS.index
    if old := [each for each in versions or () if order(each) < order(LEAST_VERSION)]:
        raise bad_request(f"Requested TLS versions are less than the minimum: {', '.join(old)} < {LEAST_VERSION}")
    if protocols == ():
        raise bad_request(
            "Empty ALPN protocol list. Either specify at least one ALPN protocol or remove this parameter to use the"
            " default."
        )


def _check_references(protocol: ListenerProtocol, tls: ListenerTls) -> None:
    ends_tls = protocol is ListenerProtocol.TERMINATED_HTTPS
    certificate = tls.container_ref or tls.sni_container_refs
    if protocol in _DATAGRAMS and (certificate or tls.client_ca_container_ref):
        raise bad_request(f"{protocol.value} protocol listener does not support TLS.")
    if not ends_tls and certificate:
        raise bad_request(f"Certificate container references are not allowed on {protocol.value} protocol listeners.")
    if tls.client_ca_container_ref and not certificate:
        raise bad_request(
            "An SNI or default certificate container reference must be provided with a client CA container reference."
        )
    if ends_tls and not certificate:
        raise bad_request(
            "An SNI or default certificate container reference must be provided for TERMINATED_HTTPS protocol"
            " listeners."
        )
    if tls.client_authentication is not ClientAuthentication.NONE and not tls.client_ca_container_ref:
        raise bad_request(
            f"Client authentication setting {tls.client_authentication.value} requires a client CA container reference."
        )
    if tls.client_crl_container_ref and not tls.client_ca_container_ref:
        raise bad_request(
            "A client authentication CA reference is required to specify a client authentication revocation list."
        )


def _check_headers(protocol: ListenerProtocol, http: Http) -> None:
    names = [name for name, _ in http.insert_headers]
    if names and protocol not in _INSERTING:
        raise ApiError(400, f"insert-headers is not a valid option for a {protocol.value} protocol listener.")
    if set(names) - {*texts.FORWARDED_HEADERS, *texts.CLIENT_HEADERS}:
        raise ApiError(400, f"{names} is not a valid option for insert_headers")
    of_clients = [name for name in names if name in texts.CLIENT_HEADERS]
    if of_clients and protocol is not ListenerProtocol.TERMINATED_HTTPS:
        raise ApiError(400, f"{of_clients} is not a valid option for {protocol.value} protocol listener.")
    for name, value in http.insert_headers:
        if value.lower() not in ("true", "false"):
            raise ApiError(400, f"{value} is not a valid option for insert_headers {name}; it is true or false.")


def _check_hsts(protocol: ListenerProtocol, http: Http) -> None:
    if (http.hsts_include_subdomains or http.hsts_preload) and http.hsts_max_age is None:
        raise bad_request(
            "HSTS configuration options hsts_include_subdomains and hsts_preload only make sense if hsts_max_age is"
            " set as well."
        )
    if http.hsts_max_age is not None and protocol is not ListenerProtocol.TERMINATED_HTTPS:
        raise bad_request("The HSTS feature can only be used for listeners using the TERMINATED_HTTPS protocol.")
