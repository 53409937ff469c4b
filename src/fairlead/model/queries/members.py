"""Addresses that a member cannot have, because no machine can have them.

A switch balances a connection once. A member with the address of a VIP would need a second pass, which no switch makes:
the router that answers for the VIP rejects it. Addresses of routers, and network and broadcast addresses, do not answer
either.
"""

from collections.abc import Iterable, Iterator, Set

from fairlead.model.documents.addresses import IPAddress, is_usable
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.network import Network, PortUse, Subnet
from fairlead.model.queries.domain import Topology
from fairlead.model.snapshot import Snapshot, member_network

_USES_WITHOUT_MACHINE = {
    PortUse.VIP: "a VIP, and a connection is balanced only once",
    PortUse.LOCAL_IP: "the address of a Local IP",
    PortUse.PROBE: "a source address of probes",
    PortUse.PROXY: "the address of a proxy",
    PortUse.ROUTER_GATEWAY: "the address of a router",
    PortUse.ROUTER_INTERFACE: "the address of a router",
}
"""Uses of ports without a machine, with their explanation. Floating IPs are allowed, because they lead to a machine."""


class _SubnetIndex:
    """Subnets of some networks, indexed by prefix,
    so that a thousand members are not compared with a hundred subnets."""

    def __init__(self, networks: Iterable[Network]) -> None:
        self._by_length: dict[tuple[int, int], dict[int, list[tuple[Network, Subnet]]]] = {}
        """(IP version, prefix length) -> prefix -> subnets."""
        for network in networks:
            for subnet in network.subnets:
                cidr = subnet.cidr
                prefixes = self._by_length.setdefault((cidr.version, cidr.prefixlen), {})
                prefixes.setdefault(_prefix(cidr.network_address, cidr.prefixlen), []).append((network, subnet))

    def containing(self, address: IPAddress) -> Iterator[tuple[Network, Subnet]]:
        """Yield the subnets that contain the address."""
        for (version, length), prefixes in self._by_length.items():
            if version == address.version:
                yield from prefixes.get(_prefix(address, length), ())


def _prefix(address: IPAddress, length: int) -> int:
    return int(address) >> (address.max_prefixlen - length)


def find_unusable_addresses(
    snapshot: Snapshot, balancer: LoadBalancer, members: Iterable[Member]
) -> Iterator[tuple[Member, str]]:
    """Yield members with an address that no machine can have, with the reason. Networks of other projects are not
    examined: members behind a router are looked up on the project's own networks."""
    vips = {(vip.network_id, vip.address) for vip in balancer.vips}
    domain: _SubnetIndex | None = None
    own: dict[str, _SubnetIndex] = {}
    for member in members:
        network_id = member_network(snapshot, balancer, member)
        if network_id not in own:
            network = snapshot.networks.get(network_id)
            own[network_id] = _SubnetIndex([network] if network else [])
        places = list(own[network_id].containing(member.address))
        if member.subnet_id is None and not places:
            if domain is None:
                networks = Topology(snapshot).domain_of(balancer).networks
                domain = _SubnetIndex(snapshot.networks[each] for each in networks)
            places = list(domain.containing(member.address))
        found = next(_explain_unusable(snapshot, vips, places, member), None)
        if found is not None:
            yield member, found


def _explain_unusable(
    snapshot: Snapshot,
    vips: Set[tuple[str, IPAddress]],
    places: Iterable[tuple[Network, Subnet]],
    member: Member,
) -> Iterator[str]:
    for network, subnet in places:
        place = network.id, member.address
        port = snapshot.ports.get(snapshot.addresses.get(place, ""))
        use = PortUse.VIP if place in vips else port.use if port else PortUse.MACHINE
        if use in _USES_WITHOUT_MACHINE:
            yield _USES_WITHOUT_MACHINE[use]
        elif not is_usable(member.address, subnet.cidr):
            yield f"the network or the broadcast address of {subnet.cidr}"
        elif member.address == subnet.gateway and port is None:
            yield f"the gateway of {subnet.cidr}"
