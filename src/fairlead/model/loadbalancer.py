"""The load balancer aggregate: VIP, listeners, pools and members are one document with one revision."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias

from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.l7 import L7Policy
from fairlead.model.network import Resource
from fairlead.model.port_ranges import Ports, TargetPort, expand, targets
from fairlead.model.slots import SlotTable

UNNUMBERED = -1
UNLIMITED = -1


class ListenerProtocol(StrEnum):
    """Octavia's listener protocols, and any of all. What a provider cannot do, its compiler refuses."""

    ANY = "ANY"
    """Whatever is sent to the address and is for no other listener; it has no ports."""
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


DATAGRAMS = frozenset({PoolProtocol.UDP, PoolProtocol.SCTP})


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
    """Which members a client is led to before the others of their sort, by where both are."""

    CHASSIS = "CHASSIS"
    """Those on the client's own chassis, then those in its zone."""
    NONE = "NONE"
    ZONE = "ZONE"
    """Those on the chassis of the client's zone, whichever has them."""


class DownMember(StrEnum):
    """What becomes of the connections that a member has when it goes down."""

    KEEP = "KEEP"
    """They stay with it: it may still answer on them, and if it is back soon nobody has noticed."""
    RESET = "RESET"
    """They are cut at once: the next packet of the client goes elsewhere, and over TCP it is answered with a reset."""


class MonitorType(StrEnum):
    HTTP = "HTTP"
    HTTPS = "HTTPS"
    PING = "PING"
    SCTP = "SCTP"
    TCP = "TCP"
    TLS_HELLO = "TLS-HELLO"
    UDP_CONNECT = "UDP-CONNECT"


HTTP_MONITORS = frozenset({MonitorType.HTTP, MonitorType.HTTPS})
"""Those that send a request."""


class ClientAuthentication(StrEnum):
    """Whether a client shows a certificate of its own."""

    MANDATORY = "MANDATORY"
    NONE = "NONE"
    OPTIONAL = "OPTIONAL"


