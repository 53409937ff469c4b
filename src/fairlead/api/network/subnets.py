"""Subnets: parts of their network's document, so that no two overlap and none is lost.

The address modes of IPv6 are kept, shown, and decide how a port's address is chosen. Not here, and refused: subnet
pools, segments, service types, prefix delegation.
"""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.api.fields import Values
from fairlead.api.listing import Item
from fairlead.api.network import errors, limits, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, refused
from fairlead.api.network.collection import (
    Collection,
    Filters,
    RequestContext,
    Viewpoint,
    encode_standard,
    given,
    network_owner,
    sift_nothing,
    standard_values,
)
from fairlead.api.network.networks import check_mtu
from fairlead.changes import access, addresses
from fairlead.changes.identity import Identity
from fairlead.changes.resources import revised
from fairlead.model.addresses import IPAddress, IPNetwork, is_usable
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import AllocationPool, Ipv6Mode, Network, PortUse, Subnet, find_subnet
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

_NO_POOLS = "subnet pools are not supported; give a cidr"
ATTRIBUTES = {
    **STANDARD,
    "network_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "cidr": Attribute(parse=parsers.cidr, put=False, nullable=True),
    "ip_version": Attribute(parse=parsers.ip_version, put=False),
    "gateway_ip": Attribute(parse=parsers.address, nullable=True),
    "allocation_pools": Attribute(parse=parsers.allocation_pools, nullable=True, sifts=False),
    "dns_nameservers": Attribute(parse=parsers.nameservers, nullable=True, sifts=False),
    "host_routes": Attribute(parse=parsers.routes(), nullable=True, sifts=False),
    "enable_dhcp": Attribute(parse=parsers.boolean),
    "ipv6_address_mode": Attribute(parse=parsers.word_of(Ipv6Mode), put=False, nullable=True),
    "ipv6_ra_mode": Attribute(parse=parsers.word_of(Ipv6Mode), put=False, nullable=True),
    "subnetpool_id": Attribute(parse=parsers.only(because=_NO_POOLS), put=False, nullable=True),
    "use_default_subnetpool": Attribute(parse=parsers.only(False, because=_NO_POOLS), put=False),
    "prefixlen": refused(because=_NO_POOLS, put=False),
    "dns_publish_fixed_ip": refused(False, because="DNS names are not supported"),
    "segment_id": Attribute(parse=parsers.only(because="segments are not supported"), nullable=True),
    "service_types": Attribute(parse=parsers.only([], because="service types are not supported"), sifts=False),
}


def encode_subnet(view: Viewpoint, subnet: Subnet) -> Item:
    network_id = view.snapshot.subnet_network[subnet.id]
    return {
        **encode_standard(view, subnet, network_owner(network_id)),
        "network_id": network_id,
        "cidr": str(subnet.cidr),
        "ip_version": subnet.cidr.version,
        "gateway_ip": None if subnet.gateway is None else str(subnet.gateway),
        "allocation_pools": [{"start": str(pool.start), "end": str(pool.end)} for pool in subnet.allocation_pools],
        "dns_nameservers": [str(server) for server in subnet.dns_nameservers],
        "host_routes": [parsers.encode_route(route) for route in subnet.host_routes],
        "enable_dhcp": subnet.enable_dhcp,
        "ipv6_address_mode": subnet.ipv6_address_mode,
        "ipv6_ra_mode": subnet.ipv6_ra_mode,
        "subnetpool_id": None,
        "use_default_subnetpool": False,
        "segment_id": None,
        "service_types": [],
    }


