"""Behind which host an address is, and which load balancers have members behind one."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

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

_AS_LONG = 8
"""Of blocks that are gone through, as long as it takes to look for one by its number."""


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
    if len(host.prefixes) == 1:
        return host.prefixes[0]
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
    found = {each for block in _blocks(snapshot, cidrs) for each in snapshot.member_blocks[block]}
    return (each for each in sorted(found) if snapshot.load_balancers[each].vip.network_id in snapshot.announced)


def _blocks(snapshot: Snapshot, cidrs: Iterable[IPNetwork]) -> Iterator[Block]:
    """Those that have members, and an address in common with one of these. Those that are known are gone through once
    at most: a thousand hosts may be lost together, and each have more blocks behind it than there are members."""
    known = snapshot.member_blocks
    left, wide = len(known) // _AS_LONG, list[tuple[Block, Block]]()
    for first, number in sorted((_covered(cidr) for cidr in cidrs), key=itemgetter(1)):
        left -= number
        version, start = first
        if left >= 0:
            yield from (block for each in range(start, start + number) if (block := (version, each)) in known)
        else:
            wide.append((first, (version, start + number)))
    if wide:
        firsts, ends = zip(*_disjoint(sorted(wide)), strict=True)
        yield from (each for each in known if (place := bisect_right(firsts, each)) and each < ends[place - 1])


def _covered(cidr: IPNetwork) -> tuple[Block, int]:
    """Its first block, and how many there are."""
    first = block_of(cidr.network_address)
    return first, 1 << max(0, BLOCK_LENGTH[cidr.version] - cidr.prefixlen)


def _disjoint(wide: list[tuple[Block, Block]]) -> Iterator[tuple[Block, Block]]:
    """Without those that are within another one: prefixes have nothing else in common. They are in order."""
    last: Block = (0, 0)
    for first, end in wide:
        if end > last:
            yield first, end
            last = end
