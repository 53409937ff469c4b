"""Octavia's error text and status code of each rejection by the rules."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.octavia.errors import (
    COOKIES_OF_DATAGRAMS,
    NAMES,
    bad_request,
    disallowed,
    forbidden,
    invalid_option,
    missing_subresource,
    not_found,
)
from fairlead.changes import (
    access,
    addresses,
    balancer_checks,
    balancers,
    catalog,
    catalog_selection,
    idempotent_update,
    identity,
    ids,
    l7_checks,
    listener_checks,
    lookup,
    managed_networks,
    member_placement,
    monitor_checks,
    monitors,
    persistence,
    pool_checks,
    pools,
    probe_limits,
    probe_ports,
    provider_migration,
    proxy_limits,
    proxy_ports,
    quotas,
    restrictions,
    secrets,
    tls_checks,
    vip_gateways,
    vips,
)
from fairlead.changes.l7_checks import RuleProblem
from fairlead.changes.refusal import Refusal
from fairlead.compilers.providers import VIP_NETWORKS
from fairlead.model.documents.catalog import FlavorProfile, Profile
from fairlead.model.documents.l7 import L7RuleType
from fairlead.model.documents.loadbalancer import DATAGRAM_PROTOCOLS, PersistenceType
from fairlead.model.documents.owner import Kind
from fairlead.model.documents.quota import QuotaResource

_ROOTS = {Kind.FLAVOR: "flavor", Kind.AVAILABILITY_ZONE: "availability_zone"}
_OPTIONS = {Kind.FLAVOR: "flavor_id", Kind.AVAILABILITY_ZONE: "availability zone"}
_IN_CATALOG = {
    Kind.FLAVOR: "Flavor",
    Kind.FLAVOR_PROFILE: "Flavor profile",
    Kind.AVAILABILITY_ZONE: "Availability Zone",
    Kind.AVAILABILITY_ZONE_PROFILE: "Availability Zone Profile",
}
"""Names in texts about use and removal; Octavia's capitalisation is inconsistent."""
_PROFILES = {**_IN_CATALOG, Kind.FLAVOR_PROFILE: "Flavor Profile"}
"""Names in texts about references."""
_MANY = {
    QuotaResource.LISTENER: "listeners",
    QuotaResource.POOL: "pools",
    QuotaResource.L7POLICY: "L7 policies on a listener",
    QuotaResource.MEMBER: "members in all",
}
_PARTS = {QuotaResource.LOAD_BALANCER: "Load Balancer", QuotaResource.POOL: "Pool", QuotaResource.L7POLICY: "L7Policy"}
"""Names in "immutable" errors."""
_RULE: Mapping[RuleProblem, str] = {
    RuleProblem.NO_VALUE: "Invalid L7 Rule: L7 rule type requires a value",
    RuleProblem.NO_KEY: "Invalid L7 Rule: L7 rule type requires a key",
    RuleProblem.BAD_KEY: "Invalid characters in key",
    RuleProblem.BAD_VALUE: "Invalid characters in {value_of}",
    RuleProblem.BAD_COMPARISON: "Invalid L7 Rule: invalid comparison type for rule type",
    RuleProblem.BAD_EXPRESSION: "Unable to parse regular expression: {reason}",
    RuleProblem.NO_FIELD_OR_VALUE: "Invalid L7 Rule: L7rule type {type} needs to specify a key and a value.",
    RuleProblem.BAD_FIELD: "Invalid L7 Rule: Invalid L7rule distinguished name field.",
    RuleProblem.KEY_NOT_USED: 'Invalid L7 Rule: L7rule type {type} does not use the "key" field.',
    RuleProblem.NOT_TRUE: "Invalid L7 Rule: L7rule value {value} is not a boolean True string.",
    RuleProblem.NOT_A_NUMBER: "Invalid L7 Rule: L7rule type {type} needs a int value, which is >= 0",
    RuleProblem.ONLY_EQUAL: "Invalid L7 Rule: L7rule type {type} only supports the EQUAL_TO compare type.",
}


_NO_MEMBER_CA: Mapping[bool | None, str] = {
    None: "A CA certificate reference is required to specify a revocation list.",
    False: "A CA reference is required to specify a certificate revocation list.",
    True: "A CA reference cannot be removed when a certificate revocation list is present.",
}


