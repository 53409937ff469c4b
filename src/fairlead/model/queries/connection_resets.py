"""Reset of established connections when no member is up.

A switch that rejects a connection without a member sends a TCP reset that is valid for new connections only;
established ones ignore it, because its sequence number is outside the window (RFC 9293, section 3.10.7.4). Clients of a
pool with DownMember.RESET are therefore forwarded to RESET_PORT at the source address of probes. Every node has this
address, and its agent answers as a host without the connection would.
"""

from collections.abc import Iterator, Set

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.loadbalancer import DownMember, LoadBalancer, Pool, PoolProtocol
from fairlead.model.documents.network import subnet_with
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.probes import enabled_monitor, probe_port_id
from fairlead.model.snapshot import Snapshot, member_network

RESET_PORT = 9
"""Destination port of such connections, where no process listens: the discard port (RFC 863)."""
STREAM_PROTOCOLS = frozenset(PoolProtocol) - {PoolProtocol.UDP, PoolProtocol.SCTP, PoolProtocol.ANY}


def needs_resets(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool) -> bool:
    """Return whether connections of the pool may need resets. A switch rejects UDP and SCTP correctly."""
    asked = pool.down_member is DownMember.RESET and pool.protocol in STREAM_PROTOCOLS
    return asked and snapshot.agents_probe and enabled_monitor(balancer, pool) is not None


def reset_address(snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, version: int) -> tuple[str, IPAddress] | None:
    """Return a network and an address on it that resets connections of the pool with this IP version; None if there is
    none.

    Only members that are down provide an address. The VIP's own network is preferred.
    """
    found = [
        (network_id, address)
        for network_id, address in _sources(snapshot, balancer, pool, snapshot.down.get(balancer.id, frozenset()))
        if address.version == version
    ]
    return min(found, key=lambda each: (each[0] != balancer.vip.network_id, str(each[1])), default=None)


def reset_networks(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """Return the networks that may send resets, for any set of members that are down."""
    found = (
        network_id
        for pool in balancer.pools
        for network_id, _ in _sources(snapshot, balancer, pool, {each.id for each in pool.members})
    )
    return frozenset(found)


def _sources(
    snapshot: Snapshot, balancer: LoadBalancer, pool: Pool, down: Set[HealthKey]
) -> Iterator[tuple[str, IPAddress]]:
    if not needs_resets(snapshot, balancer, pool):
        return
    lost = {key if isinstance(key, str) else key[0] for key in down}
    for member in pool.members:
        network = snapshot.networks.get(member_network(snapshot, balancer, member)) if member.id in lost else None
        if network is None or is_unmanaged(network):
            continue
        subnet = subnet_with(network, member.address)
        port = snapshot.ports.get(probe_port_id(subnet.id)) if subnet is not None else None
        if port is not None:
            yield network.id, port.fixed_ips[0].address
