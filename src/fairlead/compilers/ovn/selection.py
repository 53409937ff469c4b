"""Which fields of a packet the choice of a member depends on, by the algorithm of the pool (ADR 90).

Without selection fields a group of Open vSwitch chooses by `dp_hash`, and one flow of the datapath serves all
connections of a bucket. In the kernel that hash is random for each socket of the same kernel, depends on the random
flow label of an IPv6 packet, and has a seed of its own on each host and boot: it spreads evenly, and promises nothing
else. With selection fields ovs-vswitchd computes the hash, the same on every node, for the price of one upcall and one
flow of the datapath for each connection.
"""

from fairlead.dataplane.ovn import SOURCE_IPV6
from fairlead.model.documents import loadbalancer as lb

SOURCE_PORT = "tp_src"


def selection_fields(abilities: frozenset[str], pool: lb.Pool | None, version: int) -> tuple[str, ...]:
    """The value of `Load_Balancer:selection_fields` (ovn-nb(5)), sorted.

    Persistence is the same choice as SOURCE_IP, by hash: OVN's own (`affinity_timeout`) drops the first packet of every
    client to learn from it, and in user space all its retransmissions die too. A hash forgets nothing, so a client
    stays at least as long as any time-out asks. OVN passes `ip_src` on as the IPv4 field. Where it has none for IPv6
    the MAC decides: the load balancer is on the client's own switch, where that is the client's as well.
    """
    if pool is None or not pool.goes_by_fields:
        return ()
    source = "ip_src" if version == 4 else SOURCE_IPV6 if SOURCE_IPV6 in abilities else "eth_src"
    return (source,) if pool.hashes_source_only else (source, SOURCE_PORT)
