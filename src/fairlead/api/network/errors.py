"""Neutron's errors: its classes, its codes and its sentences, which the stock clients print as they are.

Names and texts are those of neutron-lib (exceptions/__init__.py, l3.py, extraroute.py) and neutron (ipam/exceptions.py,
extensions/tagging.py). Neutron ends some sentences with a full stop and some without; so does this file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from fairlead.api.door import ApiError, json_response
from fairlead.api.fields import Schema, object_schema
from fairlead.changes import access, addresses, networks, ports, subnets
from fairlead.changes.refusal import Refusal
from fairlead.model.addresses import IPAddress
from fairlead.model.network import FloatingIP, Network, Port, PortUse, Resource, Router, Subnet

_TEXT: Schema = {"type": "string"}
_ERROR = object_schema({"type": _TEXT, "message": _TEXT, "detail": _TEXT}, ["type", "message", "detail"])
FAULT: Schema = object_schema({"NeutronError": _ERROR}, ["NeutronError"])


def fault(status: int, kind: str, message: str) -> Response:
    return json_response({"NeutronError": {"type": kind, "message": message, "detail": ""}}, status)


def bad_request(message: str) -> ApiError:
    return ApiError(400, message, "HTTPBadRequest")


def bad_resource(resource: str, message: str) -> ApiError:
    return ApiError(400, f"Bad {resource} request: {message}.", "BadRequest")


def bad_attribute(name: str, reason: str) -> ApiError:
    return bad_request(f"Invalid input for {name}. Reason: {reason.rstrip('.')}.")


def invalid_input(message: str) -> ApiError:
    return ApiError(400, f"Invalid input for operation: {message}.", "InvalidInput")


def forbidden(rule: str) -> ApiError:
    return ApiError(403, f"{rule} is disallowed by policy", "PolicyNotAuthorized")


def not_found(resource: str, identity: str) -> ApiError:
    """`resource` is Neutron's singular: network, subnet, port, router."""
    name = "Floating IP" if resource == "floatingip" else resource.capitalize()
    stop = "" if resource in ("router", "floatingip") else "."
    return ApiError(404, f"{name} {identity} could not be found{stop}", f"{name.replace(' ', '')}NotFound")


def tag_not_found(tag: str) -> ApiError:
    return ApiError(404, f"Tag {tag} could not be found.", "TagNotFound")


def revision_mismatch(expected: int, current: int) -> ApiError:
    return ApiError(
        412, f"Constrained to {expected}, but current revision is {current}", "RevisionNumberConstraintFailed"
    )


def quota_not_found(project_id: str) -> ApiError:
    return ApiError(404, f"Quota for tenant {project_id} could not be found.", "TenantQuotaNotFound")


def quota_below_usage(resource: str, limit: int, used: int) -> ApiError:
    return bad_request(f"Quota limit {limit} for {resource} must be greater than or equal to already used {used}")


def segments_and_provider() -> ApiError:
    return ApiError(400, "Segments and provider values cannot both be set.", "SegmentsSetInConjunctionWithProviders")


# ports and addresses


def port_in_use(port_id: str, network_id: str, device_id: str) -> ApiError:
    text = (
        f"Unable to complete operation on port {port_id} for network {network_id}. Port already has an attached device "
        f"{device_id}."
    )
    return ApiError(409, text, "PortInUse")


# routers


def router_in_use(router_id: str) -> ApiError:
    return ApiError(409, f"Router {router_id} still has ports", "RouterInUse")


def interface_not_found(router_id: str, port_id: str) -> ApiError:
    text = f"Router {router_id} does not have an interface with id {port_id}"
    return ApiError(404, text, "RouterInterfaceNotFound")


def interface_not_found_for_subnet(router_id: str, subnet_id: str) -> ApiError:
    text = f"Router {router_id} has no interface on subnet {subnet_id}"
    return ApiError(404, text, "RouterInterfaceNotFoundForSubnet")


def interface_in_use_by_route(router_id: str, subnet_id: str) -> ApiError:
    text = (
        f"Router interface for subnet {subnet_id} on router {router_id} cannot be deleted, as it is required by one or "
        "more routes."
    )
    return ApiError(409, text, "RouterInterfaceInUseByRoute")


def interface_in_use_by_floating_ip(router_id: str, subnet_id: str) -> ApiError:
    text = (
        f"Router interface for subnet {subnet_id} on router {router_id} cannot be deleted, as it is required by one or "
        "more floating IPs."
    )
    return ApiError(409, text, "RouterInterfaceInUseByFloatingIP")


def gateway_in_use_by_floating_ip(router_id: str, network_id: str) -> ApiError:
    text = (
        f"Gateway cannot be updated for router {router_id}, since a gateway to external network {network_id} is "
        "required by one or more floating IPs."
    )
    return ApiError(409, text, "RouterExternalGatewayInUseByFloatingIp")


def no_gateway_for_floating_ip(network_id: str, subnet_id: str, port_id: str) -> ApiError:
    text = (
        f"External network {network_id} is not reachable from subnet {subnet_id}.  Therefore, cannot associate Port "
        f"{port_id} with a Floating IP."
    )
    return ApiError(404, text, "ExternalGatewayForFloatingIPNotFound")


def floating_ip_already_associated(floating_ip: FloatingIP, port_id: str, fixed: IPAddress) -> ApiError:
    text = (
        f"Cannot associate floating IP {floating_ip.address} ({floating_ip.id}) with port {port_id} using fixed IP "
        f"{fixed}, as that fixed IP already has a floating IP on external network {floating_ip.network_id}."
    )
    return ApiError(409, text, "FloatingIPPortAlreadyAssociated")


