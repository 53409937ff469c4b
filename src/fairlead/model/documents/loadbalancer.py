"""Load balancer aggregate: VIP, listeners, pools and members are one document with one revision."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.l7 import L7Policy
from fairlead.model.documents.network import Resource
from fairlead.model.documents.port_ranges import Ports, TargetPort
from fairlead.model.documents.slots import SlotTable

NO_ORDINAL = -1
UNLIMITED = -1


class ListenerProtocol(StrEnum):
    """Listener protocols of Octavia, and ANY.
    The compiler of a provider rejects those that the provider does not support."""

    ANY = "ANY"
    """All traffic to the VIP that no other listener accepts. Such a listener has no ports."""
    HTTP = "HTTP"
    HTTPS = "HTTPS"
    PROMETHEUS = "PROMETHEUS"
    SCTP = "SCTP"
    TCP = "TCP"
    TERMINATED_HTTPS = "TERMINATED_HTTPS"
    UDP = "UDP"


class PoolProtocol(StrEnum):
    ANY = "ANY"
    HTTP = "HTTP"
    HTTPS = "HTTPS"
    PROXY = "PROXY"
    PROXYV2 = "PROXYV2"
    SCTP = "SCTP"
    TCP = "TCP"
    UDP = "UDP"


DATAGRAM_PROTOCOLS = frozenset({PoolProtocol.UDP, PoolProtocol.SCTP})


class Algorithm(StrEnum):
    LEAST_CONNECTIONS = "LEAST_CONNECTIONS"
    ROUND_ROBIN = "ROUND_ROBIN"
    SOURCE_IP = "SOURCE_IP"
    SOURCE_IP_PORT = "SOURCE_IP_PORT"


class PersistenceType(StrEnum):
    APP_COOKIE = "APP_COOKIE"
    HTTP_COOKIE = "HTTP_COOKIE"
    SOURCE_IP = "SOURCE_IP"


class Locality(StrEnum):
    """Preference for members by placement of client and member;
    it applies among ordinary members, then among backups."""

    CHASSIS = "CHASSIS"
    """Members on the client's chassis first, then those in the client's zone."""
    NONE = "NONE"
    ZONE = "ZONE"
    """Members in the client's zone first, on any chassis."""


class DownMember(StrEnum):
    """Treatment of a member's established connections when the member goes down."""

    KEEP = "KEEP"
    """Connections stay with the member, which may still answer; a short outage goes unnoticed."""
    RESET = "RESET"
    """Connections are flushed immediately. The client's next packet goes to another member,
    which answers TCP with a reset."""


class MonitorType(StrEnum):
    HTTP = "HTTP"
    HTTPS = "HTTPS"
    PING = "PING"
    SCTP = "SCTP"
    TCP = "TCP"
    TLS_HELLO = "TLS-HELLO"
    UDP_CONNECT = "UDP-CONNECT"


HTTP_MONITORS = frozenset({MonitorType.HTTP, MonitorType.HTTPS})
"""Monitors that send an HTTP request."""


class ClientAuthentication(StrEnum):
    """Policy for client certificates."""

    MANDATORY = "MANDATORY"
    NONE = "NONE"
    OPTIONAL = "OPTIONAL"


