"""Draining of removed members: their connections may continue for a while, so dataplanes may still need them.

Each removed member is stored with its expiry, and a load balancer stores a bounded number. The time is an argument,
because the server has the clock.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain
from typing import TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import (
    LoadBalancer,
    Pool,
    PoolProtocol,
    RemovedMember,
    Transport,
    listeners_by_pool,
)
from fairlead.model.documents.member_ports import target_ports
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, sort_cooperatively

MAX_REMOVED_MEMBERS = 256
"""Maximum removed members of a load balancer; the newest are kept."""
MAX_DRAIN_TIMEOUT_SECONDS = 86_400
"""Maximum drain timeout, in seconds."""
_Endpoint: TypeAlias = tuple[Transport, IPAddress, int]


def pool_transport(pool: Pool) -> Transport:
    match pool.protocol:
        case PoolProtocol.ANY:
            return Transport.ANY
        case PoolProtocol.UDP:
            return Transport.UDP
        case PoolProtocol.SCTP:
            return Transport.SCTP
        case _:
            return Transport.TCP


def record_removed_members(
    old: LoadBalancer | None, new: LoadBalancer, now: datetime, seconds: int
) -> Steps[LoadBalancer]:
    """Return the load balancer that replaces `old`, with removed members kept for the drain timeout `seconds`."""
    if old is None:
        return new
    present, kept = set[_Endpoint](), dict[_Endpoint, RemovedMember]()
    for each in _as_removed_members(new, now):
        present.add(each.endpoint)
        yield
    for each in chain(old.parted, _as_removed_members(old, now + timedelta(seconds=seconds))):
        if each.until > now and each.endpoint not in present:
            kept[each.endpoint] = each
        yield
    newest = yield from sort_cooperatively(list(kept.values()), key=lambda each: each.until)
    return replace(new, parted=tuple(newest[-MAX_REMOVED_MEMBERS:]))


def expire_removed_members(snapshot: Snapshot, balancer_id: str, now: datetime) -> Changes:
    """Return the change that removes expired members and moved slots.
    It is empty if there are none, or if the load balancer is gone."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return Changes()
    left = tuple(each for each in balancer.parted if each.until > now)
    moved = tuple(each for each in balancer.moved if each.until > now)
    if (left, moved) == (balancer.parted, balancer.moved):
        return Changes()
    return Changes(puts=(replace(balancer, parted=left, moved=moved),))


def next_expiry(balancer: LoadBalancer) -> datetime:
    """Return the next expiry. The load balancer must have removed members or moved slots (`Snapshot.parting`)."""
    return min([each.until for each in balancer.parted[:1]] + [each.until for each in balancer.moved[:1]])


def _as_removed_members(balancer: LoadBalancer, until: datetime) -> Iterator[RemovedMember]:
    listeners = listeners_by_pool(balancer)
    for pool in balancer.pools:
        for member in pool.members:
            for port in target_ports(listeners.get(pool.id, ()), member):
                yield RemovedMember(transport=pool_transport(pool), address=member.address, port=port, until=until)
