"""Pools for tests: allocation pools of addresses, and pools of members."""

from dataclasses import replace
from ipaddress import ip_network

from fairlead.model.documents.apportionment import MIN_SLOTS
from fairlead.model.documents.loadbalancer import Member, Pool
from fairlead.model.documents.pool_slot_tables import with_slots
from fairlead.runtime.steps import run_to_completion


def upper_half(cidr: str) -> list[dict[str, str]]:
    """Allocation pools for a subnet's POST: the upper half of the CIDR; the test assigns addresses of the lower half.

    The server starts its search for a free address at a hash of a random id, so it would sometimes allocate an address
    that the test uses for a member, a client or an unused address.
    """
    network = ip_network(cidr)
    middle = network.network_address + network.num_addresses // 2
    return [{"start": str(middle), "end": str(network.broadcast_address - 1)}]


def with_members(pool: Pool, members: tuple[Member, ...], smallest: int = MIN_SLOTS) -> Pool:
    """Pool with these members, which have their ordinals, and with the slots that a write computes."""
    ordinals = (member.ordinal + 1 for member in members)
    numbered = replace(pool, members=members, next_ordinal=max([pool.next_ordinal, *ordinals]))
    return run_to_completion(with_slots(numbered, pool.members, smallest))
