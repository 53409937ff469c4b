"""From where agents probe a network: one device on each node that has to, with the same MAC and addresses everywhere.

OVN calls the port behind it a `localport`: nothing that it sends leaves the node, so the same addresses may be
everywhere, and a node reaches the machines that are on it. Who is elsewhere is reached from an ordinary port, which is
on one node at a time (ADR 46).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fairlead.model.addresses import IPAddress, IPNetwork, derive_mac, link_local
from fairlead.model.foreign import ForeignNetwork, called, is_foreign
from fairlead.model.foreign_probing import probe_port
from fairlead.model.health import Endpoint
from fairlead.model.network import Network, Port, Subnet, subnet_with
from fairlead.model.probes import Probing, cover_port_id, endpoints, probe_port_id
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDevice:
    network_id: str
    port_name: str
    """What OVN calls the port behind it."""
    mac: str
    mtu: int
    addresses: tuple[IPAddress, ...]
    """One of each IPv4 subnet in which anybody is monitored, and of each IPv6 subnet where connections are reset, or
    from which somebody is probed beyond a router; and a link-local one if there is a subnet of IPv6. None is a
    machine's."""
    subnets: tuple[IPNetwork, ...]
    """That are reached by it without any router."""
    covers: bool = False
    """Whether it is the ordinary port."""
    gateways: tuple[IPAddress, ...] = ()
    """By which all else is reached."""

    @property
    def key(self) -> str:
        return device_key(self.network_id, covers=self.covers)


def device_key(network_id: str, *, covers: bool) -> str:
    """What a device is called among those of a node."""
    return f"cover-{network_id}" if covers else network_id


def probe_device(snapshot: Snapshot, network: Network) -> ProbeDevice | None:
    """None for a network in which there is nobody to be probed yet."""
    if isinstance(network, ForeignNetwork):
        return _device_of_others(snapshot, network)
    found = (snapshot.ports.get(probe_port_id(subnet.id)) for subnet in network.subnets)
    return _device(network, "probe", found)


def cover_device(snapshot: Snapshot, network: Network) -> ProbeDevice | None:
    """None for a network that has no address for it."""
    found = [snapshot.ports.get(cover_port_id(subnet.id)) for subnet in network.subnets]
    device = _device(network, "cover", found)
    if device is None:
        return None
    sources = {port.fixed_ips[0].subnet_id for port in found if port is not None and port.fixed_ips}
    gateways = (each.gateway for each in network.subnets if each.id in sources)
    return replace(device, covers=True, gateways=tuple(each for each in gateways if each is not None))


def _device(network: Network, what: str, found: Iterable[Port | None]) -> ProbeDevice | None:
    mac = derive_mac(f"{what}/{network.id}")
    addresses: list[IPAddress] = [port.fixed_ips[0].address for port in found if port is not None and port.fixed_ips]
    if any(subnet.cidr.version == 6 for subnet in network.subnets):
        addresses.append(link_local(mac))
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


def _device_of_others(snapshot: Snapshot, network: ForeignNetwork) -> ProbeDevice | None:
    """Behind the port that was made there: it has a MAC and IPv4 addresses of theirs, and no row of ours."""
    port = probe_port(snapshot, network.id)
    if port is None or not port.mac_address:
        return None
    addresses: list[IPAddress] = [fixed.address for fixed in port.fixed_ips if fixed.address.version == 4]
    if any(subnet.cidr.version == 6 for subnet in network.subnets):
        addresses.append(link_local(port.mac_address))
    return ProbeDevice(
        network_id=network.id,
        port_name=called(port)[0],
        mac=port.mac_address,
        mtu=network.mtu,
        addresses=tuple(addresses),
        subnets=tuple(subnet.cidr for subnet in network.subnets),
    )


def coverless_subnets(snapshot: Snapshot, probing: Probing) -> dict[str, str]:
    """Subnet -> network, where nobody has an address yet from which these are probed when their node is silent, or if
    they have none."""
    found = dict[str, str]()
    for endpoint in endpoints(snapshot, probing) if snapshot.agents_probe else ():
        network = snapshot.networks.get(endpoint.network_id)
        if network is not None and not (is_foreign(network) or network.announced):
            for subnet in _sources(network, endpoint):
                if cover_port_id(subnet.id) not in snapshot.ports:
                    found[subnet.id] = network.id
    return found


def _sources(network: Network, endpoint: Endpoint) -> Iterator[Subnet]:
    """From which subnet it is reached. A neighbour in IPv6 is reached from the link's own address."""
    subnet = subnet_with(network, endpoint.address)
    if subnet is None:
        yield from (each for each in network.subnets if each.cidr.version == endpoint.address.version and each.gateway)
    elif subnet.cidr.version == 4:
        yield subnet
