"""Devices from which agents probe: one per network and node, with the same MAC and addresses on every node.

The device is behind an OVN `localport`: its packets never leave the node, so all nodes can use the same addresses, and
a node reaches its own machines only. Delegated endpoints are probed from an ordinary port, which is on one node at a
time (ADR 46).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fairlead.model.documents.addresses import IPAddress, IPNetwork, derive_link_local, derive_mac
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.network import Network, Port, Subnet, subnet_with
from fairlead.model.documents.unmanaged import UnmanagedNetwork, is_unmanaged, row_names
from fairlead.model.queries.probes import Monitored, delegate_port_id, endpoints, probe_port_id
from fairlead.model.queries.unmanaged_probe_ports import find_probe_port
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDevice:
    network_id: str
    port_name: str
    """Name of the logical port in OVN."""
    mac: str
    mtu: int
    addresses: tuple[IPAddress, ...]
    """Source addresses, used by no machine:

    * one per IPv4 subnet with monitored members;
    * one per IPv6 subnet that sends resets or probes beyond a router;
    * a link-local one if the network has an IPv6 subnet.
    """
    subnets: tuple[IPNetwork, ...]
    """Subnets on the link, reached without a router."""
    is_delegate: bool = False
    """Whether it is the ordinary port for delegated probes."""
    gateways: tuple[IPAddress, ...] = ()
    """Gateways for all other destinations."""

    @property
    def key(self) -> str:
        return device_key(self.network_id, covers=self.is_delegate)


def device_key(network_id: str, *, covers: bool) -> str:
    """Return the unique name of a device on its node."""
    return f"cover-{network_id}" if covers else network_id


def probe_device(snapshot: Snapshot, network: Network) -> ProbeDevice | None:
    """Return the device of a network; None if the network has nothing to probe yet."""
    if isinstance(network, UnmanagedNetwork):
        return _device_of_unmanaged(snapshot, network)
    found = (snapshot.ports.get(probe_port_id(subnet.id)) for subnet in network.subnets)
    return _device(network, "probe", found)


def delegate_device(snapshot: Snapshot, network: Network) -> ProbeDevice | None:
    """Return the device for delegated probes; None if the network has no address for it."""
    found = [snapshot.ports.get(delegate_port_id(subnet.id)) for subnet in network.subnets]
    device = _device(network, "cover", found)
    if device is None:
        return None
    sources = {port.fixed_ips[0].subnet_id for port in found if port is not None and port.fixed_ips}
    gateways = (each.gateway for each in network.subnets if each.id in sources)
    return replace(device, is_delegate=True, gateways=tuple(each for each in gateways if each is not None))


def _device(network: Network, what: str, found: Iterable[Port | None]) -> ProbeDevice | None:
    mac = derive_mac(f"{what}/{network.id}")
    addresses: list[IPAddress] = [port.fixed_ips[0].address for port in found if port is not None and port.fixed_ips]
    if any(subnet.cidr.version == 6 for subnet in network.subnets):
        addresses.append(derive_link_local(mac))
    if not addresses:
        return None
    subnets = tuple(subnet.cidr for subnet in network.subnets)
    return ProbeDevice(
        network_id=network.id,
        port_name=f"{what}-{network.id}",
        mac=mac,
        mtu=network.mtu,
        addresses=tuple(addresses),
        subnets=subnets,
    )


def _device_of_unmanaged(snapshot: Snapshot, network: UnmanagedNetwork) -> ProbeDevice | None:
    """Return the device behind the probe port of an unmanaged network. It uses the port's MAC and IPv4 addresses, and
    has no row of Fairlead's."""
    port = find_probe_port(snapshot, network.id)
    if port is None or not port.mac_address:
        return None
    addresses: list[IPAddress] = [fixed.address for fixed in port.fixed_ips if fixed.address.version == 4]
    if any(subnet.cidr.version == 6 for subnet in network.subnets):
        addresses.append(derive_link_local(port.mac_address))
    return ProbeDevice(
        network_id=network.id,
        port_name=row_names(port)[0],
        mac=port.mac_address,
        mtu=network.mtu,
        addresses=tuple(addresses),
        subnets=tuple(subnet.cidr for subnet in network.subnets),
    )


def subnets_without_delegate_port(snapshot: Snapshot, probing: Monitored) -> dict[str, str]:
    """Return subnet -> network for the subnets that lack an address for delegated probes of these endpoints."""
    found = dict[str, str]()
    for endpoint in endpoints(snapshot, probing) if snapshot.agents_probe else ():
        network = snapshot.networks.get(endpoint.network_id)
        if network is not None and not (is_unmanaged(network) or network.announced):
            for subnet in _sources(network, endpoint):
                if delegate_port_id(subnet.id) not in snapshot.ports:
                    found[subnet.id] = network.id
    return found


def _sources(network: Network, endpoint: Endpoint) -> Iterator[Subnet]:
    """Yield the source subnets for an endpoint. IPv6 neighbours are probed from the link-local address."""
    subnet = subnet_with(network, endpoint.address)
    if subnet is None:
        yield from (each for each in network.subnets if each.cidr.version == endpoint.address.version and each.gateway)
    elif subnet.cidr.version == 4:
        yield subnet
