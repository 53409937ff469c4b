"""Address allocations of networks, with a search for free addresses that does not visit allocated ones.

An address is a number of four or sixteen octets. A block holds the 256 addresses, or the 256 smaller blocks, that
differ in one octet, as a bit mask of those that are allocated or full. The search leaves a full block by one step up,
so it costs at most two steps per octet.
"""

from collections.abc import Container, Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import TypeAlias

from immutables import Map, MapMutation

from fairlead.model.documents.addresses import IPAddress, hash_to_int
from fairlead.model.documents.network import AllocationPool

Allocations: TypeAlias = Map[tuple[str, int, int, int], int]
"""(network, IP version, octets below the block's own, block number) -> its bits; empty blocks are omitted."""
_Mutation: TypeAlias = MapMutation[tuple[str, int, int, int], int]
_OCTET_BITS = 8
_FULL_BLOCK = 2**2**_OCTET_BITS - 1


def with_addresses(taken: Allocations, network_id: str, addresses: Iterable[IPAddress]) -> Allocations:
    with taken.mutate() as mutation:
        for address in addresses:
            _allocate(mutation, network_id, address)
    return mutation.finish()


def without_addresses(taken: Allocations, network_id: str, addresses: Iterable[IPAddress]) -> Allocations:
    with taken.mutate() as mutation:
        for address in addresses:
            _release(mutation, network_id, address)
    return mutation.finish()


def find_free_address(
    taken: Allocations,
    network_id: str,
    pools: Iterable[AllocationPool],
    seed: str,
    but: Container[IPAddress | None] = (),
) -> IPAddress | None:
    """Return a free address of the first pool that has one, searching from a position derived from the seed; None if
    all are allocated.

    A search from the first address would return one that was just released, while neighbours still have the old owner
    in their caches.
    """
    for pool in pools:
        first, last = int(pool.start), int(pool.end)
        middle = first + hash_to_int(seed) % (last - first + 1)
        for begin, end in ((middle, last), (first, middle - 1)):
            found = _first_free(taken, network_id, pool.start.version, begin, end, but)
            if found is not None:
                return found
    return None


def _first_free(
    taken: Allocations, network_id: str, version: int, first: int, last: int, but: Container[IPAddress | None]
) -> IPAddress | None:
    while first <= last:
        number = _next_free(taken, network_id, version, first)
        if number > last:
            return None
        address = IPv4Address(number) if version == 4 else IPv6Address(number)
        if address not in but:
            return address
        first = number + 1
    return None


def _next_free(taken: Allocations, network_id: str, version: int, number: int) -> int:
    """Return the first free number from `number` on; it may exceed the address space."""
    level = 0
    while True:
        block, offset = number >> _OCTET_BITS, number & (2**_OCTET_BITS - 1)
        free = ~taken.get((network_id, version, level, block), 0) & _FULL_BLOCK & (_FULL_BLOCK << offset)
        if not free:
            number, level = block + 1, level + 1
            continue
        number = (block << _OCTET_BITS) + (free & -free).bit_length() - 1
        if level == 0:
            return number
        number, level = number << _OCTET_BITS, level - 1


def _allocate(mutation: _Mutation, network_id: str, address: IPAddress) -> None:
    number = int(address)
    for level in range(address.max_prefixlen // _OCTET_BITS):
        key = (network_id, address.version, level, number >> _OCTET_BITS)
        bits = mutation.get(key, 0) | 1 << (number & (2**_OCTET_BITS - 1))
        mutation[key] = bits
        if bits != _FULL_BLOCK:
            return
        number >>= _OCTET_BITS


def _release(mutation: _Mutation, network_id: str, address: IPAddress) -> None:
    number = int(address)
    for level in range(address.max_prefixlen // _OCTET_BITS):
        key = (network_id, address.version, level, number >> _OCTET_BITS)
        before = mutation.get(key, 0)
        bits = before & ~(1 << (number & (2**_OCTET_BITS - 1)))
        if bits:
            mutation[key] = bits
        else:
            mutation.pop(key, None)
        if before != _FULL_BLOCK:
            return
        number >>= _OCTET_BITS
