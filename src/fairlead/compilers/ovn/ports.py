"""Ports as rows of the OVN Northbound database."""

from collections.abc import Iterator

from fairlead.compilers.ovn.router import gateway_attachment, router_attachment, router_port_name
from fairlead.dataplane.ovn import LogicalSwitchPort, pairs
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.local_ip import Mode
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.queries.probe_devices import ProbeDevice, delegate_device, probe_device
from fairlead.model.snapshot import Snapshot

WITHOUT_ROWS = frozenset({PortUse.VIP, PortUse.PROBE, PortUse.FLOATING_IP, PortUse.LOCAL_IP})
"""Uses of ports without a row. With a row for a VIP, translated frames would still carry its port's MAC and be
delivered to that port. OVN answers ARP itself for source addresses of probes and for floating IPs. A port created for a
Local IP is on no VM."""


def port_rows(snapshot: Snapshot, port: Port) -> Iterator[LogicalSwitchPort]:
    if port.use in WITHOUT_ROWS:
        return
    if port.use is PortUse.ROUTER_GATEWAY:
        yield gateway_attachment(snapshot, port)
        return
    if port.use is PortUse.ROUTER_INTERFACE:
        yield router_attachment(port.id, switch=port.network_id, router_port=router_port_name(port.id))
        return
    own = " ".join([port.mac_address, *(str(fixed.address) for fixed in port.fixed_ips)])
    yield LogicalSwitchPort(
        name=port.id,
        switch=port.network_id,
        title=port.name,
        addresses=(own, "unknown") if port.id in snapshot.port_local_ips else (own,),
        port_security=(" ".join([own, *_local_ip_addresses(snapshot, port)]),) if port.port_security_enabled else (),
        options=pairs({"requested-chassis": port.host}) if port.host else (),
        enabled=port.admin_state_up,
    )


def probing_rows(snapshot: Snapshot, network: Network) -> Iterator[LogicalSwitchPort]:
    """Yield the ports used by agents to probe.

    One is a `localport` (ovn-nb(5)): each node that probes has an interface for it, and packets to it never leave the
    node. It exists as long as the network has an address for it. The other one is an ordinary port, used while one node
    probes members on other nodes or on none (delegated probing). It is bound to that node only, even if other nodes
    still have an interface for it (ovn-nb(5), `requested-chassis`).
    """
    device = probe_device(snapshot, network) if snapshot.agents_probe else None
    if device is not None:
        own = _own(device)
        yield LogicalSwitchPort(
            name=device.port_name, switch=network.id, type="localport", addresses=(own,), port_security=(own,)
        )
    chassis = snapshot.covering.get(network.id)
    cover = delegate_device(snapshot, network) if snapshot.agents_probe and chassis else None
    if chassis and cover is not None:
        own, where = _own(cover), pairs({"requested-chassis": chassis})
        yield LogicalSwitchPort(
            name=cover.port_name, switch=network.id, addresses=(own,), port_security=(own,), options=where
        )


def _own(device: ProbeDevice) -> str:
    return " ".join([device.mac, *map(str, device.addresses)])


def _local_ip_addresses(snapshot: Snapshot, port: Port) -> list[str]:
    """Addresses of pass-through Local IPs that a VM has in addition to its own: it receives their packets unchanged and
    has to answer with them."""
    found = (snapshot.local_ips[identity] for identity in snapshot.replica_local_ips.get(port.id, NO_IDS))
    place = port.project_id, port.network_id
    return sorted(
        str(each.address)
        for each in found
        if each.mode is Mode.PASSTHROUGH and (each.project_id, each.network_id) == place
    )
