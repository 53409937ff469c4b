"""Behind which host an address is, and which load balancers have members behind one."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.hosts import (
    BLOCK_LENGTH,
    Block,
    Host,
    HostPrefix,
    address_key,
    block_of,
    holding,
    prefix_key,
    sort_key,
)
from fairlead.model.loadbalancer import LoadBalancer, Member
from fairlead.model.snapshot import Snapshot


def host_of(snapshot: Snapshot, address: IPAddress) -> tuple[Host, HostPrefix] | None:
    """No two hosts have an address behind them in common."""
    found = holding(snapshot.host_prefixes, snapshot.host_prefix_lengths, address_key(address))
    if found is None:
        return None
    version, _, first = found
    return (host := snapshot.hosts[snapshot.host_prefixes[found]]), _prefix_at(host, (version, first))


def declared_behind(snapshot: Snapshot, balancer: LoadBalancer, address: IPAddress) -> Host | None:
    """The host that the address is behind, if the load balancer may have members there by what operators declared."""
    found = host_of(snapshot, address)
    return found[0] if found is not None and found[1].project_id in (None, balancer.project_id) else None


def may_be_behind(snapshot: Snapshot, balancer: LoadBalancer, address: IPAddress) -> Host | None:
    """The same, unless the address is the host's own: then nobody is there but where members run on the host itself."""
    host = declared_behind(snapshot, balancer, address)
    if host is None or address not in snapshot.own_addresses.get(host.name, ()):
        return host
    return host if address in members_on(snapshot, host) else None


def members_on(snapshot: Snapshot, host: Host) -> tuple[IPAddress, ...]:
    """The host's own addresses at which members run on it, because an operator said so: those of its declared ones
    that are behind it. A declared address is behind no other host."""
    return tuple(each for each in host.addresses if host_of(snapshot, each) is not None)


def nowhere(snapshot: Snapshot, balancer: LoadBalancer, members: Iterable[Member]) -> frozenset[str]:
    """Those of its members that are behind no host: nobody leads anything to them."""
    return frozenset(each.id for each in members if may_be_behind(snapshot, balancer, each.address) is None)


def own_among(snapshot: Snapshot, name: str, addresses: Iterable[IPAddress]) -> frozenset[IPAddress]:
    """Those of a host's addresses that are behind it: of the others it says nothing, or is not believed."""
    found = ((each, host_of(snapshot, each)) for each in addresses)
    return frozenset(each for each, behind in found if behind is not None and behind[0].name == name)


def _prefix_at(host: Host, first: tuple[int, int]) -> HostPrefix:
    return host.prefixes[bisect_left(host.prefixes, first, key=sort_key)]


def host_within(snapshot: Snapshot, cidr: IPNetwork) -> str | None:
    """A host that has an address in it, or somebody behind it has: the name of one."""
    known, own = snapshot.host_prefixes, prefix_key(cidr)
    around = holding(known, snapshot.host_prefix_lengths, own)
    inside = (each for each in known if holding((own,), (own[:2],), each) is not None)
    behind = around or next(inside, None)
    if behind is not None:
        return known[behind]
    return next((host.name for host in snapshot.hosts.values() if any(each in cidr for each in host.addresses)), None)


def balancers_behind(snapshot: Snapshot, cidrs: Iterable[IPNetwork]) -> Iterator[str]:
    """Those with an announced VIP that have a member in one of these prefixes, or had one whose slots they remember. It
    may name too many."""
    found = {each for cidr in cidrs for block in _blocks(snapshot, cidr) for each in snapshot.member_blocks[block]}
    return (each for each in sorted(found) if snapshot.load_balancers[each].vip.network_id in snapshot.announced)


def _blocks(snapshot: Snapshot, cidr: IPNetwork) -> Iterator[Block]:
    """Those that have members, and an address in common with it."""
    known, (version, first) = snapshot.member_blocks, block_of(cidr.network_address)
    number = 1 << max(0, BLOCK_LENGTH[version] - cidr.prefixlen)
    if number > len(known):
        return (block for block in known if block[0] == version and first <= block[1] < first + number)
    return (block for each in range(first, first + number) if (block := (version, each)) in known)
