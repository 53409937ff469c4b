"""Decoder and encoder of the TLS and HTTP options of listeners and pools."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.api.http.front_end import JsonObject
from fairlead.api.octavia.errors import bad_request
from fairlead.api.octavia.options import LISTENER_HTTP, LISTENER_TLS, POOL_TLS, Option
from fairlead.changes.tls_checks import TLS_VERSIONS
from fairlead.model.documents.loadbalancer import Http, Listener, ListenerTls, Pool, PoolTls
from fairlead.schema import Values

_NO_LISTENER_TLS, _NO_POOL_TLS, _NO_HTTP = ListenerTls(), PoolTls(), Http()


def decode_listener_tls(listener: Listener, values: Values) -> dict[str, Any]:
    """Return the changed attributes of the model. Raises ApiError."""
    return {
        **_changed("tls", listener.tls, _NO_LISTENER_TLS, values, LISTENER_TLS),
        **_changed("http", listener.http, _NO_HTTP, values, LISTENER_HTTP),
    }


def decode_pool_tls(pool: Pool, values: Values) -> dict[str, Any]:
    """Return the changed attributes of the model. Raises ApiError."""
    return _changed("tls", pool.tls, _NO_POOL_TLS, values, POOL_TLS)


def encode_listener_tls(listener: Listener) -> JsonObject:
    tls, http = listener.tls or _NO_LISTENER_TLS, listener.http or _NO_HTTP
    return {
        **{name: getattr(tls, option.attribute) for name, option in LISTENER_TLS.items()},
        **{name: getattr(http, option.attribute) for name, option in LISTENER_HTTP.items()},
        "insert_headers": dict(http.insert_headers),
        "client_authentication": tls.client_authentication.value,
        "tls_versions": tls.versions or None,
        "alpn_protocols": tls.alpn_protocols or None,
    }


def encode_pool_tls(pool: Pool) -> JsonObject:
    tls = pool.tls or _NO_POOL_TLS
    return {
        **{name: getattr(tls, option.attribute) for name, option in POOL_TLS.items()},
        "tls_versions": tls.versions or None,
        "alpn_protocols": tls.alpn_protocols or None,
    }


def _changed(field: str, old: Any, nothing: Any, values: Values, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the changed TLS or HTTP options; None if all are defaults."""
    changes = {
        option.attribute: getattr(nothing, option.attribute) if values[name] is None else values[name]
        for name, option in options.items()
        if name in values
    }
    if not changes:
        return {}
    _check_lists(values)
    changed = replace(old or nothing, **changes)
    return {field: None if changed == nothing else changed}


def _check_lists(values: Values) -> None:
    versions, protocols = values.get("tls_versions"), values.get("alpn_protocols")
    if versions == ():
        raise bad_request(
            "Empty TLS version list. Either specify at least one TLS version or remove this parameter to use the"
            " default."
        )
    if unknown := [each for each in versions or () if each not in TLS_VERSIONS]:
        raise bad_request(f"Invalid TLS versions: {', '.join(unknown)}")
    if protocols == ():
        raise bad_request(
            "Empty ALPN protocol list. Either specify at least one ALPN protocol or remove this parameter to use the"
            " default."
        )
