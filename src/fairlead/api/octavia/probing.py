"""What a health monitor needs besides a load balancer: machines that can be probed, and an address to probe them from.

The address is held by a port, one a subnet, made with the first monitor that needs it. It goes with its subnet.
"""

from collections.abc import Iterator
from datetime import datetime

from fairlead.api.door import ApiError
from fairlead.api.octavia.vip import free_address
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.addresses import choose_mac
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import LOAD_BALANCER_PROBE, FixedIP, Port, find_subnet
from fairlead.model.probes import (
    TRANSPORTS,
    find_port,
    member_network,
    probe_port_id,
    probed_address,
    sourceless_subnets,
)
from fairlead.model.snapshot import Changes, Snapshot, apply_changes


def check_probed(snapshot: Snapshot, balancer: LoadBalancer) -> None:
    """Raises Unsupported for what is asked to be probed and cannot be. A machine that went away later is down."""
    old = snapshot.load_balancers.get(balancer.id)
    known = set(_probed(old)) if old else set()
    for pool in balancer.pools:
        watched = pool.health_monitor is not None and pool.health_monitor.type in TRANSPORTS  # others: the compiler's
        for member in pool.members if watched else ():
            address = probed_address(member)
            if (pool.id, address) not in known and find_port(snapshot, balancer, member) is None:
                network = member_network(snapshot, balancer, member)
                raise Unsupported(
                    f"a health monitor for member {member.address}: {address} is no port of network {network}"
                    + ("" if member.subnet_id else "; if it is on another network, say the member's subnet_id"),
                    balancer.provider,
                )


def make_probe_ports(snapshot: Snapshot, balancer: LoadBalancer, now: datetime) -> tuple[Port, ...]:
    """The ports that are missing. Raises ApiError 409 where a subnet has no address left."""
    ports: list[Port] = []
    for subnet_id, network_id in sorted(sourceless_subnets(snapshot, balancer).items()):
        port = _make(snapshot, network_id, subnet_id, now)
        ports.append(port)
        snapshot = apply_changes(snapshot, Changes(puts=(port,)), snapshot.revision)
    return tuple(ports)


def _probed(balancer: LoadBalancer) -> Iterator[tuple[str, object]]:
    monitored = (pool for pool in balancer.pools if pool.health_monitor)
    return ((pool.id, probed_address(member)) for pool in monitored for member in pool.members)


def _make(snapshot: Snapshot, network_id: str, subnet_id: str, now: datetime) -> Port:
    network = snapshot.networks[network_id]
    subnet = find_subnet(network, subnet_id)
    identity = probe_port_id(subnet_id)
    address = free_address(snapshot, network, subnet, identity) if subnet else None
    if address is None:
        raise ApiError(409, f"No more IP addresses available on subnet {subnet_id}: health monitors need one.")
    return Port(
        id=identity,
        project_id=network.project_id,
        created_at=now,
        name=f"ovn-lb-hm-{subnet_id}",
        network_id=network_id,
        mac_address=choose_mac(identity, lambda mac: mac in snapshot.macs),
        fixed_ips=(FixedIP(subnet_id=subnet_id, address=address),),
        admin_state_up=False,
        device_id=f"ovn-lb-hm-{subnet_id}",
        device_owner=LOAD_BALANCER_PROBE,
    )
