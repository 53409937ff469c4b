"""From which part of a subnet a test lets the server choose addresses."""

from ipaddress import ip_network


def upper_half(cidr: str) -> list[dict[str, str]]:
    """Allocation pools of a subnet for its POST: below them the addresses are the test's own.

    The server starts to look for a free address where a hash of a random id points, so it meets each address of its
    pools once in a while: also one that the test has written down for a member, a client or nobody.
    """
    network = ip_network(cidr)
    middle = network.network_address + network.num_addresses // 2
    return [{"start": str(middle), "end": str(network.broadcast_address - 1)}]
