"""What the VIPs of a network share, as rows of the OVN Northbound database.

Every network that has a VIP has a load balancer group, which holds the load balancers of that network and is attached
to every switch and router of the project's domain: the translation of a reply happens on the switch of the client, so
the load balancer has to be there too. Rows grow with load balancers plus attachments, never with their product, and a
router that joins two domains moves no load balancer from group to group.

The VIP router. OVN answers ARP for a VIP only where a router is, and never answers ping. A hidden router on each VIP
network, with each VIP as an address of its own, answers ARP, neighbour solicitation and echo, and resets connections to
ports without a listener. It is the only one that answers: `neighbor_responder=none` silences the tenant's routers.
"""

from collections.abc import Iterator

from fairlead.compilers.ovn.groups import domain_groups, find_vip_network, group_rows, guest_groups
from fairlead.compilers.ovn.router import router_attachment, router_port_name
from fairlead.dataplane.ovn import (
    LoadBalancerGroup,
    LogicalRouter,
    LogicalRouterPort,
    OvnRow,
    StaticRoute,
    SwitchGroup,
)
from fairlead.dataplane.ovn_rules import PortGroup, PortGroupPort
from fairlead.model.addresses import derive_mac, is_usable, link_local
from fairlead.model.domain import Topology
from fairlead.model.foreign import row_of
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Network, Subnet
from fairlead.model.owner import VipNetwork
from fairlead.model.snapshot import Snapshot


def vip_router_name(network_id: str) -> str:
    return f"vip-{network_id}"


def vip_network_rows(snapshot: Snapshot, where: VipNetwork) -> Iterator[OvnRow]:
    """What all VIPs of a network share, and those of its own project; or those of a guest. The first stays as long as
    there is any VIP, so that the last one of the network's project leaves nothing that refers to what goes."""
    projects = snapshot.vip_projects.get(where.network_id, NO_IDS)
    if not projects or where.guest not in (None, *projects):
        return
    network = find_vip_network(snapshot, where.network_id)
    if network.announced:
        return
    if where.guest == network.project_id:  # others have made it theirs
        return
    topology = Topology(snapshot)
    if where.guest is None:
        yield from _vip_router(snapshot, network)
        groups = domain_groups(where)
        yield from group_rows(snapshot, groups, topology.domain(network.id, network.project_id))
        yield PortGroupPort(group=groups.inside, port=vip_router_name(network.id))
        return
    yield from group_rows(snapshot, domain_groups(where), topology.domain(network.id, where.guest))
    there = guest_groups(where)
    yield LoadBalancerGroup(name=there.balancers)
    yield SwitchGroup(switch=row_of(network), group=there.balancers)
    yield PortGroup(name=there.inside)
    yield PortGroupPort(group=there.inside, port=vip_router_name(network.id))


def _vip_router(snapshot: Snapshot, network: Network) -> Iterator[OvnRow]:
    """Its own address is the link-local one: ovn-nb(5) wants one at least, and this one takes none from a pool. One
    that leads packets for Local IPs on to machines has the number of each subnet besides: so it knows the way, and
    takes no address from a machine either."""
    name, mac = vip_router_name(network.id), derive_mac(network.id)
    leads = network.id in snapshot.network_local_ips
    numbers = (str(each.cidr) for each in network.subnets if leads and has_number(each))
    networks = tuple(sorted([f"{link_local(mac)}/64", *numbers]))
    yield LogicalRouter(name=name)
    yield LogicalRouterPort(name=router_port_name(name), router=name, mac=mac, networks=networks)
    yield router_attachment(name, switch=row_of(network), router_port=router_port_name(name))
    for subnet in network.subnets:
        if subnet.gateway:
            # What a VIP answers leaves by the gateway of its own subnet; OVN passes over the routes of the others.
            yield StaticRoute(router=name, ip_prefix=str(subnet.cidr), nexthop=str(subnet.gateway), policy="src-ip")


def has_number(subnet: Subnet) -> bool:
    """Whether the subnet has an address that means the network itself, and is no machine's (RFC 950, RFC 4291 section
    2.6.1); the shortest ones have none (RFC 3021, RFC 6164)."""
    return not is_usable(subnet.cidr.network_address, subnet.cidr)
