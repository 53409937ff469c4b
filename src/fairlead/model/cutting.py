"""Which connections are to be cut, because the member that has them is down and its pool resets them.

A connection is told by both of its ends, as a switch tracks it: where the client sends, and who answers. So those of
other members, and those that other listeners have to the same member, are left alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fairlead.model.addresses import IPAddress
from fairlead.model.health import HealthKey
from fairlead.model.loadbalancer import (
    DownMember,
    Listener,
    LoadBalancer,
    Pool,
    Transport,
    find_pool,
    is_prepared,
    transport,
)
from fairlead.model.port_ranges import expand, targets
from fairlead.model.snapshot import Snapshot, floating_ips_of


class Cut(NamedTuple):
    transport: Transport
    address: IPAddress
    """That clients connect to: a VIP, or a floating IP that leads to one."""
    port: int
    member: IPAddress
    member_port: int


def cuts_of(snapshot: Snapshot, balancer_id: str) -> frozenset[Cut]:
    """None for a load balancer that is not there."""
    balancer, down = snapshot.load_balancers.get(balancer_id), snapshot.down.get(balancer_id)
    if balancer is None or not down or is_prepared(balancer):
        return frozenset()
    addresses = tuple(_addresses(snapshot, balancer))
    found = set[Cut]()
    for listener in balancer.listeners:
        pool = find_pool(balancer, listener.default_pool_id)
        if pool is None or pool.down_member is not DownMember.RESET or transport(listener.protocol) is Transport.ANY:
            continue
        for port, member, member_port in _lost(listener, pool, down):
            found |= {
                Cut(transport(listener.protocol), address, port, member, member_port)
                for address in addresses
                if address.version == member.version
            }
    return frozenset(found)


def _addresses(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[IPAddress]:
    for vip in balancer.vips:
        yield vip.address
        yield from (each.address for each in floating_ips_of(snapshot, vip))


def _lost(listener: Listener, pool: Pool, down: frozenset[HealthKey]) -> Iterator[tuple[int, IPAddress, int]]:
    """Each port of the listener with the endpoint of a member that is down there."""
    ports = tuple(expand(listener.ports))
    failing = {key if isinstance(key, str) else key[0] for key in down}
    for member in pool.members:
        if member.id in failing:
            for port, member_port in zip(ports, targets(member.port, ports), strict=False):
                if member.id in down or (member.id, member_port) in down:
                    yield port, member.address, member_port
