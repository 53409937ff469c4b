"""Free addresses: the result of a linear search, at a cost that is independent of the number of allocations."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from random import Random

import pytest
from immutables import Map

from fairlead.model.documents.addresses import IPAddress, IPNetwork, hash_to_int
from fairlead.model.documents.allocations import Allocations, find_free_address, with_addresses, without_addresses
from fairlead.model.documents.network import AllocationPool


def pool(first: str, last: str) -> AllocationPool:
    return AllocationPool(start=ip_address(first), end=ip_address(last))


def walked(gone: set[IPAddress], pools: list[AllocationPool], seed: str) -> IPAddress | None:
    """Return the first free address from the position given by the seed, by linear search."""
    for each in pools:
        size = int(each.end) - int(each.start) + 1
        for step in range(size):
            address = each.start + (hash_to_int(seed) + step) % size
            if address not in gone:
                return address
    return None


@pytest.mark.parametrize("cidr", [ip_network("10.0.0.0/21"), ip_network("fd00::/117"), ip_network("0.0.0.0/23")])
def test_free_address_equals_the_result_of_a_linear_search(cidr: IPNetwork):
    """The free address equals that of a linear search, while a subnet fills up and empties; its pools have gaps."""
    random, taken, gone = Random(1), Map(), set[IPAddress]()
    first = cidr.network_address
    pools = [
        AllocationPool(start=first + begin, end=first + end)
        for begin, end in ((0, 0), (2, 255), (257, 300), (500, cidr.num_addresses // 2), (cidr.num_addresses - 9,) * 2)
        if begin < cidr.num_addresses
    ]
    everywhere = [cidr.network_address + offset for offset in range(cidr.num_addresses)]
    for turn in range(60):
        some = set(random.sample(everywhere, random.choice((1, 40, 300, len(everywhere)))))
        if turn % 3 == 2:
            taken, gone = without_addresses(taken, "n", some), gone - some
        else:
            taken, gone = with_addresses(taken, "n", some), gone | some
        assert find_free_address(taken, "n", pools, str(turn)) == walked(gone, pools, str(turn))
        assert find_free_address(taken, "other", pools, str(turn)) == walked(set(), pools, str(turn))
    assert without_addresses(taken, "n", everywhere) == Map()


def test_free_address_skips_excluded_addresses():
    small = [pool("10.0.0.1", "10.0.0.3")]
    others = {ip_address("10.0.0.1"), ip_address("10.0.0.3")}
    assert find_free_address(Map(), "n", small, "a", others) == ip_address("10.0.0.2")
    assert find_free_address(Map(), "n", small, "a", {*others, ip_address("10.0.0.2")}) is None


def test_ipv4_and_ipv6_allocations_are_separate():
    """`::a00:1` and `10.0.0.1` are the same integer."""
    taken = with_addresses(Map(), "n", [ip_address("::a00:1")])
    assert find_free_address(taken, "n", [pool("10.0.0.1", "10.0.0.1")], "a") == ip_address("10.0.0.1")
    assert find_free_address(taken, "n", [pool("::a00:1", "::a00:1")], "a") is None


class Counting:
    """Map that counts its reads."""

    def __init__(self, found: Allocations) -> None:
        self.found, self.reads = found, 0

    def get(self, key: tuple[str, int, int, int], default: int) -> int:
        self.reads += 1
        return self.found.get(key, default)


@pytest.mark.parametrize("cidr", [IPv4Network("10.0.0.0/8"), IPv6Network("fd00::/64")])
def test_free_address_search_cost_is_independent_of_allocation_count(cidr: IPNetwork):
    """70,000 consecutive addresses are allocated; the next free one is found in about twenty reads."""
    first = cidr.network_address
    crowd = with_addresses(Map(), "n", (first + step for step in range(70_000)))
    counted = Counting(crowd)
    pools = [AllocationPool(start=first, end=first), AllocationPool(start=first + 5, end=first + 70_000)]
    found = find_free_address(counted, "n", pools, "a")  # type: ignore[arg-type]
    assert found == first + 70_000
    assert counted.reads <= 3 * 2 * cidr.max_prefixlen // 8
