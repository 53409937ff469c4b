"""Ports as rows of the OVN Northbound database."""

from collections.abc import Iterator

from fairlead.compilers.ovn.router import gateway_attachment, router_attachment, router_port_name
from fairlead.dataplane.ovn import LogicalSwitchPort, pairs
from fairlead.model.indexes import NO_IDS
from fairlead.model.local_ip import Mode
from fairlead.model.network import Network, Port, PortUse
from fairlead.model.probe_devices import ProbeDevice, cover_device, probe_device
from fairlead.model.snapshot import Snapshot

WITHOUT_ROWS = frozenset({PortUse.VIP, PortUse.PROBE, PortUse.FLOATING_IP, PortUse.LOCAL_IP})
"""A VIP's port has no row: after translation a frame would still carry that port's MAC, and be delivered to it. Nor has
one that only holds the address of probes or of a floating IP, for which OVN answers ARP by itself, nor one that was
made for a Local IP, which is on no machine."""


def port_rows(snapshot: Snapshot, port: Port) -> Iterator[LogicalSwitchPort]:
    if port.use in WITHOUT_ROWS:
        return
    if port.use is PortUse.ROUTER_GATEWAY:
        yield gateway_attachment(port)
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
        port_security=(" ".join([own, *_lent(snapshot, port)]),) if port.port_security_enabled else (),
        options=pairs({"requested-chassis": port.host}) if port.host else (),
        enabled=port.admin_state_up,
    )


def probing_rows(snapshot: Snapshot, network: Network) -> Iterator[LogicalSwitchPort]:
    """The port from which agents probe: each node that has to has a device behind it, and nothing that is sent there
    leaves the node (ovn-nb(5), `localport`). It stays while the network has an address for it, probed or not.

    And an ordinary one, while one of them probes who is on other nodes, or on none: it is on that node alone, whoever
    else has a device for it from before (ovn-nb(5), `requested-chassis`)."""
    device = probe_device(snapshot, network) if snapshot.agents_probe else None
    if device is not None:
        own = _own(device)
        yield LogicalSwitchPort(
            name=device.port_name, switch=network.id, type="localport", addresses=(own,), port_security=(own,)
        )
    chassis = snapshot.covering.get(network.id)
    cover = cover_device(snapshot, network) if snapshot.agents_probe and chassis else None
    if chassis and cover is not None:
        own, where = _own(cover), pairs({"requested-chassis": chassis})
        yield LogicalSwitchPort(
            name=cover.port_name, switch=network.id, addresses=(own,), port_security=(own,), options=where
        )


def _own(device: ProbeDevice) -> str:
    return " ".join([device.mac, *map(str, device.addresses)])


def _lent(snapshot: Snapshot, port: Port) -> list[str]:
    """The addresses of Local IPs that the machine has beside its own: packets for them arrive there as they were sent,
    and so it has to answer."""
    found = (snapshot.local_ips[identity] for identity in snapshot.replica_local_ips.get(port.id, NO_IDS))
    place = port.project_id, port.network_id
    return sorted(
        str(each.address)
        for each in found
        if each.mode is Mode.PASSTHROUGH and (each.project_id, each.network_id) == place
    )
