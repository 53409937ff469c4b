"""LXD's error texts of rejections by the rules of networks, or Fairlead's own. LXD's 500 becomes 400, because the
client can correct the request."""

from collections.abc import Callable, Mapping
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.go_texts import quote
from fairlead.changes import (
    access,
    addresses,
    declarative_uplinks,
    gateways,
    networks,
    ports,
    restrictions,
    routers,
    subnets,
    untranslated_prefixes,
)
from fairlead.changes import declarative_networks as whole
from fairlead.changes.refusal import Refusal
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.network import AllocationPool

ErrorOf = Callable[[Any], ApiError]


def _bad(text: str) -> ErrorOf:
    return lambda _: ApiError(400, text)


def _clash(text: str) -> ErrorOf:
    return lambda _: ApiError(409, text)


IN_USE = _bad("The network is currently in use")
_NO_SUCH_UPLINK = 'Option "network" value {} is not one of the allowed uplink networks in project'


def shown(value: object) -> str:
    return quote(str(value))


def _range(pool: AllocationPool) -> str:
    return quote(f"{pool.start}-{pool.end}")


def _host(address: Any) -> str:
    return quote(f"{address}/{address.max_prefixlen}")


def _target_outside(why: whole.TargetOutsideSubnets) -> ApiError:
    """Return the error about a target outside the subnet. The default target of a forward is the member without a
    port."""
    balancer = why.balancer
    noun = "Network forward" if lb.is_forward(balancer) else "Network load balancer"
    rest = (pool.members for pool in balancer.pools if pool.protocol is lb.PoolProtocol.ANY)
    is_default = any(member.address == why.address for members in rest for member in members)
    target = "default" if is_default else "port" if lb.is_forward(balancer) else "backend"
    text = f"{noun} for {shown(balancer.vip.address)} has a {target} target address {shown(why.address)}"
    return ApiError(400, f"{text} that is not within the network subnet")


def _route_needed(why: untranslated_prefixes.RouteNeeded) -> ApiError:
    network, project = quote(why.network.name or why.network.id), quote(why.network.project_id)
    what = "subnet" if isinstance(why.needed, IPv4Network | IPv6Network) else "listener"
    key = quote(f"ipv{why.needed.version}.routes")
    text = f"{key} is missing network for {what} {shown(why.needed)} of network {network} in project {project}"
    return ApiError(400, text)


