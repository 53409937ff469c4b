"""Rows that the load balancers of one project share in one place: load balancer groups, and port groups for ACLs."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from fairlead.compilers.ovn.router import PROVIDER
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import LoadBalancerGroup, OvnRow, RouterGroup, SwitchGroup
from fairlead.dataplane.ovn_rules import PortGroup, PortGroupPort
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import VipNetwork
from fairlead.model.documents.unmanaged import row_name
from fairlead.model.queries.domain import Domain
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Names of the groups that one project's load balancers on one network, or one gateway, share."""

    balancers: str
    inside: str
    """Port group with a port of every switch, because ACLs of a VIP apply on the switch of every client."""
    outside: str | None = None
    """Port group with the routers' gateway ports. External switches are shared, so ACLs there match only these
    ports."""


def domain_groups(where: VipNetwork) -> Groups:
    """Groups on the project's own switches and routers."""
    suffix = _suffix(where)
    return Groups(balancers=where.owner.id, inside=f"vip_{suffix}", outside=f"out_{suffix}")


def guest_groups(where: VipNetwork) -> Groups:
    """Groups on another project's network, for a guest project."""
    return Groups(balancers=f"{where.owner.id} there", inside=f"there_{_suffix(where)}")


def gateway_groups(router_id: str) -> Groups:
    """Groups for VIPs that a router's gateway holds."""
    suffix = port_group_word(router_id)
    return Groups(
        balancers=f"{router_id} gateway",
        inside=f"gate_{suffix}",
        outside=f"gate_out_{suffix}",
    )


def router_group(router_id: str) -> str:
    """Load balancer group of a single router, for the replies to VIPs that its gateway holds."""
    return f"{router_id} router"


def group_rows(snapshot: Snapshot, groups: Groups, domain: Domain) -> Iterator[OvnRow]:
    """Yield the groups, their attachments to the domain's switches and routers, and the port groups for ACLs."""
    yield LoadBalancerGroup(name=groups.balancers)
    for switch in domain.networks:
        yield SwitchGroup(switch=row_name(snapshot.networks[switch]), group=groups.balancers)
    for router in domain.routers:
        yield RouterGroup(router=row_name(snapshot.routers[router]), group=groups.balancers)
    yield PortGroup(name=groups.inside)
    for port in domain.interfaces:
        yield PortGroupPort(group=groups.inside, port=row_name(snapshot.ports[port]))
    if groups.outside is not None:
        yield PortGroup(name=groups.outside)
        for router in domain.routers:
            gateway = snapshot.routers[router].gateway
            if gateway is not None:
                yield PortGroupPort(group=groups.outside, port=row_name(snapshot.ports[gateway.port_id]))


def find_vip_network(snapshot: Snapshot, network_id: str) -> Network:
    """Return the network. Raises Unsupported, because an unmanaged network may be deleted while it has VIPs."""
    network = snapshot.networks.get(network_id)
    if network is None:
        raise Unsupported(f"VIPs on network {network_id}, which OVN does not have", PROVIDER)
    return network


def _suffix(where: VipNetwork) -> str:
    network = port_group_word(where.network_id)
    return network if where.guest is None else f"{network}_{sha256(where.guest.encode()).hexdigest()[:16]}"


def port_group_word(identity: str) -> str:
    """Escape an id for a port group's name, also an address set's: letters, digits and underscores (ovn-nb(5))."""
    return identity.replace("-", "_")
