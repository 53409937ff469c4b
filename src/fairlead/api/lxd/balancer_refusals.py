"""LXD's error texts of rejections by the rules of load balancers, and those for forwards where LXD's text differs.

Where LXD and Incus differ, the text is that of Incus. LXD's text is used for rules that only LXD has, and Fairlead's
own for rules that neither has. Indexes in lists start at 0, as in LXD.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.balancer_config import AFFINITY, ALGORITHM, HEALTHCHECK, METHOD, WEIGHT
from fairlead.api.lxd.go_texts import quote
from fairlead.changes import (
    balancer_checks,
    balancer_spec_checks,
    balancer_specs,
    catalog_selection,
    listen_addresses,
    lookup,
    managed_networks,
    member_placement,
    monitor_checks,
    pool_checks,
    probe_limits,
    probe_ports,
    proxy_limits,
    proxy_ports,
    vip_gateways,
)
from fairlead.changes.refusal import Refusal
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.port_ranges import FIRST_PORT, LAST_PORT, PortRange
from fairlead.model.documents.quota import QuotaResource

ErrorOf = Callable[[Any], ApiError]
_MANY = {
    QuotaResource.LISTENER: "port specifications",
    QuotaResource.POOL: "port specifications",
    QuotaResource.MEMBER: "target backends in all port specifications",
}


def _bad(text: str) -> ApiError:
    return ApiError(400, text)


def _bad_name(why: balancer_spec_checks.BadBackendName) -> ApiError:
    where = f"in backend specification {why.index}"
    if not why.name:
        return _bad(f"Missing name {where}")
    if any(map(str.isspace, why.name)):
        return _bad(f"Name cannot contain white space {where}")
    return _bad(f"Invalid name {quote(why.name)} {where}")


def _number(ports: PortRange) -> str:
    return f"Invalid port number {quote(str(ports))}, must be between {FIRST_PORT} and {LAST_PORT}"


def _bad_target(why: balancer_spec_checks.BadTargetPort) -> ApiError:
    where = f"backend port specification {why.place} in backend specification {why.index}"
    return _bad(f"Invalid {where}: {_number(why.ports)}")


def _unknown_target_text(why: balancer_spec_checks.TargetNotUsable) -> str:
    return f"cannot be a {'broadcast' if why.is_broadcast else 'network'} address"


def _wrong_method(why: monitor_checks.WrongMonitorType) -> ApiError:
    method, protocol = why.type.value.lower(), why.protocol.value.lower()
    return _bad(
        f"Invalid value {quote(method)} for option {quote(METHOD)}: not for ports of protocol {quote(protocol)}"
    )


def _too_many_ports(why: balancer_checks.TooManyPorts) -> ApiError:
    what = "target ports" if why.are_targets else "listen ports"
    return _bad(f"Too many {what}: a load balancer can have at most {why.most}")


def _port_twice(why: balancer_spec_checks.DuplicateListenPort) -> ApiError:
    protocol = quote(lb.transport(why.protocol).value)
    return _bad(f"Duplicate listen port {why.port} for protocol {protocol} in port specification {why.index}")


_DESCRIPTION: Mapping[type[Refusal], ErrorOf] = {
    balancer_spec_checks.BadBackendName: _bad_name,
    balancer_spec_checks.DuplicateBackend: lambda why: _bad(
        f"Duplicate name {quote(why.name)} in backend specification {why.index}"
    ),
    balancer_spec_checks.TargetIpVersionMismatch: lambda why: _bad(
        f"Cannot mix IP versions in listen address and backend {quote(why.name)} target address"
    ),
    balancer_spec_checks.TargetOutsideNetwork: lambda why: _bad(
        f"Target address is not within the network subnet for backend {quote(why.name)}"
    ),
    balancer_spec_checks.TargetNotUsable: lambda why: _bad(
        f"Target address {_unknown_target_text(why)} for backend {quote(why.name)}"
    ),
    balancer_spec_checks.SameAsDefault: lambda why: _bad(
        f"Target address is same as default target address for backend {quote(why.name)}"
    ),
    balancer_spec_checks.BadTargetPort: _bad_target,
    balancer_spec_checks.NoBackends: lambda why: _bad(
        f"Missing target_backend or target_pool in port specification {why.index}"
    ),
    balancer_spec_checks.NoListenPort: lambda why: _bad(f"Missing listen port in port specification {why.index}"),
    balancer_spec_checks.BadListenPort: lambda why: _bad(
        f"Invalid listen port in port specification {why.index}: {_number(why.ports)}"
    ),
    balancer_spec_checks.DuplicateListenPort: _port_twice,
    balancer_spec_checks.UnknownBackend: lambda why: _bad(
        f"Invalid target backend name {quote(why.name)} in port specification {why.index}"
    ),
    balancer_spec_checks.DuplicateReference: lambda why: _bad(
        f"Duplicate target backend name {quote(why.name)} in port specification {why.index}"
    ),
    balancer_spec_checks.CountMismatch: lambda why: _bad(
        f"Mismatch of listen port(s) and target port(s) count for backend {quote(why.name)} in port specification"
        f" {why.index}"
    ),
    balancer_spec_checks.TooManyBackends: lambda why: _bad(
        f"Too many backends: a load balancer can have at most {why.most}"
    ),
    balancer_spec_checks.WeightForUnknownBackend: lambda why: _bad(
        f"Invalid option {quote(WEIGHT + why.name)}: no such backend"
    ),
}
_ANY: Mapping[type[Refusal], ErrorOf] = {
    balancer_checks.TooManyParts: lambda why: _bad(
        f"Too many {_MANY[why.what]}: a load balancer can have at most {why.most}"
    ),
    balancer_checks.TooManyPorts: _too_many_ports,
    balancer_checks.TooManyBuckets: lambda why: _bad(
        f"Too many listen ports: with a selection by source (options {quote(ALGORITHM)} and {quote(AFFINITY)}) a load"
        f" balancer can have at most {why.most // why.each}"
    ),
    catalog_selection.VipNotAnnounced: lambda why: _bad(
        f"Listen addresses of provider {quote(why.provider)} require an announced network, which an OVN network is not"
    ),
    lookup.NoSuch: lambda _: ApiError(404, "Network load balancer not found"),
    lookup.NotTheirs: lambda _: ApiError(403, "not authorized"),
    member_placement.MemberNotRouted: lambda why: _bad(
        f"Target address {quote(str(why.address))} is not routed by a host on which the project may have backends"
    ),
    member_placement.MemberIsHostAddress: lambda why: _bad(
        f"Target address {quote(str(why.address))} is an address of the host itself"
    ),
    member_placement.MemberSubnetNotSupported: lambda why: _bad(
        f"Hosts of provider {quote(why.provider)} route to backends by address only, without a network"
    ),
    pool_checks.InvalidDestination: lambda why: _bad(
        f"Target address {quote(str(why.address))} is not a valid backend address"
    ),
    pool_checks.MemberExists: lambda why: ApiError(
        409,
        f"Several backends of one port specification have target address {quote(str(why.address))} and the same port",
    ),
    monitor_checks.WrongMonitorType: _wrong_method,
    monitor_checks.DelayTooShort: lambda why: _bad(
        f"Invalid value {quote(str(why.delay))} for option {quote(f'{HEALTHCHECK}.interval')}: must be at least"
        f" {why.least}"
    ),
    probe_limits.TooManyProbes: lambda why: ApiError(
        403, f"Project quota for health checks per second ({why.per_second}) is exhausted"
    ),
    proxy_limits.TooManyServers: lambda why: ApiError(
        403, f"Backends of ports that need a proxy: {why.asked}, the maximum of the network is {why.most}"
    ),
    proxy_ports.NoProxyPort: lambda why: ApiError(
        409, f"The network has {why.most} ports that need a proxy, which is the maximum"
    ),
    probe_ports.NoAddressForProbes: lambda _: ApiError(409, "The network has no free source address for health checks"),
}
_NOUNS = {lb.SpecPurpose.FORWARD: "forward", lb.SpecPurpose.LOAD_BALANCER: "load balancer"}


def _conflict(text: str) -> ApiError:
    return ApiError(409, text)


def _allocating(version: int, why: str) -> str:
    return f"Failed allocating an IPv{version} address: {why}"


def _in_ranges(why: listen_addresses.InRouterRanges) -> ApiError:
    ranges = f"{quote(f'ipv{why.address.version}.ovn.ranges')} ({quote(f'{why.pool.start}-{why.pool.end}')})"
    return _bad(f"Listen address {quote(str(why.address))} overlaps with {ranges}")


def _in_use(why: listen_addresses.ListenAddressNotUsable) -> ApiError:
    by = " by instance NIC" if why.use is PortUse.MACHINE else ""
    return _conflict(f"Listen address {quote(str(why.address))} is already in use{by}")


def _missing_family(why: listen_addresses.IpVersionMissing) -> ApiError:
    return _bad(f"OVN network {quote(why.network)} is missing {quote(f'ipv{why.version}.address')} config option")


_LISTEN: Mapping[type[Refusal], ErrorOf] = {
    balancer_specs.NoBalancerAtAddress: lambda why: ApiError(404, f"Network {_NOUNS[why.use]} not found"),
    balancer_specs.BalancerNotDeclarative: lambda _: _conflict(
        "It was created through another API and can be changed only there"
    ),
    listen_addresses.NoUplinkForAddress: lambda _: _bad("Isolated OVN network cannot use network load balancers"),
    vip_gateways.NoGatewayForVip: lambda _: _bad("Isolated OVN network cannot use network load balancers"),
    listen_addresses.IpVersionMissing: _missing_family,
    listen_addresses.AddressNotInRoutes: lambda why: _bad(
        f"Uplink network does not contain {quote(f'{why.address}/{why.address.max_prefixlen}')} in its routes"
    ),
    listen_addresses.NoRoutes: lambda why: _bad(
        _allocating(why.version, f"No IPv{why.version} routes are available for this network")
    ),
    listen_addresses.NoFreeListenAddress: lambda why: _conflict(_allocating(why.version, "No address is free")),
    listen_addresses.InRouterRanges: _in_ranges,
    listen_addresses.DefaultTargetAtGateway: lambda why: _bad(
        f"Default target address cannot be used with the address of the network's own router {quote(str(why.address))}"
    ),
    listen_addresses.ListenAddressInUse: lambda why: _conflict(
        f"A {_NOUNS[why.use]} for that listen address already exists"
    ),
    listen_addresses.ListenAddressInUseOnUplink: lambda why: _conflict(
        f"Load balancer listen address {quote(str(why.address))} overlaps with another network or NIC"
    ),
    listen_addresses.ListenAddressNotUsable: _in_use,
}
_MANAGED: Mapping[type[Refusal], ErrorOf] = {
    managed_networks.ManagedElsewhere: lambda why: _bad(managed_networks.describe_managed_elsewhere(why)),
}
ERROR_TEXTS: Mapping[type[Refusal], ErrorOf] = {**_DESCRIPTION, **_ANY, **_LISTEN, **_MANAGED}
"""Texts for load balancers, and for forwards without a text in `OF_FORWARDS`."""


def _of_forward(why: Any, words: str) -> ApiError:
    """Return an error about the default target or the target of a port."""
    if why.name is None:
        return _bad(f"Default target address {words}")
    return _bad(f"Target address {words} in port specification {why.index}")


def _mixed(why: balancer_spec_checks.TargetIpVersionMismatch) -> ApiError:
    which = "default" if why.name is None else f"port specification {why.index}"
    return _bad(f"Cannot mix IP versions in listen address and {which} target address")


OF_FORWARDS: Mapping[type[Refusal], ErrorOf] = {
    listen_addresses.NoUplinkForAddress: lambda _: _bad("Isolated OVN network cannot use network forwards"),
    vip_gateways.NoGatewayForVip: lambda _: _bad("Isolated OVN network cannot use network forwards"),
    listen_addresses.ListenAddressInUseOnUplink: lambda why: _conflict(
        f"Forward listen address {quote(str(why.address))} overlaps with another network or NIC"
    ),
    balancer_spec_checks.TargetIpVersionMismatch: _mixed,
    balancer_spec_checks.TargetOutsideNetwork: lambda why: _of_forward(why, "is not within the network subnet"),
    balancer_spec_checks.TargetNotUsable: lambda why: _of_forward(why, _unknown_target_text(why)),
    balancer_spec_checks.SameAsDefault: lambda why: _bad(
        f"Target address is same as default target address in port specification {why.index}"
    ),
    balancer_spec_checks.BadTargetPort: lambda why: _bad(f"Invalid target port in port specification {why.index}"),
    balancer_spec_checks.CountMismatch: lambda why: _bad(
        f"Mismatch of listen port(s) and target port(s) count in port specification {why.index}"
    ),
}