def subnet_mismatch(port_id: str, subnet_id: str) -> ApiError:
    text = f"Subnet on port {port_id} does not match the requested subnet {subnet_id}"
    return ApiError(400, text, "SubnetMismatchForPort")


def bad_routes(routes: object, reason: str) -> ApiError:
    return ApiError(400, f"Invalid format for routes: {routes}, {reason}", "InvalidRoutes")


def too_many_routes(router_id: str, most: int) -> ApiError:
    text = f"Unable to complete operation for {router_id}. The number of routes exceeds the maximum {most}."
    return ApiError(400, text, "RoutesExhausted")


# What the rules refuse


@dataclass(frozen=True, slots=True)
class Words:
    """`text` is a format that names what it takes from the refusal, `why`."""

    status: int
    kind: str
    text: str


def _invalid(text: str) -> Words:
    return Words(400, "InvalidInput", f"Invalid input for operation: {text}.")


def _bad(resource: str, text: str) -> Words:
    return Words(400, "BadRequest", f"Bad {resource} request: {text}.")


def _serves(reason: str) -> Words:
    text = f"Port {{why.port_id}} cannot be deleted directly via the port API: {reason}."
    return Words(409, "ServicePortInUse", text)


def _use_is_given(why: ports.UseIsGiven) -> Words:
    givers = {
        PortUse.VIP: "the load balancer",
        PortUse.PROBE: "health monitors",
        PortUse.ROUTER_INTERFACE: "add_router_interface",
    }
    return _bad("port", f"device_owner {{why.use}} is given by {givers.get(why.use, 'what it serves')}")


def _segment_taken(why: networks.SegmentTaken) -> Words:
    where = "network {why.segment.physical_network} is in use."
    if why.segment.id is None:
        return Words(409, "FlatNetworkInUse", f"Unable to create the flat network. Physical {where}")
    text = f"Unable to create the network. The VLAN {{why.segment.id}} on physical {where}"
    return Words(409, "VlanIdInUse", text)


def _other_version(why: subnets.OtherVersion) -> Words:
    name = {"gateway": "gateway_ip", "dns_nameservers": "dns_nameserver"}.get(why.field, why.field)
    return _invalid(f"{name} '{{why.value}}' does not match the ip_version '{{why.version}}'")


WORDS: Mapping[type[Refusal], Words | Callable[[Any], Words]] = {
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
    addresses.NoSubnetOnNetwork: _invalid("IP allocation requires subnets for network"),
    addresses.SubnetOfOtherNetwork: _invalid(
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
    networks.SegmentWithoutType: _invalid("network_type required"),
    networks.SegmentWithoutNetwork: _invalid("physical_network required for {why.type} provider network"),
    networks.FlatSegmentWithTag: _invalid("segmentation_id prohibited for flat provider network"),
    networks.VlanWithoutTag: _invalid("segmentation_id required for vlan provider network: no range is configured"),
    networks.SegmentOfInternalNetwork: _invalid("provider attributes are supported for external networks only"),
    networks.SegmentTaken: _segment_taken,
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
    networks.ExternalNetworkInUse: Words(
        409,
        "ExternalNetworkInUse",
        "External network {why.network_id} cannot be updated to be made non-external, since it has existing gateway "
        "ports.",
    ),
    subnets.WholeInternet: _invalid("0 is not allowed as CIDR prefix length"),
    subnets.OtherVersion: _other_version,
    subnets.GatewayOutside: _invalid("Gateway is not valid on subnet"),
    subnets.TooSmallForDhcp: _invalid("Subnet has a prefix length that is incompatible with DHCP service enabled"),
    subnets.MulticastWithDhcp: _invalid("Multicast IP subnet is not supported if enable_dhcp is True"),
    subnets.LoopbackWithDhcp: _invalid("Loopback IP subnet is not supported if enable_dhcp is True"),
    subnets.Ipv6ModeOfIpv4: _invalid("{why.field} is not valid when ip_version is 4"),
    subnets.Ipv6ModeWithoutDhcp: _invalid(
        "ipv6_ra_mode or ipv6_address_mode cannot be set when enable_dhcp is set to False"
    ),
    subnets.Ipv6ModesDiffer: _invalid(
        "ipv6_ra_mode set to '{why.advertised}' with ipv6_address_mode set to '{why.addresses}' is not valid. If both "
        "attributes are set, they must be the same value"
    ),
    subnets.NoRoomForMacs: _invalid(
        "Invalid CIDR {why.cidr} for IPv6 address mode. OpenStack uses the EUI-64 address format, which requires the "
        "prefix to be /64"
    ),
    subnets.TooManySubnets: _invalid("a network has at most {why.most} subnets"),
    subnets.SubnetsOverlap: _invalid(
        "Requested subnet with cidr: {why.cidr} for network: {why.network_id} overlaps with another subnet"
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
    ports.PortServesNetwork: _serves("has device owner {why.use}"),
    ports.PortServesMonitors: _serves("health monitors need its address; it goes with its subnet"),
    ports.PortServesBalancer: _serves("still used by load balancer {why.load_balancer_id}"),
}
"""Of each refusal; or what chooses them by its value."""
RESOURCES: Mapping[type[Resource], str] = {
    Network: "network",
    Subnet: "subnet",
    Port: "port",
    Router: "router",
    FloatingIP: "floatingip",
}
"""Neutron's singulars."""


def say(why: Refusal) -> ApiError:
    if isinstance(why, access.NotFound):
        return not_found(RESOURCES[why.what], why.id)
    words = WORDS[type(why)]
    if not isinstance(words, Words):
        words = words(why)
    return ApiError(words.status, words.text.format(why=why), words.kind)
