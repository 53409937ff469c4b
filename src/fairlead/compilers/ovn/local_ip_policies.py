"""Local IPs in pass-through mode: router policies (Logical_Router_Policy) forward packets unchanged to a replica.

For clients on the network, its hidden router does so; for clients beyond, each router of the project that is on the
network. A replica's policy applies only on its own chassis, so it follows a port that moves without a server's help. Of
several replicas on one chassis the oldest has the highest priority.

No connection state is possible here: an existing connection breaks when its next packet is forwarded elsewhere. Replies
to the Local IP's owner from clients with a replica on their chassis also go to that replica, so the owner cannot
communicate with those.
"""

from collections.abc import Iterable, Iterator, Mapping

from fairlead.compilers.ovn.vip_networks import vip_router_name
from fairlead.dataplane.ovn_rules import LogicalRouterPolicy
from fairlead.model.documents.addresses import IPNetwork
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import Network, find_subnet
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.replicas import find_owner, list_usable_replicas
from fairlead.model.snapshot import Snapshot

HIGHEST_PRIORITY = 32_000
"""Priority of the oldest replica's policy; newer ones have lower priorities, so adding one changes no other policy."""


def local_ip_policy_rows(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[LogicalRouterPolicy]:
    places = {each.port_id: place for place, each in enumerate(local_ip.associations)}
    routers = _routers(snapshot, local_ip)
    for replica in list_usable_replicas(snapshot, local_ip):
        match = f'ip{local_ip.address.version}.dst == {local_ip.address} && is_chassis_resident("{replica.port_id}")'
        for router, subnets in routers.items():
            if any(replica.address in subnet for subnet in subnets):
                yield LogicalRouterPolicy(
                    name=f"{local_ip.id} {replica.port_id} {router}",
                    router=router,
                    priority=HIGHEST_PRIORITY - places[replica.port_id],
                    match=match,
                    action="reroute",
                    nexthops=(str(replica.address),),
                )
    if find_owner(snapshot, local_ip) is None:
        yield from (_dead_end(local_ip, router) for router in routers)


def _dead_end(local_ip: LocalIP, router: str) -> LogicalRouterPolicy:
    """Policy that drops packets to a Local IP without an owner, because every replica would answer the router's ARP."""
    return LogicalRouterPolicy(
        name=f"{local_ip.id} nobody {router}",
        router=router,
        priority=HIGHEST_PRIORITY - MAX_ASSOCIATIONS,
        match=f"ip{local_ip.address.version}.dst == {local_ip.address}",
        action="drop",
    )


def _routers(snapshot: Snapshot, local_ip: LocalIP) -> Mapping[str, Iterable[IPNetwork]]:
    """Return router -> subnets of the network that it has. northd logs an error for a next hop outside them."""
    network = snapshot.networks[local_ip.network_id]
    found = {vip_router_name(network.id): {subnet.cidr for subnet in network.subnets}}
    own = Topology(snapshot).domain(network.id, local_ip.project_id).routers
    for router_id in sorted(own & set(snapshot.network_routers.get(network.id, NO_IDS))):
        found[router_id] = set(_subnets(snapshot, router_id, network))
    return found


def _subnets(snapshot: Snapshot, router_id: str, network: Network) -> Iterator[IPNetwork]:
    for port_id in snapshot.router_interfaces.get(router_id, NO_IDS):
        port = snapshot.ports[port_id]
        for fixed in port.fixed_ips if port.network_id == network.id else ():
            subnet = find_subnet(network, fixed.subnet_id)
            if subnet is not None:
                yield subnet.cidr
