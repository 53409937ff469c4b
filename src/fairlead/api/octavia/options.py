"""TLS and HTTP options of listeners and pools, each declared once: Octavia's name, the model's name and the parser.
Also Octavia's names of model attributes in "unsupported" errors."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairlead.api.octavia import limits, texts
from fairlead.changes.tls_checks import TLS_VERSIONS
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.loadbalancer import ClientAuthentication
from fairlead.schema import Field, Spec, boolean, enum_of, integer, list_of, text


@dataclass(frozen=True, slots=True)
class Option:
    attribute: str
    """Attribute of the model."""
    form: Field


_REFERENCE = Field(text(limits.MAX_TEXT_LENGTH))
_ANY_TLS: Mapping[str, Option] = {
    "tls_versions": Option("versions", Field(texts.some_of(*TLS_VERSIONS))),
    "tls_ciphers": Option("ciphers", Field(text(limits.MAX_CIPHERS_LENGTH))),
    "alpn_protocols": Option("alpn_protocols", Field(texts.alpn_protocols)),
}
LISTENER_TLS: Mapping[str, Option] = {
    "default_tls_container_ref": Option("container_ref", _REFERENCE),
    "sni_container_refs": Option("sni_container_refs", Field(list_of(text(limits.MAX_TEXT_LENGTH), limits.REFERENCES))),
    "client_authentication": Option("client_authentication", Field(enum_of(ClientAuthentication))),
    "client_ca_tls_container_ref": Option("client_ca_container_ref", _REFERENCE),
    "client_crl_container_ref": Option("client_crl_container_ref", _REFERENCE),
    **_ANY_TLS,
}
LISTENER_HTTP: Mapping[str, Option] = {
    "insert_headers": Option("insert_headers", Field(texts.headers)),
    "hsts_max_age": Option("hsts_max_age", Field(integer(0, limits.MAX_NUMBER))),
    "hsts_include_subdomains": Option("hsts_include_subdomains", Field(boolean)),
    "hsts_preload": Option("hsts_preload", Field(boolean)),
}
POOL_TLS: Mapping[str, Option] = {
    "tls_enabled": Option("enabled", Field(boolean)),
    "tls_container_ref": Option("container_ref", _REFERENCE),
    "ca_tls_container_ref": Option("ca_container_ref", _REFERENCE),
    "crl_container_ref": Option("crl_container_ref", _REFERENCE),
    **_ANY_TLS,
}


def forms(*options: Mapping[str, Option], rest: Spec) -> Spec:
    """Return the spec of a body. Fields are ordered (shared TLS options, then by name), because the first invalid one
    is reported."""
    found = {name: option.form for each in options for name, option in each.items()}
    shared = {name: found[name] for name in sorted(_ANY_TLS)}
    return {**shared, **dict(sorted({**found, **rest}.items()))}


_FEATURE_NAMES: Mapping[str, str] = {
    "listener.protocol": "protocol",
    "listener.l7policies": "L7 policies",
    "listener.connection_limit": "connection_limit",
    "listener.raw": "raw",
    "pool.protocol": "pool protocol",
    "pool.algorithm": "lb_algorithm",
    "pool.locality": "locality",
    "pool.down_member": "down_member",
    "pool.persistence": "session_persistence",
    "pool.persistence.granularity": "persistence_granularity",
    "pool.health_monitor": "health monitors of type",
    "pool.health_monitor.delay_ms": "delay_ms",
    **{f"listener.tls.{option.attribute}": name for name, option in LISTENER_TLS.items()},
    **{f"listener.http.{option.attribute}": name for name, option in LISTENER_HTTP.items()},
    **{f"pool.tls.{option.attribute}": name for name, option in POOL_TLS.items()},
}


def feature_name(asked: Feature | str) -> str:
    """Return Octavia's name of an unsupported feature."""
    if isinstance(asked, str):
        return asked
    return f"{_FEATURE_NAMES[asked.attribute]} {asked.value}".rstrip()
