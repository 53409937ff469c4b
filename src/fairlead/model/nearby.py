"""Which members of a load balancer are near the clients of which chassis, by what is observed.

A member is where the port is plugged in that has its address, and its packets flow there. The port has to be one of the
load balancer's own project: where the machines of others are is not for it to know. A member of which nobody knows
where it is, is near nobody. Nor is anybody in the zone of a chassis that says none.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from fairlead.model.loadbalancer import LoadBalancer, Locality, Member, Pool, near_pools
from fairlead.model.network import PortUse
from fairlead.model.snapshot import Snapshot, member_network

Tiers: TypeAlias = Sequence[Sequence[Member]]
"""Members of a pool, the nearest ones first; a member may be in several."""
Near: TypeAlias = Mapping[str, Mapping[str, Tiers]]
"""Chassis -> pool -> those that are near the clients there. Chassis that have the same have one value."""
_Located: TypeAlias = Sequence[tuple[Member, str]]
"""Members, and the chassis that each is on."""


def members_near(snapshot: Snapshot, balancer: LoadBalancer) -> Near:
    """Of the pools that lead clients to members near them."""
    found = defaultdict[str, dict[str, Tiers]](dict)
    where = chassis_with(snapshot)
    for pool in near_pools(balancer):
        located = list(_located(snapshot, balancer, pool, where))
        on = _on_chassis(located) if pool.locality is Locality.CHASSIS else {}
        zones = _in_zones(snapshot, located)
        for chassis in snapshot.chassis.values():
            tiers = zones.get(chassis.zones, ())
            if own := on.get(chassis.name):
                tiers = (own, *tiers)
            if tiers:
                found[chassis.name][pool.id] = tiers
    return found


def members_on(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, chassis: str) -> frozenset[str]:
    """The ids of those that are on one chassis."""
    located = _located(snapshot, balancer, pool, chassis_with(snapshot))
    return frozenset(member.id for member, name in located if name == chassis)


def chassis_with(snapshot: Snapshot) -> Callable[[str], Sequence[str]]:
    """Where a port is plugged in and its packets flow: nowhere, or on one chassis."""
    hosts = _hosts(snapshot)

    def find(port_id: str) -> Sequence[str]:
        found = hosts.get(snapshot.plugged.get(port_id, ""), ())
        return [name for name in found if port_id in snapshot.chassis[name].ports]

    return find


def _located(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, where: Callable[[str], Sequence[str]]
) -> Iterator[tuple[Member, str]]:
    for member in pool.members:
        port_id = _port(snapshot, balancer, member)
        for name in where(port_id) if port_id else ():
            yield member, name


def _on_chassis(located: _Located) -> Mapping[str, Sequence[Member]]:
    found = defaultdict[str, list[Member]](list)
    for member, chassis in located:
        found[chassis].append(member)
    return found


def _in_zones(snapshot: Snapshot, located: _Located) -> Mapping[frozenset[str], Tiers]:
    """Zones that some chassis is in together -> one list of the members that are in any of them, unless it is empty."""
    at = [(member, snapshot.chassis[name].zones) for member, name in located]
    together = {chassis.zones for chassis in snapshot.chassis.values()}
    lists = {zones: [member for member, its in at if not zones.isdisjoint(its)] for zones in together}
    return {zones: (members,) for zones, members in lists.items() if members}


def _hosts(snapshot: Snapshot) -> Mapping[str, list[str]]:
    """Node, as `plugged` calls it -> the chassis that it is: one, unless several say the same host name."""
    found = defaultdict[str, list[str]](list)
    for chassis in snapshot.chassis.values():
        found[chassis.host or chassis.name].append(chassis.name)
    return found


def _port(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str | None:
    port = snapshot.ports.get(snapshot.addresses.get((member_network(snapshot, balancer, member), member.address), ""))
    own = port is not None and port.use is PortUse.MACHINE and port.project_id == balancer.project_id
    return port.id if own and port is not None else None