def create_subnet(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    network = snapshot.networks.get(values["network_id"])
    if network is None or not access.sees_network(context.caller, network):
        raise errors.not_found("network", values["network_id"])
    standard = standard_values(context, values)
    policy.check(context.caller.may_change(network.project_id), "create_subnet")
    cidr = _cidr(values)
    gateway = values["gateway_ip"] if "gateway_ip" in values else addresses.default_gateway(cidr)
    subnet = Subnet(
        **standard,
        cidr=cidr,
        gateway=gateway,
        allocation_pools=_pools(values.get("allocation_pools"), cidr, gateway),
        enable_dhcp=values.get("enable_dhcp", True),
        dns_nameservers=values.get("dns_nameservers") or (),
        host_routes=values.get("host_routes") or (),
        ipv6_address_mode=values.get("ipv6_address_mode"),
        ipv6_ra_mode=values.get("ipv6_ra_mode"),
    )
    check_subnet(subnet)
    check_dhcp(subnet)
    _check_room(network, subnet)
    changed = replace(network, subnets=(*network.subnets, subnet))
    check_mtu(changed)
    return Changes(puts=(changed,))


def update_subnet(snapshot: Snapshot, context: RequestContext, subnet: Subnet, values: Values) -> Changes:
    fields = given(values, ["name", "description", "enable_dhcp"])
    fields |= {name: values[name] or () for name in ("dns_nameservers", "host_routes") if name in values}
    if "gateway_ip" in values:
        fields["gateway"] = values["gateway_ip"]
    if "allocation_pools" in values:
        fields["allocation_pools"] = _pools(
            values["allocation_pools"], subnet.cidr, fields.get("gateway", subnet.gateway)
        )
    changed = revised(subnet, replace(subnet, **fields), context.now)
    check_subnet(changed)
    if changed.enable_dhcp and not subnet.enable_dhcp:
        check_dhcp(changed)
    if changed.gateway != subnet.gateway:
        _check_gateway_unused(snapshot, subnet)
        _check_gateway_free(snapshot, changed)
    return put_subnet(snapshot, changed)


def put_subnet(snapshot: Snapshot, subnet: Subnet) -> Changes:
    network = network_of(snapshot, subnet)
    changed = tuple(subnet if other.id == subnet.id else other for other in network.subnets)
    return (
        Changes()
        if changed == network.subnets
        else Changes(puts=(replace(network, subnets=changed),), rests_on_absence=True)
    )


def delete_subnet(snapshot: Snapshot, subnet: Subnet) -> Changes:
    """A VIP's address counts too: its port has it. The port of probes was made for the subnet, and goes with it."""
    network = network_of(snapshot, subnet)
    ports = [snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS)]
    there = [port for port in ports if any(fixed.subnet_id == subnet.id for fixed in port.fixed_ips)]
    if any(port.use is not PortUse.PROBE for port in there):
        raise errors.subnet_in_use(subnet.id)
    rest = tuple(other for other in network.subnets if other.id != subnet.id)
    gone = tuple(Owner(Kind.PORT, port.id) for port in there)
    return Changes(puts=(replace(network, subnets=rest),), deletes=gone, rests_on_absence=True)


def network_of(snapshot: Snapshot, subnet: Subnet) -> Network:
    return snapshot.networks[snapshot.subnet_network[subnet.id]]


def check_subnet(subnet: Subnet) -> None:
    """Raises ApiError for parts that do not fit together."""
    version = subnet.cidr.version
    if subnet.gateway is not None:
        _check_version(subnet.gateway, version, "gateway_ip")
        if not is_usable(subnet.gateway, subnet.cidr):
            raise errors.invalid_input("Gateway is not valid on subnet")
    for server in subnet.dns_nameservers:
        _check_version(server, version, "dns_nameserver")
    for route in subnet.host_routes:
        _check_version(route.destination, version, "destination")
        _check_version(route.nexthop, version, "nexthop")
    addresses.check_pools(subnet.allocation_pools, subnet.cidr)
    addresses.check_gateway(subnet.allocation_pools, subnet.gateway)
    _check_ipv6_modes(subnet)


def check_dhcp(subnet: Subnet) -> None:
    """Where addresses cannot be handed out. Raises ApiError 400."""
    cidr = subnet.cidr
    if not subnet.enable_dhcp:
        return
    if cidr.prefixlen > cidr.max_prefixlen - 2:
        raise errors.invalid_input("Subnet has a prefix length that is incompatible with DHCP service enabled")
    if cidr.is_multicast:
        raise errors.invalid_input("Multicast IP subnet is not supported if enable_dhcp is True")
    if cidr.is_loopback:
        raise errors.invalid_input("Loopback IP subnet is not supported if enable_dhcp is True")


def _cidr(values: Values) -> IPNetwork:
    cidr: IPNetwork | None = values.get("cidr")
    if cidr is None:
        raise errors.bad_resource("subnets", "a subnetpool must be specified in the absence of a cidr")
    if "ip_version" in values:
        _check_version(cidr, values["ip_version"], "cidr")
    if cidr.prefixlen == 0:
        raise errors.invalid_input("0 is not allowed as CIDR prefix length")
    return cidr


