"""Reachability between networks, according to the model.

Used for members: a member on a network that was detached from the router still responds to probes, which are sent on
its own link, but to no client. Only certain cases count as unreachable: a common external network, a static route of
a tenant and a gateway address on a machine may each provide a path.
"""

from collections.abc import Iterator

from fairlead.model.documents.network import PortUse
from fairlead.model.snapshot import Snapshot


def find_connected(snapshot: Snapshot, network_id: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the networks and routers that router interfaces connect to this network, directly or not."""
    networks, routers, todo = {network_id}, set[str](), [network_id]
    while todo:
        for router_id in set(snapshot.network_routers.get(todo.pop(), ())) - routers:
            routers.add(router_id)
            ports = snapshot.router_interfaces.get(router_id, ())
            found = {snapshot.ports[port].network_id for port in ports} - networks
            networks |= found
            todo.extend(found)
    return frozenset(networks), frozenset(routers)


def is_unreachable(snapshot: Snapshot, origin: str, target: str) -> bool:
    """Return whether no known path leads from one network to the other; a missing network is unreachable."""
    if origin == target:
        return False
    networks, routers = find_connected(snapshot, origin)
    if target in networks or _may_have_other_paths(snapshot, origin, routers):
        return False
    _, others = find_connected(snapshot, target)
    return set(_external_networks(snapshot, routers)).isdisjoint(_external_networks(snapshot, others))


def _external_networks(snapshot: Snapshot, routers: frozenset[str]) -> Iterator[str]:
    gateways = (snapshot.routers[router].gateway for router in routers)
    return (snapshot.ports[gateway.port_id].network_id for gateway in gateways if gateway is not None)


def _may_have_other_paths(snapshot: Snapshot, network_id: str, routers: frozenset[str]) -> bool:
    if any(snapshot.routers[router].routes for router in routers):
        return True
    network = snapshot.networks.get(network_id)
    gateways = (subnet.gateway for subnet in network.subnets if subnet.gateway) if network else ()
    owners = (snapshot.ports.get(snapshot.addresses.get((network_id, gateway), "")) for gateway in gateways)
    return any(port is not None and port.use is not PortUse.ROUTER_INTERFACE for port in owners)
