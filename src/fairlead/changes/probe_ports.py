"""What a health monitor needs besides a load balancer: an address from which members are probed.

It is held by a port, one a subnet, made with the first monitor that needs it. It goes with its subnet.
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.addresses import choose_mac, free_address
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import FixedIP, Port, PortUse, find_subnet
from fairlead.model.probes import (
    probe_port_id,
    sourceless_subnets,
)
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes, apply_changes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAddressForProbes(Refusal):
    """The subnet has none left."""

    subnet_id: str


def make_probe_ports(snapshot: Snapshot, balancer: LoadBalancer, now: datetime) -> tuple[Port, ...]:
    """The ports that are missing. Raises Refused where a subnet has no address left."""
    ports: list[Port] = []
    for subnet_id, network_id in sorted(sourceless_subnets(snapshot, balancer).items()):
        port = _make(snapshot, network_id, subnet_id, now)
        ports.append(port)
        snapshot = apply_changes(snapshot, Changes(puts=(port,)), snapshot.revision)
    return tuple(ports)


def _make(snapshot: Snapshot, network_id: str, subnet_id: str, now: datetime) -> Port:
    network = snapshot.networks[network_id]
    subnet = find_subnet(network, subnet_id)
    identity = probe_port_id(subnet_id)
    address = free_address(snapshot, network_id, subnet, identity) if subnet else None
    if address is None:
        raise Refused(NoAddressForProbes(subnet_id=subnet_id))
    return Port(
        id=identity,
        project_id=network.project_id,
        created_at=now,
        name=f"ovn-lb-hm-{subnet_id}",
        network_id=network_id,
        mac_address=choose_mac(snapshot, identity),
        fixed_ips=(FixedIP(subnet_id=subnet_id, address=address),),
        admin_state_up=False,
        device_id=f"ovn-lb-hm-{subnet_id}",
        device_owner=PortUse.PROBE.value,
    )
