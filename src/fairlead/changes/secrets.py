"""Which keys and certificates a change asks for that were not asked for before."""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.secrets import Secret, needed_secrets
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRetrieved(Refusal):
    """What these name cannot be served; why, of each."""

    references: tuple[str, ...]
    why: tuple[str, ...]


def new_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """What was served before may stay as it is, whatever has become of it in the key-store."""
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            had = frozenset(needed_secrets(old)) if old is not None else ()
            yield from ((balancer, secret) for secret in needed_secrets(balancer) if secret not in had)
