"""What load balancers of one project share where they are: a load balancer group, and port groups for rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from fairlead.compilers.ovn.router import PROVIDER
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import LoadBalancerGroup, OvnRow, RouterGroup, SwitchGroup
from fairlead.dataplane.ovn_rules import PortGroup, PortGroupPort
from fairlead.model.domain import Domain
from fairlead.model.foreign import row_of
from fairlead.model.network import Network
from fairlead.model.owner import VipNetwork
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The names of what the load balancers of one project on one network, or one gateway, share in one sort of
    place."""

    balancers: str
    inside: str
    """Port group with a port of every switch: what is refused for a VIP is refused on the switch of every client."""
    outside: str | None = None
    """Port group with the gateways of the routers: an external switch is everybody's, so there a rule may hold only for
    what goes to these."""


def domain_groups(where: VipNetwork) -> Groups:
    """For what is the project's own."""
    suffix = _suffix(where)
    return Groups(balancers=where.owner.id, inside=f"vip_{suffix}", outside=f"out_{suffix}")


def guest_groups(where: VipNetwork) -> Groups:
    """For the network on which the project is a guest."""
    return Groups(balancers=f"{where.owner.id} there", inside=f"there_{_suffix(where)}")


def gateway_groups(router_id: str) -> Groups:
    """For VIPs that the gateway of a router has."""
    suffix = port_group_word(router_id)
    return Groups(
        balancers=f"{router_id} gateway",
        inside=f"gate_{suffix}",
        outside=f"gate_out_{suffix}",
    )


def router_group(router_id: str) -> str:
    """The load balancer group of this router alone: what answers for VIPs that its gateway has."""
    return f"{router_id} router"


def group_rows(snapshot: Snapshot, groups: Groups, domain: Domain) -> Iterator[OvnRow]:
    """The project's load balancers on its own switches and routers, and the ports by which rules hold there."""
    yield LoadBalancerGroup(name=groups.balancers)
    for switch in domain.networks:
        yield SwitchGroup(switch=row_of(snapshot.networks[switch]), group=groups.balancers)
    for router in domain.routers:
        yield RouterGroup(router=row_of(snapshot.routers[router]), group=groups.balancers)
    yield PortGroup(name=groups.inside)
    for port in domain.interfaces:
        yield PortGroupPort(group=groups.inside, port=row_of(snapshot.ports[port]))
    if groups.outside is not None:
        yield PortGroup(name=groups.outside)
        for router in domain.routers:
            gateway = snapshot.routers[router].gateway
            if gateway is not None:
                yield PortGroupPort(group=groups.outside, port=row_of(snapshot.ports[gateway.port_id]))


def find_vip_network(snapshot: Snapshot, network_id: str) -> Network:
    """Raises Unsupported: one that others wrote may go while VIPs are there."""
    network = snapshot.networks.get(network_id)
    if network is None:
        raise Unsupported(f"VIPs on network {network_id}, which OVN does not have", PROVIDER)
    return network


def _suffix(where: VipNetwork) -> str:
    network = port_group_word(where.network_id)
    return network if where.guest is None else f"{network}_{sha256(where.guest.encode()).hexdigest()[:16]}"


def port_group_word(identity: str) -> str:
    """ovn-nb(5): a port group's name is that of an address set too, so of letters, digits and underscores only."""
    return identity.replace("-", "_")
