"""Where a member may be: at an address that a machine can have.

A switch balances a connection once. A member that is a VIP would be balanced a second time, which no switch does: the
router that answers for the VIP refuses it. A router, or the address of a whole subnet, answers nobody either.
"""

from collections.abc import Iterable, Iterator, Sequence

from fairlead.model.addresses import is_usable
from fairlead.model.domain import Ways
from fairlead.model.loadbalancer import LoadBalancer, Member
from fairlead.model.network import (
    LOAD_BALANCER_PROBE,
    LOAD_BALANCER_VIP,
    ROUTER_GATEWAY,
    ROUTER_INTERFACE,
    Network,
    Subnet,
)
from fairlead.model.snapshot import Snapshot, member_network

_HELD = {
    LOAD_BALANCER_VIP: "a VIP, and a connection is balanced once",
    LOAD_BALANCER_PROBE: "where probes come from",
    ROUTER_GATEWAY: "a router",
    ROUTER_INTERFACE: "a router",
}
"""Owners of ports that are no machines, and what such an address is. A floating IP is not among them: it leads to
one."""


def find_obstacles(
    snapshot: Snapshot, balancer: LoadBalancer, members: Iterable[Member]
) -> Iterator[tuple[Member, str]]:
    """The members at whose address no machine can be, and what that address is. Of other projects' networks nothing is
    said: a machine behind a router is looked for on the project's own."""
    domain: list[Network] | None = None
    for member in members:
        own = snapshot.networks.get(member_network(snapshot, balancer, member))
        networks = [own] if own else []
        if member.subnet_id is None and not any(_subnets(networks, member)):
            if domain is None:
                own_networks = Ways(snapshot).domain(balancer.vip.network_id, balancer.project_id).networks
                domain = [snapshot.networks[each] for each in own_networks]
            networks = domain
        found = next(_obstacles(snapshot, balancer, networks, member), None)
        if found is not None:
            yield member, found


def _obstacles(
    snapshot: Snapshot, balancer: LoadBalancer, networks: Sequence[Network], member: Member
) -> Iterator[str]:
    own = {(vip.network_id, vip.address) for vip in balancer.vips}
    for network, subnet in _subnets(networks, member):
        place = network.id, member.address
        port = snapshot.ports.get(snapshot.addresses.get(place, ""))
        owner = LOAD_BALANCER_VIP if place in own else port.device_owner if port else ""
        if owner in _HELD:
            yield _HELD[owner]
        elif not is_usable(member.address, subnet.cidr):
            yield f"the network or the broadcast address of {subnet.cidr}"
        elif member.address == subnet.gateway and port is None:
            yield f"the gateway of {subnet.cidr}"


def _subnets(networks: Iterable[Network], member: Member) -> Iterator[tuple[Network, Subnet]]:
    """Where the address of the member belongs."""
    return ((network, subnet) for network in networks for subnet in network.subnets if member.address in subnet.cidr)
