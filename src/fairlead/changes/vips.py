"""Selection of a VIP: a given port, or an address of a subnet or network,
allocated when the load balancer is written."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from fairlead.changes.access import NotFound, can_use_network
from fairlead.changes.addresses import choose_mac, choose_service_address, choose_subnet
from fairlead.changes.caller import ChangeContext
from fairlead.changes.identity import Identity
from fairlead.changes.managed_networks import check_manager
from fairlead.changes.ports import VIP_DEVICE, local_ip_of
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Vip
from fairlead.model.documents.network import FixedIP, Network, Port, PortUse, Subnet, find_subnet
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedPort, Writer, is_unmanaged
from fairlead.model.snapshot import Snapshot

_VIP_USES = (PortUse.VIP.value, "ovn-lb:vip")
"""Device owners of VIP ports: Octavia's, and that of its OVN provider, which creates VIP ports itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionalVipRequest:
    """Requested additional address of the same port."""

    subnet_id: str
    address: IPAddress | None = None
    port_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VipRequest:
    """Requested VIP; None for attributes absent from the request."""

    balancer_id: str
    project_id: str
    new_port_id: str
    """Id of the port, if one is created."""
    port_id: str | None = None
    subnet_id: str | None = None
    network_id: str | None = None
    address: IPAddress | None = None
    additional: tuple[AdditionalVipRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VipHolder:
    """Load balancer that gets a port of its own, with the port's id and name."""

    balancer_id: str
    project_id: str
    port_id: str
    name: str


class VipPort(NamedTuple):
    """Port with the addresses of all VIPs. It is written with the load balancer, as a new or a changed port; an
    unmanaged port is not changed."""

    vips: tuple[Vip, ...]
    port: Port
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNotSpecified(Refusal):
    """The request has neither a port nor a subnet nor a network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VipNeedsPort(Refusal):
    """The network is unmanaged, so its manager must create the VIP's port first."""

    network_id: str
    writer: Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHasDevice(Refusal):
    port_id: str
    device_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHasHost(Refusal):
    port_id: str
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousAddress(Refusal):
    """The given port does not have the requested address, or the request matches several of its addresses."""

    several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressChoiceNotAllowed(Refusal):
    """The caller may not choose the VIP's address. On a shared network only its owner may, as for ports, and on an
    external network only an administrator, as for floating IPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetsOfSeveralNetworks(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class VipsOnSeveralPorts(Refusal):
    """All VIPs of a load balancer must be on one port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VipPortWithoutAddress(Refusal):
    """The given port lacks an address of the subnet; given ports are not extended."""

    port_id: str
    subnet_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateSubnet(Refusal):
    """A load balancer can have one VIP per subnet only."""


def choose_vip(snapshot: Snapshot, asker: ChangeContext, asked: VipRequest) -> VipPort:
    """Return the port and VIPs for a request. Raises Refused."""
    if asked.port_id:
        return _given_port(snapshot, asker.identity, asked, asked.port_id)
    if asked.subnet_id:
        network, subnet = _find_subnet(snapshot, asker.identity, asked.subnet_id)
        if asked.network_id not in (None, network.id):
            raise Refused(NotFound(what=Subnet, id=subnet.id))
    elif asked.network_id:
        network = _find_network(snapshot, asker.identity, asked.network_id)
        subnet = choose_subnet(snapshot, network, asked.address)
    else:
        raise Refused(VipNotSpecified())
    check_manager(network)
    if isinstance(network, UnmanagedNetwork):
        raise Refused(VipNeedsPort(network_id=network.id, writer=network.writer))
    named = any((asked.address, *(each.address for each in asked.additional)))
    if named and not _may_choose_address(asker.identity, network):
        raise Refused(AddressChoiceNotAllowed())
    fixed = choose_service_address(snapshot, network.id, subnet, asked.address, asked.balancer_id)
    more = [_additional(snapshot, asker.identity, network, each, asked.balancer_id) for each in asked.additional]
    _check_distinct_subnets([fixed, *more])
    holder = VipHolder(
        balancer_id=asked.balancer_id,
        project_id=asked.project_id,
        port_id=asked.new_port_id,
        name=f"octavia-lb-{asked.balancer_id}",
    )
    return make_vip_port(snapshot, asker, holder, network, (fixed, *more))


def make_vip_port(
    snapshot: Snapshot, asker: ChangeContext, holder: VipHolder, network: Network, fixed_ips: tuple[FixedIP, ...]
) -> VipPort:
    """Return a new port with these addresses that is deleted with the load balancer."""
    port = Port(
        id=holder.port_id,
        project_id=holder.project_id,
        created_at=asker.now,
        name=holder.name,
        network_id=network.id,
        mac_address=choose_mac(snapshot, holder.balancer_id),
        fixed_ips=fixed_ips,
        admin_state_up=False,
        device_id=f"{VIP_DEVICE}{holder.balancer_id}",
        device_owner=PortUse.VIP.value,
    )
    return VipPort(_vips(port, port.fixed_ips), port, is_new=True)


def _may_choose_address(who: Identity, network: Network) -> bool:
    return who.is_admin if network.external else who.may_change(network.project_id)


def _may_use(who: Identity, network: Network) -> bool:
    """Return whether the caller may have a VIP on the network.
    On an external network, every project with a router gateway there may."""
    return network.external or can_use_network(who, network)


def _given_port(snapshot: Snapshot, who: Identity, asked: VipRequest, port_id: str) -> VipPort:
    """Return the given port as a VIP port; it is released when the load balancer is deleted. Raises Refused."""
    port = snapshot.ports.get(port_id)
    if port is None or not who.may_change(port.project_id):
        raise Refused(NotFound(what=Port, id=port_id))
    check_manager(snapshot.networks.get(port.network_id))
    device_id = port.device_id or local_ip_of(snapshot, port)
    if is_unmanaged(port) and (other := snapshot.vip_owner.get(port.id)) not in (None, asked.balancer_id):
        raise Refused(PortHasDevice(port_id=port.id, device_id=f"{VIP_DEVICE}{other}"))
    if device_id and not is_reserved_for(port, asked.balancer_id):
        raise Refused(PortHasDevice(port_id=port.id, device_id=device_id))
    if port.host and not is_unmanaged(port):
        raise Refused(PortHasHost(port_id=port.id, host=port.host))
    subnet_id = _known_subnet(snapshot, port, asked.subnet_id)
    fixed = [
        fixed
        for fixed in port.fixed_ips
        if subnet_id in (None, fixed.subnet_id) and asked.address in (None, fixed.address)
    ]
    if len(fixed) != 1:
        raise Refused(AmbiguousAddress(several=bool(fixed)))
    more = [_additional_of_port(snapshot, who, port, each) for each in asked.additional]
    _check_distinct_subnets([*fixed, *more])
    if isinstance(port, UnmanagedPort):
        return VipPort(_vips(port, (*fixed, *more)), port, is_new=False)
    used = replace(port, device_id=f"{VIP_DEVICE}{asked.balancer_id}", device_owner=PortUse.VIP.value)
    return VipPort(_vips(used, (*fixed, *more)), used, is_new=False)


def is_reserved_for(port: Port, balancer_id: str) -> bool:
    """Return whether the port was created in advance for this load balancer, as Octavia does."""
    return port.device_owner in _VIP_USES and port.device_id == f"{VIP_DEVICE}{balancer_id}"


def _additional(
    snapshot: Snapshot, who: Identity, network: Network, asked: AdditionalVipRequest, balancer_id: str
) -> FixedIP:
    """Return an additional address for the new port. Raises Refused."""
    subnet = find_subnet(network, asked.subnet_id)
    if subnet is None:
        _find_subnet(snapshot, who, asked.subnet_id)
        raise Refused(SubnetsOfSeveralNetworks())
    if asked.port_id is not None:
        raise Refused(VipsOnSeveralPorts())
    return choose_service_address(snapshot, network.id, subnet, asked.address, balancer_id)


def _known_subnet(snapshot: Snapshot, port: Port, subnet_id: str | None) -> str | None:
    """Return the requested subnet; None if OVN has no name for it, so the address alone must identify it."""
    return None if is_unmanaged(port) and subnet_id not in snapshot.subnet_network else subnet_id


def _additional_of_port(snapshot: Snapshot, who: Identity, port: Port, asked: AdditionalVipRequest) -> FixedIP:
    """Return an additional address of the given port. Raises Refused."""
    if asked.port_id not in (None, port.id):
        raise Refused(VipsOnSeveralPorts())
    subnet_id = _known_subnet(snapshot, port, asked.subnet_id)
    for fixed in port.fixed_ips:
        wanted = asked.address in (None, fixed.address)
        if wanted and (fixed.subnet_id == subnet_id or (subnet_id is None and asked.address is not None)):
            return fixed
    if not is_unmanaged(port) and _find_subnet(snapshot, who, asked.subnet_id)[0].id != port.network_id:
        raise Refused(SubnetsOfSeveralNetworks())
    raise Refused(VipPortWithoutAddress(port_id=port.id, subnet_id=asked.subnet_id))


def _check_distinct_subnets(fixed: list[FixedIP]) -> None:
    if len({each.subnet_id for each in fixed}) < len(fixed):
        raise Refused(DuplicateSubnet())


def _vips(port: Port, fixed: Iterable[FixedIP]) -> tuple[Vip, ...]:
    return tuple(
        Vip(address=each.address, port_id=port.id, subnet_id=each.subnet_id, network_id=port.network_id)
        for each in fixed
    )


def _find_subnet(snapshot: Snapshot, who: Identity, subnet_id: str) -> tuple[Network, Subnet]:
    network = snapshot.networks.get(snapshot.subnet_network.get(subnet_id, ""))
    subnet = find_subnet(network, subnet_id) if network else None
    if network is None or subnet is None or not _may_use(who, network):
        raise Refused(NotFound(what=Subnet, id=subnet_id))
    return network, subnet


def _find_network(snapshot: Snapshot, who: Identity, network_id: str) -> Network:
    network = snapshot.networks.get(network_id)
    if network is None or not _may_use(who, network):
        raise Refused(NotFound(what=Network, id=network_id))
    return network
