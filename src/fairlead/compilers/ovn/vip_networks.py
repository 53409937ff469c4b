"""Rows that the VIPs of a network share in the OVN Northbound database.

Every network with a VIP has a load balancer group with the load balancers of that network, attached to every switch and
router of the project's domain: replies are translated back on the client's switch, so the load balancer has to be there
too. The number of rows grows with load balancers plus attachments, not with their product, and a router that joins two
domains moves no load balancer between groups.

VIP router: OVN answers ARP for a VIP only where a router is, and never answers ping. A hidden router on each VIP
network has each VIP as an address, answers ARP, neighbour solicitation and echo, and resets connections to ports
without a listener. Only this router answers, because `neighbor_responder=none` disables the tenant's routers.
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
from fairlead.model.documents.addresses import derive_link_local, derive_mac, is_usable
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Subnet
from fairlead.model.documents.owner import VipNetwork
from fairlead.model.documents.unmanaged import row_name
from fairlead.model.queries.domain import Topology
from fairlead.model.snapshot import Snapshot


def vip_router_name(network_id: str) -> str:
    return f"vip-{network_id}"


def vip_network_rows(snapshot: Snapshot, where: VipNetwork) -> Iterator[OvnRow]:
    """Yield the rows shared by a network's VIPs and its own project's, or those of a guest.

    The network's rows exist as long as it has any VIP of any project, because guests' rows refer to them.
    """
    projects = snapshot.vip_projects.get(where.network_id, NO_IDS)
    if not projects or where.guest not in (None, *projects):
        return
    network = find_vip_network(snapshot, where.network_id)
    if network.announced:
        return
    if where.guest == network.project_id:  # the network changed its project to the guest's
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
    yield SwitchGroup(switch=row_name(network), group=there.balancers)
    yield PortGroup(name=there.inside)
    yield PortGroupPort(group=there.inside, port=vip_router_name(network.id))


def _vip_router(snapshot: Snapshot, network: Network) -> Iterator[OvnRow]:
    """Yield the VIP router. Its own address is link-local: ovn-nb(5) requires one, and this one is from no allocation
    pool.

    A router that forwards packets for Local IPs also has the network address of each subnet, so that it has a route,
    and needs no allocated address either.
    """
    name, mac = vip_router_name(network.id), derive_mac(network.id)
    leads = network.id in snapshot.network_local_ips
    numbers = (str(each.cidr) for each in network.subnets if leads and has_number(each))
    networks = tuple(sorted([f"{derive_link_local(mac)}/64", *numbers]))
    yield LogicalRouter(name=name)
    yield LogicalRouterPort(name=router_port_name(name), router=name, mac=mac, networks=networks)
    yield router_attachment(name, switch=row_name(network), router_port=router_port_name(name))
    for subnet in network.subnets:
        if subnet.gateway:
            # Replies of a VIP leave by the gateway of its own subnet. OVN ignores the routes of other subnets.
            yield StaticRoute(router=name, ip_prefix=str(subnet.cidr), nexthop=str(subnet.gateway), policy="src-ip")


def has_number(subnet: Subnet) -> bool:
    """Whether the subnet has a network address that no host uses (RFC 950, RFC 4291 section 2.6.1).

    The shortest subnets have none (RFC 3021, RFC 6164).
    """
    return not is_usable(subnet.cidr.network_address, subnet.cidr)