def error_of(why: Refusal) -> ApiError:
    """Return the error of a rejection. Raises TypeError for a class without a text."""
    words = ERROR_TEXTS.get(type(why))
    if words is None:
        raise TypeError(f"there are no words for {why}")
    return words(why)


def _immutable(why: balancers.PartPending) -> ApiError:
    return ApiError(409, f"{_PARTS[why.what]} {why.id} is immutable and cannot be updated.")


def _wrong_rule(why: l7_checks.InvalidRule) -> ApiError:
    rule = why.rule
    has_key = rule.type in (L7RuleType.HEADER, L7RuleType.COOKIE)
    value_of = f"{rule.type.value.lower()} value" if has_key else "comparison value"
    words = _RULE[why.problem].format(type=rule.type.value, value=rule.value, reason=why.reason, value_of=value_of)
    return ApiError(400, f"Error parsing L7Rule: {words}")


def _wrong_monitor(why: monitor_checks.WrongMonitorType) -> ApiError:
    if why.protocol not in DATAGRAM_PROTOCOLS:
        return bad_request(f"The {why.type.value} type is only supported for pools of type UDP/SCTP.")
    types = "/".join(each.value for each in monitor_checks.DATAGRAM_MONITORS)
    return bad_request(
        f"The associated pool protocol is {why.protocol.value}, so only a {types} health monitor is supported."
    )


def _no_client_ca(why: tls_checks.NoClientCa) -> ApiError:
    if why.authentication is None:
        return bad_request(
            "A client authentication CA reference is required to specify a client authentication revocation list."
        )
    setting = why.authentication.value
    return bad_request(f"Client authentication setting {setting} requires a client CA container reference.")


def _other_provider(why: catalog_selection.OfferOfOtherProvider) -> ApiError:
    what = "Flavor" if why.kind is Kind.FLAVOR else "Availability zone"
    return ApiError(400, f"{what} '{why.key}' is not compatible with provider '{why.provider}'")


def _probe_limit_exceeded(why: probe_limits.TooManyProbes) -> ApiError:
    of = f" of port {why.port_id}" if why.port_id else ""
    return ApiError(403, f"Quota has been met for resources: Probes per second{of} ({why.per_second})")


def _too_many_servers(why: proxy_limits.TooManyServers) -> ApiError:
    return ApiError(
        403,
        f"Quota has been met for resources: Members behind proxied listeners of {why.at} ({why.asked} of {why.most})."
        " Listeners with the same protocol and timeouts share the members of a pool.",
    )


def _data(profile: Profile) -> str:
    """Return the name of the profile's metadata attribute."""
    return "flavor_data" if isinstance(profile, FlavorProfile) else "availability_zone_data"


