"""Members that were removed: connections to them may go on for a while, and a dataplane may have to know them.

Each is remembered until a moment that is written beside it, and a load balancer remembers a bounded number. The time is
an argument; the server has the clock.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from fairlead.model.loadbalancer import LoadBalancer, Parted, Pool, PoolProtocol, Transport, target_ports
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

MOST_PARTED = 256
"""Removed members that a load balancer remembers; of more, the newest."""
LONGEST_PARTING = 86_400
"""Seconds for which an operator may have them remembered."""


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


def remember_removed(old: LoadBalancer | None, new: LoadBalancer, now: datetime, seconds: int) -> LoadBalancer:
    """The load balancer that replaces `old`. It remembers members that it no longer has for so many seconds."""
    if old is None:
        return new
    present = {each.endpoint for each in _members(new, now)}
    gone = _members(old, now + timedelta(seconds=seconds))
    kept = {each.endpoint: each for each in (*old.parted, *gone) if each.until > now and each.endpoint not in present}
    return replace(new, parted=tuple(sorted(kept.values(), key=lambda each: each.until)[-MOST_PARTED:]))


def forget_removed(snapshot: Snapshot, balancer_id: str, now: datetime) -> Changes:
    """No change if the load balancer is gone, or if the time of no member is over."""
    balancer = snapshot.load_balancers.get(balancer_id)
    if balancer is None:
        return Changes()
    left = tuple(each for each in balancer.parted if each.until > now)
    return Changes() if left == balancer.parted else Changes(puts=(replace(balancer, parted=left),))


def _members(balancer: LoadBalancer, until: datetime) -> Iterator[Parted]:
    for pool in balancer.pools:
        for member in pool.members:
            for port in target_ports(balancer, pool, member):
                yield Parted(transport=pool_transport(pool), address=member.address, port=port, until=until)
