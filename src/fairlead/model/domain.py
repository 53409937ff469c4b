"""Where the load balancers of a project are: the networks and routers that get rows for them.

What belongs to one project gets nothing because of what another one asks for: two tenants may have the same subnets,
and their routers may meet on a shared network. So a domain holds what is the project's own and is connected. The
connection may go through networks of others. It may go through routers of others only where nobody but the project or
an administrator can have put them. The one thing of another project that gets rows is the network that a VIP is on, for
addresses of its own subnets (ADR 10).

Where a subnet overlaps one of the VIPs' network an address means something else: no connection goes there.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Network, Port, find_subnet
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """By their ids: the project's own networks and routers, and the ports that connect them."""

    networks: frozenset[str]
    routers: frozenset[str]
    interfaces: frozenset[str]
    """Ports of routers on these networks: one at least on each, if more than one network is connected."""


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
        connected = self.connected(network_id, project_id, AddressRanges.of(snapshot.networks[network_id]))
        networks = frozenset(
            each
            for each in connected.networks
            if snapshot.networks[each].project_id == project_id and not snapshot.networks[each].external
        )
        ports = (port for router_id in connected.routers for port in self._interfaces(router_id))
        return Domain(
            networks=networks,
            routers=frozenset(each for each in connected.routers if self.serves_only(each, project_id)),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def connected(self, start: str, project_id: str, ranges: "AddressRanges | None" = None) -> Connected:
        """What the project reaches from this network; nothing where an address of these ranges means something else."""
        networks, routers, todo = {start}, set[str](), [start]
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

    def _subnets(self, router_id: str, but: str) -> Iterator[IPNetwork]:
        """On which the router has an address, those of one network left out."""
        for port in self._interfaces(router_id):
            if port.network_id != but:
                for fixed in port.fixed_ips:
                    subnet = find_subnet(self.snapshot.networks[port.network_id], fixed.subnet_id)
                    if subnet is not None:
                        yield subnet.cidr


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """The addresses of one network, as ranges `(version, first, last)` that are sorted and do not overlap."""

    ranges: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, network: Network) -> "AddressRanges":
        return cls(tuple(sorted(_range(cidr) for cidr in _cidrs(network))))

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
