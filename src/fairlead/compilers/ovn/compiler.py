"""Entry point of the compiler for the OVN Northbound database; each kind of owner has a module of its own."""

from collections.abc import Callable, Iterator, Mapping
from typing import assert_never

from fairlead.compilers.ovn.balancers import balancer_rows
from fairlead.compilers.ovn.local_ip import local_ip_rows
from fairlead.compilers.ovn.locality import near_gateway_rows, near_network_rows
from fairlead.compilers.ovn.ports import port_rows, probing_rows
from fairlead.compilers.ovn.router import floating_ip_rows, localnet_rows, router_rows
from fairlead.compilers.ovn.uplink import gateway_rows
from fairlead.compilers.ovn.vip_networks import vip_network_rows
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import LogicalSwitch, OvnRow, by_key_in_steps
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.enrolment import Node, NodeToken
from fairlead.model.documents.hosts import Host
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import FloatingIP, Network, Port, Router
from fairlead.model.documents.owner import Kind, Owner, VipNetwork
from fairlead.model.documents.quota import Quota
from fairlead.model.documents.trust import Certificate, Project, TrustToken
from fairlead.model.documents.unmanaged import UnmanagedFloatingIP, UnmanagedNetwork, UnmanagedPort, UnmanagedRouter
from fairlead.model.documents.unresponsive_nodes import UnresponsiveNode
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion


def compile_owner(snapshot: Snapshot, owner: Owner) -> Rows:
    """Compile all rows of one owner; none for a deleted one. Raises Unsupported."""
    return run_to_completion(compile_in_steps(snapshot, owner))


def compile_in_steps(snapshot: Snapshot, owner: Owner) -> Steps[Rows]:
    """Compile with a step per row, because a load balancer may have tables of 256 backends on a thousand chassis."""
    return (yield from by_key_in_steps(_rows(snapshot, owner)))


def _rows(snapshot: Snapshot, owner: Owner) -> Iterator[OvnRow]:
    """Yield the rows lazily."""
    shared = SHARED.get(owner.kind)
    if shared is not None:
        yield from shared(snapshot, owner)
        return
    match snapshot.find(owner):
        case UnmanagedNetwork() | UnmanagedRouter() | UnmanagedPort() | UnmanagedFloatingIP():
            pass  # unmanaged: their rows belong to other writers
        case None | Flavor() | FlavorProfile() | AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            pass
        case Project() | Certificate() | TrustToken() | Node() | NodeToken() | UnresponsiveNode():
            pass
        case Network(announced=True) | Host():
            pass  # not in OVN: plain hosts announce these networks
        case Network() as network:
            yield LogicalSwitch(name=network.id, title=network.name)
            yield from localnet_rows(network)
            yield from probing_rows(snapshot, network)
        case Router() as router:
            yield from router_rows(snapshot, router)
        case Port() as port:
            yield from port_rows(snapshot, port)
        case LoadBalancer() as balancer:
            try:
                yield from balancer_rows(snapshot, balancer)
            except Unsupported as refused:  # replace the provider's name by the tenant's
                raise Unsupported(refused.feature, balancer.provider) from None
        case FloatingIP() as floating_ip:
            yield from floating_ip_rows(snapshot, floating_ip)
        case LocalIP() as local_ip:
            yield from local_ip_rows(snapshot, local_ip)
        case unknown:
            assert_never(unknown)


SHARED: Mapping[Kind, Callable[[Snapshot, Owner], Iterator[OvnRow]]] = {
    Kind.VIP_NETWORK: lambda snapshot, owner: vip_network_rows(snapshot, VipNetwork.of(owner)),
    Kind.VIP_GATEWAY: lambda snapshot, owner: gateway_rows(snapshot, owner.id),
    Kind.PER_CHASSIS_GATEWAY: lambda snapshot, owner: near_gateway_rows(snapshot, owner.id),
    Kind.PER_CHASSIS_NETWORK: lambda snapshot, owner: near_network_rows(snapshot, VipNetwork.of(owner)),
}
"""Kinds of owners that several documents share and that are no documents themselves."""
