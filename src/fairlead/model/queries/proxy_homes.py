"""Networks and routes of proxies: where the proxies of a place have their address, and which routers their packets use.

Proxies for VIPs on a network are on that network, in any project. Proxies for VIPs on the gateway of a router are on
one of the project's own networks of this router: traffic from the gateway reaches them there, and replies take the same
path.

A guest's proxy leaves the shared network by the guest's own routers only. The gateway of the network's owner would lead
to the machine with that address *there*: with equal subnets, another tenant's machine.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_network
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import FixedIP, Network, Port, Router, Subnet, find_subnet
from fairlead.model.documents.proxy_place import ProxyPlace, place_of_port
from fairlead.model.documents.unmanaged import SUPPORTED_WRITERS, UnmanagedNetwork, is_unmanaged
from fairlead.model.queries.domain import AddressRanges, Topology
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class ProxyRoute:
    """Route to a destination network by a next hop."""

    destination: str
    nexthop: str


def find_proxy_network(snapshot: Snapshot, place: ProxyPlace) -> Network | None:
    """Return the network of the place's proxies; None if no network is suitable, if it belongs to a manager that
    creates no ports for Fairlead, or for plain hosts, where proxies have no address."""
    if place.at not in snapshot.routers:
        network = snapshot.networks.get(place.at)
        is_theirs = isinstance(network, UnmanagedNetwork) and network.writer not in SUPPORTED_WRITERS
        return None if network is None or is_theirs or network.external or network.announced else network
    wanted = {
        version for each in snapshot.proxied.get(place, NO_IDS) for version in snapshot.load_balancers[each].ip_versions
    }
    had = {snapshot.ports[each].network_id for each in snapshot.place_proxies.get(place, NO_IDS)}
    found = list(_attached_networks(snapshot, place))
    missing = {network.id: len(wanted - _versions(snapshot, place.at, network)) for network in found}
    usable = [network for network in found if missing[network.id] < len(wanted)]
    return min(
        usable,
        key=lambda network: (missing[network.id], network.id not in had, network.created_at, network.id),
        default=None,
    )


def find_proxy_subnets(snapshot: Snapshot, place: ProxyPlace, network: Network) -> tuple[Subnet, ...]:
    """Return the subnets for the addresses of proxies, one per IP version; empty if any subnet is suitable."""
    if place.at not in snapshot.routers:
        return ()
    first = dict[int, Subnet]()
    for fixed in _interfaces(snapshot, place.at, network):
        subnet = find_subnet(network, fixed.subnet_id)
        if subnet is not None:
            first.setdefault(subnet.cidr.version, subnet)
    return tuple(first.values())


def list_proxy_routes(snapshot: Snapshot, port: Port) -> tuple[ProxyRoute, ...]:
    """Return the routes of a proxy to all destinations outside its network."""
    place, network = place_of_port(port), snapshot.networks.get(port.network_id)
    if place is None or network is None:
        return ()
    is_guest = network.project_id != place.project_id
    routers = [] if place.at in snapshot.routers else _own_routers(snapshot, network, place.project_id)
    ways = dict[IPNetwork, IPAddress]()
    for fixed in port.fixed_ips:
        subnet = find_subnet(network, fixed.subnet_id)
        if subnet is None:
            continue
        default: IPAddress | None
        if place.at in snapshot.routers:
            default = _address_of(snapshot, place.at, network, subnet)
        elif is_guest:
            default = _first_address(snapshot, routers, network, subnet)
        else:
            default = subnet.gateway
        beyond = dict(_networks_behind(snapshot, routers, network, subnet))
        ways |= {cidr: by for cidr, by in beyond.items() if by != default}
        if default is not None:
            ways[_DEFAULT_ROUTES[subnet.cidr.version]] = default
    found = (ProxyRoute(destination=str(cidr), nexthop=str(by)) for cidr, by in ways.items())
    return tuple(sorted(found, key=lambda way: (":" in way.destination, way)))


_DEFAULT_ROUTES = {4: parse_network("0.0.0.0/0"), 6: parse_network("::/0")}


def _attached_networks(snapshot: Snapshot, place: ProxyPlace) -> Iterator[Network]:
    """Yield the project's own networks with an interface of the router."""
    ports = (snapshot.ports[each] for each in snapshot.router_interfaces.get(place.at, NO_IDS))
    for network_id in {port.network_id for port in ports}:
        network = snapshot.networks[network_id]
        if network.project_id == place.project_id and not network.external and not is_unmanaged(network):
            yield network


def _versions(snapshot: Snapshot, router_id: str, network: Network) -> set[int]:
    return {fixed.address.version for fixed in _interfaces(snapshot, router_id, network)}


def _interfaces(snapshot: Snapshot, router_id: str, network: Network) -> Iterator[FixedIP]:
    """Yield the router's addresses on the network, in a stable order."""
    ports = (snapshot.ports[each] for each in sorted(snapshot.router_interfaces.get(router_id, NO_IDS)))
    return (fixed for port in ports if port.network_id == network.id for fixed in port.fixed_ips)


def _address_of(snapshot: Snapshot, router_id: str, network: Network, subnet: Subnet) -> IPAddress | None:
    found = _interfaces(snapshot, router_id, network)
    return next((fixed.address for fixed in found if fixed.subnet_id == subnet.id), None)


def _first_address(snapshot: Snapshot, routers: list[Router], network: Network, subnet: Subnet) -> IPAddress | None:
    found = (_address_of(snapshot, router.id, network, subnet) for router in routers)
    return next((address for address in found if address is not None), None)


def _own_routers(snapshot: Snapshot, network: Network, project_id: str) -> list[Router]:
    """Return the project's routers on the network, those with a gateway first."""
    topology = Topology(snapshot)
    there = snapshot.network_routers.get(network.id, NO_IDS)
    routers = (snapshot.routers[each] for each in there if topology.is_exclusive_to(each, project_id))
    return sorted(routers, key=lambda router: (router.gateway is None, router.id))


def _networks_behind(
    snapshot: Snapshot, routers: list[Router], network: Network, subnet: Subnet
) -> Iterator[tuple[IPNetwork, IPAddress]]:
    """Yield the other networks of these routers with their next hop. The first router has priority; destinations that
    overlap the network are skipped, because their addresses are on the link."""
    ranges = AddressRanges.of(network)
    for router in reversed(routers):
        by = _address_of(snapshot, router.id, network, subnet)
        for interface in sorted(snapshot.router_interfaces.get(router.id, NO_IDS)):
            port = snapshot.ports[interface]
            if by is None or port.network_id == network.id:
                continue
            for fixed in port.fixed_ips:
                beyond = find_subnet(snapshot.networks[port.network_id], fixed.subnet_id)
                if beyond is not None and beyond.cidr.version == by.version and not ranges.overlap([beyond.cidr]):
                    yield beyond.cidr, by
