"""References to certificates, keys and revocation lists in listeners and pools.

The module contains no secret values: it derives the secrets that a load balancer needs, and the nodes that may have
them. A node may have only the secrets of the proxies that it runs.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    Listener,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    Pool,
    find_pool,
    pools_of,
)
from fairlead.model.documents.proxy_place import place_of, proxy_chassis
from fairlead.model.queries.host_proxies import has_host_proxy
from fairlead.model.queries.proxies import proxied_listeners, proxy_ports
from fairlead.model.snapshot import Snapshot

FOLDER = "secrets"
"""Folder of secrets, relative to the folder of the process that reads them."""
_NO_TLS = ListenerTls()


class Role(StrEnum):
    """Purpose of a secret. Each is a PEM file."""

    CERTIFICATE = "certificate"
    """Certificate with its key and intermediate certificates."""
    AUTHORITY = "authority"
    REVOCATIONS = "revocations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Secret named by a reference. No row contains its value; the program that fills the folder of secrets reads it."""

    role: Role
    reference: str

    @property
    def path(self) -> str:
        """Path of the file. It has a digest, because a reference is tenant input."""
        return f"{FOLDER}/{self.role}-{hashlib.sha256(self.reference.encode()).hexdigest()[:32]}.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Authority by which a proxy verifies certificates of clients or members, and its revocation list."""

    authority: Secret
    revocations: Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRequest:
    """Request of a node for a secret of a load balancer that its proxies serve."""

    balancer_id: str
    secret: Secret
    digest: str = ""
    """SHA-256 of the PEM that the node has; empty if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretResponse:
    """Response to a request. Both fields are empty if the node's secret is current."""

    pem: str = field(default="", repr=False)
    error: str = ""
    """Reason why the secret is unavailable."""


def certificate_references(listener: Listener) -> tuple[str, ...]:
    """Return the references of the listener's server certificates, the default one first."""
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS:
        return ()
    said = listener.tls or _NO_TLS
    return tuple(dict.fromkeys(filter(None, (said.container_ref, *said.sni_container_refs))))


def client_secrets(listener: Listener) -> tuple[Secret, ...]:
    """Return the secrets that verify client certificates."""
    said = listener.tls or _NO_TLS
    asks = said.client_authentication is not ClientAuthentication.NONE and said.client_ca_container_ref is not None
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS or not asks:
        return ()
    return tuple(_secrets(None, said.client_ca_container_ref, said.client_crl_container_ref))


def member_secrets(pool: Pool) -> tuple[Secret, ...]:
    """Return the secrets of TLS connections to members."""
    said = pool.tls
    if said is None or not said.enabled:
        return ()
    return tuple(_secrets(said.container_ref, said.ca_container_ref, said.crl_container_ref))


def _secrets(certificate: str | None, authority: str | None, revocations: str | None) -> Iterator[Secret]:
    named = ((Role.CERTIFICATE, certificate), (Role.AUTHORITY, authority), (Role.REVOCATIONS, revocations))
    for role, reference in named:
        if reference:
            yield Secret(role=role, reference=reference)


def needed_secrets(balancer: LoadBalancer) -> tuple[Secret, ...]:
    """Return the secrets that the proxies of a load balancer need, without duplicates."""
    found = dict[Secret, None]()
    for listener in proxied_listeners(balancer):
        shown = [Secret(role=Role.CERTIFICATE, reference=each) for each in certificate_references(listener)]
        found.update(dict.fromkeys((*shown, *client_secrets(listener))))
        for pool in filter(None, (find_pool(balancer, pool_id) for pool_id in pools_of(listener))):
            found.update(dict.fromkeys(member_secrets(pool)))
    return tuple(found)


def needed_trusts(balancer: LoadBalancer) -> tuple[Trust, ...]:
    """Return the certificate authorities with revocation lists that its proxies use, each once."""
    found = dict[Trust, None]()
    for listener in proxied_listeners(balancer):
        pools = filter(None, (find_pool(balancer, pool_id) for pool_id in pools_of(listener)))
        for its in (client_secrets(listener), *map(member_secrets, pools)):
            of = {each.role: each for each in its}
            if Role.AUTHORITY in of and Role.REVOCATIONS in of:
                found[Trust(authority=of[Role.AUTHORITY], revocations=of[Role.REVOCATIONS])] = None
    return tuple(found)


def referenced_secrets(balancer: LoadBalancer) -> tuple[Secret, ...]:
    """Return all secrets that its listeners and pools refer to, each once, whether or not a proxy needs them.

    A listener may authenticate no clients, and a pool may have TLS switched off or be unused.
    """
    found = dict[Secret, None]()
    for listener in balancer.listeners:
        if listener.protocol is ListenerProtocol.TERMINATED_HTTPS:
            said = listener.tls or _NO_TLS
            found.update(dict.fromkeys(_secrets(None, said.client_ca_container_ref, said.client_crl_container_ref)))
            shown = certificate_references(listener)
            found.update(dict.fromkeys(Secret(role=Role.CERTIFICATE, reference=each) for each in shown))
    for pool in balancer.pools:
        if (tls := pool.tls) is not None:
            found.update(dict.fromkeys(_secrets(tls.container_ref, tls.ca_container_ref, tls.crl_container_ref)))
    return tuple(found)


def find_allowed_secrets(snapshot: Snapshot, chassis: str, balancer_id: str) -> tuple[Secret, ...]:
    """Return the secrets of a load balancer that this chassis may have; empty if it runs no proxy for it."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return ()
    place = place_of(balancer)
    runs = has_host_proxy(snapshot, chassis, place) or any(
        proxy_chassis(port) == chassis for port in proxy_ports(snapshot, place)
    )
    return needed_secrets(balancer) if runs else ()
