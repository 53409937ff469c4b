"""Which secrets a change has tried: those that it names, and those that proxies need, for the first time."""

from collections.abc import Iterable
from typing import Any

import pytest

from fairlead.changes.secrets import new_secrets, newly_referenced_secrets
from fairlead.model.documents.loadbalancer import (
    ClientAuthentication,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    PoolTls,
)
from fairlead.model.queries.secrets import Secret
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.proxied import listener, pool, view


def balancer(*, led: bool = True, enabled: bool = True, authenticates: bool = True) -> LoadBalancer:
    """With a certificate, authorities and revocation lists on a listener and on its pool. `led`: a listener leads to
    the pool. `enabled`: members are spoken to by TLS."""
    its = pool("p", tls=PoolTls(enabled=enabled, container_ref="c", ca_container_ref="ca", crl_container_ref="crl"))
    tls = ListenerTls(
        container_ref="web",
        client_authentication=ClientAuthentication.MANDATORY if authenticates else ClientAuthentication.NONE,
        client_ca_container_ref="clients",
        client_crl_container_ref="gone",
    )
    ends = listener("l", 2000, *([its] if led else []), protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)
    return view([ends], [its]).load_balancers["web"]


def references(found: Iterable[tuple[LoadBalancer, Secret]]) -> set[str]:
    return {secret.reference for _, secret in found}


ALL = {"web", "clients", "gone", "c", "ca", "crl"}
NEEDED = [({"led": False}, ALL - {"c", "ca", "crl"}), ({"enabled": False}, ALL - {"c", "ca", "crl"})]


@pytest.mark.parametrize(
    ("unused", "needed"), [({}, ALL), *NEEDED, ({"authenticates": False}, ALL - {"clients", "gone"})]
)
def test_secrets_are_checked_when_a_change_first_names_or_needs_them(unused: dict[str, Any], needed: set[str]):
    """Octavia refuses a reference that cannot be read in the request that names it, not in the one that uses it."""
    changes = Changes(puts=(balancer(**unused),))
    assert references(newly_referenced_secrets(Snapshot(), changes)) == ALL
    assert references(new_secrets(Snapshot(), changes)) == needed


def test_secrets_are_checked_again_only_when_a_change_enables_their_use():
    old = balancer(enabled=False, authenticates=False)
    known, changes = Snapshot(load_balancers={"web": old}), Changes(puts=(balancer(),))
    assert references(newly_referenced_secrets(known, changes)) == set()
    assert references(new_secrets(known, changes)) == {"clients", "gone", "c", "ca", "crl"}
    served = Snapshot(load_balancers={"web": balancer()})
    assert references(new_secrets(served, Changes(puts=(old,)))) == set()
