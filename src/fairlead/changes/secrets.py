"""Certificates and keys that a change refers to for the first time."""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fairlead.changes.refusal import Refusal
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.queries.secrets import Secret, Trust, needed_secrets, needed_trusts, referenced_secrets
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUnavailable(Refusal):
    """The secrets of these references are unavailable; `why` has the reason of each."""

    references: tuple[str, ...]
    why: tuple[str, ...]


def new_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """Yield the secrets that proxies need and did not need before. References that were served before stay valid,
    whatever their state in the key store."""
    return _added_items(needed_secrets, snapshot, changes)


def newly_referenced_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """Yield the secrets that a listener or pool refers to for the first time, whether or not a proxy needs them.
    Octavia reads them in the request that refers to them."""
    return _added_items(referenced_secrets, snapshot, changes)


def new_trusts(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Trust]]:
    """Yield the certificate authorities with revocation lists that were not used together before."""
    return _added_items(needed_trusts, snapshot, changes)


_Named = TypeVar("_Named", bound=Hashable)


def _added_items(
    named_by: Callable[[LoadBalancer], tuple[_Named, ...]], snapshot: Snapshot, changes: Changes
) -> Iterator[tuple[LoadBalancer, _Named]]:
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            had = frozenset(named_by(old)) if old is not None else frozenset[_Named]()
            yield from ((balancer, each) for each in named_by(balancer) if each not in had)
