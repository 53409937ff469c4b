"""Every option of the configuration, declared once: section, name, type with range and unit, default, description.

Readers, error texts, the template and the reference are derived from these declarations. The environment variable of an
option is FAIRLEAD_<SECTION>_<OPTION>.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.changes.proxy_placement import MAX_GUEST_PROXIES, MAX_PROXIES
from fairlead.compilers.providers import DEFAULT_NAME, DEFAULT_NAMES, IMPLEMENTATIONS
from fairlead.config.option_fields import (
    PathKind,
    choice_option,
    flag_option,
    limit_option,
    names_option,
    number_option,
    path_option,
    quota_option,
    text_option,
)
from fairlead.config.types import split_names
from fairlead.model.documents.agent import MAX_HEARTBEAT_MS
from fairlead.model.documents.port_ranges import HOST_PROXY_PORTS
from fairlead.model.documents.quota import PROBE_LIMITS, ProbeLimits
from fairlead.model.queries.proxy_backends import MAX_PROXY_SERVERS
from fairlead.model.queries.statistics import MAX_SAMPLE_INTERVAL_SECONDS
from fairlead.model.registry.draining import MAX_DRAIN_TIMEOUT_SECONDS as MAX_DRAIN_TIMEOUT
from fairlead.runtime.logging import FORMATS
from fairlead.store.etcd_access import Access

AGENTS = "agents"
PROBERS = ("ovn", AGENTS)
"""Values of health.prober."""
AUTHENTICATIONS = ("none", "http_basic", "keystone")
LEVELS = ("debug", "info", "warning", "error")
HOUR, DAY = 3600, 86_400  # seconds
MAX_CONNECTIONS = 100_000
MAX_MTU, MIN_MTU = 65_535, 1280  # bytes; IPv6 needs 1280 (RFC 8200, section 5)
MIN_HAPROXY_MEMORY, MAX_HAPROXY_MEMORY = 64, 65_536  # MB
MAX_CHASSIS_TIMEOUT = HOUR
MAX_CERTIFICATE_DAYS = 825
MIN_TOKEN_LIFETIME, MAX_TOKEN_LIFETIME = 60, 90 * DAY  # seconds
MAX_TRACKED_CONNECTIONS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Listener of the APIs, authentication, and limits of connections."""

    listen: str = text_option(
        "127.0.0.1:9876",
        "Listen address: HOST:PORT, [IPv6]:PORT or unix:PATH. Addresses other than loopback need authentication.",
    )
    authentication: str = choice_option(
        "none",
        AUTHENTICATIONS,
        "none: every caller is administrator (loopback and unix sockets only). http_basic: users of password_file."
        " keystone: tokens, see section keystone.",
    )
    password_file: str = path_option(
        PathKind.USERS,
        "",
        "Users for http_basic, and with keystone for agents and operators: lines of user:bcrypt hash:project:role,role."
        " Roles are admin, member, reader and Octavia's own, for example load-balancer_observer. The line of an agent"
        " ends in service:chassis,chassis.",
    )
    tls_certificate: str = path_option(
        PathKind.CERTIFICATE,
        "",
        "Certificate for HTTPS (PEM). Without it, passwords and tokens are sent in clear text.",
        key="tls_key",
    )
    tls_key: str = path_option(PathKind.KEY, "", "Private key of tls_certificate (PEM).")
    client_ca: str = path_option(
        PathKind.AUTHORITIES,
        "",
        "Certificate authority of client certificates (PEM). The common name of a client certificate is the user; the"
        " user's line in password_file has the word `certificate` instead of a hash. Callers without a certificate"
        " authenticate by password.",
    )
    allow_insecure_auth: bool = flag_option(
        False, "Accept passwords and tokens, and send them to Keystone, without TLS over networks."
    )
    allowed_hosts: tuple[str, ...] = names_option(
        "Additional values of the Host header, HOST:PORT, that are accepted without authentication, for example of a"
        " forwarded port. A web page that is served under one of these names has administrator's rights."
    )
    max_connections: int = number_option(
        800,
        1,
        MAX_CONNECTIONS,
        "Maximum concurrent connections. Above it, the connection that has been idle longest is closed.",
    )
    max_connections_per_address: int = number_option(
        200,
        1,
        MAX_CONNECTIONS,
        "Maximum concurrent connections of one IPv4 address, one IPv6 /64 or, on a unix socket, one user. Trusted"
        " proxies are exempt.",
    )
    trusted_proxies: tuple[str, ...] = names_option(
        "Addresses or networks of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are used; unix: every"
        " client of the unix socket. The headers of other clients are ignored."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeystoneOptions:
    """Keystone, with server.authentication = "keystone": validates callers' tokens."""

    url: str = text_option("", "URL of Keystone, http://HOST:PORT or https://HOST:PORT/identity, with or without /v3.")
    ca: str = path_option(
        PathKind.AUTHORITIES,
        "",
        "Certificate authority of Keystone (PEM). Empty: the system's certificate authorities.",
    )
    public_url: str = text_option("", "URL for callers without a token (WWW-Authenticate). Empty: url.")
    user: str = text_option("fairlead", "User that validates tokens; it needs the role service in any project.")
    password_file: str = path_option(PathKind.PASSWORD, "", "File with the password of user and nothing else.")
    project: str = text_option("service", "Project of user, by name.")
    user_domain: str = text_option("Default", "Domain of user, by name.")
    project_domain: str = text_option("Default", "Domain of project, by name.")
    token_cache_ttl: int = number_option(
        60, 0, HOUR, "Time for which a validated token is accepted without a request to Keystone.", unit="seconds"
    )
    stale_token_grace: int = number_option(
        300,
        0,
        DAY,
        "Additional time for which a validated token is accepted while Keystone does not answer; never beyond the"
        " token's expiry.",
        unit="seconds",
    )

    @property
    def root(self) -> str:
        """URL of the Identity API v3 without a trailing slash."""
        return f"{self.url.rstrip('/').removesuffix('/v3')}/v3"


@dataclass(frozen=True, slots=True, kw_only=True)
class LxdOptions:
    """The LXD and Incus front end, on listeners of its own. Both listeners are closed by default, because access to the
    socket makes a user administrator."""

    socket: str = text_option(
        "", "unix:PATH for INCUS_SOCKET and LXD_SOCKET. Users with access to it are administrators. Empty: none."
    )
    socket_group: str = text_option("", "Group of the socket, by name. Empty: the server's own group.")
    socket_mode: str = text_option("0660", "File mode of the socket (octal). World access is rejected.")
    listen: str = text_option(
        "",
        "HTTPS listen address, HOST:PORT or [IPv6]:PORT; LXD's port is 8443. Clients authenticate by a certificate that"
        " is added with a token (`fairlead lxd token`). Empty: none.",
    )
    certificate: str = path_option(
        PathKind.CERTIFICATE,
        "",
        "Certificate of listen (PEM). Empty: a self-signed one is created beside the store.",
        key="key",
    )
    key: str = path_option(PathKind.KEY, "", "Private key of certificate (PEM).")
    advertise_addresses: tuple[str, ...] = names_option(
        "Addresses of this server in tokens, HOST:PORT. Empty: listen, or this machine's addresses if listen is a"
        " wildcard address."
    )
    token_lifetime: int = number_option(
        DAY, MIN_TOKEN_LIFETIME, MAX_TOKEN_LIFETIME, "Lifetime of an unused token.", unit="seconds"
    )

    @property
    def mode(self) -> int:
        """socket_mode as a number. Raises ValueError."""
        return int(self.socket_mode, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOptions:
    """Listeners for agents, and the certificate authority of nodes (`fairlead chassis enroll`)."""

    listen: str = text_option("", "TLS listen address for agents, HOST:PORT or [IPv6]:PORT. Empty: none.")
    advertise_addresses: tuple[str, ...] = names_option(
        "URLs of the servers in enrolment tokens, https://HOST:PORT. Empty: the address of listen."
    )
    authority: str = path_option(
        PathKind.IDENTITY,
        "",
        "Certificate and private key of the nodes' certificate authority (PEM, mode 0600); the same file on each server"
        " of a deployment. Empty: one is created beside the store.",
    )
    token_lifetime: int = number_option(
        HOUR, MIN_TOKEN_LIFETIME, MAX_TOKEN_LIFETIME, "Lifetime of an unused enrolment token.", unit="seconds"
    )
    certificate_lifetime_days: int = number_option(
        90,
        1,
        MAX_CERTIFICATE_DAYS,
        "Lifetime of an agent's certificate; agents renew it after two thirds of it.",
        unit="days",
    )
    max_connections: int = number_option(
        4000, 1, MAX_CONNECTIONS, "Maximum concurrent connections of agents; each agent uses two."
    )
    socket: str = text_option("", "unix:PATH for an agent on this machine. Empty: none.")
    socket_chassis: tuple[str, ...] = names_option("Chassis that users of the socket may report for.")

    @property
    def urls(self) -> tuple[str, ...]:
        """URLs of the servers in enrolment tokens."""
        return self.advertise_addresses or ((f"https://{self.listen}",) if self.listen else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Storage of the model."""

    url: str = path_option(
        PathKind.STORE,
        "",
        "sqlite:///PATH: a file, created if it is absent. etcd://HOST:PORT,HOST:PORT,.../PREFIX: members of an etcd"
        " cluster, and the prefix of this deployment's keys. Empty: the file of path.",
        may_be_absent=True,
    )
    path: str = path_option(
        PathKind.FILE, "/var/lib/fairlead/fairlead.db", "SQLite file if url is empty.", may_be_absent=True
    )
    ca: str = path_option(
        PathKind.AUTHORITIES, "", "Certificate authority of etcd's members (PEM). Empty: connections without TLS."
    )
    certificate: str = path_option(
        PathKind.CERTIFICATE,
        "",
        "Client certificate for etcd (PEM); etcd can map its common name to a user.",
        key="key",
    )
    key: str = path_option(PathKind.KEY, "", "Private key of certificate (PEM).")
    user: str = text_option("", "User of etcd with password authentication; access to PREFIX is sufficient.")
    password_file: str = path_option(PathKind.PASSWORD, "", "File with the password of user and nothing else.")

    @property
    def access(self) -> Access:
        """Credentials for etcd."""
        return Access(
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
            user=self.user,
            password_file=self.password_file,
        )

    @property
    def where(self) -> str:
        """URL of the store."""
        return self.url or f"sqlite://{Path(self.path).absolute()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OvnOptions:
    """OVN's databases: Fairlead writes the Northbound and reads the Southbound."""

    northbound: str = text_option(
        "unix:/var/run/ovn/ovnnb_db.sock",
        "OVN Northbound database: unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT; the members of a cluster with commas.",
    )
    southbound: str = text_option(
        "unix:/var/run/ovn/ovnsb_db.sock",
        "OVN Southbound database in the same form. Results of health monitors and bindings of ports are read from it.",
    )
    private_key: str = path_option(PathKind.KEY, "", "Private key for ssl (PEM).")
    certificate: str = path_option(PathKind.CERTIFICATE, "", "Certificate for ssl (PEM).", key="private_key")
    ca: str = path_option(PathKind.AUTHORITIES, "", "Certificate authority of the databases for ssl (PEM).")
    owner_tag: str = text_option(
        "fairlead",
        "Tag in external_ids of every row that Fairlead owns. Two deployments on one OVN need different tags.",
    )
    gateway_chassis: tuple[str, ...] = names_option(
        "Chassis that host router gateways. Each needs ovn-bridge-mappings for the physical networks; failover needs"
        " three. Without any, external gateways are rejected."
    )
    drain_timeout: int = number_option(
        3600,
        0,
        MAX_DRAIN_TIMEOUT,
        "Time for which OVN translates replies of a removed member to external clients; remaining connections break"
        " afterwards. Plain hosts forward flows to the previous owner of a slot for the same time.",
        unit="seconds",
    )
    probe_interval: int = number_option(
        60,
        1,
        HOUR,
        "Inactivity after which a keepalive is sent to a database; after the same time without a reply, the connection"
        " is replaced. A database can be unresponsive for many seconds during compaction.",
        unit="seconds",
    )
    import_networks: bool = flag_option(
        True,
        "Read the networks that Neutron (ML2/OVN), LXD and Incus write into the same OVN. Load balancers can be on"
        " Neutron's networks, but not on networks that LXD or Incus manage. External addresses that these systems"
        " allocated are not allocated again.",
    )
    chassis_probe_interval: int = number_option(
        15,
        0,
        HOUR,
        "Interval at which chassis are checked by NB_Global:nb_cfg while a health monitor exists, unless another system"
        " (Neutron) does so; each check costs ovn-northd a full recompute. At most half of chassis_timeout; 0: never.",
        unit="seconds",
    )
    chassis_timeout: int = number_option(
        45,
        1,
        MAX_CHASSIS_TIMEOUT,
        "A chassis that responds later than the others by this time counts as dead, and the monitored members on it as"
        " down.",
        unit="seconds",
    )
    count_reply_bytes: bool = flag_option(
        False, "Add rows to OVN that count the bytes of listeners' replies (bytes_out of the statistics)."
    )

    @property
    def gateways(self) -> tuple[str, ...]:
        """gateway_chassis in order, each once."""
        return tuple(sorted(set(self.gateway_chassis)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Defaults of new networks."""

    mtu: int = number_option(
        1442, MIN_MTU, MAX_MTU, "MTU of tenant networks: 1500 less 58 for geneve over IPv4.", unit="bytes"
    )
    external_mtu: int = number_option(
        1500, MIN_MTU, MAX_MTU, "MTU of external networks: the MTU of their physical networks.", unit="bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """Default quotas of projects. Network quotas have Neutron's defaults."""

    load_balancer: int = quota_option(100, "Load balancers")
    listener: int = quota_option(500, "Listeners")
    pool: int = quota_option(500, "Pools")
    member: int = quota_option(5000, "Members")
    health_monitor: int = quota_option(500, "Health monitors")
    l7policy: int = quota_option(500, "L7 policies")
    l7rule: int = quota_option(1000, "L7 rules")
    network: int = quota_option(100, "Networks")
    subnet: int = quota_option(100, "Subnets")
    port: int = quota_option(500, "Ports, including those of VIPs, Local IPs and router interfaces,")
    router: int = quota_option(10, "Routers")
    floatingip: int = quota_option(50, "Floating IPs")
    local_ip: int = quota_option(100, "Local IPs")
    local_ip_association: int = quota_option(1000, "Replicas of Local IPs (associations with ports)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions:
    """Health monitors: one node probes each member once per delay, and limits on probes."""

    prober: str = choice_option(
        "ovn",
        PROBERS,
        "ovn: ovn-controller probes whether a TCP or UDP port is open. agents: `fairlead agent` probes with every"
        " monitor type; members on nodes without an agent are not probed.",
    )
    min_delay: int = number_option(
        PROBE_LIMITS.min_delay, 1, HOUR, "Minimum delay of a health monitor.", unit="seconds"
    )
    max_probes_per_second: int = limit_option(
        PROBE_LIMITS.max_probes_per_second,
        "Maximum probes per second of all members and Local IP replicas of a project.",
    )
    max_probes_per_second_per_port: int = limit_option(
        PROBE_LIMITS.max_probes_per_second_per_port,
        "Maximum probes per second towards one port, of all its services together.",
    )

    @property
    def limits(self) -> ProbeLimits:
        return ProbeLimits(
            min_delay=self.min_delay,
            max_probes_per_second=self.max_probes_per_second,
            max_probes_per_second_per_port=self.max_probes_per_second_per_port,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """Names of providers (`--provider`). Clients may enable features by the name, so there may be several."""

    names: tuple[str, ...] = names_option(
        f"NAME=IMPLEMENTATION; implementations are {', '.join(IMPLEMENTATIONS)}. A name in use cannot be removed.",
        default=split_names(DEFAULT_NAMES),
    )
    default: str = text_option(DEFAULT_NAME, "Provider of load balancers that are created without a provider.")
    max_proxies_per_network: int = number_option(
        MAX_PROXIES,
        0,
        1000,
        "Maximum proxies of a project on each of its networks; each proxy is on a node of its own and has an address of"
        " each IP version.",
    )
    max_guest_proxies_per_network: int = number_option(
        MAX_GUEST_PROXIES,
        0,
        1000,
        "Maximum proxies of a project on each network that another project owns; they use addresses of that network."
        " Clients on other nodes are sent to the nearest proxy.",
    )
    max_proxy_servers: int = limit_option(
        MAX_PROXY_SERVERS,
        "Maximum servers of one HAProxy: members of all pools of its listeners, counted once for each combination of"
        " settings (protocol, timeouts towards members). A load balancer above it keeps its servers and cannot grow.",
    )
    host_proxy_ports: str = text_option(
        str(HOST_PROXY_PORTS),
        "FIRST-LAST: ports of HAProxy on plain hosts, one for each listener that needs a proxy. Other daemons of the"
        " hosts must not use them on wildcard addresses. A listener keeps its port.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Key stores: certificates and keys that load balancers refer to."""

    directory: str = path_option(
        PathKind.FOLDER,
        "",
        "Folder with a folder for each project, named by its id. `--default-tls-container-ref` and the other references"
        " name a file there: PEM, or PKCS#12 without a pass phrase, without access for others. Empty: listeners that"
        " need keys are rejected, unless barbican is set.",
    )
    barbican: str = text_option(
        "",
        "URL of Barbican, http://HOST:PORT or https://HOST:PORT/key-manager, with or without /v1; references that are"
        " URLs are read from it by the user of section keystone. Tenants grant that user access to their secrets;"
        " inside Octavia it is Octavia's user.",
    )
    barbican_ca: str = path_option(
        PathKind.AUTHORITIES,
        "",
        "Certificate authority of Barbican (PEM). Empty: the system's certificate authorities.",
    )

    @property
    def root(self) -> str:
        """URL of Barbican without its version and a trailing slash."""
        return self.barbican.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """`fairlead agent` on a compute node or plain host. Servers do not read this section."""

    servers: tuple[str, ...] = names_option(
        "URLs of the servers, http://HOST:PORT or https://HOST:PORT.", default=("http://127.0.0.1:9876",)
    )
    user: str = text_option(
        "",
        "User at servers that authenticate by password; its role is service, for this node's chassis. Over http the"
        " password is sent in clear text.",
    )
    password_file: str = path_option(PathKind.PASSWORD, "", "File with the password of user and nothing else.")
    ca: str = path_option(
        PathKind.AUTHORITIES,
        "",
        "Certificate authority of the servers (PEM). Empty: the system's certificate authorities.",
    )
    identity_file: str = path_option(
        PathKind.IDENTITY,
        "/var/lib/fairlead/agent-identity.pem",
        "Certificate and private key of this node (mode 0600), written by `fairlead agent --enroll`. If the file"
        " exists, user is not needed and the token's servers are used.",
        may_be_absent=True,
    )
    heartbeat: int = number_option(
        5,
        1,
        MAX_HEARTBEAT_MS // 1000,
        "Heartbeat interval. An agent that misses three is stale: other nodes probe its members, except members that a"
        " plain host routes.",
        unit="seconds",
    )
    interval: int = number_option(
        10,
        1,
        MAX_SAMPLE_INTERVAL_SECONDS,
        "Interval at which counters are read. Traffic between a reading and a change of flows is not counted.",
        unit="seconds",
    )
    state_file: str = path_option(
        PathKind.FILE,
        "/var/lib/fairlead/agent.json",
        "File that keeps counters over a restart. Announced addresses are kept in a file beside it.",
        may_be_absent=True,
    )
    host: str = text_option(
        "",
        "Name of this plain Linux host (`fairlead chassis host`), without Open vSwitch. It serves VIPs of announced"
        " networks; of the options below, only those of HAProxy (proxy_directory, secret_refresh_interval,"
        " haproxy_binary, haproxy_memory_limit) and max_tracked_connections apply.",
    )
    bridge: str = text_option("br-int", "Integration bridge.")
    run_dir: str = path_option(
        PathKind.FOLDER, "/var/run/openvswitch", "Folder of Open vSwitch's control sockets.", may_be_absent=True
    )
    probe_namespace: str = text_option(
        "fairlead-probes", "Network namespace (ip-netns) from which members are probed; the agent creates it."
    )
    proxy_namespace_prefix: str = text_option(
        "fairlead-proxy", "Prefix of the names of the network namespaces (ip-netns) of proxies."
    )
    proxy_directory: str = path_option(
        PathKind.FOLDER,
        "/run/fairlead/proxies",
        "Folder of HAProxy's files, on a tmpfs because they can contain private keys.",
        may_be_absent=True,
    )
    secret_refresh_interval: int = number_option(
        60, 1, HOUR, "Interval at which keys and certificates are read again from the key store.", unit="seconds"
    )
    haproxy_binary: str = path_option(
        PathKind.FILE, "/usr/sbin/haproxy", "HAProxy 2.6 or newer; it runs as the user haproxy.", may_be_absent=True
    )
    haproxy_memory_limit: int = number_option(
        1024,
        MIN_HAPROXY_MEMORY,
        MAX_HAPROXY_MEMORY,
        "Memory limit of each HAProxy; 10,000 connections, its maximum, fit into the default. An HAProxy at its limit"
        " rejects connections, and the status of its load balancers has the reason.",
        unit="MB",
    )
    max_tracked_connections: int = number_option(
        200_000,
        0,
        MAX_TRACKED_CONNECTIONS,
        "Open connections are not counted while the connection tracker has more entries, because listing them blocks"
        " the switch.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Log and audit log."""

    level: str = choice_option("info", LEVELS, "Lowest level that is logged.")
    audit_file: str = path_option(
        PathKind.FILE,
        "",
        "File to which changes and failed log-ins are appended as JSON, one object per line: user, address, action,"
        " result. The log has them, too. The file is reopened after a rotation and on SIGHUP.",
        may_be_absent=True,
    )
    format: str = choice_option("text", tuple(FORMATS), "text: human-readable lines. json: one object per line.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All sections."""

    server: ServerOptions = ServerOptions()
    keystone: KeystoneOptions = KeystoneOptions()
    lxd: LxdOptions = LxdOptions()
    nodes: NodesOptions = NodesOptions()
    store: StoreOptions = StoreOptions()
    ovn: OvnOptions = OvnOptions()
    network: NetworkOptions = NetworkOptions()
    quota: QuotaOptions = QuotaOptions()
    health: HealthOptions = HealthOptions()
    providers: ProviderOptions = ProviderOptions()
    keys: KeyOptions = KeyOptions()
    agent: AgentOptions = AgentOptions()
    log: LogOptions = LogOptions()


SECTIONS: Mapping[str, Any] = {
    "server": ServerOptions,
    "keystone": KeystoneOptions,
    "lxd": LxdOptions,
    "nodes": NodesOptions,
    "store": StoreOptions,
    "ovn": OvnOptions,
    "network": NetworkOptions,
    "quota": QuotaOptions,
    "health": HealthOptions,
    "providers": ProviderOptions,
    "keys": KeyOptions,
    "agent": AgentOptions,
    "log": LogOptions,
}
