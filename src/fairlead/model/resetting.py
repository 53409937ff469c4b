"""Where clients are led of whom no member is left, so that somebody resets their connections.

A switch that refuses a connection without a member says so with a reset that new connections take for an answer, and
established ones do not: its number is not in the window (RFC 9293, section 3.10.7.4). So the clients of a pool that
resets are led to a port of the address from which agents probe: there is one on each node, and the agent answers as the
host of a connection would that does not exist.
"""

from collections.abc import Iterator, Set

from fairlead.model.addresses import IPAddress
from fairlead.model.foreign import is_foreign
from fairlead.model.health import HealthKey
from fairlead.model.loadbalancer import DownMember, LoadBalancer, Pool, PoolProtocol
from fairlead.model.network import subnet_with
from fairlead.model.probes import probe_port_id, working_monitor
from fairlead.model.snapshot import Snapshot, member_network

RESET_PORT = 9
"""Where nobody listens: what comes there is for nobody (RFC 863)."""
STREAMS = frozenset(PoolProtocol) - {PoolProtocol.UDP, PoolProtocol.SCTP, PoolProtocol.ANY}


def resets(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool) -> bool:
    """Whether connections of the pool may have to be reset. Datagrams are refused by a switch as well as by anybody."""
    asked = pool.down_member is DownMember.RESET and pool.protocol in STREAMS
    return asked and snapshot.agents_probe and working_monitor(balancer, pool) is not None


def reset_address(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, version: int) -> tuple[str, IPAddress] | None:
    """A network and an address on it from which connections of this family are reset, while members of the pool are
    down; on the VIP's own network, if there is one. None where there is none."""
    found = [
        (network_id, address)
        for network_id, address in _sources(snapshot, balancer, pool, snapshot.down.get(balancer.id, frozenset()))
        if address.version == version
    ]
    return min(found, key=lambda each: (each[0] != balancer.vip.network_id, str(each[1])), default=None)


def reset_networks(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """From which connections may have to be reset, whoever is down."""
    found = (
        network_id
        for pool in balancer.pools
        for network_id, _ in _sources(snapshot, balancer, pool, {each.id for each in pool.members})
    )
    return frozenset(found)


def _sources(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, down: Set[HealthKey]
) -> Iterator[tuple[str, IPAddress]]:
    if not resets(snapshot, balancer, pool):
        return
    lost = {key if isinstance(key, str) else key[0] for key in down}
    for member in pool.members:
        network = snapshot.networks.get(member_network(snapshot, balancer, member)) if member.id in lost else None
        if network is None or is_foreign(network):
            continue
        subnet = subnet_with(network, member.address)
        port = snapshot.ports.get(probe_port_id(subnet.id)) if subnet is not None else None
        if port is not None:
            yield network.id, port.fixed_ips[0].address
