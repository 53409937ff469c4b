"""Placement behind plain hosts.

Maps an address to the host that routes it, and prefixes to the load balancers with members in them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.hosts import (
    BLOCK_LENGTH,
    Block,
    Host,
    HostPrefix,
    address_key,
    block_of,
    find_containing_prefix,
    prefix_key,
    sort_key,
)
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.snapshot import Snapshot

_BLOCKS_PER_LOOKUP = 8
"""Number of blocks that can be scanned in the time of one lookup by block number."""


def find_routing_host(snapshot: Snapshot, address: IPAddress) -> tuple[Host, HostPrefix] | None:
    """Return the host that routes the address, with the matching prefix. Prefixes of two hosts never overlap."""
    found = find_containing_prefix(snapshot.host_prefixes, snapshot.host_prefix_lengths, address_key(address))
    if found is None:
        return None
    version, _, first = found
    return (host := snapshot.hosts[snapshot.host_prefixes[found]]), _prefix_at(host, (version, first))


def find_declared_host(snapshot: Snapshot, balancer: LoadBalancer, address: IPAddress) -> Host | None:
    """Return the host that is declared to route the address, if the load balancer's project may have members there."""
    found = find_routing_host(snapshot, address)
    return found[0] if found is not None and found[1].project_id in (None, balancer.project_id) else None


def find_member_host(snapshot: Snapshot, balancer: LoadBalancer, address: IPAddress) -> Host | None:
    """Return the host that routes the address for this load balancer. The host's own addresses give None, except those
    that an operator declared for members on the host itself."""
    host = find_declared_host(snapshot, balancer, address)
    if host is None or address not in snapshot.own_addresses.get(host.name, ()):
        return host
    return host if address in list_member_addresses(snapshot, host) else None


def list_member_addresses(snapshot: Snapshot, host: Host) -> tuple[IPAddress, ...]:
    """Return the host's declared addresses that are inside its own prefixes: members may run on the host there. No
    other host routes a declared address."""
    return tuple(each for each in host.addresses if find_routing_host(snapshot, each) is not None)


def find_unrouted_members(snapshot: Snapshot, balancer: LoadBalancer, members: Iterable[Member]) -> frozenset[str]:
    """Return the ids of members that no host routes, so they receive no traffic."""
    return frozenset(each.id for each in members if find_member_host(snapshot, balancer, each.address) is None)


def filter_own_addresses(snapshot: Snapshot, name: str, addresses: Iterable[IPAddress]) -> frozenset[IPAddress]:
    """Return the addresses that the host itself routes. A host's report about any other address is ignored."""
    found = ((each, find_routing_host(snapshot, each)) for each in addresses)
    return frozenset(each for each, behind in found if behind is not None and behind[0].name == name)


def _prefix_at(host: Host, first: tuple[int, int]) -> HostPrefix:
    if len(host.prefixes) == 1:
        return host.prefixes[0]
    return host.prefixes[bisect_left(host.prefixes, first, key=sort_key)]


def find_host_within(snapshot: Snapshot, cidr: IPNetwork) -> str | None:
    """Return the name of a host that has an address, or routes a prefix, within this network; None if there is none."""
    known, own = snapshot.host_prefixes, prefix_key(cidr)
    around = find_containing_prefix(known, snapshot.host_prefix_lengths, own)
    inside = (each for each in known if find_containing_prefix((own,), (own[:2],), each) is not None)
    behind = around or next(inside, None)
    if behind is not None:
        return known[behind]
    return next((host.name for host in snapshot.hosts.values() if any(each in cidr for each in host.addresses)), None)


def find_balancers_in_prefixes(snapshot: Snapshot, cidrs: Iterable[IPNetwork]) -> Iterator[str]:
    """Yield announced load balancers with a member, or a previous owner of a slot, in one of these prefixes.
    The result may include others."""
    found = {each for block in _blocks(snapshot, cidrs) for each in snapshot.member_blocks[block]}
    return (each for each in sorted(found) if snapshot.load_balancers[each].vip.network_id in snapshot.announced)


def _blocks(snapshot: Snapshot, cidrs: Iterable[IPNetwork]) -> Iterator[Block]:
    """Yield the known blocks of member addresses that overlap one of these networks. All known blocks are scanned at
    most once, because a thousand hosts can fail together and each can route more blocks than there are members."""
    known = snapshot.member_blocks
    left, wide = len(known) // _BLOCKS_PER_LOOKUP, list[tuple[Block, Block]]()
    for first, number in sorted((_block_range(cidr) for cidr in cidrs), key=itemgetter(1)):
        left -= number
        version, start = first
        if left >= 0:
            yield from (block for each in range(start, start + number) if (block := (version, each)) in known)
        else:
            wide.append((first, (version, start + number)))
    if wide:
        firsts, ends = zip(*_drop_nested(sorted(wide)), strict=True)
        yield from (each for each in known if (place := bisect_right(firsts, each)) and each < ends[place - 1])


def _block_range(cidr: IPNetwork) -> tuple[Block, int]:
    """Return the first block of a network and the number of blocks."""
    first = block_of(cidr.network_address)
    return first, 1 << max(0, BLOCK_LENGTH[cidr.version] - cidr.prefixlen)


def _drop_nested(wide: list[tuple[Block, Block]]) -> Iterator[tuple[Block, Block]]:
    """Drop ranges that are inside another one. Prefixes are nested or disjoint. Input and output are sorted."""
    last: Block = (0, 0)
    for first, end in wide:
        if end > last:
            yield first, end
            last = end