_ADDRESSES: Mapping[type[Refusal], ErrorOf] = {
    addresses.PoolNotValid: lambda why: ApiError(400, f"Invalid IP range {_range(why.pool)}"),
    addresses.PoolOutside: lambda why: ApiError(
        400, f"IP range {_range(why.pool)} is not within the subnet {shown(why.cidr)}"
    ),
    addresses.PoolsOverlap: lambda why: ApiError(400, f"IP range {_range(why.one)} overlaps with {_range(why.other)}"),
    addresses.GatewayInPool: lambda why: ApiError(
        400, f"IP range {_range(why.pool)} contains the gateway {shown(why.gateway)}"
    ),
    addresses.NoSubnetOnNetwork: _bad("The network has no subnet for the address"),
    addresses.SubnetOfOtherNetwork: _bad("The subnet is another network's"),
    addresses.AddressOutsideNetwork: lambda why: ApiError(
        400, f"Address {shown(why.address)} is not within the network subnet"
    ),
    addresses.AddressOutsideSubnet: lambda why: ApiError(
        400, f"Address {shown(why.address)} is not within the network subnet"
    ),
    addresses.AddressInUse: lambda why: ApiError(409, f"Address {shown(why.address)} is already in use"),
    addresses.AddressIsAutomatic: lambda why: ApiError(
        400, f"Address {shown(why.address)} is reserved for automatic addresses (SLAAC)"
    ),
    addresses.NoFreeAddress: _clash("No free IPs available"),
}
_ROUTERS: Mapping[type[Refusal], ErrorOf] = {
    gateways.NetworkNotExternal: lambda why: ApiError(400, _NO_SUCH_UPLINK.format(shown(why.network_id))),
    gateways.AddressIsNextHop: lambda why: ApiError(400, f"Address {shown(why.address)} is the uplink's gateway"),
    gateways.NoExternalAddress: _bad("Uplink network doesn't have IPv4 or IPv6 configured"),
    gateways.GatewayNeededByFloatingIP: IN_USE,
    gateways.GatewayHasVips: IN_USE,
    gateways.TooManyInterfaces: lambda why: ApiError(400, f"A router joins at most {why.most} subnets"),
    gateways.SubnetAlreadyAttached: IN_USE,
    gateways.JoinedSubnetsOverlap: lambda why: ApiError(
        400, f"Subnet {shown(why.cidr)} overlaps with {shown(why.other_cidr)}, which the network's router is on"
    ),
    routers.RouterInUse: IN_USE,
    routers.NoSuchInterface: IN_USE,
    routers.InterfaceOnOtherSubnet: IN_USE,
    routers.InterfaceNeededByRoute: IN_USE,
    routers.InterfaceNeededByFloatingIP: IN_USE,
    routers.InterfaceWithoutAddress: IN_USE,
    routers.InterfaceOnManySubnets: IN_USE,
    routers.SubnetOfOtherProject: IN_USE,
    routers.SubnetWithoutGateway: IN_USE,
    routers.TooManyRoutes: lambda why: ApiError(400, f"A router has at most {why.most} routes"),
    **dict.fromkeys(
        (routers.BadRoute, routers.RouteOfTwoVersions, routers.NexthopNotConnected, routers.NexthopIsRouters), IN_USE
    ),
}
_PORTS: Mapping[type[Refusal], ErrorOf] = {
    ports.MacInUse: lambda why: ApiError(409, f"MAC address {shown(why.mac)} is already in use"),
    **dict.fromkeys(
        (
            ports.DeviceOwnerReserved,
            ports.PortInUse,
            ports.PortServesNetwork,
            ports.PortIsSystemPort,
            ports.PortServesBalancer,
            ports.PortHasLocalIP,
            ports.AddressIsLocalIP,
            ports.PortHoldsLocalIP,
        ),
        IN_USE,
    ),
}
_SUBNETS: Mapping[type[Refusal], ErrorOf] = {
    subnets.UnboundedCidr: lambda why: ApiError(400, f"Subnet {shown(why.cidr)} contains all addresses"),
    subnets.IpVersionMismatch: lambda why: ApiError(400, f"Not an IPv{why.version} address {shown(why.value)}"),
    subnets.GatewayOutside: lambda why: ApiError(
        400, f"Not a usable IPv{why.gateway.version} address {shown(why.gateway)}"
    ),
    subnets.TooSmallForDhcp: lambda why: ApiError(
        400, f"Subnet {shown(why.cidr)} is too small for DHCP; set ipv{why.cidr.version}.dhcp to false"
    ),
    subnets.MulticastWithDhcp: lambda why: ApiError(400, f"Subnet {shown(why.cidr)} is a multicast one"),
    subnets.LoopbackWithDhcp: lambda why: ApiError(400, f"Subnet {shown(why.cidr)} is a loopback one"),
    subnets.Ipv6ModeOfIpv4: _bad("An IPv4 subnet has no IPv6 mode"),
    subnets.Ipv6ModeWithoutDhcp: _bad("An IPv6 mode requires ipv6.dhcp"),
    subnets.Ipv6ModesDiffer: _bad("The IPv6 modes differ"),
    subnets.Slaac64Required: _bad("IPv6 subnet must be a /64"),
    subnets.TooManySubnets: lambda why: ApiError(400, f"A network has at most {why.most} subnets"),
    subnets.SubnetsOverlap: lambda why: ApiError(400, f"Subnet {shown(why.cidr)} overlaps with another of the network"),
    subnets.AnnouncedElsewhere: lambda why: ApiError(400, f"Hosts announce addresses of subnet {shown(why.cidr)}"),
    subnets.AnnouncedAtHost: lambda why: ApiError(
        400, f"Subnet {shown(why.cidr)} overlaps with an address or prefix of a host"
    ),
    subnets.GatewayInUse: lambda why: ApiError(400, f"Address {shown(why.gateway)} is already in use"),
    subnets.SubnetInUse: IN_USE,
}
_NETWORKS: Mapping[type[Refusal], ErrorOf] = {
    access.NotFound: lambda why: ApiError(404, f"{why.what.__name__} not found"),
    access.NotAllowed: lambda _: ApiError(403, "not authorized"),
    networks.SegmentWithoutType: _bad('Invalid value for option "parent": Required value'),
    networks.SegmentWithoutNetwork: _bad('Invalid value for option "parent": Required value'),
    networks.FlatSegmentWithTag: lambda why: ApiError(400, f"Invalid VLAN ID {shown(why.tag)}"),
    networks.VlanWithoutTag: _bad('Invalid VLAN ID ""'),
    networks.SegmentOfInternalNetwork: _bad("Only an uplink has a parent interface"),
    networks.SegmentInUse: lambda why: ApiError(
        409, f"Parent interface {shown(why.segment.physical_network)} in use by another network"
    ),
    networks.AnnouncedWithSegment: _bad("An announced network has no parent interface"),
    networks.AnnouncedExternal: _bad("An announced network is no uplink"),
    networks.AnnouncedForVips: _bad("The network is for listen addresses that hosts announce"),
    networks.MtuTooSmall: lambda why: ApiError(400, f"The MTU of a network with IPv6 is at least {why.least}"),
    networks.NetworkInUse: IN_USE,
    networks.SharingInUse: IN_USE,
    networks.VipsOnNetwork: IN_USE,
    networks.LocalIPsOnNetwork: IN_USE,
    networks.ExternalNetworkInUse: IN_USE,
    untranslated_prefixes.PrefixNotInRoutes: lambda why: ApiError(
        400, f"Uplink network does not contain {shown(why.cidr)} in its routes"
    ),
    restrictions.UplinkNotAllowed: lambda why: ApiError(400, _NO_SUCH_UPLINK.format(quote(why.uplink))),
    restrictions.TooManyUplinkAddresses: lambda why: ApiError(
        403,
        f"Reached maximum number of IPv{why.version} addresses ({why.most}) of uplink network {quote(why.uplink)}"
        f" in project {quote(why.project_id)}",
    ),
    untranslated_prefixes.PrefixNotGranted: lambda why: ApiError(
        400, f"Project does not contain {shown(why.cidr)} in its restricted uplink subnets"
    ),
    untranslated_prefixes.PrefixInUseOutside: lambda why: ApiError(
        400, f"External subnet {shown(why.cidr)} overlaps with another network or NIC"
    ),
    untranslated_prefixes.RouteNeeded: _route_needed,
    declarative_uplinks.TooManyUplinkRoutes: lambda why: ApiError(400, f"An uplink has at most {why.most} routes"),
    gateways.TooManyAttachedRouters: lambda why: ApiError(
        400, f"At most {why.most} networks get an uplink address of another IP version in one request"
    ),
    declarative_uplinks.RouteAroundSubnet: lambda why: ApiError(
        400, f"Route {shown(why.route)} contains the uplink's own subnet {shown(why.cidr)}"
    ),
    declarative_uplinks.UplinkNotDeclarative: _bad(
        "The uplink has several subnets of one IP version: change them through the API that created them"
    ),
    whole.NoUplink: _bad("No allowed uplink networks in project"),
    whole.AmbiguousUplink: _bad('Option "network" is required'),
    whole.NoFreePrefix: lambda why: ApiError(
        400, f"Failed to automatically find an unused IPv{why.version} subnet, manual configuration required"
    ),
    whole.NetworkNotDeclarative: _bad(
        "The network has subnets or routers created through another API: change them there"
    ),
    whole.TargetOutsideSubnets: _target_outside,
    whole.ListenAddressLost: lambda why: ApiError(
        400, f"Uplink network does not contain {_host(why.address)} in its routes"
    ),
}
ERROR_TEXTS: Mapping[type[Refusal], ErrorOf] = {**_ADDRESSES, **_ROUTERS, **_PORTS, **_SUBNETS, **_NETWORKS}
