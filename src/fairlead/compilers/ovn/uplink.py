"""VIPs on an external network: addresses of the gateway of one of the project's routers (ADR 23).

The load balancer decides on the router, on the chassis that has the gateway, for who comes from outside; and on the
project's switches, each on the chassis of its client, for who is inside.

Two rows answer for the address. It is one more of the gateway's own (`networks`, of full length): so the router answers
ping and neighbour solicitation, and announces it (GARP) where the gateway has moved. And the router alone has a virtual
service without a port and without members: it refuses what is for no listener, and answers ARP, which for an address of
full length OVN does not: it compares who asks with the prefix. Without the first one a packet for no listener of an
address that is only routed would be sent back to the router outside, and come again.

Where the gateway's own port has the VIP neither is needed, and the second would take what comes back to translated
clients.

Where a listener takes whatever is sent to the address there is neither: even ping is for its member.
"""

from collections.abc import Iterator

from fairlead.compilers.ovn.groups import gateway_groups, group_rows, router_group
from fairlead.compilers.ovn.router import router_port_name
from fairlead.dataplane.ovn import (
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    OvnRow,
    PortAddress,
    RouterGroup,
    VirtualService,
    pairs,
)
from fairlead.model import loadbalancer as lb
from fairlead.model.domain import Topology
from fairlead.model.network import ExternalGateway
from fairlead.model.snapshot import Snapshot

ANSWERING = pairs({"reject": "true", "neighbor_responder": "all"})


def gateway_rows(snapshot: Snapshot, router_id: str) -> Iterator[OvnRow]:
    """What the VIPs on the gateway of this router share."""
    if router_id in snapshot.routers and router_id in snapshot.router_vips:
        yield from group_rows(snapshot, gateway_groups(router_id), Topology(snapshot).gateway_domain(router_id))
        yield LoadBalancerGroup(name=router_group(router_id))
        yield RouterGroup(router=router_id, group=router_group(router_id))


def answering_rows(balancer: lb.LoadBalancer, router_id: str, gateway: ExternalGateway) -> Iterator[OvnRow]:
    """What answers for the VIPs, unless they lead whole to a member."""
    if lb.has_default_target(balancer):
        return
    addresses = [vip.address for vip in balancer.vips]
    for address in addresses:
        network = f"{address}/{address.max_prefixlen}"
        yield PortAddress(port=router_port_name(gateway.port_id), network=network)
    row = LoadBalancer(
        name=f"{balancer.id}-closed",
        title=balancer.name,
        services=tuple(VirtualService(vip=text, backends=()) for text in sorted(map(str, addresses))),
        options=ANSWERING,
    )
    yield row
    yield GroupMember(group=router_group(router_id), load_balancer=row.name)
