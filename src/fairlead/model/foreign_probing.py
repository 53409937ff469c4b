"""From where machines on networks of others are probed: from a port there that was made for it.

Addresses are theirs to give. So whoever keeps load balancers for another service makes the port by that service's own
means (Octavia's provider agent in Neutron), one for a network, when a health monitor wants it, and takes it away after
the last one. It is found here as they wrote it, and believed by whose it is: anybody whom a network is shared with may
call a port of theirs the same, but only the network's owner, and who administers all, gives a port to the owner.
"""

from collections.abc import Iterator

from fairlead.model.addresses import IPAddress, IPNetwork, link_local
from fairlead.model.foreign import SERVED, ForeignNetwork, ForeignPort
from fairlead.model.indexes import NO_IDS
from fairlead.model.loadbalancer import LoadBalancer, Pool, probed_address
from fairlead.model.network import Port, PortUse, find_subnet, subnet_with
from fairlead.model.snapshot import Snapshot, member_network
from fairlead.model.steps import Steps

DEVICE = "ovn-lb-hm-fairlead-"
"""How the `device_id` of such a port begins; the network's id follows. Neutron's ML2/OVN makes a `localport` of one
whose device begins with `ovn-lb-hm` and is owned by `ovn-lb-hm:distributed`."""


def offered_at(port: Port) -> Iterator[tuple[str, str]]:
    """(network, project) of a port that may be one to probe from."""
    is_made = port.use is PortUse.PROBE and port.device_id == f"{DEVICE}{port.network_id}"
    if isinstance(port, ForeignPort) and is_made and port.project_id:
        yield port.network_id, port.project_id


def probe_port(snapshot: Snapshot, network_id: str) -> ForeignPort | None:
    """That from which machines on a network of others are probed. Of several the one with the lowest id, so whoever
    asks has the same; whoever tidies up keeps that one too."""
    network = snapshot.networks.get(network_id)
    if not isinstance(network, ForeignNetwork):
        return None
    found = snapshot.probe_ports.get((network.id, network.project_id), NO_IDS)
    port = snapshot.ports[min(found)] if found else None
    return port if isinstance(port, ForeignPort) else None


def source_there(snapshot: Snapshot, network_id: str, subnet_id: str, version: int) -> IPAddress | None:
    """The address from which a machine of this subnet is probed; None until there is one."""
    port = probe_port(snapshot, network_id)
    if port is None:
        return None
    if version == 6:
        return link_local(port.mac_address) if port.mac_address else None
    return next((fixed.address for fixed in port.fixed_ips if fixed.subnet_id == subnet_id), None)


def wanted_of(snapshot: Snapshot, balancer: LoadBalancer) -> Steps[dict[str, frozenset[IPNetwork]]]:
    """The networks on which this load balancer needs such a port, each with the IPv4 subnets in which it needs an
    address. OVN probes IPv6 members from an address that needs no port; agents send from the port itself."""
    found = dict[str, set[IPNetwork]]()
    for network_id, address in _probed(snapshot, balancer):
        yield
        network = snapshot.networks.get(network_id)
        if not isinstance(network, ForeignNetwork) or network.writer not in SERVED:
            continue
        if address.version == 4:
            subnet = subnet_with(network, address)
            found.setdefault(network_id, set()).update({subnet.cidr} if subnet else ())
        elif snapshot.agents_probe:
            found.setdefault(network_id, set())
    return {network_id: frozenset(cidrs) for network_id, cidrs in found.items()}


def _probed(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[str, IPAddress]]:
    """Network and address of each member that has a monitor, enabled or not: who is disabled comes back."""
    pools: Iterator[Pool] = (pool for pool in balancer.pools if pool.health_monitor is not None)
    return ((member_network(snapshot, balancer, each), probed_address(each)) for pool in pools for each in pool.members)


def is_ready(snapshot: Snapshot, network_id: str, cidrs: frozenset[IPNetwork]) -> bool:
    """Whether there is such a port, with an address of each of these subnets."""
    port, network = probe_port(snapshot, network_id), snapshot.networks.get(network_id)
    if port is None or network is None:
        return False
    subnets = (find_subnet(network, fixed.subnet_id) for fixed in port.fixed_ips)
    return cidrs <= {subnet.cidr for subnet in subnets if subnet is not None}


def wanted_on(snapshot: Snapshot, network_id: str) -> Steps[frozenset[IPNetwork] | None]:
    """What all load balancers that another service has too need there together; None if none of them needs a port."""
    found: frozenset[IPNetwork] | None = None
    for balancer_id in monitoring(snapshot, network_id):
        yield
        balancer = snapshot.load_balancers[balancer_id]
        if balancer.kept is not None:
            wanted = yield from wanted_of(snapshot, balancer)
            found = wanted[network_id] | (found or frozenset()) if network_id in wanted else found
    return found


def monitoring(snapshot: Snapshot, network_id: str) -> frozenset[str]:
    """The load balancers with a health monitor that may have members on this network."""
    network = snapshot.networks.get(network_id)
    places = (network_id, *(subnet.id for subnet in network.subnets)) if network is not None else (network_id,)
    return frozenset(each for place in places for each in snapshot.monitored_places.get(place, NO_IDS))
