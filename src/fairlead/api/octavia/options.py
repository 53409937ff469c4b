"""Options of listeners and pools in Octavia's words, and in the model's.

A compiler refuses an attribute of the model; here is what Octavia's clients call it.
"""

from collections.abc import Mapping

from fairlead.model.abilities import Feature

LISTENER_TLS: Mapping[str, str] = {
    "default_tls_container_ref": "container_ref",
    "sni_container_refs": "sni_container_refs",
    "client_authentication": "client_authentication",
    "client_ca_tls_container_ref": "client_ca_container_ref",
    "client_crl_container_ref": "client_crl_container_ref",
    "tls_versions": "versions",
    "tls_ciphers": "ciphers",
    "alpn_protocols": "alpn_protocols",
}
LISTENER_HTTP: Mapping[str, str] = {
    name: name for name in ("insert_headers", "hsts_max_age", "hsts_include_subdomains", "hsts_preload")
}
POOL_TLS: Mapping[str, str] = {
    "tls_enabled": "enabled",
    "tls_container_ref": "container_ref",
    "ca_tls_container_ref": "ca_container_ref",
    "crl_container_ref": "crl_container_ref",
    "tls_versions": "versions",
    "tls_ciphers": "ciphers",
    "alpn_protocols": "alpn_protocols",
}
"""Octavia's names of the attributes, and the model's."""
_SAID: Mapping[str, str] = {
    "listener.protocol": "protocol",
    "listener.l7policies": "L7 policies",
    "listener.connection_limit": "connection_limit",
    "pool.protocol": "pool protocol",
    "pool.algorithm": "lb_algorithm",
    "pool.persistence": "session_persistence",
    "pool.persistence.granularity": "persistence_granularity",
    "pool.health_monitor": "health monitors of type",
    **{f"listener.tls.{attribute}": name for name, attribute in LISTENER_TLS.items()},
    **{f"listener.http.{attribute}": name for name, attribute in LISTENER_HTTP.items()},
    **{f"pool.tls.{attribute}": name for name, attribute in POOL_TLS.items()},
}


def say_feature(asked: Feature | str) -> str:
    """What a provider does not have, as Octavia's clients know it."""
    if isinstance(asked, str):
        return asked
    return f"{_SAID[asked.attribute]} {asked.value}".rstrip()
