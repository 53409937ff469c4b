"""Trace of a workload's packet through OVN: the packet as a microflow of ovn-trace(8).

Omitted fields are filled in as the workload's own kernel would: addresses from its record, and, for the next hop, which
is the destination or the gateway, the MAC with which OVN would answer ARP or ND.
"""

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface, ip_interface

from fairlead.dataplane.ovn_trace import (
    OPTIONS,
    IcmpEcho,
    NeighbourPort,
    Packet,
    Sctp,
    Sender,
    Tcp,
    Udp,
    Untraceable,
)
from fairlead.dataplane.ovn_trace import choose_mac as choose_mac_of
from fairlead.dataplane.ovn_trace import compose_microflow as compose
from fairlead.lab.databases import DatabaseRow, find, southbound
from fairlead.lab.errors import WorkloadUnreachable
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LabCommand
from fairlead.lab.workload import Workload

Address = IPv4Address | IPv6Address
Interface = IPv4Interface | IPv6Interface
__all__ = ["OPTIONS", "Address", "IcmpEcho", "Packet", "Sctp", "Tcp", "Udp"]


def compose_microflow(source: Workload, destination: Address, packet: Packet, next_hop_mac: str) -> str:
    address = choose_interface(source, destination).ip
    return compose(Sender(port_id=source.port_id, mac=source.mac, address=address), destination, packet, next_hop_mac)


def choose_interface(source: Workload, destination: Address) -> Interface:
    """Return the workload's interface of the same family: on the destination's network, or otherwise the first one."""
    same = [interface for interface in source.interfaces if interface.version == destination.version]
    if not same:
        raise WorkloadUnreachable(
            f"workload {source.name!r} has no IPv{destination.version} address to reach {destination}"
        )
    return next((interface for interface in same if destination in interface.network), same[0])


def choose_destination(source: Workload, target: Workload) -> Address:
    """Return an address of the target in a common family, in the target's order of preference."""
    versions = {interface.version for interface in source.interfaces}
    for interface in target.interfaces:
        if interface.version in versions:
            return interface.ip
    raise WorkloadUnreachable(f"workloads {source.name!r} and {target.name!r} have no address family in common")


def choose_next_hop(source: Workload, destination: Address) -> Address:
    if any(destination in interface.network for interface in source.interfaces):
        return destination
    for router in source.routers:
        if router.version == destination.version:
            return router
    raise WorkloadUnreachable(
        f"{destination} is not on a network of workload {source.name!r}, which has no gateway to it"
    )


def choose_mac(neighbours: Sequence[NeighbourPort], next_hop: Address) -> str:
    """Return the MAC of the next hop; raises Unreachable."""
    try:
        return choose_mac_of(neighbours, next_hop)
    except Untraceable as error:
        raise WorkloadUnreachable(str(error)) from None


def read_neighbours(layout: Layout, source: Workload) -> tuple[NeighbourPort, ...]:
    """Return the ports on the datapath of the workload's port; addresses of a router's port come from its peer."""
    client = southbound(layout)
    columns = ("logical_port", "datapath", "type", "mac", "options")
    own = find(client, "Port_Binding", columns, f'logical_port="{source.port_id}"')
    if not own:
        raise WorkloadUnreachable(f"OVN has no port {source.port_id!r}, the one of workload {source.name!r}")
    ports = find(client, "Port_Binding", columns, f"datapath={own[0].text('datapath')}")
    return tuple(neighbour for port in ports for neighbour in _neighbours(client, columns, port))


def _neighbours(client: LabCommand, columns: Sequence[str], port: DatabaseRow) -> Iterator[NeighbourPort]:
    peer = port.mapping("options").get("peer", "")
    rows = find(client, "Port_Binding", columns, f'logical_port="{peer}"') if peer else (port,)
    for row in rows:
        for mac, *addresses in (entry.split() for entry in row.texts("mac")):
            if ":" in mac:
                known = tuple(ip_interface(address) for address in addresses)
                yield NeighbourPort(mac=mac, addresses=known, of_router=bool(peer))
