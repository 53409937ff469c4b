"""Neutron's error of each rejection by the rules (`fairlead.changes`)."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.network import local_ip_refusals
from fairlead.api.network.error_texts import Words, bad, invalid, serves
from fairlead.api.network.errors import bad_attribute, bad_resource, forbidden, invalid_input, not_found
from fairlead.api.network.parsers import encode_route
from fairlead.changes import (
    access,
    addresses,
    floatingips,
    gateways,
    identity,
    ids,
    monitor_checks,
    networks,
    ports,
    probe_limits,
    probe_ports,
    quotas,
    restrictions,
    routers,
    subnets,
    untranslated_prefixes,
)
from fairlead.changes.refusal import Refusal
from fairlead.model.documents.local_ip import LocalIP
from fairlead.model.documents.network import FloatingIP, Network, Port, PortUse, Resource, Router, Subnet

RESOURCES: Mapping[type[Resource], str] = {
    Network: "network",
    Subnet: "subnet",
    Port: "port",
    Router: "router",
    FloatingIP: "floatingip",
    LocalIP: "local_ip",
}
"""Neutron's singular of each resource."""


def _routes(reason: str) -> Callable[[routers.BadRoute], ApiError]:
    def say_routes(why: routers.BadRoute) -> ApiError:
        shown = [encode_route(route) for route in why.routes]
        return ApiError(400, f"Invalid format for routes: {shown}, {reason}", "InvalidRoutes")

    return say_routes


def _missing(why: access.NotFound) -> ApiError:
    return not_found(RESOURCES[why.what], why.id)


def _too_many_probes(why: probe_limits.TooManyProbes) -> ApiError:
    whose = f" of port {why.port_id}" if why.port_id else ""
    text = f"Quota exceeded for resources: ['probes per second{whose} ({why.per_second})']."
    return ApiError(409, text, "OverQuota")


def _use_is_given(why: ports.UseIsGiven) -> ApiError:
    givers = {
        PortUse.VIP: "the load balancer",
        PortUse.LOCAL_IP: "the Local IP",
        PortUse.PROBE: "health monitors",
        PortUse.PROXY: "load balancers",
        PortUse.ROUTER_INTERFACE: "add_router_interface",
    }
    return bad_resource("port", f"device_owner {why.use} is given by {givers.get(why.use, 'what it serves')}")


def _segment_taken(why: networks.SegmentTaken) -> ApiError:
    where = f"network {why.segment.physical_network} is in use."
    if why.segment.id is None:
        return ApiError(409, f"Unable to create the flat network. Physical {where}", "FlatNetworkInUse")
    text = f"Unable to create the network. The VLAN {why.segment.id} on physical {where}"
    return ApiError(409, text, "VlanIdInUse")


def _other_version(why: subnets.OtherVersion) -> ApiError:
    name = {"gateway": "gateway_ip", "dns_nameservers": "dns_nameserver"}.get(why.field, why.field)
    return invalid_input(f"{name} '{why.value}' does not match the ip_version '{why.version}'")


def _not_external(why: gateways.NetworkNotExternal) -> ApiError:
    is_not = "is not an external network" if why.what is Router else "is not a valid external network"
    return bad_resource(RESOURCES[why.what], f"Network {why.network_id} {is_not}")


def _no_interface(why: routers.NoSuchInterface) -> ApiError:
    if why.port_id is not None:
        text = f"Router {why.router_id} does not have an interface with id {why.port_id}"
        return ApiError(404, text, "RouterInterfaceNotFound")
    text = f"Router {why.router_id} has no interface on subnet {why.subnet_id}"
    return ApiError(404, text, "RouterInterfaceNotFoundForSubnet")