class Transport(StrEnum):
    """Transport protocol of a listener, as a switch matches it."""

    ANY = "any"
    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCookiePersistence:
    """Persistence by a cookie that the load balancer inserts."""

    type: Literal[PersistenceType.HTTP_COOKIE] = field(default=PersistenceType.HTTP_COOKIE, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCookiePersistence:
    """Persistence by a cookie that the member sets."""

    type: Literal[PersistenceType.APP_COOKIE] = field(default=PersistenceType.APP_COOKIE, init=False)
    cookie_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIpPersistence:
    """Persistence by the client's address."""

    type: Literal[PersistenceType.SOURCE_IP] = field(default=PersistenceType.SOURCE_IP, init=False)
    timeout: int | None = None
    """Idle time in seconds after which a client may be assigned another member; None for the provider's default."""
    granularity: IPAddress | None = None
    """Mask of the client address: clients with equal masked addresses share a member. None for the full address."""


SessionPersistence: TypeAlias = HttpCookiePersistence | AppCookiePersistence | SourceIpPersistence


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Resource):
    ordinal: int = NO_ORDINAL
    """Number of the member in the slot tables of its pool.
    It is assigned when the member is first stored, and never reused."""
    address: IPAddress
    port: TargetPort
    weight: int = 1
    admin_state_up: bool = True
    backup: bool = False
    subnet_id: str | None = None
    monitor_address: IPAddress | None = None
    monitor_port: int | None = None
    address_text: str = ""
    monitor_address_text: str = ""
    """Addresses as written in the request, if not canonical.
    Clients that compare the response with their request see no difference."""

    @property
    def takes_connections(self) -> bool:
        """Whether the member accepts new connections: it is enabled and its weight is above 0 (weight 0 drains)."""
        return self.admin_state_up and self.weight > 0

    @property
    def has_single_probe_port(self) -> bool:
        """Whether the member is probed at one port only, whatever the ports of its listeners."""
        return self.monitor_port is not None or isinstance(self.port, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Monitor(Resource):
    """Attributes of all health monitors. Times are in seconds."""

    delay: int
    timeout: int
    max_retries: int
    """Consecutive successes that make a member ONLINE."""
    max_retries_down: int = 3
    """Consecutive failures that make a member ERROR."""
    delay_ms: int | None = None
    """Interval in milliseconds for delays below one second; it overrides `delay`."""
    admin_state_up: bool = True
    http_version: str | None = None
    domain_name: str | None = None
    """HTTP version and Host header of probes.
    Octavia keeps both for monitors of every type and returns them to clients."""

    @property
    def interval_seconds(self) -> float:
        """Interval between two probes. Octavia allows a delay of 0, which counts as one second."""
        return float(max(1, self.delay)) if self.delay_ms is None else self.delay_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMonitor(_Monitor):
    """Monitor that checks whether the port answers."""

    type: Literal[MonitorType.PING, MonitorType.SCTP, MonitorType.TCP, MonitorType.TLS_HELLO, MonitorType.UDP_CONNECT]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpMonitor(_Monitor):
    """Monitor that sends an HTTP request and checks the status code."""

    type: Literal[MonitorType.HTTP, MonitorType.HTTPS]
    http_method: str = "GET"
    url_path: str = "/"
    expected_codes: str = "200"
    """One code, a comma-separated list, or a range with a hyphen."""


HealthMonitor: TypeAlias = PlainMonitor | HttpMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTls:
    """TLS from the load balancer to members. References name secrets; empty values select the provider's default."""

    enabled: bool = False
    container_ref: str | None = None
    ca_container_ref: str | None = None
    crl_container_ref: str | None = None
    versions: tuple[str, ...] = ()
    ciphers: str | None = None
    alpn_protocols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Resource):
    protocol: PoolProtocol
    algorithm: Algorithm
    admin_state_up: bool = True
    persistence: SessionPersistence | None = None
    locality: Locality = Locality.NONE
    down_member: DownMember = DownMember.KEEP
    tls: PoolTls | None = None
    """None if absent from the request, for pools and listeners."""
    health_monitor: HealthMonitor | None = None
    members: tuple[Member, ...] = ()
    next_ordinal: int = 0
    tables: tuple[SlotTable, ...] = ()
    """Slot tables: the member of each hash value. One table per IP version of the members, and one more for backups."""
    slots: tuple[int, ...] = ()
    """Single slot table of all members, in documents older than per-version tables; otherwise empty."""

    @property
    def hashes_source_only(self) -> bool:
        """Whether the client address alone selects the member, by algorithm or persistence."""
        return isinstance(self.persistence, SourceIpPersistence) or self.algorithm is Algorithm.SOURCE_IP

    @property
    def goes_by_fields(self) -> bool:
        """Whether the client's address, or its address and port, selects the same member on every node.
        ROUND_ROBIN promises even shares only (ADR 90)."""
        return self.hashes_source_only or self.algorithm is Algorithm.SOURCE_IP_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Timeouts in milliseconds. Only proxies apply them: a switch does not close idle connections."""

    client_data: int = 50_000
    member_connect: int = 5_000
    member_data: int = 50_000
    tcp_inspect: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """TLS from clients to the load balancer."""

    container_ref: str | None = None
    sni_container_refs: tuple[str, ...] = ()
    client_authentication: ClientAuthentication = ClientAuthentication.NONE
    client_ca_container_ref: str | None = None
    client_crl_container_ref: str | None = None
    versions: tuple[str, ...] = ()
    ciphers: str | None = None
    alpn_protocols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Http:
    """Headers that the load balancer adds: to requests, each "true" or "false", and HSTS (RFC 6797) to responses."""

    insert_headers: tuple[tuple[str, str], ...] = ()
    hsts_max_age: int | None = None
    hsts_include_subdomains: bool = False
    hsts_preload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMatch:
    """Required first bytes of a connection; a connection with other bytes is not forwarded."""

    location: int
    """Offset in the stream, in bytes."""
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener(Resource):
    protocol: ListenerProtocol
    ports: Ports
    """Ports of the listener; empty for protocol ANY."""
    admin_state_up: bool = True
    default_pool_id: str | None = None
    connection_limit: int = UNLIMITED
    allowed_cidrs: tuple[IPNetwork, ...] = ()
    """Client networks that may connect; all clients if empty. An IP version without an entry is denied completely."""
    timeouts: Timeouts = Timeouts()
    tls: ListenerTls | None = None
    http: Http | None = None
    raw: RawMatch | None = None
    l7policies: tuple[L7Policy, ...] = ()
    proxy_port: int = 0
    """Port where proxies accept the listener's connections (`model/documents/paths.py`); 0 if a switch forwards them to
    members. Assigned when the listener is written, unique among listeners of the same place."""

    @property
    def port(self) -> int:
        """First port; the only one for listeners created through Octavia's API. 0 without ports."""
        return self.ports[0].first if self.ports else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vip:
    address: IPAddress
    port_id: str
    subnet_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedMember:
    """Removed member that may still have connections."""

    transport: Transport
    address: IPAddress
    port: int
    until: datetime
    """Time when the entry is removed."""

    @property
    def endpoint(self) -> tuple[Transport, IPAddress, int]:
        return self.transport, self.address, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSlots:
    """Slots of a listener that moved from an address to another one, or to none.
    Connections to the previous address may still exist."""

    listener_id: str
    before: IPAddress
    """Address of the slots' previous owner; its IP version is that of the table."""
    slots: tuple[int, ...]
    """Slot numbers below `LARGEST`, sorted. A slot has one previous owner at most: the latest."""
    until: datetime
    """Time when the entry is removed."""


