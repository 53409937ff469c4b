"""Source ports of probes on unmanaged networks.

Only the manager of an unmanaged network can allocate addresses there. An agent of that manager (Octavia's provider
agent in Neutron) therefore creates one port per network for the first health monitor and deletes it after the last one.
Fairlead finds the port in the database and accepts it by its project: any tenant with access to a shared network can
choose the same device id, but only the network's owner and administrators can create a port for the owner's project.
"""

from collections.abc import Iterator

from fairlead.model.documents.addresses import IPAddress, IPNetwork, derive_link_local
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer, Pool, probed_address
from fairlead.model.documents.network import Port, PortUse, find_subnet, subnet_with
from fairlead.model.documents.unmanaged import SUPPORTED_WRITERS, UnmanagedNetwork, UnmanagedPort
from fairlead.model.snapshot import Snapshot, member_network
from fairlead.runtime.steps import Steps

PROBE_DEVICE_PREFIX = "ovn-lb-hm-fairlead-"
"""Prefix of the port's `device_id`; the network's id follows. ML2/OVN creates a `localport` for a device that starts
with `ovn-lb-hm` and has the device owner `ovn-lb-hm:distributed`."""


def probe_port_keys(port: Port) -> Iterator[tuple[str, str]]:
    """Yield (network, project) of a port that may be a source of probes."""
    is_made = port.use is PortUse.PROBE and port.device_id == f"{PROBE_DEVICE_PREFIX}{port.network_id}"
    if isinstance(port, UnmanagedPort) and is_made and port.project_id:
        yield port.network_id, port.project_id


def find_probe_port(snapshot: Snapshot, network_id: str) -> UnmanagedPort | None:
    """Return the source port of probes on an unmanaged network. Of several it is the one with the lowest id, so that
    servers, nodes and the cleanup select the same port."""
    network = snapshot.networks.get(network_id)
    if not isinstance(network, UnmanagedNetwork):
        return None
    found = snapshot.probe_ports.get((network.id, network.project_id), NO_IDS)
    port = snapshot.ports[min(found)] if found else None
    return port if isinstance(port, UnmanagedPort) else None


def find_probe_source(snapshot: Snapshot, network_id: str, subnet_id: str, version: int) -> IPAddress | None:
    """Return the source address for probes of this subnet; None if there is none yet."""
    port = find_probe_port(snapshot, network_id)
    if port is None:
        return None
    if version == 6:
        return derive_link_local(port.mac_address) if port.mac_address else None
    return next((fixed.address for fixed in port.fixed_ips if fixed.subnet_id == subnet_id), None)


def required_probe_ports(snapshot: Snapshot, balancer: LoadBalancer) -> Steps[dict[str, frozenset[IPNetwork]]]:
    """Return the networks where this load balancer needs a probe port, each with the IPv4 subnets that need an address.
    OVN probes IPv6 members from a link-local address without a port; agents use the port for both versions."""
    found = dict[str, set[IPNetwork]]()
    for network_id, address in _monitored_addresses(snapshot, balancer):
        yield
        network = snapshot.networks.get(network_id)
        if not isinstance(network, UnmanagedNetwork) or network.writer not in SUPPORTED_WRITERS:
            continue
        if address.version == 4:
            subnet = subnet_with(network, address)
            found.setdefault(network_id, set()).update({subnet.cidr} if subnet else ())
        elif snapshot.agents_probe:
            found.setdefault(network_id, set())
    return {network_id: frozenset(cidrs) for network_id, cidrs in found.items()}


def _monitored_addresses(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[str, IPAddress]]:
    """Yield network and address of each monitored member, disabled ones too, because they can be enabled again."""
    pools: Iterator[Pool] = (pool for pool in balancer.pools if pool.health_monitor is not None)
    return ((member_network(snapshot, balancer, each), probed_address(each)) for pool in pools for each in pool.members)


def is_probe_port_ready(snapshot: Snapshot, network_id: str, cidrs: frozenset[IPNetwork]) -> bool:
    """Return whether the probe port exists, with an address in each of these subnets."""
    port, network = find_probe_port(snapshot, network_id), snapshot.networks.get(network_id)
    if port is None or network is None:
        return False
    subnets = (find_subnet(network, fixed.subnet_id) for fixed in port.fixed_ips)
    return cidrs <= {subnet.cidr for subnet in subnets if subnet is not None}


def required_probe_subnets(snapshot: Snapshot, network_id: str) -> Steps[frozenset[IPNetwork] | None]:
    """Return the IPv4 subnets that all load balancers kept for another service need on this network; None if no load
    balancer needs a port."""
    found: frozenset[IPNetwork] | None = None
    for balancer_id in balancers_monitoring(snapshot, network_id):
        yield
        balancer = snapshot.load_balancers[balancer_id]
        if balancer.kept is not None:
            wanted = yield from required_probe_ports(snapshot, balancer)
            found = wanted[network_id] | (found or frozenset()) if network_id in wanted else found
    return found


def balancers_monitoring(snapshot: Snapshot, network_id: str) -> frozenset[str]:
    """Return the load balancers with a health monitor that may have members on this network."""
    network = snapshot.networks.get(network_id)
    places = (network_id, *(subnet.id for subnet in network.subnets)) if network is not None else (network_id,)
    return frozenset(each for place in places for each in snapshot.monitored_places.get(place, NO_IDS))