WORDS: Mapping[type[Refusal], Words | Callable[[Any], ApiError]] = {
    **local_ip_refusals.WORDS,
    access.NotFound: _missing,
    identity.NotAnAdministrator: lambda _: forbidden("rule:admin_only"),
    ids.IdTaken: Words(409, "Conflict", "The id {why.id} is already in use."),
    addresses.PoolNotValid: Words(
        400, "InvalidAllocationPool", "The allocation pool {why.pool.start}-{why.pool.end} is not valid."
    ),
    addresses.PoolOutside: Words(
        400,
        "OutOfBoundsAllocationPool",
        "The allocation pool {why.pool.start}-{why.pool.end} spans beyond the subnet cidr {why.cidr}.",
    ),
    addresses.PoolsOverlap: Words(
        409,
        "OverlappingAllocationPools",
        "Found overlapping allocation pools: {why.one.start}-{why.one.end} {why.other.start}-{why.other.end} for "
        "subnet {why.cidr}.",
    ),
    addresses.GatewayInPool: Words(
        409,
        "GatewayConflictWithAllocationPools",
        "Gateway ip {why.gateway} conflicts with allocation pool {why.pool.start}-{why.pool.end}.",
    ),
    addresses.NoSubnetOnNetwork: invalid("IP allocation requires subnets for network"),
    addresses.SubnetOfOtherNetwork: invalid(
        "Failed to create port on network {why.network_id}, because fixed_ips included invalid subnet {why.subnet_id}"
    ),
    addresses.AddressOutsideNetwork: Words(
        400,
        "InvalidIpForNetwork",
        "IP address {why.address} is not a valid IP for any of the subnets on the specified network.",
    ),
    addresses.AddressOutsideSubnet: Words(
        400, "InvalidIpForSubnet", "IP address {why.address} is not a valid IP for the specified subnet."
    ),
    addresses.AddressTaken: Words(
        409, "IpAddressAlreadyAllocated", "IP address {why.address} already allocated in subnet {why.subnet_id}"
    ),
    addresses.AddressIsAutomatic: Words(
        400,
        "AllocationOnAutoAddressSubnet",
        "IPv6 address {why.address} cannot be directly assigned to a port on subnet {why.subnet_id} as the subnet is "
        "configured for automatic addresses",
    ),
    addresses.NoFreeAddress: Words(
        409, "IpAddressGenerationFailure", "No more IP addresses available on network {why.network_id}."
    ),
    networks.SegmentWithoutType: invalid("network_type required"),
    networks.SegmentWithoutNetwork: invalid("physical_network required for {why.type} provider network"),
    networks.FlatSegmentWithTag: invalid("segmentation_id prohibited for flat provider network"),
    networks.VlanWithoutTag: invalid("segmentation_id required for vlan provider network: no range is configured"),
    networks.SegmentOfInternalNetwork: invalid("provider attributes are supported for external networks only"),
    networks.SegmentTaken: _segment_taken,
    networks.AnnouncedOnWire: invalid(
        "physical_network and segmentation_id prohibited for announced provider network: it is on no wire"
    ),
    networks.AnnouncedExternal: invalid(
        "an announced provider network cannot be external: its addresses are VIPs; share it with all projects instead"
    ),
    networks.AnnouncedForVips: bad(
        "network", "network {why.network_id} is announced by hosts: its addresses are VIPs of load balancers only"
    ),
    networks.MtuTooSmall: Words(
        409,
        "NetworkMTUSubnetConflict",
        "MTU of {why.network_id} is not valid, subnet requires a minimum of {why.least}",
    ),
    networks.NetworkInUse: Words(
        409,
        "NetworkInUse",
        "Unable to complete operation on network {why.network_id}. There are one or more ports still in use on the "
        "network.",
    ),
    networks.SharingInUse: Words(
        409,
        "InvalidSharedSetting",
        "Unable to reconfigure sharing settings for network {why.network_id}. Multiple tenants are using it.",
    ),
    networks.VipsOnNetwork: Words(
        409,
        "NetworkInUse",
        "Network {why.network_id} cannot be made external: VIPs of load balancers are on it.",
    ),
    networks.LocalIPsOnNetwork: Words(
        409, "NetworkInUse", "Network {why.network_id} cannot be made external: Local IPs are on it."
    ),
    networks.ExternalNetworkInUse: Words(
        409,
        "ExternalNetworkInUse",
        "External network {why.network_id} cannot be updated to be made non-external, since it has existing gateway "
        "ports.",
    ),
    subnets.WholeInternet: invalid("0 is not allowed as CIDR prefix length"),
    subnets.OtherVersion: _other_version,
    subnets.GatewayOutside: invalid("Gateway is not valid on subnet"),
    subnets.TooSmallForDhcp: invalid("Subnet has a prefix length that is incompatible with DHCP service enabled"),
    subnets.MulticastWithDhcp: invalid("Multicast IP subnet is not supported if enable_dhcp is True"),
    subnets.LoopbackWithDhcp: invalid("Loopback IP subnet is not supported if enable_dhcp is True"),
    subnets.Ipv6ModeOfIpv4: invalid("{why.field} is not valid when ip_version is 4"),
    subnets.Ipv6ModeWithoutDhcp: invalid(
        "ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False"
    ),
    subnets.Ipv6ModesDiffer: invalid(
        "ipv6_ra_mode set to '{why.advertised}' with ipv6_address_mode set to '{why.addresses}' is not valid. If both "
        "attributes are set, they must be the same value"
    ),
    subnets.NoRoomForMacs: invalid(
        "Invalid CIDR {why.cidr} for IPv6 address mode. OpenStack uses the EUI-64 address format, which requires the "
        "prefix to be /64"
    ),
    subnets.TooManySubnets: invalid("a network has at most {why.most} subnets"),
    subnets.SubnetsOverlap: invalid(
        "Requested subnet with cidr: {why.cidr} for network: {why.network_id} overlaps with another subnet"
    ),
    subnets.AnnouncedElsewhere: invalid(
        "Requested subnet with cidr: {why.cidr} overlaps with a subnet of announced network {why.network_id}"
    ),
    subnets.AnnouncedAtHost: invalid(
        "Requested subnet with cidr: {why.cidr} has an address of host {why.host}, or of what is behind it"
    ),
    subnets.GatewayInUse: Words(
        409,
        "GatewayIpInUse",
        "Current gateway ip {why.gateway} already in use by port {why.port_id}. Unable to update.",
    ),
    subnets.SubnetInUse: Words(
        409,
        "SubnetInUse",
        "Unable to complete operation on subnet {why.subnet_id}: One or more ports have an IP allocation from this "
        "subnet.",
    ),
    ports.MacTaken: Words(
        409,
        "MacAddressInUse",
        "Unable to complete operation for network {why.network_id}. The mac address {why.mac} is in use.",
    ),
    ports.UseIsGiven: _use_is_given,
    ports.PortInUse: Words(
        409,
        "PortInUse",
        "Unable to complete operation on port {why.port_id} for network {why.network_id}. Port already has an attached "
        "device {why.device_id}.",
    ),
    ports.PortServesNetwork: serves("has device owner {why.use}"),
    ports.PortServesUnasked: serves("{why.use} is nobody's own: it goes with its subnet, or with what needs it"),
    ports.PortServesBalancer: serves("still used by load balancer {why.load_balancer_id}"),
    ports.PortHasLocalIP: serves("still referenced by Local IPs"),
    ports.AddressIsLocalIP: Words(
        409,
        "PortInUse",
        "IP address {why.address} cannot be taken from port {why.port_id} before Local IP {why.local_ip_id} is "
        "deleted.",
    ),
    ports.PortHoldsLocalIP: Words(
        409,
        "PortInUse",
        "Port {why.port_id} holds the address of Local IP {why.local_ip_id}: {why.field} cannot be changed before that "
        "is deleted.",
    ),
    monitor_checks.ProbesTooOften: lambda why: bad_attribute(
        "health_monitor", f"delay '{why.delay}' is too small for {why.type} - must be at least '{why.least}'"
    ),
    probe_ports.NoAddressForProbes: Words(
        409, "IpAddressGenerationFailure", "No more IP addresses available for subnet {why.subnet_id}."
    ),
    probe_limits.TooManyProbes: _too_many_probes,
    gateways.NetworkNotExternal: _not_external,
    gateways.AddressOfNextHop: bad("router", "External IP {why.address} is the same as the gateway IP"),
    gateways.NoAddressOutside: bad("router", "No IPs available for external network {why.network_id}"),
    gateways.GatewayHasVips: Words(
        409,
        "RouterExternalGatewayInUseByFloatingIp",
        "Gateway cannot be updated for router {why.router_id}, since a gateway to external network {why.network_id} is "
        "required by VIPs of load balancers.",
    ),
    gateways.GatewayNeeded: Words(
        409,
        "RouterExternalGatewayInUseByFloatingIp",
        "Gateway cannot be updated for router {why.router_id}, since a gateway to external network {why.network_id} is "
        "required by one or more floating IPs.",
    ),
    gateways.TooManyAttached: invalid(
        "at most {why.most} routers get a gateway address of a new subnet at once: clear the gateways of some routers "
        "without an address first"
    ),
    gateways.TooManyInterfaces: bad("router", "A router has at most {why.most} interfaces"),
    gateways.SubnetJoinedAlready: bad("router", "Router already has a port on subnet {why.subnet_id}"),
    gateways.JoinedSubnetsOverlap: bad(
        "router",
        "Cidr {why.cidr} of subnet {why.subnet_id} overlaps with cidr {why.other_cidr} of subnet {why.other_id}",
    ),
    untranslated_prefixes.NotInRoutes: bad(
        "router",
        "Cidr {why.cidr} is in none of the routes to network {why.uplink_id}, and the router does not translate",
    ),
    untranslated_prefixes.NotGranted: bad(
        "router",
        "Cidr {why.cidr} would be seen on network {why.uplink} as it is, and no administrator has granted it to project"
        " {why.project_id}",
    ),
    untranslated_prefixes.UsedOutside: bad(
        "router", "Cidr {why.cidr} overlaps with what is behind network {why.uplink_id} already"
    ),
    routers.RouterInUse: Words(409, "RouterInUse", "Router {why.router_id} still has ports"),
    routers.NoSuchInterface: _no_interface,
    routers.InterfaceOnOtherSubnet: Words(
        400,
        "SubnetMismatchForPort",
        "Subnet on port {why.port_id} does not match the requested subnet {why.subnet_id}",
    ),
    routers.InterfaceNeededByRoute: Words(
        409,
        "RouterInterfaceInUseByRoute",
        "Router interface for subnet {why.subnet_id} on router {why.router_id} cannot be deleted, as it is required by "
        "one or more routes.",
    ),
    routers.InterfaceNeededByFloatingIP: Words(
        409,
        "RouterInterfaceInUseByFloatingIP",
        "Router interface for subnet {why.subnet_id} on router {why.router_id} cannot be deleted, as it is required by "
        "one or more floating IPs.",
    ),
    routers.InterfaceWithoutAddress: bad("router", "Router port must have at least one fixed IP"),
    routers.InterfaceOnManySubnets: bad("router", "Cannot have multiple IPv4 subnets on router port"),
    routers.SubnetOfOtherProject: bad(
        "router",
        "Cannot add interface to router because subnet {why.subnet_id} is not owned by project making the request",
    ),
    routers.SubnetWithoutGateway: bad("router", "Subnet for router interface must have a gateway IP"),
    routers.TooManyRoutes: Words(
        400,
        "RoutesExhausted",
        "Unable to complete operation for {why.router_id}. The number of routes exceeds the maximum {why.most}.",
    ),
    routers.RouteOfTwoVersions: _routes("the nexthop is not of the destination's IP version"),
    routers.NexthopNotConnected: _routes("the nexthop is not connected with router"),
    routers.NexthopIsRouters: _routes("the nexthop is used by router"),
    floatingips.NetworkWithoutIPv4: bad("floatingip", "Network {why.network_id} does not contain any IPv4 subnet"),
    floatingips.SubnetWithoutIPv4: bad("floatingip", "Subnet {why.subnet_id} has no IPv4 addresses"),
    floatingips.AddressNotIPv4: bad("floatingip", "{why.address} is not an IPv4 address"),
    floatingips.FixedAddressNotIPv4: bad(
        "floatingip", "Cannot process floating IP association with {why.address}, since that is not an IPv4 address"
    ),
    floatingips.FixedAddressWithoutPort: bad("floatingip", "fixed_ip_address cannot be specified without a port_id"),
    floatingips.PortOfOtherProject: bad(
        "floatingip",
        "Cannot process floating IP association with Port {why.port_id}, since that port is owned by a different "
        "tenant",
    ),
    floatingips.PortNotServed: bad("floatingip", "Port {why.port_id} is unable to be assigned a floating IP"),
    floatingips.PortWithoutAddress: bad("floatingip", "Port {why.port_id} does not have fixed ip {why.address}"),
    floatingips.PortWithoutIPv4: bad(
        "floatingip", "Cannot add floating IP to port {why.port_id} that has no fixed IPv4 addresses"
    ),
    floatingips.PortWithManyIPv4: bad(
        "floatingip",
        "Port {why.port_id} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address when assigning a "
        "floating IP",
    ),
    floatingips.NoWayOutside: Words(
        404,
        "ExternalGatewayForFloatingIPNotFound",
        "External network {why.network_id} is not reachable from subnet {why.subnet_id}.  Therefore, cannot associate "
        "Port {why.port_id} with a Floating IP.",
    ),
    floatingips.AlreadyLedTo: Words(
        409,
        "FloatingIPPortAlreadyAssociated",
        "Cannot associate floating IP {why.floating_ip.address} ({why.floating_ip.id}) with port {why.port_id} using "
        "fixed IP {why.fixed_address}, as that fixed IP already has a floating IP on external network "
        "{why.floating_ip.network_id}.",
    ),
    quotas.QuotaExceeded: lambda why: ApiError(
        409, f"Quota exceeded for resources: {sorted(what.value for what in why.over)}.", "OverQuota"
    ),
    restrictions.UplinkNotAllowed: lambda why: ApiError(
        409, f"Project {why.project_id} may not use the external network {why.uplink}.", "Conflict"
    ),
    restrictions.TooManyUplinkAddresses: lambda why: ApiError(
        409,
        f"Project {why.project_id} may have {why.most} IPv{why.version} addresses of external network {why.uplink}.",
        "OverQuota",
    ),
    quotas.NoQuota: Words(404, "TenantQuotaNotFound", "Quota for tenant {why.project_id} could not be found."),
    quotas.LimitBelowUsage: Words(
        400,
        "HTTPBadRequest",
        "Quota limit {why.limit} for {why.what} must be greater than or equal to already used {why.used}",
    ),
    quotas.NotAProject: Words(400, "HTTPBadRequest", "A project's id has at most {why.most} characters"),
}
"""Rejection -> error text, or a function that returns the error."""


def say(why: Refusal) -> ApiError:
    words = WORDS[type(why)]
    if not isinstance(words, Words):
        return words(why)
    return ApiError(words.status, words.text.format(why=why), words.kind)
