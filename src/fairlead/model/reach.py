"""Whether a packet can come from one network to another, as far as the model knows.

Asked of members: one whose network has left the router answers its probes, which are sent beside it, and nobody else.
Only what is certain counts: an outside that both have in common, a route that a tenant has set and a gateway that is
somebody's machine may lead anywhere.
"""

from collections.abc import Iterator

from fairlead.model.network import PortUse
from fairlead.model.snapshot import Snapshot


def joined_with(snapshot: Snapshot, network_id: str) -> tuple[frozenset[str], frozenset[str]]:
    """The networks and the routers that are joined with this network by interfaces of routers."""
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
    """Whether nothing that is known leads from one network to the other; what is no network is nowhere."""
    if origin == target:
        return False
    networks, routers = joined_with(snapshot, origin)
    if target in networks or _may_lead_anywhere(snapshot, origin, routers):
        return False
    _, others = joined_with(snapshot, target)
    return set(_outsides(snapshot, routers)).isdisjoint(_outsides(snapshot, others))


def _outsides(snapshot: Snapshot, routers: frozenset[str]) -> Iterator[str]:
    gateways = (snapshot.routers[router].gateway for router in routers)
    return (snapshot.ports[gateway.port_id].network_id for gateway in gateways if gateway is not None)


def _may_lead_anywhere(snapshot: Snapshot, network_id: str, routers: frozenset[str]) -> bool:
    if any(snapshot.routers[router].routes for router in routers):
        return True
    network = snapshot.networks.get(network_id)
    gateways = (subnet.gateway for subnet in network.subnets if subnet.gateway) if network else ()
    owners = (snapshot.ports.get(snapshot.addresses.get((network_id, gateway), "")) for gateway in gateways)
    return any(port is not None and port.use is not PortUse.ROUTER_INTERFACE for port in owners)
