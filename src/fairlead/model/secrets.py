"""Keys, certificates and lists of revoked ones, by the references with which listeners and pools name them.

Nothing secret is here: what a load balancer needs, and which node may have it. A node has what the proxy needs that it
runs on the network of the load balancer, and no more.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from fairlead.model.host_proxies import has_host_proxy
from fairlead.model.loadbalancer import (
    ClientAuthentication,
    Listener,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    Pool,
    find_pool,
    pools_of,
)
from fairlead.model.proxies import proxied_listeners, proxy_ports
from fairlead.model.proxy_place import place_of, proxy_chassis
from fairlead.model.snapshot import Snapshot

FOLDER = "secrets"
"""Below that of whoever reads them."""
_NO_TLS = ListenerTls()


class Role(StrEnum):
    """What a secret is for. Each is a file of PEM."""

    CERTIFICATE = "certificate"
    """With its key and the certificates between it and its authority."""
    AUTHORITY = "authority"
    REVOCATIONS = "revocations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """What a reference names. It is read by whoever fills the folder of secrets, and is no part of a row."""

    role: Role
    reference: str

    @property
    def path(self) -> str:
        """By a digest: a reference is text of a tenant."""
        return f"{FOLDER}/{self.role}-{hashlib.sha256(self.reference.encode()).hexdigest()[:32]}.pem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """By a node, for a load balancer of which it has a proxy."""

    balancer_id: str
    secret: Secret
    digest: str = ""
    """Of what the node has of it: SHA-256 of the PEM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Neither: it is what the node has."""

    pem: str = field(default="", repr=False)
    refused: str = ""
    """Why it cannot be had."""


def shown_references(listener: Listener) -> tuple[str, ...]:
    """Of the certificates that clients are shown, the default one first."""
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS:
        return ()
    said = listener.tls or _NO_TLS
    return tuple(dict.fromkeys(filter(None, (said.container_ref, *said.sni_container_refs))))


def client_secrets(listener: Listener) -> tuple[Secret, ...]:
    """By which clients are authenticated."""
    said = listener.tls or _NO_TLS
    asks = said.client_authentication is not ClientAuthentication.NONE and said.client_ca_container_ref is not None
    if listener.protocol is not ListenerProtocol.TERMINATED_HTTPS or not asks:
        return ()
    return tuple(_secrets(None, said.client_ca_container_ref, said.client_crl_container_ref))


def member_secrets(pool: Pool) -> tuple[Secret, ...]:
    """With which members are spoken to."""
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
    """By its proxies, each once."""
    found = dict[Secret, None]()
    for listener in proxied_listeners(balancer):
        shown = [Secret(role=Role.CERTIFICATE, reference=each) for each in shown_references(listener)]
        found.update(dict.fromkeys((*shown, *client_secrets(listener))))
        for pool in filter(None, (find_pool(balancer, pool_id) for pool_id in pools_of(listener))):
            found.update(dict.fromkeys(member_secrets(pool)))
    return tuple(found)


def lent_to(snapshot: Snapshot, chassis: str, balancer_id: str) -> tuple[Secret, ...]:
    """What this chassis may have of a load balancer's: nothing where it runs no proxy for it."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return ()
    place = place_of(balancer)
    runs = has_host_proxy(snapshot, chassis, place) or any(
        proxy_chassis(port) == chassis for port in proxy_ports(snapshot, place)
    )
    return needed_secrets(balancer) if runs else ()