class SpecPurpose(StrEnum):
    """Purpose of a declarative load balancer."""

    FORWARD = "forward"
    """Network forward: each port leads to one machine, and so may all other traffic to the address."""
    LOAD_BALANCER = "load-balancer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Named backend of a declarative spec. Each port that refers to it has a member of this name."""

    name: str
    description: str = ""
    address: IPAddress
    port: TargetPort = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarativeSpec:
    """Declarative spec of a load balancer, from an API that replaces load balancers as a whole.

    Each port of the spec is a listener with its own pool, and the members have the names of backends. This class has
    the rest of the spec.
    """

    network_id: str
    """Network of the load balancer. The VIP is an address of this network, or of the external network of its router."""
    use: SpecPurpose
    backends: tuple[Backend, ...] = ()
    """All backends in the order of the request, used by a port or not."""
    config: tuple[tuple[str, str], ...] = ()
    """Options as given in the request, sorted by name."""


class MigrationStage(StrEnum):
    """Stage of a takeover: migration of a load balancer from another provider of the service, with the same id."""

    PREPARED = "prepared"
    """The load balancer is accepted but has no rows: the rows of the other provider still serve."""
    TAKEN = "taken"
    """Rows of the other provider are deleted in the transaction that creates Fairlead's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalService:
    """Load balancer that another service (Octavia) also stores. The service defines it and reads its statuses."""

    made_port: bool
    """Whether the service created the VIP's port for this load balancer, and deletes it afterwards."""
    takeover: MigrationStage | None = None
    """Stage of the takeover; None if no other provider had the load balancer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer(Resource):
    provider: str
    vip: Vip
    additional_vips: tuple[Vip, ...] = ()
    """Additional addresses of the same port; every listener accepts connections at all of them."""
    admin_state_up: bool = True
    listeners: tuple[Listener, ...] = ()
    pools: tuple[Pool, ...] = ()
    owns_vip_port: bool = True
    """Whether the VIP's port was created for this load balancer and is deleted with it."""
    flavor_id: str | None = None
    availability_zone: str | None = None
    """Name of the availability zone."""
    parted: tuple[RemovedMember, ...] = ()
    """Recently removed members, sorted by expiry."""
    moved: tuple[MovedSlots, ...] = ()
    """Moved slots, sorted by expiry; only for providers that announce VIPs."""
    described: DeclarativeSpec | None = None
    """Declarative spec; None if the parts are changed one by one, as in Octavia's API."""
    router_id: str | None = None
    """Router whose gateway has the VIPs, for VIPs on an external network."""
    kept: ExternalService | None = None
    """State shared with another service; None if only Fairlead stores the load balancer."""

    @property
    def vips(self) -> tuple[Vip, ...]:
        return (self.vip, *self.additional_vips)

    @property
    def ip_versions(self) -> frozenset[int]:
        return frozenset(vip.address.version for vip in self.vips)


