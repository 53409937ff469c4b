"""VIPs on an external network: addresses of the gateway of one of the project's routers (ADR 23).

Clients outside are load-balanced by the router, on its gateway chassis; clients inside by the project's switches,
each on the client's own chassis.

Two rows answer for a VIP:

- An additional address of the gateway port (`networks`, with full prefix length), with which the router answers ping
  and neighbour solicitation, and sends GARP after a failover.
- A virtual service without a port and backends, on the router only. It rejects packets for no listener, and answers
  ARP: OVN does not answer for an address of full prefix length, because it compares the sender with the prefix.

Without the first row, a packet for no listener would be routed out again and loop.

If the VIP is the gateway port's own address, neither row exists: the second would take the replies to translated
clients. If a listener accepts everything for the address, neither row exists either: even ping is for its member.
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
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.network import ExternalGateway
from fairlead.model.queries.domain import Topology
from fairlead.model.snapshot import Snapshot

RESPONDER_OPTIONS = pairs({"reject": "true", "neighbor_responder": "all"})


def gateway_rows(snapshot: Snapshot, router_id: str) -> Iterator[OvnRow]:
    """Yield the rows that the VIPs on this router's gateway share."""
    if router_id in snapshot.routers and router_id in snapshot.router_vips:
        yield from group_rows(snapshot, gateway_groups(router_id), Topology(snapshot).gateway_domain(router_id))
        yield LoadBalancerGroup(name=router_group(router_id))
        yield RouterGroup(router=router_id, group=router_group(router_id))


def responder_rows(balancer: lb.LoadBalancer, router_id: str, gateway: ExternalGateway) -> Iterator[OvnRow]:
    """Yield the rows that answer for the VIPs, unless a default target gets all their packets."""
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
        options=RESPONDER_OPTIONS,
    )
    yield row
    yield GroupMember(group=router_group(router_id), load_balancer=row.name)
