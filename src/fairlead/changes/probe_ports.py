"""Source addresses of probes: the ports that a health monitor needs in addition to its load balancer or Local IP.

One port per subnet holds the address. It is created with the first monitor that needs it, and deleted with the subnet.
On unmanaged networks, the service that keeps the load balancer creates a port once it sees the monitor. Where agents
probe, a second port serves the node with delegated probes (ADR 46).
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.changes.addresses import choose_mac, free_address
from fairlead.changes.refusal import Refusal, Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import FixedIP, Port, PortUse, find_subnet
from fairlead.model.documents.unmanaged import SUPPORTED_WRITERS, UnmanagedNetwork
from fairlead.model.queries.probe_devices import subnets_without_delegate_port
from fairlead.model.queries.probes import Monitored, delegate_port_id, probe_port_id, subnets_without_probe_source
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAddressForProbes(Refusal):
    """The subnet has no free address."""

    subnet_id: str


def make_probe_ports(snapshot: Snapshot, probing: Monitored, now: datetime) -> tuple[Port, ...]:
    """Return the missing ports for the probes of this document.

    Raises Refused if a subnet has no free address, and Unsupported on an unmanaged network where no service creates the
    port.
    """
    ports: list[Port] = []
    for subnet_id, network_id in sorted(subnets_without_probe_source(snapshot, probing).items()):
        if isinstance(network := snapshot.networks[network_id], UnmanagedNetwork):
            _check_created_by_manager(snapshot, network, probing)
            continue
        port = _make(snapshot, network_id, subnet_id, now)
        ports.append(port)
        snapshot = apply_changes(snapshot, Changes(puts=(port,)), snapshot.revision)
    return (*ports, *make_delegate_ports(snapshot, probing, now))


def make_delegate_ports(snapshot: Snapshot, probing: Monitored, now: datetime) -> tuple[Port, ...]:
    """Return the missing ports for delegated probes.
    Subnets without a free address are skipped, because the monitor works without delegation."""
    ports: list[Port] = []
    for subnet_id, network_id in sorted(subnets_without_delegate_port(snapshot, probing).items()):
        port = _find(snapshot, network_id, subnet_id, delegate_port_id(subnet_id), now)
        if port is not None:
            ports.append(port)
            snapshot = apply_changes(snapshot, Changes(puts=(port,)), snapshot.revision)
    return tuple(ports)


def _check_created_by_manager(snapshot: Snapshot, network: UnmanagedNetwork, probing: Monitored) -> None:
    """Check that a service will create the probe port on an unmanaged network. Raises Unsupported otherwise, also if
    the network has no project, because its port could not be distinguished from another tenant's."""
    is_kept = isinstance(probing, LoadBalancer) and probing.kept is not None
    if is_kept and network.writer in SUPPORTED_WRITERS and network.project_id:
        return
    whom = "members" if snapshot.agents_probe else "IPv4 members"
    why = f"which {network.writer.program} manages"
    if is_kept and network.writer in SUPPORTED_WRITERS:
        why = "which has no project in the Northbound database"
    asked = f"health monitors of {whom} on network {network.id}, {why}"
    raise Unsupported(asked, probing.provider if isinstance(probing, LoadBalancer) else "")


def _make(snapshot: Snapshot, network_id: str, subnet_id: str, now: datetime) -> Port:
    port = _find(snapshot, network_id, subnet_id, probe_port_id(subnet_id), now)
    if port is None:
        raise Refused(NoAddressForProbes(subnet_id=subnet_id))
    return port


def _find(snapshot: Snapshot, network_id: str, subnet_id: str, identity: str, now: datetime) -> Port | None:
    """Return the port; None if the subnet has no free address."""
    network = snapshot.networks[network_id]
    subnet = find_subnet(network, subnet_id)
    address = free_address(snapshot, network_id, subnet, identity) if subnet else None
    if address is None:
        return None
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
