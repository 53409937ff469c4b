"""Where the load balancers of a project are: the networks and routers that get rows for them.

What belongs to one project gets nothing because of what another one asks for: two tenants may have the same subnets,
and their routers may meet on a shared network. So a domain holds what is the project's own, as far as it is connected;
a way may lead through networks of others, and through routers of others only where nobody but the project or an
administrator can have put them. The one thing of another project that gets rows is the network that a VIP is on, for
addresses of its own subnets (ADR 10).

Where a subnet overlaps one of the VIPs' network an address means something else: no way leads there.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.indexes import NONE
from fairlead.model.network import Network, Port, find_subnet
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """By their ids: the project's own networks and routers, and the ports by which the way goes on between them."""

    networks: frozenset[str]
    routers: frozenset[str]
    interfaces: frozenset[str]
    """Ports of routers on these networks: one at least on each, if more than one network is connected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """All that a project's ways lead to, whoever has it."""

    networks: frozenset[str]
    routers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Ways:
    """The ways from network to network in one snapshot. It remembers what it has looked up: make one for each task."""

    snapshot: Snapshot
    _at: dict[str, Mapping[str, set[str]]] = field(default_factory=dict)

    def domain(self, network_id: str, project_id: str) -> Domain:
        """Of the project's load balancers with a VIP on this network."""
        snapshot = self.snapshot
        walk = self.walk(network_id, project_id, Spans.of(snapshot.networks[network_id]))
        networks = frozenset(
            each
            for each in walk.networks
            if snapshot.networks[each].project_id == project_id and not snapshot.networks[each].external
        )
        ports = (port for router_id in walk.routers for port in self._interfaces(router_id))
        return Domain(
            networks=networks,
            routers=frozenset(each for each in walk.routers if self.serves_only(each, project_id)),
            interfaces=frozenset(port.id for port in ports if port.network_id in networks),
        )

    def walk(self, start: str, project_id: str, means: "Spans | None" = None) -> Walk:
        """From this network. Where addresses of these spans mean something else no way leads."""
        networks, routers, todo = {start}, set[str](), [start]
        while todo:
            for router_id in self.at(todo.pop()).get(project_id, set()) - routers:
                found = {port.network_id for port in self._interfaces(router_id)} - networks
                if means is not None:
                    if means.overlap(self._subnets(router_id, start)):
                        continue
                    found = {each for each in found if not means.overlap(_cidrs(self.snapshot.networks[each]))}
                routers.add(router_id)
                todo.extend(found)
                networks |= found
        return Walk(networks=frozenset(networks), routers=frozenset(routers))

    def at(self, network_id: str) -> Mapping[str, set[str]]:
        """Project -> the routers on this network through which its ways lead."""
        if network_id not in self._at:
            found = defaultdict[str, set[str]](set)
            for router_id in self.snapshot.network_routers.get(network_id, NONE):
                for project_id in self.projects(router_id):
                    found[project_id].add(router_id)
            self._at[network_id] = found
        return self._at[network_id]

    def projects(self, router_id: str) -> set[str]:
        """Whose ways lead through a router: its owner's, and theirs of whom it joins a network that is not shared.

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
        return (self.snapshot.ports[each] for each in self.snapshot.router_interfaces.get(router_id, NONE))

    def _subnets(self, router_id: str, but: str) -> Iterator[IPNetwork]:
        """On which the router has an address, those of one network left out."""
        for port in self._interfaces(router_id):
            if port.network_id != but:
                for fixed in port.fixed_ips:
                    subnet = find_subnet(self.snapshot.networks[port.network_id], fixed.subnet_id)
                    if subnet is not None:
                        yield subnet.cidr


@dataclass(frozen=True, slots=True)
class Spans:
    """The addresses of one network, as spans `(version, first, last)` that are sorted and do not overlap."""

    spans: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, network: Network) -> "Spans":
        return cls(tuple(sorted(_span(cidr) for cidr in _cidrs(network))))

    def overlap(self, cidrs: Iterable[IPNetwork]) -> bool:
        return any(self._overlaps(_span(cidr)) for cidr in cidrs)

    def hold(self, address: IPAddress) -> bool:
        return self._overlaps((address.version, int(address), int(address)))

    def _overlaps(self, span: tuple[int, int, int]) -> bool:
        """Of the spans that begin before the end of this one, only the last can reach into it."""
        version, first, last = span
        place = bisect_right(self.spans, (version, last, float("inf")))
        return place > 0 and self.spans[place - 1][0] == version and self.spans[place - 1][2] >= first


def _span(cidr: IPNetwork) -> tuple[int, int, int]:
    first = int(cidr.network_address)
    return cidr.version, first, first + cidr.num_addresses - 1


def _cidrs(network: Network) -> Iterator[IPNetwork]:
    return (subnet.cidr for subnet in network.subnets)
