"""Neutron ports for probes of members: one per network, created and deleted here.

The port belongs to the network's owner: a port of another project would show that the network is shared, and a port
with another owner proves nothing, because any project that shares the network can create one with the same name. Port
security is off, because agents also send from a link-local address.
"""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from openstack.exceptions import ConflictException, NotFoundException

from fairlead.octavia_plugin.adoption import ServiceFailed
from fairlead.octavia_plugin.neutron import convert_errors, neutron

OWNER = "ovn-lb-hm:distributed"
"""Device owner that makes ML2/OVN create a `localport`, available on every node."""
DEVICE = "ovn-lb-hm-fairlead-"
"""Prefix of `device_id`, followed by the network's id. The server identifies the port by it
(`model/queries/unmanaged_probe_ports.py`)."""


class NeutronProbePorts:
    """Probe ports, through Octavia's client. All methods raise NotAnswered."""

    def networks(self) -> set[str]:
        with convert_errors():
            found = neutron().ports(device_owner=OWNER)
            return {each.network_id for each in found if each.device_id == f"{DEVICE}{each.network_id}"}

    def settle(self, network_id: str, cidrs: Sequence[str] | None) -> None:
        with convert_errors():
            # a list request never returns 404, so an answer here comes from a working Neutron
            there = _there(network_id)
            try:
                project_id = neutron().get_network(network_id).project_id
            except NotFoundException:
                return  # its ports were deleted before it
            found = [each for each in there if each.project_id == project_id]
            for each in found if cidrs is None else found[1:]:
                neutron().delete_port(each.id, ignore_missing=True)
            if cidrs is None:
                return
            port = found[0] if found else _make(network_id, project_id, cidrs)
        _give_addresses(port, cidrs)


def _there(network_id: str) -> list[Any]:
    """Return the ports of a network; the first is the one in use, because the server takes the lowest id."""
    there = neutron().ports(network_id=network_id, device_owner=OWNER, device_id=f"{DEVICE}{network_id}")
    return sorted(there, key=lambda each: each.id)


def _make(network_id: str, project_id: str, cidrs: Sequence[str]) -> Any:
    """Create a port with all addresses, because agents create its interface as soon as it exists."""
    wanted = {
        "name": f"fairlead-hm-{network_id}",
        "network_id": network_id,
        "project_id": project_id,
        "is_port_security_enabled": False,
        "device_owner": OWNER,
        "device_id": f"{DEVICE}{network_id}",
    }
    subnets = _subnets(network_id)
    ids = [subnets[cidr] for cidr in map(ip_network, cidrs) if cidr in subnets]
    try:
        return neutron().create_port(**wanted, fixed_ips=[{"subnet_id": each} for each in ids])
    except ConflictException:
        return neutron().create_port(**wanted, fixed_ips=[])  # a subnet may have no free address


def _subnets(network_id: str) -> dict[IPv4Network | IPv6Network, str]:
    return {ip_network(each.cidr): each.id for each in neutron().subnets(network_id=network_id)}


def _give_addresses(port: Any, cidrs: Sequence[str]) -> None:
    """Add and remove addresses, one subnet at a time, so that an exhausted subnet does not block others."""
    with convert_errors():
        subnets = _subnets(port.network_id)
        wanted = [subnets[cidr] for cidr in map(ip_network, cidrs) if cidr in subnets]
        four = {identity for cidr, identity in subnets.items() if cidr.version == 4}
        there = list(port.fixed_ips)
        kept = [each for each in there if each["subnet_id"] in wanted or each["subnet_id"] not in four]
        if len(kept) < len(there):
            neutron().update_port(port.id, fixed_ips=kept)
    refused = list[str]()
    for missing in sorted({*wanted} - {each["subnet_id"] for each in kept}):
        try:
            with convert_errors():
                kept = list(neutron().update_port(port.id, fixed_ips=[*kept, {"subnet_id": missing}]).fixed_ips)
        except ServiceFailed as error:
            refused.append(str(error))
    if refused:
        raise ServiceFailed("neutron", "; ".join(refused))
