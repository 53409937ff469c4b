"""Neutron's error of each rejection by the rules (`fairlead.changes`)."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.network import local_ip_refusals
from fairlead.api.network.error_texts import NeutronErrorText, bad_resource_text, in_use_text, invalid_input_text
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


def _use_is_given(why: ports.DeviceOwnerReserved) -> ApiError:
    givers = {
        PortUse.VIP: "the load balancer",
        PortUse.LOCAL_IP: "the Local IP",
        PortUse.PROBE: "health monitors",
        PortUse.PROXY: "load balancers",
        PortUse.ROUTER_INTERFACE: "add_router_interface",
    }
    return bad_resource(
        "port", f"device_owner {why.use} is reserved: it is set by {givers.get(why.use, 'the service of the port')}"
    )


def _segment_taken(why: networks.SegmentInUse) -> ApiError:
    where = f"network {why.segment.physical_network} is in use."
    if why.segment.id is None:
        return ApiError(409, f"Unable to create the flat network. Physical {where}", "FlatNetworkInUse")
    text = f"Unable to create the network. The VLAN {why.segment.id} on physical {where}"
    return ApiError(409, text, "VlanIdInUse")


def _other_version(why: subnets.IpVersionMismatch) -> ApiError:
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


ERROR_TEXTS: Mapping[type[Refusal], NeutronErrorText | Callable[[Any], ApiError]] = {
    **local_ip_refusals.ERROR_TEXTS,
    access.NotFound: _missing,
    identity.NotAnAdministrator: lambda _: forbidden("rule:admin_only"),
    ids.IdInUse: NeutronErrorText(409, "Conflict", "The id {why.id} is already in use."),
    addresses.PoolNotValid: NeutronErrorText(
        400, "InvalidAllocationPool", "The allocation pool {why.pool.start}-{why.pool.end} is not valid."
    ),
    addresses.PoolOutside: NeutronErrorText(
        400,
        "OutOfBoundsAllocationPool",
        "The allocation pool {why.pool.start}-{why.pool.end} spans beyond the subnet cidr {why.cidr}.",
    ),
    addresses.PoolsOverlap: NeutronErrorText(
        409,
        "OverlappingAllocationPools",
        "Found overlapping allocation pools: {why.one.start}-{why.one.end} {why.other.start}-{why.other.end} for "
        "subnet {why.cidr}.",
    ),
    addresses.GatewayInPool: NeutronErrorText(
        409,
        "GatewayConflictWithAllocationPools",
        "Gateway ip {why.gateway} conflicts with allocation pool {why.pool.start}-{why.pool.end}.",
    ),
    addresses.NoSubnetOnNetwork: invalid_input_text("IP allocation requires subnets for network"),
    addresses.SubnetOfOtherNetwork: invalid_input_text(
        "Failed to create port on network {why.network_id}, because fixed_ips included invalid subnet {why.subnet_id}"
    ),
    addresses.AddressOutsideNetwork: NeutronErrorText(
        400,
        "InvalidIpForNetwork",
        "IP address {why.address} is not a valid IP for any of the subnets on the specified network.",
    ),
    addresses.AddressOutsideSubnet: NeutronErrorText(
        400, "InvalidIpForSubnet", "IP address {why.address} is not a valid IP for the specified subnet."
    ),
    addresses.AddressInUse: NeutronErrorText(
        409, "IpAddressAlreadyAllocated", "IP address {why.address} already allocated in subnet {why.subnet_id}"
    ),
    addresses.AddressIsAutomatic: NeutronErrorText(
        400,
        "AllocationOnAutoAddressSubnet",
        "IPv6 address {why.address} cannot be directly assigned to a port on subnet {why.subnet_id} as the subnet is "
        "configured for automatic addresses",
    ),
    addresses.NoFreeAddress: NeutronErrorText(
        409, "IpAddressGenerationFailure", "No more IP addresses available on network {why.network_id}."
    ),
    networks.SegmentWithoutType: invalid_input_text("network_type required"),
    networks.SegmentWithoutNetwork: invalid_input_text("physical_network required for {why.type} provider network"),
    networks.FlatSegmentWithTag: invalid_input_text("segmentation_id prohibited for flat provider network"),
    networks.VlanWithoutTag: invalid_input_text(
        "segmentation_id required for vlan provider network: no range is configured"
    ),
    networks.SegmentOfInternalNetwork: invalid_input_text(
        "provider attributes are supported for external networks only"
    ),
    networks.SegmentInUse: _segment_taken,
    networks.AnnouncedWithSegment: invalid_input_text(
        "physical_network and segmentation_id prohibited for announced provider network, which has no physical segment"
    ),
    networks.AnnouncedExternal: invalid_input_text(
        "an announced provider network cannot be external: its addresses are VIPs; share it with all projects instead"
    ),
    networks.AnnouncedForVips: bad_resource_text(
        "network", "network {why.network_id} is announced by hosts: its addresses are VIPs of load balancers only"
    ),
    networks.MtuTooSmall: NeutronErrorText(
        409,
        "NetworkMTUSubnetConflict",
        "MTU of {why.network_id} is not valid, subnet requires a minimum of {why.least}",
    ),
    networks.NetworkInUse: NeutronErrorText(
        409,
        "NetworkInUse",
        "Unable to complete operation on network {why.network_id}. There are one or more ports still in use on the "
        "network.",
    ),
    networks.SharingInUse: NeutronErrorText(
        409,
        "InvalidSharedSetting",
        "Unable to reconfigure sharing settings for network {why.network_id}. Multiple tenants are using it.",
    ),
    networks.VipsOnNetwork: NeutronErrorText(
        409,
        "NetworkInUse",
        "Network {why.network_id} cannot be made external: VIPs of load balancers are on it.",
    ),
    networks.LocalIPsOnNetwork: NeutronErrorText(
        409, "NetworkInUse", "Network {why.network_id} cannot be made external: Local IPs are on it."
    ),
    networks.ExternalNetworkInUse: NeutronErrorText(
        409,
        "ExternalNetworkInUse",
        "External network {why.network_id} cannot be updated to be made non-external, since it has existing gateway "
        "ports.",
    ),
    subnets.UnboundedCidr: invalid_input_text("0 is not allowed as CIDR prefix length"),
    subnets.IpVersionMismatch: _other_version,
    subnets.GatewayOutside: invalid_input_text("Gateway is not valid on subnet"),
    subnets.TooSmallForDhcp: invalid_input_text(
        "Subnet has a prefix length that is incompatible with DHCP service enabled"
    ),
    subnets.MulticastWithDhcp: invalid_input_text("Multicast IP subnet is not supported if enable_dhcp is True"),
    subnets.LoopbackWithDhcp: invalid_input_text("Loopback IP subnet is not supported if enable_dhcp is True"),
    subnets.Ipv6ModeOfIpv4: invalid_input_text("{why.field} is not valid when ip_version is 4"),
    subnets.Ipv6ModeWithoutDhcp: invalid_input_text(
        "ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False"
    ),
    subnets.Ipv6ModesDiffer: invalid_input_text(
        "ipv6_ra_mode set to '{why.advertised}' with ipv6_address_mode set to '{why.addresses}' is not valid. If both "
        "attributes are set, they must be the same value"
    ),
    subnets.Slaac64Required: invalid_input_text(
        "Invalid CIDR {why.cidr} for IPv6 address mode. OpenStack uses the EUI-64 address format, which requires the "
        "prefix to be /64"
    ),
    subnets.TooManySubnets: invalid_input_text("a network has at most {why.most} subnets"),
    subnets.SubnetsOverlap: invalid_input_text(
        "Requested subnet with cidr: {why.cidr} for network: {why.network_id} overlaps with another subnet"
    ),
    subnets.AnnouncedElsewhere: invalid_input_text(
        "Requested subnet with cidr: {why.cidr} overlaps with a subnet of announced network {why.network_id}"
    ),
    subnets.AnnouncedAtHost: invalid_input_text(
        "Requested subnet with cidr: {why.cidr} overlaps with an address or prefix of host {why.host}"
    ),
    subnets.GatewayInUse: NeutronErrorText(
        409,
        "GatewayIpInUse",
        "Current gateway ip {why.gateway} already in use by port {why.port_id}. Unable to update.",
    ),
    subnets.SubnetInUse: NeutronErrorText(
        409,
        "SubnetInUse",
        "Unable to complete operation on subnet {why.subnet_id}: One or more ports have an IP allocation from this "
        "subnet.",
    ),
    ports.MacInUse: NeutronErrorText(
        409,
        "MacAddressInUse",
        "Unable to complete operation for network {why.network_id}. The mac address {why.mac} is in use.",
    ),
    ports.DeviceOwnerReserved: _use_is_given,
    ports.PortInUse: NeutronErrorText(
        409,
        "PortInUse",
        "Unable to complete operation on port {why.port_id} for network {why.network_id}. Port already has an attached "
        "device {why.device_id}.",
    ),
    ports.PortServesNetwork: in_use_text("has device owner {why.use}"),
    ports.PortIsSystemPort: in_use_text(
        "{why.use} is an internal port, which is deleted with its subnet or its last user"
    ),
    ports.PortServesBalancer: in_use_text("still used by load balancer {why.load_balancer_id}"),
    ports.PortHasLocalIP: in_use_text("still referenced by Local IPs"),
    ports.AddressIsLocalIP: NeutronErrorText(
        409,
        "PortInUse",
        "IP address {why.address} cannot be taken from port {why.port_id} before Local IP {why.local_ip_id} is "
        "deleted.",
    ),
    ports.PortHoldsLocalIP: NeutronErrorText(
        409,
        "PortInUse",
        "Port {why.port_id} holds the address of Local IP {why.local_ip_id}: {why.field} cannot be changed before that "
        "is deleted.",
    ),
    monitor_checks.DelayTooShort: lambda why: bad_attribute(
        "health_monitor", f"delay '{why.delay}' is too small for {why.type} - must be at least '{why.least}'"
    ),
    probe_ports.NoAddressForProbes: NeutronErrorText(
        409, "IpAddressGenerationFailure", "No more IP addresses available for subnet {why.subnet_id}."
    ),
    probe_limits.TooManyProbes: _too_many_probes,
    gateways.NetworkNotExternal: _not_external,
    gateways.AddressIsNextHop: bad_resource_text("router", "External IP {why.address} is the same as the gateway IP"),
    gateways.NoExternalAddress: bad_resource_text("router", "No IPs available for external network {why.network_id}"),
    gateways.GatewayHasVips: NeutronErrorText(
        409,
        "RouterExternalGatewayInUseByFloatingIp",
        "Gateway cannot be updated for router {why.router_id}, since a gateway to external network {why.network_id} is "
        "required by VIPs of load balancers.",
    ),
    gateways.GatewayNeededByFloatingIP: NeutronErrorText(
        409,
        "RouterExternalGatewayInUseByFloatingIp",
        "Gateway cannot be updated for router {why.router_id}, since a gateway to external network {why.network_id} is "
        "required by one or more floating IPs.",
    ),
    gateways.TooManyAttachedRouters: invalid_input_text(
        "at most {why.most} routers get a gateway address of a new subnet in one request: clear the gateways of some "
        "routers without an address first"
    ),
    gateways.TooManyInterfaces: bad_resource_text("router", "A router has at most {why.most} interfaces"),
    gateways.SubnetAlreadyAttached: bad_resource_text("router", "Router already has a port on subnet {why.subnet_id}"),
    gateways.JoinedSubnetsOverlap: bad_resource_text(
        "router",
        "Cidr {why.cidr} of subnet {why.subnet_id} overlaps with cidr {why.other_cidr} of subnet {why.other_id}",
    ),
    untranslated_prefixes.PrefixNotInRoutes: bad_resource_text(
        "router",
        "Cidr {why.cidr} is in none of the routes to network {why.uplink_id}, and the router has SNAT disabled",
    ),
    untranslated_prefixes.PrefixNotGranted: bad_resource_text(
        "router",
        "Cidr {why.cidr} would be used on network {why.uplink} without NAT, which no administrator granted to project"
        " {why.project_id}",
    ),
    untranslated_prefixes.PrefixInUseOutside: bad_resource_text(
        "router", "Cidr {why.cidr} overlaps with a prefix that another router of network {why.uplink_id} routes"
    ),
    routers.RouterInUse: NeutronErrorText(409, "RouterInUse", "Router {why.router_id} still has ports"),
    routers.NoSuchInterface: _no_interface,
    routers.InterfaceOnOtherSubnet: NeutronErrorText(
        400,
        "SubnetMismatchForPort",
        "Subnet on port {why.port_id} does not match the requested subnet {why.subnet_id}",
    ),
    routers.InterfaceNeededByRoute: NeutronErrorText(
        409,
        "RouterInterfaceInUseByRoute",
        "Router interface for subnet {why.subnet_id} on router {why.router_id} cannot be deleted, as it is required by "
        "one or more routes.",
    ),
    routers.InterfaceNeededByFloatingIP: NeutronErrorText(
        409,
        "RouterInterfaceInUseByFloatingIP",
        "Router interface for subnet {why.subnet_id} on router {why.router_id} cannot be deleted, as it is required by "
        "one or more floating IPs.",
    ),
    routers.InterfaceWithoutAddress: bad_resource_text("router", "Router port must have at least one fixed IP"),
    routers.InterfaceOnManySubnets: bad_resource_text("router", "Cannot have multiple IPv4 subnets on router port"),
    routers.SubnetOfOtherProject: bad_resource_text(
        "router",
        "Cannot add interface to router because subnet {why.subnet_id} is not owned by project making the request",
    ),
    routers.SubnetWithoutGateway: bad_resource_text("router", "Subnet for router interface must have a gateway IP"),
    routers.TooManyRoutes: NeutronErrorText(
        400,
        "RoutesExhausted",
        "Unable to complete operation for {why.router_id}. The number of routes exceeds the maximum {why.most}.",
    ),
    routers.RouteOfTwoVersions: _routes("the nexthop is not of the destination's IP version"),
    routers.NexthopNotConnected: _routes("the nexthop is not connected with router"),
    routers.NexthopIsRouters: _routes("the nexthop is used by router"),
    floatingips.NetworkWithoutIPv4: bad_resource_text(
        "floatingip", "Network {why.network_id} does not contain any IPv4 subnet"
    ),
    floatingips.SubnetWithoutIPv4: bad_resource_text("floatingip", "Subnet {why.subnet_id} has no IPv4 addresses"),
    floatingips.AddressNotIPv4: bad_resource_text("floatingip", "{why.address} is not an IPv4 address"),
    floatingips.FixedAddressNotIPv4: bad_resource_text(
        "floatingip", "Cannot process floating IP association with {why.address}, since that is not an IPv4 address"
    ),
    floatingips.FixedAddressWithoutPort: bad_resource_text(
        "floatingip", "fixed_ip_address cannot be specified without a port_id"
    ),
    floatingips.PortNotInProject: bad_resource_text(
        "floatingip",
        "Cannot process floating IP association with Port {why.port_id}, since that port is owned by a different "
        "tenant",
    ),
    floatingips.PortCannotHaveFloatingIP: bad_resource_text(
        "floatingip", "Port {why.port_id} is unable to be assigned a floating IP"
    ),
    floatingips.PortLacksFixedAddress: bad_resource_text(
        "floatingip", "Port {why.port_id} does not have fixed ip {why.address}"
    ),
    floatingips.PortWithoutIPv4: bad_resource_text(
        "floatingip", "Cannot add floating IP to port {why.port_id} that has no fixed IPv4 addresses"
    ),
    floatingips.PortWithManyIPv4: bad_resource_text(
        "floatingip",
        "Port {why.port_id} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address when assigning a "
        "floating IP",
    ),
    floatingips.NoRouterToExternalNetwork: NeutronErrorText(
        404,
        "ExternalGatewayForFloatingIPNotFound",
        "External network {why.network_id} is not reachable from subnet {why.subnet_id}.  Therefore, cannot associate "
        "Port {why.port_id} with a Floating IP.",
    ),
    floatingips.DestinationInUse: NeutronErrorText(
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
    quotas.NoQuota: NeutronErrorText(
        404, "TenantQuotaNotFound", "Quota for tenant {why.project_id} could not be found."
    ),
    quotas.LimitBelowUsage: NeutronErrorText(
        400,
        "HTTPBadRequest",
        "Quota limit {why.limit} for {why.what} must be greater than or equal to already used {why.used}",
    ),
    quotas.NotAProject: NeutronErrorText(400, "HTTPBadRequest", "A project's id has at most {why.most} characters"),
}
"""Rejection -> error text, or a function that returns the error."""


def error_of(why: Refusal) -> ApiError:
    words = ERROR_TEXTS[type(why)]
    if not isinstance(words, NeutronErrorText):
        return words(why)
    return ApiError(words.status, words.text.format(why=why), words.kind)