_CATALOG: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    catalog.NotInCatalog: lambda why: not_found(_IN_CATALOG[why.owner.kind], why.owner.id),
    catalog.NoProfile: lambda why: missing_subresource(_PROFILES[why.owner.kind], why.owner.id),
    catalog.CatalogNameInUse: lambda why: ApiError(
        409, f"A {_IN_CATALOG[why.kind].lower()} of {why.name} already exists."
    ),
    catalog.CatalogEntryInUse: lambda why: ApiError(
        409, f"{_IN_CATALOG[why.owner.kind]} {why.owner.id} is in use and cannot be modified."
    ),
}
_BALANCERS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    quotas.QuotaExceeded: lambda why: ApiError(403, f"Quota has been met for resources: {NAMES[why.over[0]]}"),
    restrictions.TooManyUplinkAddresses: lambda why: ApiError(
        403,
        f"Quota has been met: project {why.project_id} may have {why.most} IPv{why.version} addresses of the external "
        f"network {why.uplink}",
    ),
    quotas.NoQuota: lambda why: not_found("Quotas", why.project_id),
    quotas.NotAProject: lambda why: bad_request(f"A project's id has at most {why.most} characters."),
    lookup.NoSuch: lambda why: not_found(NAMES[why.what], why.id),
    lookup.NotTheirs: lambda _: forbidden(),
    identity.NotAnAdministrator: lambda _: forbidden(),
    balancers.PartPending: _immutable,
    balancers.BalancerPending: lambda why: ApiError(
        409, f"Invalid state {why.status.value} of loadbalancer resource {why.id}"
    ),
    balancers.HasParts: lambda why: bad_request(f"Cannot delete Load Balancer {why.balancer_id} - it has children"),
    balancers.VipImmutable: lambda why: bad_request(f"The VIP of Load Balancer {why.balancer_id} cannot be changed."),
    balancer_checks.TooManyPorts: lambda why: bad_request(
        f"A load balancer can have at most {why.most} {'ports of members' if why.are_targets else 'ports'}."
    ),
    balancer_checks.TooManyBuckets: lambda why: bad_request(
        f"A load balancer can have at most {why.most} hash buckets. SOURCE_IP_PORT, SOURCE_IP and session persistence"
        f" SOURCE_IP need {why.each} for each port of a listener at each VIP: use fewer ports, or ROUND_ROBIN."
    ),
    balancers.BalancerIsDeclarative: lambda why: ApiError(
        409,
        f"Load Balancer {why.balancer_id} has a declarative spec: change its listeners, pools and members through the"
        " API that created it.",
    ),
    balancer_checks.TooManyParts: lambda why: bad_request(
        f"A load balancer can have at most {why.most} {_MANY[why.what]}."
    ),
    balancers.OfferImmutable: lambda why: bad_request(
        f"The {why.field} of Load Balancer {why.balancer_id} cannot be changed."
    ),
    idempotent_update.GenerationMismatch: lambda why: ApiError(
        409, f"Load Balancer {why.balancer_id} has changed since its revision {why.generation}."
    ),
    ids.IdInUse: lambda why: ApiError(409, f"The id {why.id} is already in use."),
    catalog_selection.UnknownProvider: lambda why: ApiError(400, f"Provider '{why.name}' is not enabled."),
    catalog_selection.UnknownOffer: lambda why: bad_request(f"Invalid {_OPTIONS[why.kind]}."),
    catalog_selection.OfferDisabled: lambda why: ApiError(
        400, f"The selected {_ROOTS[why.kind]} is not allowed in this deployment: {why.key}"
    ),
    catalog_selection.OfferOfOtherProvider: _other_provider,
    catalog_selection.NetworkNotOffered: lambda _: bad_request(
        "Supplied VIP network_id is not allowed by the configuration of this deployment."
    ),
    catalog_selection.BadProfile: lambda why: invalid_option(why.profile.metadata, _data(why.profile)),
    catalog_selection.BadVipNetworks: lambda why: invalid_option(
        why.value, f"{_data(why.profile)} {VIP_NETWORKS}; it is a list of ids"
    ),
    catalog_selection.UnknownCapability: lambda why: ApiError(
        501,
        f"Provider '{why.profile.provider}' does not support a requested option: {_data(why.profile)} {why.name}",
    ),
    probe_limits.TooManyProbes: _probe_limit_exceeded,
    proxy_limits.TooManyServers: _too_many_servers,
}
_LISTENERS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    listener_checks.ListenerPortInUse: lambda why: ApiError(
        409,
        f"Another Listener on this Load Balancer is already using protocol {why.protocol.value} and protocol_port"
        f" {why.port}",
    ),
    listener_checks.BadPorts: lambda why: bad_request(
        "A listener needs a protocol_port."
        if why.ports is None
        else f"protocol_port {why.ports} is out of range (1-65535)."
    ),
    listener_checks.WrongPoolProtocol: lambda why: bad_request(
        f"The pool protocol '{why.pool.value}' is invalid while the listener protocol is '{why.listener.value}'."
    ),
    listener_checks.PoolsNotSupported: lambda why: ApiError(
        400, f"Protocol {why.protocol.value} listeners cannot have child objects."
    ),
    listener_checks.RawMatchNotSupported: lambda why: bad_request(
        f"raw is not supported for {why.protocol.value} listeners; it requires a TCP listener."
    ),
    listener_checks.CidrIpVersionMismatch: lambda why: bad_request(
        f"CIDR {why.cidr} IP version incompatible with all VIPs {[str(vip) for vip in why.vips]} IP version."
    ),
    l7_checks.InvalidRule: _wrong_rule,
    l7_checks.TooManyRules: lambda why: ApiError(409, f"Too many rules on L7 policy {why.policy_id}"),
}
_POOLS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    pools.HasDefaultPool: lambda _: ApiError(409, "This listener already has a default pool"),
    pools.PoolInUse: lambda why: ApiError(409, f"Pool {why.pool_id} is in use by L7 policy {why.policy_id}"),
    pool_checks.MemberExists: lambda why: ApiError(
        409, f"Another member on this pool is already using ip {why.address} on protocol_port {why.port}"
    ),
    pool_checks.InvalidDestination: lambda why: ApiError(
        400,
        f"{why.address} is not a valid option for {'member monitor_address' if why.is_probed else 'member address'}",
    ),
    member_placement.MemberNotRouted: lambda why: bad_request(
        f"Member {'monitor_address' if why.is_probed else 'address'} {why.address} is not routed by a host of provider"
        f" {why.provider} on which the project may have members: it must be in a prefix that an operator declared for"
        " a host."
    ),
    member_placement.MemberIsHostAddress: lambda why: bad_request(
        f"Member {'monitor_address' if why.is_probed else 'address'} {why.address} is an address of the host"
        f" itself, to which provider {why.provider} sends no clients unless an operator declared that members run on"
        " the host."
    ),
    member_placement.MemberSubnetNotSupported: lambda why: bad_request(
        f"Hosts of provider {why.provider} route to members by address only: omit subnet_id {why.subnet_id}, which is"
        " on another network."
    ),
    persistence.CookiePersistenceNotSupported: lambda why: bad_request(
        "Cookie names are not supported for UDP/SCTP pools."
        if why.type is PersistenceType.APP_COOKIE
        else COOKIES_OF_DATAGRAMS.format(why.type.value)
    ),
    persistence.PersistenceTimeoutNotSupported: lambda _: bad_request(
        "persistence_timeout and persistence_granularity is only for UDP and SCTP protocol pools."
    ),
    persistence.BadCookieName: lambda _: bad_request('Supplied "cookie_name" is invalid.'),
    monitors.HasMonitor: lambda _: ApiError(409, "This pool already has a health monitor"),
    monitor_checks.WrongMonitorType: _wrong_monitor,
    monitor_checks.DelayTooShort: lambda why: bad_request(
        f"The request delay value {why.delay} should be larger than {why.least} for {why.type.value} health monitor"
        " type."
    ),
    monitor_checks.NoHttpVersion: lambda _: bad_request(
        "'http_version' must be specified when 'domain_name' is provided."
    ),
    monitor_checks.HttpWithoutHost: lambda _: ApiError(
        400, "http_version 1.0 is not a valid option for health monitors HTTP 1.1 domain name health check"
    ),
    probe_ports.NoAddressForProbes: lambda why: ApiError(
        409, f"No more IP addresses available on subnet {why.subnet_id}: health monitors need one."
    ),
}
_PROXIES: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    proxy_ports.NoProxyPort: lambda why: ApiError(
        409, f"{why.place_id} has {why.most} listeners of the project that need a proxy, which is the maximum."
    ),
}
_TLS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    tls_checks.HeadersNotInserted: lambda why: ApiError(
        400, f"insert-headers is not a valid option for a {why.protocol.value} protocol listener."
    ),
    tls_checks.UnknownHeaders: lambda why: ApiError(400, f"{list(why.names)} is not a valid option for insert_headers"),
    tls_checks.ClientCertificateHeadersNotSupported: lambda why: ApiError(
        400, f"{list(why.names)} is not a valid option for {why.protocol.value} protocol listener."
    ),
    tls_checks.BadHeaderSwitch: lambda why: ApiError(
        400, f"{why.value} is not a valid option for insert_headers {why.name}; it is true or false."
    ),
    tls_checks.TlsNotSupportedForDatagrams: lambda why: bad_request(
        f"{why.protocol.value} protocol listener does not support TLS{' or header insertion' if why.is_there else ''}."
    ),
    tls_checks.CertificateNotUsed: lambda why: bad_request(
        f"Certificate container references are not allowed on {why.protocol.value} protocol listeners."
    ),
    tls_checks.NoCertificate: lambda why: bad_request(
        "An SNI or default certificate container reference must be provided "
        + ("with a client CA container reference." if why.for_clients else "for TERMINATED_HTTPS protocol listeners.")
    ),
    tls_checks.NoClientCa: _no_client_ca,
    tls_checks.NoMemberCa: lambda why: bad_request(_NO_MEMBER_CA[why.was_there]),
    tls_checks.HstsWithoutAge: lambda _: bad_request(
        "HSTS configuration options hsts_include_subdomains and hsts_preload only make sense if hsts_max_age is set as"
        " well."
    ),
    tls_checks.HstsWithoutTls: lambda _: bad_request(
        "The HSTS feature can only be used for listeners using the TERMINATED_HTTPS protocol."
    ),
    tls_checks.BadCiphers: lambda _: bad_request(
        "Invalid characters in cipher string. Only alphanumeric, -, +, !, :, @, =, _, and . are allowed."
    ),
    secrets.SecretUnavailable: lambda why: ApiError(
        400, f"Could not retrieve certificate: {list(why.references)}: {'; '.join(dict.fromkeys(why.why))}"
    ),
    tls_checks.OldTlsVersions: lambda why: bad_request(
        f"Requested TLS versions are less than the minimum: {', '.join(why.versions)} < {why.least}"
    ),
}
_VIPS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    addresses.AddressOutsideSubnet: lambda why: bad_request(
        f"VIP address {why.address} is not a valid IP for subnet {why.subnet_id} ({why.cidr})."
    ),
    addresses.AddressInUse: lambda why: ApiError(409, f"The VIP IP address is already in use: {why.address}"),
    addresses.NoFreeAddress: lambda why: ApiError(409, f"No more IP addresses available on subnet {why.subnet_id}."),
    addresses.NoSubnetOnNetwork: lambda why: bad_request(
        f"Supplied network does not contain a subnet{'' if why.address is None else ' for VIP address specified'}."
    ),
    provider_migration.ClientsWouldLoseService: lambda why: ApiError(
        409,
        f"clients would stay with the other provider on {_places(why.networks, 'network')}"
        f"{' and ' if why.networks and why.routers else ''}{_places(why.routers, 'router')}; to accept this, list each"
        " of these.",
    ),
    access.NotFound: lambda why: missing_subresource(why.what.__name__, why.id),
    vips.VipNotSpecified: lambda _: bad_request("VIP must contain one of: vip_port_id, vip_network_id, vip_subnet_id."),
    vips.PortHasDevice: lambda why: bad_request(f"Port {why.port_id} is already used by device {why.device_id} "),
    managed_networks.ManagedElsewhere: lambda why: bad_request(managed_networks.describe_managed_elsewhere(why)),
    vips.VipNeedsPort: lambda why: bad_request(
        f"Network {why.network_id} is managed by {why.writer.program}, which allocates its addresses: create a port"
        " there first, and set it as vip_port_id."
    ),
    vips.PortHasHost: lambda why: bad_request(
        f"Port {why.port_id} is bound to host {why.host}, because a workload uses it."
    ),
    vips.AmbiguousAddress: lambda why: bad_request(
        "VIP port's subnet could not be determined. Please specify either a VIP subnet or address."
        if why.several
        else "Specified VIP address not found on the specified VIP port."
    ),
    vip_gateways.NoGatewayForVip: lambda why: bad_request(
        f"No router of project {why.project_id} has its gateway on external network {why.network_id}: a VIP there would"
        " be unreachable."
    ),
    catalog_selection.VipNotAnnounced: lambda why: bad_request(
        f"VIPs of provider {why.provider} require an announced network: network {why.network_id} is not announced."
    ),
    catalog_selection.VipNeedsAnnouncing: lambda why: bad_request(
        f"Network {why.network_id} is announced by hosts, which VIPs of provider {why.provider} do not support."
    ),
    vips.AddressChoiceNotAllowed: lambda _: disallowed(
        "(rule:create_port and (rule:create_port:fixed_ips:ip_address))"
    ),
    vips.SubnetsOfSeveralNetworks: lambda _: bad_request("All VIP subnets must belong to the same network."),
    vips.VipsOnSeveralPorts: lambda _: bad_request(
        "port_id of additional_vips is not supported: all VIPs are on one port; set it as vip_port_id."
    ),
    vips.VipPortWithoutAddress: lambda why: bad_request(
        f"Port {why.port_id} has no such address on subnet {why.subnet_id}."
    ),
    vips.DuplicateSubnet: lambda _: bad_request(
        "Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet."
    ),
}
ERROR_TEXTS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    **_CATALOG,
    **_BALANCERS,
    **_LISTENERS,
    **_POOLS,
    **_TLS,
    **_PROXIES,
    **_VIPS,
}


def _places(identities: tuple[str, ...], what: str) -> str:
    return f"{what}{'' if len(identities) < 2 else 's'} {', '.join(identities)}" if identities else ""