_TRANSPORTS: Mapping[ListenerProtocol, Transport] = {
    ListenerProtocol.ANY: Transport.ANY,
    ListenerProtocol.UDP: Transport.UDP,
    ListenerProtocol.SCTP: Transport.SCTP,
}

POOL_PROTOCOLS: Mapping[ListenerProtocol, frozenset[PoolProtocol]] = {
    ListenerProtocol.TCP: frozenset(
        {PoolProtocol.HTTP, PoolProtocol.HTTPS, PoolProtocol.PROXY, PoolProtocol.PROXYV2, PoolProtocol.TCP}
    ),
    ListenerProtocol.HTTP: frozenset({PoolProtocol.HTTP, PoolProtocol.PROXY, PoolProtocol.PROXYV2}),
    ListenerProtocol.HTTPS: frozenset({PoolProtocol.HTTPS, PoolProtocol.PROXY, PoolProtocol.PROXYV2, PoolProtocol.TCP}),
    ListenerProtocol.TERMINATED_HTTPS: frozenset({PoolProtocol.HTTP, PoolProtocol.PROXY, PoolProtocol.PROXYV2}),
    ListenerProtocol.UDP: frozenset({PoolProtocol.UDP}),
    ListenerProtocol.SCTP: frozenset({PoolProtocol.SCTP}),
    ListenerProtocol.PROMETHEUS: frozenset(),
    ListenerProtocol.ANY: frozenset({PoolProtocol.ANY}),
}
"""Listener protocol -> allowed pool protocols (Octavia API reference, "Protocol Combinations")."""


def transport(protocol: ListenerProtocol) -> Transport:
    return _TRANSPORTS.get(protocol, Transport.TCP)


