"""Certificates and keys that a change refers to for the first time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.secrets import Secret, named_secrets, needed_secrets
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRetrieved(Refusal):
    """The secrets of these references are unavailable; `why` has the reason of each."""

    references: tuple[str, ...]
    why: tuple[str, ...]


def new_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """Secrets that proxies need and did not need before. What was served before may stay as it is, whatever has become
    of it in the key-store."""
    return _added(needed_secrets, snapshot, changes)


def newly_named_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """Secrets that a listener or a pool names for the first time, whether or not a proxy needs them: Octavia reads them
    in the request that names them."""
    return _added(named_secrets, snapshot, changes)


def _added(
    secrets_of: Callable[[LoadBalancer], tuple[Secret, ...]], snapshot: Snapshot, changes: Changes
) -> Iterator[tuple[LoadBalancer, Secret]]:
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            had = frozenset(secrets_of(old)) if old is not None else frozenset[Secret]()
            yield from ((balancer, secret) for secret in secrets_of(balancer) if secret not in had)
