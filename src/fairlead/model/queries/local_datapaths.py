"""Local datapaths of a node: the networks of its ports, and everything that routers connect to them.

OVN installs flows of every datapath that a chassis's own ports can reach (ovn-controller(8), "local datapaths"), so a
node can observe traffic in these only.
"""

from collections.abc import Iterable

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import PortUse
from fairlead.model.snapshot import Snapshot


def local_places(snapshot: Snapshot, port_ids: Iterable[str]) -> frozenset[str]:
    """Return the ids of the local networks, routers and ports of a node with these ports, for all projects."""
    ports = [port for each in port_ids if (port := snapshot.ports.get(each)) is not None]
    gateways = {port.device_id for port in ports if port.use is PortUse.ROUTER_GATEWAY}
    networks, routers, todo = {port.network_id for port in ports}, set[str](), set(gateways)
    for network_id in networks:
        todo.update(snapshot.network_routers.get(network_id, NO_IDS))
    while todo:
        router_id = todo.pop()
        routers.add(router_id)
        for interface in snapshot.router_interfaces.get(router_id, NO_IDS):
            network_id = snapshot.ports[interface].network_id
            if network_id not in networks:
                networks.add(network_id)
                todo.update(set(snapshot.network_routers.get(network_id, NO_IDS)) - routers)
    return frozenset(networks | routers | {port.id for port in ports})
