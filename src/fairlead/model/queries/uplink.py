"""VIPs on an external network: selection of the router with the gateway that has them.

A switch with a physical segment does not load-balance, so such a VIP is an address of one router's gateway: a router of
the project with its gateway on that network. The router keeps the VIP while it reaches any of the members. It must join
the network of the declarative spec (`Described.network_id`), if there is one.
"""

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Router
from fairlead.model.queries.domain import AddressRanges, Topology
from fairlead.model.snapshot import Snapshot, has_working_gateway


def choose_router(snapshot: Snapshot, balancer: LoadBalancer) -> Router | None:
    """Return the router for the VIPs; None if there is none.

    The present router is kept if it reaches a member. Otherwise the router that reaches most members is chosen, the
    oldest of several.
    """
    described = balancer.described
    joined = None if described is None else snapshot.network_routers.get(described.network_id, NO_IDS)
    ids = snapshot.project_gateways.get((balancer.project_id, balancer.vip.network_id), NO_IDS)
    there = (snapshot.routers[each] for each in ids if joined is None or each in joined)
    routers = [each for each in there if has_working_gateway(snapshot, each)]
    if described is not None:  # the router created together with the network, if any
        made = snapshot.networks[described.network_id].router_id
        routers = [each for each in routers if each.id == made] or routers
    if len(routers) < 2:
        return routers[0] if routers else None
    reached = {router.id: _count_reached(snapshot, router, balancer) for router in routers}
    stays = balancer.router_id if reached.get(balancer.router_id or "") else None
    return min(
        routers,
        key=lambda each: (each.id != stays, -reached[each.id], each.id != balancer.router_id, each.created_at, each.id),
    )


def find_client_network(snapshot: Snapshot, balancer: LoadBalancer) -> str:
    """Return a network of clients: the VIP's network, or one that joins the router with the VIP."""
    if balancer.router_id is None:
        return balancer.vip.network_id
    interfaces = snapshot.router_interfaces.get(balancer.router_id, NO_IDS)
    networks = {snapshot.ports[each].network_id for each in interfaces}
    return min(networks, default=balancer.vip.network_id)


def _count_reached(snapshot: Snapshot, router: Router, balancer: LoadBalancer) -> int:
    networks = Topology(snapshot).connected_from_router(router).networks
    ranges = AddressRanges.of(*(snapshot.networks[each] for each in networks))
    members = (member for pool in balancer.pools for member in pool.members)
    return sum(
        ranges.contains(member.address)
        if member.subnet_id is None
        else snapshot.subnet_network.get(member.subnet_id) in networks
        for member in members
    )
