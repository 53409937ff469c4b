"""Where the load balancers of a project are: the networks and routers that get rows for them.

What belongs to one project gets nothing because of what another one asks for: two tenants may have the same subnets,
and their routers may meet on a shared network. So a domain holds what is the project's own and is connected. The
connection may go through networks of others. It may go through routers of others only where nobody but the project or
an administrator can have put them. The one thing of another project that gets rows is the network that a VIP is on, for
addresses of its own subnets (ADR 10).

Where a subnet overlaps one of the VIPs' network an address means something else: no connection goes there.

VIPs on an external network are on the gateway of one router. Their domain is what connections reach from that router;
of routers it has this one alone, because only its gateway has the addresses (ADR 23).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.indexes import NO_IDS
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import Network, Port, Router, find_subnet
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """By their ids: the project's own networks and routers, and the ports that connect them."""

    networks: frozenset[str]
    routers: frozenset[str]
    interfaces: frozenset[str]
    """Ports of routers on these networks: one at least on each, if more than one network is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """By their ids: networks and routers on which something is."""

    networks: frozenset[str] = frozenset()
    routers: frozenset[str] = frozenset()


NOWHERE = Domain(networks=frozenset(), routers=frozenset(), interfaces=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The networks and routers that a project's connections lead to, whoever owns them."""

    networks: frozenset[str]
    routers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Topology:
    """How networks and routers of one snapshot are connected, as each project may use them.

    It remembers what it has looked up while one question is answered: make a new one for each question.
    """

    snapshot: Snapshot
    _routers: dict[str, Mapping[str, set[str]]] = field(default_factory=dict)

    def domain(self, network_id: str, project_id: str) -> Domain:
        """Of the project's load balancers with a VIP on this network."""
        snapshot = self.snapshot
        network = snapshot.networks.get(network_id)
        if network is None:  # others wrote it, and took it away
            return NOWHERE
        connected = self.connected(network_id, project_id, AddressRanges.of(network))
        networks = self._own(connected.networks, project_id)
        ports = (port for router_id in connected.routers for port in self._interfaces(router_id))
        return Domain(
            networks=networks,
            routers=frozenset(each for each in connected.routers if self.serves_only(each, project_id)),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def domain_of(self, balancer: LoadBalancer) -> Domain:
        if balancer.router_id is not None:
            return self.gateway_domain(balancer.router_id)
        return self.domain(balancer.vip.network_id, balancer.project_id)

    def gateway_domain(self, router_id: str) -> Domain:
        """Of the VIPs that the gateway of this router has; nothing of a router that is gone."""
        router = self.snapshot.routers.get(router_id)
        if router is None:
            return NOWHERE
        connected = self.connected_with(router)
        networks = self._own(connected.networks, router.project_id)
        ports = (port for each in connected.routers for port in self._interfaces(each))
        return Domain(
            networks=networks,
            routers=frozenset({router.id}),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def connected_with(self, router: Router) -> Connected:
        """What its project reaches from this router: the networks that it joins, and beyond them those in which no
        address of these, or of the network outside, means something else."""
        start = frozenset(port.network_id for port in self._interfaces(router.id))
        outside = self.snapshot.networks.get(router.gateway.network_id) if router.gateway else None
        near = [self.snapshot.networks[each] for each in start]
        return self._walk(start, router.project_id, AddressRanges.of(*near, *([outside] if outside else [])), router.id)

    def _own(self, networks: Iterable[str], project_id: str) -> frozenset[str]:
        found = (self.snapshot.networks[each] for each in networks)
        return frozenset(each.id for each in found if each.project_id == project_id and not each.external)

    def connected(self, start: str, project_id: str, ranges: "AddressRanges | None" = None) -> Connected:
        """What the project reaches from this network; nothing where an address of these ranges means something else."""
        return self._walk(frozenset({start}), project_id, ranges)

    def _walk(self, start: frozenset[str], project_id: str, ranges: "AddressRanges | None", *known: str) -> Connected:
        """From these networks, and through these routers whatever they join."""
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
        return Connected(networks=frozenset(networks), routers=frozenset(routers))

    def routers_of_projects(self, network_id: str) -> Mapping[str, set[str]]:
        """Project -> the routers on this network through which its packets may go."""
        if network_id not in self._routers:
            found = defaultdict[str, set[str]](set)
            for router_id in self.snapshot.network_routers.get(network_id, NO_IDS):
                for project_id in self.projects_through(router_id):
                    found[project_id].add(router_id)
            self._routers[network_id] = found
        return self._routers[network_id]

    def projects_through(self, router_id: str) -> set[str]:
        """The projects whose packets may go through a router: its owner, and the owners of networks that it joins and
        that are not shared.

        Nobody but the owner of such a network, or an administrator, puts a router on it.
        """
        router = self.snapshot.routers.get(router_id)
        networks = (self.snapshot.networks[port.network_id] for port in self._interfaces(router_id))
        own = set() if router is None else {router.project_id}
        return own | {network.project_id for network in networks if not network.shared}

    def serves_only(self, router_id: str, project_id: str) -> bool:
        """Whether a router is the project's: it owns it, or owns all networks that it joins, and shares none."""
        if self.snapshot.routers[router_id].project_id == project_id:
            return True
        networks = [self.snapshot.networks[port.network_id] for port in self._interfaces(router_id)]
        return all(network.project_id == project_id and not network.shared for network in networks)

    def _interfaces(self, router_id: str) -> Iterator[Port]:
        return (self.snapshot.ports[each] for each in self.snapshot.router_interfaces.get(router_id, NO_IDS))

    def _subnets(self, router_id: str, but: frozenset[str]) -> Iterator[IPNetwork]:
        """On which the router has an address, those of some networks left out."""
        for port in self._interfaces(router_id):
            if port.network_id not in but:
                for fixed in port.fixed_ips:
                    subnet = find_subnet(self.snapshot.networks[port.network_id], fixed.subnet_id)
                    if subnet is not None:
                        yield subnet.cidr


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """The addresses of networks, as ranges `(version, first, last)` that are sorted and do not overlap."""

    ranges: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, *networks: Network) -> "AddressRanges":
        """Of several networks those subnets that are inside one of another are not counted again."""
        found: list[tuple[int, int, int]] = []
        for version, first, last in sorted(_range(cidr) for network in networks for cidr in _cidrs(network)):
            if not found or found[-1][0] != version or last > found[-1][2]:
                found.append((version, first, last))
        return cls(tuple(found))

    def overlap(self, cidrs: Iterable[IPNetwork]) -> bool:
        return any(self._overlaps(_range(cidr)) for cidr in cidrs)

    def hold(self, address: IPAddress) -> bool:
        return self._overlaps((address.version, int(address), int(address)))

    def _overlaps(self, wanted: tuple[int, int, int]) -> bool:
        """Of the ranges that begin before the end of this one, only the last can reach into it."""
        version, first, last = wanted
        place = bisect_right(self.ranges, (version, last, float("inf")))
        return place > 0 and self.ranges[place - 1][0] == version and self.ranges[place - 1][2] >= first


def _range(cidr: IPNetwork) -> tuple[int, int, int]:
    first = int(cidr.network_address)
    return cidr.version, first, first + cidr.num_addresses - 1


def _cidrs(network: Network) -> Iterator[IPNetwork]:
    return (subnet.cidr for subnet in network.subnets)
