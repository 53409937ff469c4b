"""Certificates and keys that a change refers to for the first time."""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.secrets import Secret, Trust, needed_secrets, needed_trusts
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRetrieved(Refusal):
    """The secrets of these references are unavailable; `why` has the reason of each."""

    references: tuple[str, ...]
    why: tuple[str, ...]


def new_secrets(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Secret]]:
    """Yield the new secrets. References that were served before stay valid, whatever their state in the key store."""
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            had = frozenset(needed_secrets(old)) if old is not None else ()
            yield from ((balancer, secret) for secret in needed_secrets(balancer) if secret not in had)


def new_trusts(snapshot: Snapshot, changes: Changes) -> Iterator[tuple[LoadBalancer, Trust]]:
    """Authorities and lists of revoked certificates that were not used together before."""
    for balancer in changes.puts:
        if isinstance(balancer, LoadBalancer):
            old = snapshot.load_balancers.get(balancer.id)
            had = frozenset(needed_trusts(old)) if old is not None else ()
            yield from ((balancer, trust) for trust in needed_trusts(balancer) if trust not in had)