def is_catch_all(listener: Listener) -> bool:
    """Return whether the listener accepts all traffic to the VIP that no other listener accepts."""
    return listener.protocol is ListenerProtocol.ANY and listener.admin_state_up


def has_default_target(balancer: LoadBalancer) -> bool:
    """Whether a listener takes everything that is sent to the VIPs, so that the router itself answers no ping."""
    return balancer.admin_state_up and any(map(is_catch_all, balancer.listeners))


def probed_address(member: Member) -> IPAddress:
    return member.monitor_address or member.address


def is_prepared(balancer: LoadBalancer) -> bool:
    """Return whether the load balancer waits for its takeover and has no rows yet."""
    return balancer.kept is not None and balancer.kept.takeover is MigrationStage.PREPARED


def is_taken_over(balancer: LoadBalancer) -> bool:
    return balancer.kept is not None and balancer.kept.takeover is MigrationStage.TAKEN


def is_forward(balancer: LoadBalancer) -> bool:
    """Return whether the load balancer is a network forward: each port leads to one machine."""
    return balancer.described is not None and balancer.described.use is SpecPurpose.FORWARD


def find_listener(balancer: LoadBalancer, listener_id: str) -> Listener | None:
    return next((listener for listener in balancer.listeners if listener.id == listener_id), None)


def find_pool(balancer: LoadBalancer, pool_id: str | None) -> Pool | None:
    return next((pool for pool in balancer.pools if pool.id == pool_id), None)


def find_member(pool: Pool, member_id: str) -> Member | None:
    return next((member for member in pool.members if member.id == member_id), None)


def find_policy(listener: Listener, policy_id: str) -> L7Policy | None:
    return next((policy for policy in listener.l7policies if policy.id == policy_id), None)


def pools_of(listener: Listener) -> tuple[str, ...]:
    """Return the ids of the listener's pools: the default pool and those of policies that can apply."""
    if not listener.l7policies:
        return (listener.default_pool_id,) if listener.default_pool_id else ()
    redirects = (policy.redirect_pool_id for policy in listener.l7policies if policy.admin_state_up and policy.rules)
    return tuple(dict.fromkeys(pool_id for pool_id in (listener.default_pool_id, *redirects) if pool_id))


def pools_with_locality(balancer: LoadBalancer) -> tuple[Pool, ...]:
    """Return the pools that prefer members near the client."""
    return tuple(pool for pool in balancer.pools if pool.locality is not Locality.NONE)


def selects_per_chassis(balancer: LoadBalancer) -> bool:
    """Return whether the forwarding decision may depend on the client's chassis, because of a locality or a proxy."""
    return any(listener.proxy_port for listener in balancer.listeners) or bool(pools_with_locality(balancer))


def listeners_of(balancer: LoadBalancer, pool_id: str) -> tuple[Listener, ...]:
    """Return the listeners that lead to the pool. Called for each of a thousand members, so listeners without policies
    are decided by one field."""
    return tuple(
        [
            each
            for each in balancer.listeners
            if each.default_pool_id == pool_id or (each.l7policies and pool_id in pools_of(each))
        ]
    )


def listeners_by_pool(balancer: LoadBalancer) -> Mapping[str, Sequence[Listener]]:
    """Map the id of each pool in use to its listeners, in one pass over the listeners."""
    found = defaultdict[str, list[Listener]](list)
    for listener in balancer.listeners:
        for pool_id in pools_of(listener):
            found[pool_id].append(listener)
    return dict(found)


def replace_pool(balancer: LoadBalancer, pool: Pool) -> LoadBalancer:
    return replace(balancer, pools=tuple([pool if pool.id == other.id else other for other in balancer.pools]))


def replace_listener(balancer: LoadBalancer, listener: Listener) -> LoadBalancer:
    return replace(
        balancer,
        listeners=tuple([listener if listener.id == other.id else other for other in balancer.listeners]),
    )
