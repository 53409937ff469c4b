"""Pools of a test: of addresses, and of members."""

from dataclasses import replace
from ipaddress import ip_network

from fairlead.model.loadbalancer import Member, Pool
from fairlead.model.pool_slots import with_slots
from fairlead.model.shares import SMALLEST
from fairlead.model.steps import at_once


def upper_half(cidr: str) -> list[dict[str, str]]:
    """Allocation pools of a subnet for its POST: below them the addresses are the test's own.

    The server starts to look for a free address where a hash of a random id points, so it meets each address of its
    pools once in a while: also one that the test has written down for a member, a client or nobody.
    """
    network = ip_network(cidr)
    middle = network.network_address + network.num_addresses // 2
    return [{"start": str(middle), "end": str(network.broadcast_address - 1)}]


def with_members(pool: Pool, members: tuple[Member, ...], smallest: int = SMALLEST) -> Pool:
    """The pool with these members, which say their ordinals themselves, and with slots as a write gives them."""
    ordinals = (member.ordinal + 1 for member in members)
    numbered = replace(pool, members=members, next_ordinal=max([pool.next_ordinal, *ordinals]))
    return at_once(with_slots(numbered, pool.members, smallest))
