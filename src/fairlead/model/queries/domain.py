"""Domain of a project: the networks and routers that get rows for its load balancers.

Objects of one project get no rows because of another project's load balancers, because two tenants may use the same
subnets and their routers may share a network. A domain therefore has the project's own objects that are connected. The
connection may cross networks of other projects, and routers of other projects only where nobody except the project or
an administrator can have attached them. The only object of another project that gets rows is the network of a VIP, for
addresses of its own subnets (ADR 10).

A subnet that overlaps a subnet of the VIP's network has other machines at the same addresses, so no connection crosses
it.

VIPs on an external network are on the gateway of one router. Their domain is the part that is reachable from that
router, and the router is the only one in it, because only its gateway has the addresses (ADR 23).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Network, Port, Router, find_subnet
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """Ids of the project's own networks and routers, and of the ports that connect them."""

    networks: frozenset[str]
    routers: frozenset[str]
    interfaces: frozenset[str]
    """Router ports on these networks: at least one per network if more than one network is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedObjects:
    """Ids of the networks and routers that a load balancer is attached to."""

    networks: frozenset[str] = frozenset()
    routers: frozenset[str] = frozenset()


EMPTY_DOMAIN = Domain(networks=frozenset(), routers=frozenset(), interfaces=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedObjects:
    """Networks and routers that connections of a project can reach, of any project."""

    networks: frozenset[str]
    routers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Topology:
    """Connections between networks and routers of one snapshot, as each project may use them.

    The instance caches lookups: create one for each question and discard it.
    """

    snapshot: Snapshot
    _routers: dict[str, Mapping[str, set[str]]] = field(default_factory=dict)

    def domain(self, network_id: str, project_id: str) -> Domain:
        """Return the domain of the project's load balancers with a VIP on this network."""
        snapshot = self.snapshot
        network = snapshot.networks.get(network_id)
        if network is None:  # unmanaged network, removed by its manager
            return EMPTY_DOMAIN
        connected = self.connected(network_id, project_id, AddressRanges.of(network))
        networks = self._filter_owned(connected.networks, project_id)
        ports = (port for router_id in connected.routers for port in self._interfaces(router_id))
        return Domain(
            networks=networks,
            routers=frozenset(each for each in connected.routers if self.is_exclusive_to(each, project_id)),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def domain_of(self, balancer: LoadBalancer) -> Domain:
        if balancer.router_id is not None:
            return self.gateway_domain(balancer.router_id)
        return self.domain(balancer.vip.network_id, balancer.project_id)

    def gateway_domain(self, router_id: str) -> Domain:
        """Return the domain of VIPs on the gateway of this router; empty if the router is gone."""
        router = self.snapshot.routers.get(router_id)
        if router is None:
            return EMPTY_DOMAIN
        connected = self.connected_from_router(router)
        networks = self._filter_owned(connected.networks, router.project_id)
        ports = (port for each in connected.routers for port in self._interfaces(each))
        return Domain(
            networks=networks,
            routers=frozenset({router.id}),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def connected_from_router(self, router: Router) -> ConnectedObjects:
        """Return the networks and routers that the router's project reaches from it. Networks beyond those that it
        joins are left out if they overlap these or the external network."""
        start = frozenset(port.network_id for port in self._interfaces(router.id))
        outside = self.snapshot.networks.get(router.gateway.network_id) if router.gateway else None
        near = [self.snapshot.networks[each] for each in start]
        return self._walk(start, router.project_id, AddressRanges.of(*near, *([outside] if outside else [])), router.id)

    def _filter_owned(self, networks: Iterable[str], project_id: str) -> frozenset[str]:
        found = (self.snapshot.networks[each] for each in networks)
        return frozenset(each.id for each in found if each.project_id == project_id and not each.external)

    def connected(self, start: str, project_id: str, ranges: "AddressRanges | None" = None) -> ConnectedObjects:
        """Return the networks and routers that the project reaches from this network, without overlaps of `ranges`."""
        return self._walk(frozenset({start}), project_id, ranges)

    def _walk(
        self, start: frozenset[str], project_id: str, ranges: "AddressRanges | None", *known: str
    ) -> ConnectedObjects:
        """Search from these networks, and through these routers regardless of overlaps."""
        networks, routers, todo = set(start), set(known), list(start)
        while todo:
            for router_id in self.routers_of_projects(todo.pop()).get(project_id, set()) - routers:
                found = {port.network_id for port in self._interfaces(router_id)} - networks
                if ranges is not None:
                    if ranges.overlap(self._subnets(router_id, start)):
                        continue
                    found = {each for each in found if not ranges.overlap(_cidrs(self.snapshot.networks[each]))}
                routers.add(router_id)
                todo.extend(found)
                networks |= found
        return ConnectedObjects(networks=frozenset(networks), routers=frozenset(routers))

    def routers_of_projects(self, network_id: str) -> Mapping[str, set[str]]:
        """Return project id -> routers on this network that the project's packets may cross."""
        if network_id not in self._routers:
            found = defaultdict[str, set[str]](set)
            for router_id in self.snapshot.network_routers.get(network_id, NO_IDS):
                for project_id in self.projects_crossing(router_id):
                    found[project_id].add(router_id)
            self._routers[network_id] = found
        return self._routers[network_id]

    def projects_crossing(self, router_id: str) -> set[str]:
        """Return the projects whose packets may cross a router: its owner, and the owners of its unshared networks.

        Only the owner of such a network, or an administrator, can attach a router to it.
        """
        router = self.snapshot.routers.get(router_id)
        networks = (self.snapshot.networks[port.network_id] for port in self._interfaces(router_id))
        own = set() if router is None else {router.project_id}
        return own | {network.project_id for network in networks if not network.shared}

    def is_exclusive_to(self, router_id: str, project_id: str) -> bool:
        """Return whether the project owns the router, or owns all its networks and shares none."""
        if self.snapshot.routers[router_id].project_id == project_id:
            return True
        networks = [self.snapshot.networks[port.network_id] for port in self._interfaces(router_id)]
        return all(network.project_id == project_id and not network.shared for network in networks)

    def _interfaces(self, router_id: str) -> Iterator[Port]:
        return (self.snapshot.ports[each] for each in self.snapshot.router_interfaces.get(router_id, NO_IDS))

    def _subnets(self, router_id: str, but: frozenset[str]) -> Iterator[IPNetwork]:
        """Yield the subnets where the router has an address, except those on networks of `but`."""
        for port in self._interfaces(router_id):
            if port.network_id not in but:
                for fixed in port.fixed_ips:
                    subnet = find_subnet(self.snapshot.networks[port.network_id], fixed.subnet_id)
                    if subnet is not None:
                        yield subnet.cidr


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """Addresses of networks as sorted, disjoint ranges `(version, first, last)`."""

    ranges: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, *networks: Network) -> "AddressRanges":
        """Return the ranges of these networks, merging subnets that are inside another one."""
        found: list[tuple[int, int, int]] = []
        for version, first, last in sorted(_range(cidr) for network in networks for cidr in _cidrs(network)):
            if not found or found[-1][0] != version or last > found[-1][2]:
                found.append((version, first, last))
        return cls(tuple(found))

    def overlap(self, cidrs: Iterable[IPNetwork]) -> bool:
        return any(self._overlaps(_range(cidr)) for cidr in cidrs)

    def contains(self, address: IPAddress) -> bool:
        return self._overlaps((address.version, int(address), int(address)))

    def _overlaps(self, wanted: tuple[int, int, int]) -> bool:
        """Check the last range that starts before the end of `wanted`: only this one can reach into it."""
        version, first, last = wanted
        place = bisect_right(self.ranges, (version, last, float("inf")))
        return place > 0 and self.ranges[place - 1][0] == version and self.ranges[place - 1][2] >= first


def _range(cidr: IPNetwork) -> tuple[int, int, int]:
    first = int(cidr.network_address)
    return cidr.version, first, first + cidr.num_addresses - 1


def _cidrs(network: Network) -> Iterator[IPNetwork]:
    return (subnet.cidr for subnet in network.subnets)
