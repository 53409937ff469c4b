"""Where a VIP comes from: a port that is given, or an address of a subnet or network, taken when it is written."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from fairlead.api.fields import Values
from fairlead.api.octavia.caller import Caller
from fairlead.api.octavia.errors import bad_request, disallowed, missing_subresource
from fairlead.changes.addresses import choose_mac, choose_service_address, choose_subnet
from fairlead.changes.identity import Identity
from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Vip
from fairlead.model.network import FixedIP, Network, Port, PortUse, Subnet, find_subnet
from fairlead.model.snapshot import Snapshot


class VipPort(NamedTuple):
    vips: tuple[Vip, ...]
    port: Port
    """To be written with the load balancer: new, or given and now in use. It has the addresses of all VIPs."""
    is_new: bool


def choose_vip(snapshot: Snapshot, values: Values, caller: Caller, balancer_id: str) -> VipPort:
    """Raises ApiError 400 for what does not fit together; and Refused, for an address that is taken for one."""
    origin = caller.origin
    if values.get("vip_port_id"):
        return _given_port(snapshot, values, caller, balancer_id)
    if values.get("vip_subnet_id"):
        network, subnet = _subnet(snapshot, values, caller)
    elif values.get("vip_network_id"):
        network = _network(snapshot, values["vip_network_id"], caller)
        subnet = choose_subnet(snapshot, network, values.get("vip_address"))
    else:
        raise bad_request("VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id.")
    more_values = values.get("additional_vips") or ()
    _check_choice(network, [values.get("vip_address"), *(entry.get("ip_address") for entry in more_values)], caller)
    fixed = choose_service_address(snapshot, network.id, subnet, values.get("vip_address"), balancer_id)
    more = [_additional(snapshot, network, entry, caller, balancer_id) for entry in more_values]
    _refuse_twice([fixed, *more])
    port = Port(
        id=origin.new_id(),
        project_id=origin.project_id,
        created_at=origin.now,
        name=f"octavia-lb-{balancer_id}",
        network_id=network.id,
        mac_address=choose_mac(snapshot, balancer_id),
        fixed_ips=(fixed, *more),
        admin_state_up=False,
        device_id=f"lb-{balancer_id}",
        device_owner=PortUse.VIP.value,
    )
    return VipPort(tuple(_vip(port, each) for each in port.fixed_ips), port, is_new=True)


def _given_port(snapshot: Snapshot, values: Values, caller: Caller, balancer_id: str) -> VipPort:
    """The port becomes the load balancer's, and is given back when that goes."""
    port = snapshot.ports.get(values["vip_port_id"])
    if port is None or not caller.identity.may_change(port.project_id):
        raise missing_subresource("Port", values["vip_port_id"])
    if port.device_id:
        raise bad_request(f"Port {port.id} is already used by device {port.device_id} ")
    if port.host:
        raise bad_request(f"Port {port.id} is bound to host {port.host}: a workload has it.")
    fixed = [
        fixed
        for fixed in port.fixed_ips
        if values.get("vip_subnet_id") in (None, fixed.subnet_id) and values.get("vip_address") in (None, fixed.address)
    ]
    if len(fixed) != 1:
        raise bad_request(
            "VIP port's subnet could not be determined. Please specify either a VIP subnet or address."
            if fixed
            else "Specified VIP address not found on the specified VIP port."
        )
    more = [_additional_of(port, entry) for entry in values.get("additional_vips") or ()]
    _refuse_twice([*fixed, *more])
    used = replace(port, device_id=f"lb-{balancer_id}", device_owner=PortUse.VIP.value)
    return VipPort(tuple(_vip(used, each) for each in (*fixed, *more)), used, is_new=False)


def _check_choice(network: Network, addresses: Iterable[IPAddress | None], caller: Caller) -> None:
    """On a network that is only shared, which address a VIP gets is not for the guest to say: what holds for a port's
    `fixed_ips` holds for a VIP. Raises ApiError 403."""
    if any(addresses) and not caller.identity.may_change(network.project_id):
        raise disallowed("(rule:create_port and (rule:create_port:fixed_ips:ip_address))")


def _additional(snapshot: Snapshot, network: Network, entry: Values, caller: Caller, balancer_id: str) -> FixedIP:
    """A further address of the port that will be made."""
    subnet = find_subnet(network, entry["subnet_id"])
    if subnet is None:
        _find_subnet(snapshot, entry["subnet_id"], caller)
        raise bad_request("All VIP subnets must belong to the same network.")
    if entry.get("port_id") is not None:
        raise bad_request("port_id of additional_vips: all VIPs are on one port; name it as vip_port_id.")
    return choose_service_address(snapshot, network.id, subnet, entry.get("ip_address"), balancer_id)


def _additional_of(port: Port, entry: Values) -> FixedIP:
    """A further address that the given port has: none is added to what is somebody's own."""
    for fixed in port.fixed_ips:
        wanted = entry.get("ip_address") in (None, fixed.address) and entry.get("port_id") in (None, port.id)
        if fixed.subnet_id == entry["subnet_id"] and wanted:
            return fixed
    raise bad_request(f"Port {port.id} has no such address on subnet {entry['subnet_id']}.")


def _refuse_twice(fixed: list[FixedIP]) -> None:
    if len({each.subnet_id for each in fixed}) < len(fixed):
        raise bad_request("Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet.")


def _vip(port: Port, fixed: FixedIP) -> Vip:
    return Vip(address=fixed.address, port_id=port.id, subnet_id=fixed.subnet_id, network_id=port.network_id)


def _subnet(snapshot: Snapshot, values: Values, caller: Caller) -> tuple[Network, Subnet]:
    network, subnet = _find_subnet(snapshot, values["vip_subnet_id"], caller)
    if values.get("vip_network_id") not in (None, network.id):
        raise bad_request("Supplied VIP subnet doesn't belong to the supplied VIP network.")
    return network, subnet


def _find_subnet(snapshot: Snapshot, subnet_id: str, caller: Caller) -> tuple[Network, Subnet]:
    """Raises ApiError 400; one that the caller may not see is none."""
    network = snapshot.networks.get(snapshot.subnet_network.get(subnet_id, ""))
    subnet = find_subnet(network, subnet_id) if network else None
    if network is None or subnet is None or not may_use(network, caller.identity):
        raise missing_subresource("Subnet", subnet_id)
    return network, subnet


def may_use(network: Network, identity: Identity) -> bool:
    """What a caller may not see is not there for him."""
    return network.shared or identity.may_see(network.project_id)


def _network(snapshot: Snapshot, network_id: str, caller: Caller) -> Network:
    network = snapshot.networks.get(network_id)
    if network is None or not may_use(network, caller.identity):
        raise missing_subresource("Network", network_id)
    return network