def _pools(
    wanted: tuple[AllocationPool, ...] | None, cidr: IPNetwork, gateway: IPAddress | None
) -> tuple[AllocationPool, ...]:
    return addresses.default_pools(cidr, gateway) if wanted is None else wanted


def _check_version(value: IPAddress | IPNetwork, version: int, name: str) -> None:
    if value.version != version:
        raise errors.invalid_input(f"{name} '{value}' does not match the ip_version '{version}'")


def _check_ipv6_modes(subnet: Subnet) -> None:
    modes = {"ipv6_ra_mode": subnet.ipv6_ra_mode, "ipv6_address_mode": subnet.ipv6_address_mode}
    given_modes = {name: mode for name, mode in modes.items() if mode is not None}
    if not given_modes:
        return
    if subnet.cidr.version == 4:
        raise errors.invalid_input(f"{next(iter(given_modes))} is not valid when ip_version is 4")
    if not subnet.enable_dhcp:
        raise errors.invalid_input("ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False")
    if len(set(given_modes.values())) > 1:
        raise errors.invalid_input(
            f"ipv6_ra_mode set to '{subnet.ipv6_ra_mode}' with ipv6_address_mode set to '{subnet.ipv6_address_mode}' "
            "is not valid. If both attributes are set, they must be the same value"
        )
    if addresses.is_automatic(subnet) and subnet.cidr.prefixlen != 64:
        raise errors.invalid_input(
            f"Invalid CIDR {subnet.cidr} for IPv6 address mode. OpenStack uses the EUI-64 address format, which "
            "requires the prefix to be /64"
        )


def _check_room(network: Network, subnet: Subnet) -> None:
    if len(network.subnets) >= limits.SUBNETS:
        raise errors.invalid_input(f"a network has at most {limits.SUBNETS} subnets")
    if any(subnet.cidr.version == other.cidr.version and subnet.cidr.overlaps(other.cidr) for other in network.subnets):
        raise errors.invalid_input(
            f"Requested subnet with cidr: {subnet.cidr} for network: {network.id} overlaps with another subnet"
        )


def _check_gateway_unused(snapshot: Snapshot, subnet: Subnet) -> None:
    """A router's interface keeps the gateway's address. Raises ApiError 409."""
    if subnet.gateway is None:
        return
    port_id = snapshot.addresses.get((snapshot.subnet_network[subnet.id], subnet.gateway))
    if port_id is not None and snapshot.ports[port_id].use is PortUse.ROUTER_INTERFACE:
        raise errors.gateway_in_use(subnet.gateway, port_id)


def _check_gateway_free(snapshot: Snapshot, subnet: Subnet) -> None:
    """A gateway is a router's address: no other port may have it already. Raises ApiError 409."""
    if subnet.gateway is None:
        return
    port_id = snapshot.addresses.get((snapshot.subnet_network[subnet.id], subnet.gateway))
    if port_id is not None and snapshot.ports[port_id].use is not PortUse.ROUTER_INTERFACE:
        raise errors.gateway_in_use(subnet.gateway, port_id)


def _find(snapshot: Snapshot, subnet_id: str) -> Subnet | None:
    network = snapshot.networks.get(snapshot.subnet_network.get(subnet_id, ""))
    return None if network is None else find_subnet(network, subnet_id)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[Subnet]:
    if "id" in filters:
        return [found for subnet_id in filters["id"] if (found := _find(snapshot, subnet_id)) is not None]
    if "network_id" in filters:
        networks = [snapshot.networks[item] for item in filters["network_id"] if item in snapshot.networks]
        return [subnet for network in networks for subnet in network.subnets]
    return [subnet for network in snapshot.networks.values() for subnet in network.subnets]


def _owner(snapshot: Snapshot, subnet: Subnet) -> Owner:
    return network_owner(snapshot.subnet_network[subnet.id])


def _sees(snapshot: Snapshot, caller: Identity, subnet: Subnet) -> bool:
    return access.sees_subnet(caller, network_of(snapshot, subnet), subnet)


def _may_change(snapshot: Snapshot, caller: Identity, subnet: Subnet) -> bool:
    return caller.may_change(network_of(snapshot, subnet).project_id) or caller.may_change(subnet.project_id)


SUBNETS: Collection[Subnet] = Collection(
    singular="subnet",
    plural="subnets",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=_may_change,
    encode=encode_subnet,
    sift=sift_nothing,
    create=create_subnet,
    update=update_subnet,
    delete=delete_subnet,
    put=put_subnet,
)