class Transport(StrEnum):
    """What a switch sees of a listener's protocol."""

    ANY = "any"
    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCookiePersistence:
    """By a cookie of the balancer's own."""

    type: Literal[PersistenceType.HTTP_COOKIE] = field(default=PersistenceType.HTTP_COOKIE, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppCookiePersistence:
    """By a cookie that the member gives."""

    type: Literal[PersistenceType.APP_COOKIE] = field(default=PersistenceType.APP_COOKIE, init=False)
    cookie_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceIpPersistence:
    """By the client's address."""

    type: Literal[PersistenceType.SOURCE_IP] = field(default=PersistenceType.SOURCE_IP, init=False)
    timeout: int | None = None
    """Seconds without a new connection after which a client may go to another member; None is the provider's."""
    granularity: IPAddress | None = None
    """A mask: clients that differ outside it only are one. None is each address alone."""


SessionPersistence: TypeAlias = HttpCookiePersistence | AppCookiePersistence | SourceIpPersistence


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Resource):
    ordinal: int = UNNUMBERED
    """Names the member in its pool's slot table; given when the member is first stored, and never given again in this
    pool."""
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
    """Its addresses as they were asked for, where that is not the canonical form: clients that compare what they read
    with what they wrote would take another form for another address."""

    @property
    def takes_connections(self) -> bool:
        """Whether new connections may come: a member of weight 0 drains, a disabled one is off."""
        return self.admin_state_up and self.weight > 0

    @property
    def is_probed_once(self) -> bool:
        """Whether it has one place at which it is probed, whatever port clients connect to."""
        return self.monitor_port is not None or isinstance(self.port, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Monitor(Resource):
    """What every health monitor has. Times in seconds."""

    delay: int
    timeout: int
    max_retries: int
    """Successes in a row that make a member ONLINE."""
    max_retries_down: int = 3
    """Failures in a row that make it ERROR."""
    delay_ms: int | None = None
    """Milliseconds, where the delay is shorter than a second; it goes before `delay`."""
    admin_state_up: bool = True
    http_version: str | None = None
    domain_name: str | None = None
    """What a probe says of itself in HTTP. Octavia keeps them whatever the type is, and clients read them again."""

    @property
    def seconds_between(self) -> float:
        """Two probes. Octavia allows a delay of 0, which counts as a second."""
        return float(max(1, self.delay)) if self.delay_ms is None else self.delay_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMonitor(_Monitor):
    """Asks whether anything answers at all."""

    type: Literal[MonitorType.PING, MonitorType.SCTP, MonitorType.TCP, MonitorType.TLS_HELLO, MonitorType.UDP_CONNECT]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpMonitor(_Monitor):
    """Sends a request and looks at the answer's code."""

    type: Literal[MonitorType.HTTP, MonitorType.HTTPS]
    http_method: str = "GET"
    url_path: str = "/"
    expected_codes: str = "200"
    """One code, several with commas, or a range with a hyphen."""


HealthMonitor: TypeAlias = PlainMonitor | HttpMonitor


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTls:
    """How the balancer speaks TLS to members. References name secrets; what is empty is the provider's default."""

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
    """None when nothing is said about it; the same for a listener."""
    health_monitor: HealthMonitor | None = None
    members: tuple[Member, ...] = ()
    next_ordinal: int = 0
    tables: tuple[SlotTable, ...] = ()
    """Which member each hash value leads to: a table for each IP version of the members, one more for their backups."""
    slots: tuple[int, ...] = ()
    """The one table of all members, in a document of before each IP version had its own; empty since."""

    @property
    def goes_by_source(self) -> bool:
        """Whether a client's address alone decides its member, by the algorithm or by persistence."""
        return isinstance(self.persistence, SourceIpPersistence) or self.algorithm is Algorithm.SOURCE_IP


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """In milliseconds. They are a proxy's: a switch forwards packets and ends no connection for being idle."""

    client_data: int = 50_000
    member_connect: int = 5_000
    member_data: int = 50_000
    tcp_inspect: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTls:
    """How the balancer speaks TLS to clients."""

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
    """What the balancer adds: headers to requests, with "true" or "false" for each, and HSTS (RFC 6797) to answers."""

    insert_headers: tuple[tuple[str, str], ...] = ()
    hsts_max_age: int | None = None
    hsts_include_subdomains: bool = False
    hsts_preload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawMatch:
    """What the first bytes of a connection have to be, or nobody is led anywhere."""

    location: int
    """How many bytes come before them."""
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener(Resource):
    protocol: ListenerProtocol
    ports: Ports
    """None with the protocol ANY."""
    admin_state_up: bool = True
    default_pool_id: str | None = None
    connection_limit: int = UNLIMITED
    allowed_cidrs: tuple[IPNetwork, ...] = ()
    """Who may connect; everybody when there is none. An address of a family that none is of is for nobody."""
    timeouts: Timeouts = Timeouts()
    tls: ListenerTls | None = None
    http: Http | None = None
    raw: RawMatch | None = None
    l7policies: tuple[L7Policy, ...] = ()
    proxy_port: int = 0
    """At which proxies of the VIP's network take its connections, if it leads to proxies (`model/paths.py`); 0 if a
    switch leads them to members. Given when the listener is written; no other listener on that network has it."""

    @property
    def port(self) -> int:
        """The first; of a listener of Octavia's API the only one. 0 with none."""
        return self.ports[0].first if self.ports else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vip:
    address: IPAddress
    port_id: str
    subnet_id: str
    network_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """A member that was removed; some of its connections may go on."""

    transport: Transport
    address: IPAddress
    port: int
    until: datetime
    """When it is forgotten."""

    @property
    def endpoint(self) -> tuple[Transport, IPAddress, int]:
        return self.transport, self.address, self.port


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedSlots:
    """Slots of a listener that lead to another address than before, or to none; some connections may go on."""

    listener_id: str
    before: IPAddress
    """Of the member that had them last: the IP version is that of the table."""
    slots: tuple[int, ...]
    """Of `LARGEST`, in order. A slot has one such member: whoever had it before that one is forgotten."""
    until: datetime
    """When it is forgotten."""


class Use(StrEnum):
    """What a described load balancer is for."""

    FORWARD = "forward"
    """Each port leads to one machine, and what is for no port may lead to one too."""
    LOAD_BALANCER = "load-balancer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A machine that has a name in a description. Behind each port that names it there is a member of this name."""

    name: str
    description: str = ""
    address: IPAddress
    port: TargetPort = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a load balancer is said to be as a whole, by an API in which it is changed as a whole only.

    Each of its ports is a listener with a pool of its own, whose members have the names of backends. Here is what these
    do not say.
    """

    network_id: str
    """The network that it is for. Its VIP is an address of this network, or of the external one that its router is
    on."""
    use: Use
    backends: tuple[Backend, ...] = ()
    """Those behind no port too, in the order in which they were said."""
    config: tuple[tuple[str, str], ...] = ()
    """Options as they were said, sorted by name."""


class Takeover(StrEnum):
    """How far a load balancer is that another provider of the service had before, under the same id."""

    PREPARED = "prepared"
    """It could be had, but nothing of it is anywhere yet: what the other provider wrote still serves."""
    TAKEN = "taken"
    """What the other provider wrote goes at the moment in which ours comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Another service has the load balancer too, says what it shall be, and is told how it stands."""

    made_port: bool
    """Whether its VIP's port is that service's: made for this load balancer, and deleted after it."""
    takeover: Takeover | None = None
    """None for one that no other provider had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer(Resource):
    provider: str
    vip: Vip
    additional_vips: tuple[Vip, ...] = ()
    """Further addresses of the same port; every listener is on each of them."""
    admin_state_up: bool = True
    listeners: tuple[Listener, ...] = ()
    pools: tuple[Pool, ...] = ()
    owns_vip_port: bool = True
    """Whether the VIP's port was made for this load balancer and goes with it."""
    flavor_id: str | None = None
    availability_zone: str | None = None
    """Its name."""
    parted: tuple[Parted, ...] = ()
    """Members that were removed lately, by the time when they are forgotten."""
    moved: tuple[MovedSlots, ...] = ()
    """Of a provider that announces, by the time when they are forgotten."""
    described: Described | None = None
    """None for one whose parts are changed each for itself, as in Octavia's API."""
    router_id: str | None = None
    """Whose gateway has the VIPs, if these are addresses of an external network."""
    kept: Kept | None = None
    """None for one that is nowhere but here."""

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
"""Which pools a listener may lead to (Octavia API reference, "Protocol Combinations")."""


def transport(protocol: ListenerProtocol) -> Transport:
    return _TRANSPORTS.get(protocol, Transport.TCP)


def takes_everything(listener: Listener) -> bool:
    """Whether whatever is sent to the VIP, and is for no other listener, is for this one."""
    return listener.protocol is ListenerProtocol.ANY and listener.admin_state_up


def probed_address(member: Member) -> IPAddress:
    return member.monitor_address or member.address


def is_prepared(balancer: LoadBalancer) -> bool:
    """Whether it waits to be taken over: it is to have no rows yet."""
    return balancer.kept is not None and balancer.kept.takeover is Takeover.PREPARED


def is_taken_over(balancer: LoadBalancer) -> bool:
    return balancer.kept is not None and balancer.kept.takeover is Takeover.TAKEN


def is_forward(balancer: LoadBalancer) -> bool:
    """Whether people take it for no load balancer: each of its ports leads to one machine."""
    return balancer.described is not None and balancer.described.use is Use.FORWARD


def find_listener(balancer: LoadBalancer, listener_id: str) -> Listener | None:
    return next((listener for listener in balancer.listeners if listener.id == listener_id), None)


def find_pool(balancer: LoadBalancer, pool_id: str | None) -> Pool | None:
    return next((pool for pool in balancer.pools if pool.id == pool_id), None)


def find_member(pool: Pool, member_id: str) -> Member | None:
    return next((member for member in pool.members if member.id == member_id), None)


def find_policy(listener: Listener, policy_id: str) -> L7Policy | None:
    return next((policy for policy in listener.l7policies if policy.id == policy_id), None)


def pools_of(listener: Listener) -> tuple[str, ...]:
    """The pools that the listener leads to: its default one, and those of its policies that can apply."""
    if not listener.l7policies:
        return (listener.default_pool_id,) if listener.default_pool_id else ()
    redirects = (policy.redirect_pool_id for policy in listener.l7policies if policy.admin_state_up and policy.rules)
    return tuple(dict.fromkeys(pool_id for pool_id in (listener.default_pool_id, *redirects) if pool_id))


def near_pools(balancer: LoadBalancer) -> tuple[Pool, ...]:
    """Those that lead clients to members near them."""
    return tuple(pool for pool in balancer.pools if pool.locality is not Locality.NONE)


def decides_on_chassis(balancer: LoadBalancer) -> bool:
    """Whether where a client is led may depend on its chassis: to a member near it, or to a proxy."""
    return any(listener.proxy_port for listener in balancer.listeners) or bool(near_pools(balancer))


def listeners_of(balancer: LoadBalancer, pool_id: str) -> tuple[Listener, ...]:
    """Asked for each of a thousand members: most listeners have no policies, and are told apart by a field."""
    return tuple(
        [
            each
            for each in balancer.listeners
            if each.default_pool_id == pool_id or (each.l7policies and pool_id in pools_of(each))
        ]
    )


def listeners_by_pool(balancer: LoadBalancer) -> Mapping[str, Sequence[Listener]]:
    """Maps the id of each pool that a listener leads to, to the listeners that do, in one pass over the listeners."""
    found = defaultdict[str, list[Listener]](list)
    for listener in balancer.listeners:
        for pool_id in pools_of(listener):
            found[pool_id].append(listener)
    return dict(found)


def target_ports(listeners: Sequence[Listener], member: Member) -> tuple[int, ...]:
    """All ports at which the member takes connections, each once, in the order of these listeners, which lead to its
    pool (`listeners_by_pool`)."""
    return (member.port,) if isinstance(member.port, int) else _ports_behind(_listened(listeners), member.port)


def _listened(listeners: Sequence[Listener]) -> Sequence[Sequence[int]]:
    """The ports of each listener."""
    return [tuple(expand(listener.ports)) for listener in listeners]


def _ports_behind(listened: Sequence[Sequence[int]], port: Ports | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys([number for each in listened for number in targets(port, each)]))


def probed_ports(listeners: Sequence[Listener], member: Member) -> tuple[int, ...]:
    """The ports at which a health monitor probes the member, to whose pool these listeners lead."""
    return target_ports(listeners, member) if member.monitor_port is None else (member.monitor_port,)


def count_probed_ports(pool: Pool, listeners: Sequence[Listener]) -> Sequence[int]:
    """Number of probed ports of each member of the pool, to which these listeners lead.

    A thousand members mostly have the same port, so each port is counted once.
    """
    ports = {member.port for member in pool.members if not isinstance(member.port, int)}
    listened = _listened(listeners) if ports else ()
    counted: dict[TargetPort, int] = {port: len(_ports_behind(listened, port)) for port in ports}
    return [counted.get(member.port, 1) if member.monitor_port is None else 1 for member in pool.members]


def replace_pool(balancer: LoadBalancer, pool: Pool) -> LoadBalancer:
    return replace(balancer, pools=tuple([pool if pool.id == other.id else other for other in balancer.pools]))


def replace_listener(balancer: LoadBalancer, listener: Listener) -> LoadBalancer:
    return replace(
        balancer,
        listeners=tuple([listener if listener.id == other.id else other for other in balancer.listeners]),
    )
