"""Changes of subnets, which are parts of their network's document, so overlaps and lost updates are impossible."""

from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes import access, addresses
from fairlead.changes.access import Verb, network_of
from fairlead.changes.identity import Identity
from fairlead.changes.ids import check_new
from fairlead.changes.networks import check_mtu, ports_on
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import with_update_time
from fairlead.model.documents.addresses import IPAddress, IPNetwork, is_inside, is_usable, overlaps
from fairlead.model.documents.network import SYSTEM_USES, Ipv6Mode, Network, PortUse, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import find_host_within
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot

MAX_SUBNETS = 256
"""Maximum subnets of one network: they are one document, and the allocation of an address scans them."""

# Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class UnboundedCidr(Refusal):
    """The subnet would contain all addresses of its IP version."""

    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class IpVersionMismatch(Refusal):
    """The value of this field has another IP version than the subnet."""

    field: str
    value: IPAddress | IPNetwork
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOutside(Refusal):
    gateway: IPAddress
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class TooSmallForDhcp(Refusal):
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class MulticastWithDhcp(Refusal):
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopbackWithDhcp(Refusal):
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipv6ModeOfIpv4(Refusal):
    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipv6ModeWithoutDhcp(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ipv6ModesDiffer(Refusal):
    advertised: Ipv6Mode
    addresses: Ipv6Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Slaac64Required(Refusal):
    """The subnet must be a /64, because addresses derived from a MAC need a prefix of 64 bits (RFC 4291, 2.5.1)."""

    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManySubnets(Refusal):
    network_id: str
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetsOverlap(Refusal):
    cidr: IPNetwork
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedElsewhere(Refusal):
    """The subnet overlaps another announced network, so one address would be two VIPs."""

    cidr: IPNetwork
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedAtHost(Refusal):
    """The subnet contains an address or prefix of this host, which hosts would then announce."""

    cidr: IPNetwork
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayInUse(Refusal):
    gateway: IPAddress
    port_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetInUse(Refusal):
    """Ports have addresses of the subnet."""

    subnet_id: str


# Requests


def create_subnet(snapshot: Snapshot, asker: Identity, network_id: str, subnet: Subnet) -> Changes:
    """Create a subnet. Raises Refused."""
    network = access.find_network(snapshot, asker, network_id)
    access.check_owner(asker, subnet.project_id, Subnet)
    access.check(asker.may_change(network.project_id), Verb.CREATE, Subnet)
    access.check(asker.is_admin or not network.announced, Verb.CREATE, Subnet)
    check_new(snapshot.subnet_network, subnet.id)
    _check_parts(subnet)
    _check_dhcp(subnet)
    _check_limits(network, subnet)
    changed = replace(network, subnets=(*network.subnets, subnet))
    check_mtu(changed)
    if network.announced:
        _check_announced_once(snapshot, network, subnet)
    return Changes(puts=(changed,), requires_unchanged_model=network.announced)


def update_subnet(snapshot: Snapshot, asker: Identity, old: Subnet, new: Subnet, now: datetime) -> Changes:
    """Update a subnet. Raises Refused."""
    access.check(access.may_change_subnet(snapshot, asker, old), Verb.UPDATE, Subnet)
    new = with_update_time(old, new, now)
    _check_parts(new)
    if new.enable_dhcp and not old.enable_dhcp:
        _check_dhcp(new)
    if new.gateway != old.gateway:
        _check_gateways(snapshot, old, new)
    return put_subnet(snapshot, new)


def move_subnet(snapshot: Snapshot, asker: Identity, old: Subnet, new: Subnet, now: datetime) -> Changes:
    """Change the CIDR or gateway of a subnet. Ports keep their addresses, which must be valid in the new subnet; router
    interfaces must be removed before. Raises Refused."""
    network = network_of(snapshot, old)
    access.check(access.may_change_subnet(snapshot, asker, old), Verb.UPDATE, Subnet)
    _check_parts(new)
    _check_dhcp(new)
    rest = replace(network, subnets=tuple(each for each in network.subnets if each.id != old.id))
    _check_limits(rest, new)
    for port in ports_on(snapshot, network):
        for fixed in port.fixed_ips:
            if fixed.subnet_id == old.id and not (is_usable(fixed.address, new.cidr) and fixed.address != new.gateway):
                raise Refused(SubnetInUse(subnet_id=old.id))
    return put_subnet(snapshot, with_update_time(old, new, now))


def put_subnet(snapshot: Snapshot, subnet: Subnet) -> Changes:
    network = network_of(snapshot, subnet)
    subnets = tuple(subnet if other.id == subnet.id else other for other in network.subnets)
    if subnets == network.subnets:
        return Changes()
    return Changes(puts=(replace(network, subnets=subnets),), requires_unchanged_model=True)


def delete_subnet(snapshot: Snapshot, asker: Identity, subnet: Subnet) -> Changes:
    """Delete a subnet without addresses in use, including VIPs. Probe and proxy ports, and routes into the subnet, are
    deleted with it. Raises Refused."""
    access.check(access.may_change_subnet(snapshot, asker, subnet), Verb.DELETE, Subnet)
    network = network_of(snapshot, subnet)
    there = [
        port for port in ports_on(snapshot, network) if any(fixed.subnet_id == subnet.id for fixed in port.fixed_ips)
    ]
    if any(port.use not in SYSTEM_USES for port in there):
        raise Refused(SubnetInUse(subnet_id=subnet.id))
    rest = tuple(other for other in network.subnets if other.id != subnet.id)
    routes = tuple(route for route in network.routes if not is_inside(route, subnet.cidr))
    gone = tuple(Owner(Kind.PORT, port.id) for port in there)
    return Changes(puts=(replace(network, subnets=rest, routes=routes),), deletes=gone, requires_unchanged_model=True)


def check_version(value: IPAddress | IPNetwork, version: int, field: str) -> None:
    """Check the IP version of a field. Raises Refused."""
    if value.version != version:
        raise Refused(IpVersionMismatch(field=field, value=value, version=version))


def _check_parts(subnet: Subnet) -> None:
    """Check the consistency of a subnet's attributes. Raises Refused."""
    version = subnet.cidr.version
    if subnet.cidr.prefixlen == 0:
        raise Refused(UnboundedCidr(cidr=subnet.cidr))
    if subnet.gateway is not None:
        check_version(subnet.gateway, version, "gateway")
        if not is_usable(subnet.gateway, subnet.cidr):
            raise Refused(GatewayOutside(gateway=subnet.gateway, cidr=subnet.cidr))
    for server in subnet.dns_nameservers:
        check_version(server, version, "dns_nameservers")
    for route in subnet.host_routes:
        check_version(route.destination, version, "destination")
        check_version(route.nexthop, version, "nexthop")
    addresses.check_pools(subnet.allocation_pools, subnet.cidr)
    addresses.check_gateway(subnet.allocation_pools, subnet.gateway)
    _check_ipv6_modes(subnet)


def _check_dhcp(subnet: Subnet) -> None:
    """Check that DHCP is possible on the subnet. Raises Refused."""
    cidr = subnet.cidr
    if not subnet.enable_dhcp:
        return
    if cidr.prefixlen > cidr.max_prefixlen - 2:
        raise Refused(TooSmallForDhcp(cidr=cidr))
    if cidr.is_multicast:
        raise Refused(MulticastWithDhcp(cidr=cidr))
    if cidr.is_loopback:
        raise Refused(LoopbackWithDhcp(cidr=cidr))


def _check_ipv6_modes(subnet: Subnet) -> None:
    advertised, chosen = subnet.ipv6_ra_mode, subnet.ipv6_address_mode
    if advertised is None and chosen is None:
        return
    if subnet.cidr.version == 4:
        raise Refused(Ipv6ModeOfIpv4(field="ipv6_address_mode" if advertised is None else "ipv6_ra_mode"))
    if not subnet.enable_dhcp:
        raise Refused(Ipv6ModeWithoutDhcp())
    if advertised is not None and chosen is not None and advertised is not chosen:
        raise Refused(Ipv6ModesDiffer(advertised=advertised, addresses=chosen))
    if addresses.is_automatic(subnet) and subnet.cidr.prefixlen != 64:
        raise Refused(Slaac64Required(cidr=subnet.cidr))


def _check_limits(network: Network, subnet: Subnet) -> None:
    if len(network.subnets) >= MAX_SUBNETS:
        raise Refused(TooManySubnets(network_id=network.id, most=MAX_SUBNETS))
    if any(subnet.cidr.version == other.cidr.version and subnet.cidr.overlaps(other.cidr) for other in network.subnets):
        raise Refused(SubnetsOverlap(cidr=subnet.cidr, network_id=network.id))


def _check_announced_once(snapshot: Snapshot, network: Network, subnet: Subnet) -> None:
    """Check that the subnet overlaps no other announced network and no host. Announced networks are few, because
    operators declare them. Raises Refused."""
    for identity in snapshot.announced:
        others = snapshot.networks[identity].subnets if identity != network.id else ()
        if any(overlaps(subnet.cidr, other.cidr) for other in others):
            raise Refused(AnnouncedElsewhere(cidr=subnet.cidr, network_id=identity))
    host = find_host_within(snapshot, subnet.cidr)
    if host is not None:
        raise Refused(AnnouncedAtHost(cidr=subnet.cidr, host=host))


def _check_gateways(snapshot: Snapshot, old: Subnet, new: Subnet) -> None:
    """Check a change of the gateway: a router interface must not have the old address,
    and no other port the new one. Raises Refused."""
    for gateway, of_router in ((old.gateway, True), (new.gateway, False)):
        port_id = snapshot.addresses.get((snapshot.subnet_network[old.id], gateway)) if gateway else None
        if gateway is None or port_id is None:
            continue
        if (snapshot.ports[port_id].use is PortUse.ROUTER_INTERFACE) is of_router:
            raise Refused(GatewayInUse(gateway=gateway, port_id=port_id))
