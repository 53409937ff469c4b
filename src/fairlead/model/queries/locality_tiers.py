"""Members of a load balancer near the clients of each chassis, by observed placement.

A member is on the chassis where the port with its address is plugged in and active. The port must belong to the load
balancer's project, so that the placement of other projects' machines is not disclosed. A member without a known
placement is near no client, and a chassis without zones has no members in its zone.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from fairlead.model.documents.loadbalancer import LoadBalancer, Locality, Member, Pool, pools_with_locality
from fairlead.model.documents.network import PortUse
from fairlead.model.snapshot import Snapshot, member_network

Tiers: TypeAlias = Sequence[Sequence[Member]]
"""Members of a pool in tiers, the nearest first; a member can be in several tiers."""
TiersByChassis: TypeAlias = Mapping[str, Mapping[str, Tiers]]
"""Chassis -> pool id -> tiers for clients there. Chassis with equal tiers share one value."""
_Located: TypeAlias = Sequence[tuple[Member, str]]
"""Members with the chassis of each."""


def find_tiers_by_chassis(snapshot: Snapshot, balancer: LoadBalancer) -> TiersByChassis:
    """Return the tiers of the pools that prefer members near the client."""
    found = defaultdict[str, dict[str, Tiers]](dict)
    where = chassis_finder(snapshot)
    for pool in pools_with_locality(balancer):
        located = list(_locate_members(snapshot, balancer, pool, where))
        on = _on_chassis(located) if pool.locality is Locality.CHASSIS else {}
        zones = _in_zones(snapshot, located)
        for chassis in snapshot.chassis.values():
            tiers = zones.get(chassis.zones, ())
            if own := on.get(chassis.name):
                tiers = (own, *tiers)
            if tiers:
                found[chassis.name][pool.id] = tiers
    return found


def members_on_chassis(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, chassis: str) -> frozenset[str]:
    """Return the ids of the pool's members on one chassis."""
    located = _locate_members(snapshot, balancer, pool, chassis_finder(snapshot))
    return frozenset(member.id for member, name in located if name == chassis)


def chassis_finder(snapshot: Snapshot) -> Callable[[str], Sequence[str]]:
    """Return a function that finds the chassis where a port is plugged in and active: none or one."""
    hosts = _hosts(snapshot)

    def find(port_id: str) -> Sequence[str]:
        found = hosts.get(snapshot.plugged.get(port_id, ""), ())
        return [name for name in found if port_id in snapshot.chassis[name].ports]

    return find


def _locate_members(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, where: Callable[[str], Sequence[str]]
) -> Iterator[tuple[Member, str]]:
    for member in pool.members:
        port_id = _find_member_port(snapshot, balancer, member)
        for name in where(port_id) if port_id else ():
            yield member, name


def _on_chassis(located: _Located) -> Mapping[str, Sequence[Member]]:
    found = defaultdict[str, list[Member]](list)
    for member, chassis in located:
        found[chassis].append(member)
    return found


def _in_zones(snapshot: Snapshot, located: _Located) -> Mapping[frozenset[str], Tiers]:
    """Return sets of zones of chassis -> a single tier with the members in any of these zones;
    empty tiers are omitted."""
    at = [(member, snapshot.chassis[name].zones) for member, name in located]
    together = {chassis.zones for chassis in snapshot.chassis.values()}
    lists = {zones: [member for member, its in at if not zones.isdisjoint(its)] for zones in together}
    return {zones: (members,) for zones, members in lists.items() if members}


def _hosts(snapshot: Snapshot) -> Mapping[str, list[str]]:
    """Return node name, as in `plugged` -> its chassis: one, unless several report the same host name."""
    found = defaultdict[str, list[str]](list)
    for chassis in snapshot.chassis.values():
        found[chassis.host or chassis.name].append(chassis.name)
    return found


def _find_member_port(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str | None:
    port = snapshot.ports.get(snapshot.addresses.get((member_network(snapshot, balancer, member), member.address), ""))
    own = port is not None and port.use is PortUse.MACHINE and port.project_id == balancer.project_id
    return port.id if own and port is not None else None
