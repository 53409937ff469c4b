"""Which members of a load balancer are on which chassis, by what is observed.

A member is where the port is plugged in that has its address, and its packets flow there. The port has to be one of the
load balancer's own project: where the machines of others are is not for it to know. A member of which nobody knows
where it is, is near nobody.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fairlead.model.loadbalancer import LoadBalancer, Member, near_pools
from fairlead.model.network import PortUse
from fairlead.model.snapshot import Snapshot, member_network

Near: TypeAlias = Mapping[str, Mapping[str, Sequence[Member]]]
"""Chassis -> pool -> its members that are there."""


def members_near(snapshot: Snapshot, balancer: LoadBalancer) -> Near:
    """Of the pools that lead clients to members near them."""
    found = defaultdict[str, defaultdict[str, list[Member]]](lambda: defaultdict(list))
    hosts = _hosts(snapshot)
    for pool in near_pools(balancer):
        for member in pool.members:
            port_id = _port(snapshot, balancer, member)
            for name in hosts.get(snapshot.plugged.get(port_id or "", ""), ()) if port_id else ():
                if port_id in snapshot.chassis[name].ports:
                    found[name][pool.id].append(member)
    return found


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
