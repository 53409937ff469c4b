"""Options of the configuration, each declared once with section, name, default and meaning.

The environment variable of an option is FAIRLEAD_<SECTION>_<OPTION>.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from fairlead.changes.proxy_places import MOST as MOST_PROXIES
from fairlead.changes.proxy_places import MOST_OF_GUESTS as MOST_GUEST_PROXIES
from fairlead.compilers.providers import DEFAULT_NAME, DEFAULT_NAMES, IMPLEMENTATIONS
from fairlead.model.parting import LONGEST_PARTING
from fairlead.model.port_ranges import HOST_PROXY_PORTS
from fairlead.model.proxy_backends import MAX_PROXY_SERVERS
from fairlead.model.quota import PROBE_LIMITS, ProbeLimits
from fairlead.store.etcd_access import Access

AGENTS = "agents"
PROBERS = ("ovn", AGENTS)
"""Values of probes.by."""


def _names(text: str) -> tuple[str, ...]:
    """Split a list at commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


class PathKind(Enum):
    """Content of the file that an option names; `fairlead.option_files` checks each kind."""

    CERTIFICATE = auto()
    """PEM: a certificate and its chain; the option `key` of the same section names the private key."""
    KEY = auto()
    """PEM: the private key of a certificate."""
    AUTHORITIES = auto()
    """PEM: CA certificates."""
    IDENTITY = auto()
    """PEM: a certificate and its private key in one file."""
    USERS = auto()
    """Lines of user:hash:project:roles."""
    PASSWORD = auto()
    """A password and nothing else."""
    FILE = auto()
    """Any content."""
    FOLDER = auto()
    STORE = auto()
    """URL of a store, which may be a file."""


SECRET_KINDS = frozenset({PathKind.KEY, PathKind.IDENTITY, PathKind.USERS, PathKind.PASSWORD})
"""Files that must not be world-accessible."""


def _path(kind: PathKind, default: str, meaning: str, **more: Any) -> Any:
    """Declare a file or directory. `may_be_absent` is set if the program creates it or does not need it."""
    return field(default=default, metadata={"meaning": meaning, "kind": kind, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Listening address of the APIs, and authentication."""

    listen: str = _option(
        "127.0.0.1:9876", "HOST:PORT, [IPv6]:PORT or unix:PATH. Other than loopback only with authentication."
    )
    authentication: str = _option(
        "none",
        "none (everybody is administrator; loopback and unix sockets only), http_basic, or keystone (see there).",
    )
    password_file: str = _path(
        PathKind.USERS,
        "",
        "For http_basic, and with keystone for agents and operators: lines of user:bcrypt hash:project:role,role; roles"
        " are admin, member, reader, and for load balancers Octavia's own, such as load-balancer_observer. That of an"
        " agent ends in service:chassis,chassis.",
    )
    tls_certificate: str = _path(
        PathKind.CERTIFICATE, "", "PEM file: serve https. Passwords and tokens are readable without.", key="tls_key"
    )
    tls_key: str = _path(PathKind.KEY, "", "PEM file of its private key.")
    client_ca: str = _path(
        PathKind.AUTHORITIES,
        "",
        "PEM file: who shows a certificate of this authority is the user of the password file that its common name"
        " names, if that line has the word `certificate` instead of a hash. Others come in as without.",
    )
    passwords_in_the_clear: str = _option(
        "no",
        "yes: passwords and tokens come in, and go to Keystone, without TLS where others on the way can read them.",
    )
    hosts: str = _option(
        "",
        "Without authentication: what Host may be besides the listen address, HOST:PORT with commas, as for a forwarded"
        " port. A web page whose own name is among them can do all that you can.",
    )
    connections: int = _option(800, "At once, of all callers; beyond, who has been silent longest is shown out.")
    connections_per_address: int = _option(
        200, "At once of one address (IPv6: of one /64; on a unix socket: of one user). Not for proxies."
    )
    proxies: str = _option(
        "",
        "Addresses or networks of proxies, with commas, that say in X-Forwarded-For and X-Forwarded-Proto for whom they"
        " ask, and are believed; `unix` for whoever is on the unix socket. Nobody else is.",
    )

    @property
    def more_hosts(self) -> tuple[str, ...]:
        return _names(self.hosts)

    @property
    def trusted_proxies(self) -> tuple[str, ...]:
        return _names(self.proxies)


LONGEST_TOKEN_CACHE, LONGEST_OUTAGE = 3600, 86_400
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeystoneOptions:
    """Keystone, which validates tokens if server.authentication = "keystone"."""

    url: str = _option("", "http://HOST:PORT or https://HOST:PORT/identity: Keystone, with or without /v3 at the end.")
    ca: str = _path(
        PathKind.AUTHORITIES, "", "PEM file that vouches for its certificate; the system's own authorities without."
    )
    public_url: str = _option("", "Where callers who bring no token are sent (WWW-Authenticate). Empty: url.")
    user: str = _option("fairlead", "Who asks Keystone; the role is service, in any project.")
    password_file: str = _path(PathKind.PASSWORD, "", "The file that has that user's password and nothing else.")
    project: str = _option("service", "The project of that user, by name.")
    user_domain: str = _option("Default", "Its name; that of the user.")
    project_domain: str = _option("Default", "Its name; that of the project.")
    token_cache_seconds: int = _option(
        60,
        f"0 to {LONGEST_TOKEN_CACHE}: so long a token is believed without asking; one that is revoked is refused then.",
    )
    outage_seconds: int = _option(
        300,
        f"0 to {LONGEST_OUTAGE}: so much longer a token goes on that was good, while Keystone does not answer; never"
        " beyond its end.",
    )

    @property
    def root(self) -> str:
        """URL of the Identity API v3, without a trailing slash."""
        return f"{self.url.rstrip('/').removesuffix('/v3')}/v3"


@dataclass(frozen=True, slots=True, kw_only=True)
class LxdOptions:
    """The LXD and Incus API for their own clients, on separate listeners.

    Both are closed by default: access to the socket means administrator, and an upgrade must not open a listener.
    """

    socket: str = _option(
        "",
        "unix:PATH, for INCUS_SOCKET and LXD_SOCKET: whoever may open it is administrator, as with LXD. Empty: none.",
    )
    socket_group: str = _option("", "Who is in this group may open the socket too; empty: in the server's own.")
    socket_mode: str = _option("0660", "Of the socket; everybody cannot be let in.")
    listen: str = _option(
        "",
        "HOST:PORT or [IPv6]:PORT, for HTTPS: clients show certificates of their own, and are let in by a token"
        " (`fairlead lxd token`). LXD's own port is 8443. Empty: none.",
    )
    certificate: str = _path(
        PathKind.CERTIFICATE,
        "",
        "PEM file, the server's own. Empty: one is made, signed by itself, and kept beside the store.",
        key="key",
    )
    key: str = _path(PathKind.KEY, "", "PEM file of its private key.")
    addresses: str = _option(
        "",
        "HOST:PORT with commas: where clients reach lxd.listen, as tokens say it. Empty: lxd.listen; and if that is"
        " every address, those of this machine's name.",
    )
    token_seconds: int = _option(86_400, "For which a token is good that nobody has used.")

    @property
    def reached_at(self) -> tuple[str, ...]:
        return _names(self.addresses)

    @property
    def mode(self) -> int:
        """File mode of the socket. Raises ValueError."""
        return int(self.socket_mode, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesOptions:
    """Listener for agents with certificates of this deployment's CA (`fairlead chassis enroll`)."""

    listen: str = _option("", "HOST:PORT or [IPv6]:PORT, for agents alone, over TLS. Empty: none.")
    addresses: str = _option(
        "", "https://HOST:PORT with commas: where agents reach the servers, as tokens say it. Empty: nodes.listen."
    )
    authority: str = _path(
        PathKind.IDENTITY,
        "",
        "PEM file, the certificate and the key of the deployment's authority for nodes (0600), the same one on each"
        " server. Empty: it is made, and kept beside the store.",
    )
    token_seconds: int = _option(3600, "For which a token is good that nobody has used.")
    certificate_days: int = _option(90, "For which an agent's certificate is good; it is renewed after two thirds.")
    connections: int = _option(4000, "At once, of agents; each has two.")
    socket: str = _option("", "unix:PATH for an agent on this machine. Empty: none.")
    socket_chassis: str = _option("", "For which chassis whoever may open the socket speaks, with commas.")

    @property
    def reached_at(self) -> tuple[str, ...]:
        return _names(self.addresses) or ((f"https://{self.listen}",) if self.listen else ())

    @property
    def of_socket(self) -> tuple[str, ...]:
        return _names(self.socket_chassis)


LONGEST_CERTIFICATE_DAYS = 825
SHORTEST_TOKEN, LONGEST_TOKEN = 60, 90 * 86_400
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Storage of the model."""

    url: str = _path(
        PathKind.STORE,
        "",
        "sqlite:///PATH: a file, made when it is not there. etcd://HOST:PORT,HOST:PORT,.../PREFIX: members of an etcd,"
        " and how all keys of this deployment begin. Empty: the file of store.path.",
        may_be_absent=True,
    )
    path: str = _path(
        PathKind.FILE, "/var/lib/fairlead/fairlead.db", "The SQLite file, where store.url is empty.", may_be_absent=True
    )
    ca: str = _path(
        PathKind.AUTHORITIES,
        "",
        "PEM file: who signs the certificates of etcd's members. Empty: etcd is asked without TLS.",
    )
    certificate: str = _path(
        PathKind.CERTIFICATE,
        "",
        "PEM file: this server's own for etcd; etcd may know it as a user by its common name.",
        key="key",
    )
    key: str = _path(PathKind.KEY, "", "PEM file of its private key.")
    user: str = _option(
        "", "The user of etcd, where it knows its users by passwords. Best one that may use PREFIX alone."
    )
    password_file: str = _path(PathKind.PASSWORD, "", "The file that has that user's password and nothing else.")

    @property
    def access(self) -> Access:
        """Credentials for the store."""
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


LONGEST_CHASSIS_TIMEOUT = 3600
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OvnOptions:
    """OVN databases: the Northbound is written, the Southbound is read."""

    northbound: str = _option(
        "unix:/var/run/ovn/ovnnb_db.sock",
        "unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT; several, with commas, for a cluster.",
    )
    southbound: str = _option(
        "unix:/var/run/ovn/ovnsb_db.sock",
        "The same. What health monitors see, and which ports are plugged in, is read there; nothing is written.",
    )
    private_key: str = _path(PathKind.KEY, "", "For ssl: our private key, PEM.")
    certificate: str = _path(PathKind.CERTIFICATE, "", "For ssl: our certificate, PEM.", key="private_key")
    ca: str = _path(PathKind.AUTHORITIES, "", "For ssl: the certificate authority of the database, PEM.")
    mark: str = _option(
        "fairlead", "In external_ids of every row of ours. Two deployments on one OVN need two different ones."
    )
    gateway_chassis: str = _option(
        "",
        "Names of the chassis through which routers leave, with commas; each needs ovn-bridge-mappings for the physical"
        " networks, and three are needed for one to take over. Without any, external gateways are refused.",
    )
    parting: int = _option(
        3600,
        f"Seconds, 0 to {LONGEST_PARTING}, for which OVN goes on translating what a removed member answers to clients"
        " outside: then what is left of their connections ends. For as long plain hosts lead what was begun to who had"
        " it before.",
    )

    probe_interval: int = _option(
        60,
        "Seconds of a database's silence after which it is asked whether it lives; after as many more there is another"
        " connection. One that compacts, or writes out all it has, is silent for many seconds.",
    )
    follow: str = _option(
        "yes",
        "yes: what Neutron (ML2/OVN), LXD and Incus write into the same OVN is known. Load balancers may be on"
        " Neutron's networks, not on those that LXD or Incus manages; addresses that these programs gave out outside"
        " are taken; no.",
    )
    chassis_probe_interval: int = _option(
        15,
        "Seconds. While a health monitor watches, chassis are asked so often whether they live (NB_Global:nb_cfg, as"
        " Neutron does, and not while somebody else asks); each time costs ovn-northd a look at everything. 0: never.",
    )
    chassis_timeout: int = _option(
        45, "Seconds. A chassis that answers so much later than others is dead, and so is whatever is monitored on it."
    )
    count_answers: str = _option("no", "yes: rows of OVN count what listeners answer (`bytes_out`), for agents; no.")

    @property
    def follows(self) -> bool:
        return self.follow == "yes"

    @property
    def gateways(self) -> tuple[str, ...]:
        return tuple(sorted({name for part in self.gateway_chassis.split(",") if (name := part.strip())}))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Defaults of new networks."""

    mtu: int = _option(1442, "Bytes; 1500 of the underlay less 58 of geneve over IPv4.")
    external_mtu: int = _option(1500, "Bytes of external networks: what the wires carry that chassis map to bridges.")


def _quota(most: int, resource: str) -> Any:
    return _option(most, f"{resource} of a project that has no quota of its own; -1 is any number.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """Default quotas of a project. Those of networking are Neutron's defaults; Octavia has none."""

    load_balancer: int = _quota(100, "Load balancers")
    listener: int = _quota(500, "Listeners")
    pool: int = _quota(500, "Pools")
    member: int = _quota(5000, "Members")
    health_monitor: int = _quota(500, "Health monitors")
    l7policy: int = _quota(500, "L7 policies")
    l7rule: int = _quota(1000, "L7 rules")
    network: int = _quota(100, "Networks")
    subnet: int = _quota(100, "Subnets")
    port: int = _quota(500, "Ports, those of VIPs, Local IPs and routers' interfaces too,")
    router: int = _quota(10, "Routers")
    floatingip: int = _quota(50, "Floating IPs")
    local_ip: int = _quota(100, "Local IPs")
    local_ip_association: int = _quota(1000, "Replicas of Local IPs (associations with ports)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """Limits of health monitors: each member is probed once per interval, by the node that it is on."""

    by: str = _option(
        "ovn",
        "ovn: ovn-controller probes, whether a TCP or UDP port is open. agents: `fairlead agent` does, in every way,"
        " and has to run on each node with members; nobody probes where it does not.",
    )

    least_delay: int = _option(PROBE_LIMITS.least_delay, "Seconds: the least delay of a health monitor.")
    per_second: int = _option(
        PROBE_LIMITS.per_second, "Probes a second of all members and replicas of a project together; -1 is any number."
    )
    per_second_of_port: int = _option(
        PROBE_LIMITS.per_second_of_port, "Probes a second that one port gets, of all its services; -1 is any number."
    )

    @property
    def limits(self) -> ProbeLimits:
        return ProbeLimits(
            least_delay=self.least_delay, per_second=self.per_second, per_second_of_port=self.per_second_of_port
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """Provider names for tenants (`--provider`). Some clients enable features by name, so there may be several."""

    names: str = _option(
        DEFAULT_NAMES,
        f"NAME=IMPLEMENTATION, with commas; there is {', '.join(IMPLEMENTATIONS)}. A name that a load balancer has must"
        " stay.",
    )
    default: str = _option(DEFAULT_NAME, "The name that a load balancer gets if none is asked for.")
    proxies: int = _option(
        MOST_PROXIES,
        "Of a project on its own networks, where listeners need some, for each network: each is on a node of its own,"
        " and has an address of each subnet's IP version.",
    )
    guest_proxies: int = _option(
        MOST_GUEST_PROXIES,
        "Of a project on a network of another one, where its listeners need some, for each network: they take addresses"
        " of that network. Clients on other nodes go to the nearest of them.",
    )
    proxy_servers: int = _option(
        MAX_PROXY_SERVERS,
        "Servers of one HAProxy at most: members of all pools to which its listeners lead, once for each different"
        " setting of these (protocol, timeouts towards members); -1 is any number. A load balancer that has more"
        " already keeps them and cannot grow.",
    )
    host_proxy_ports: str = _option(
        str(HOST_PROXY_PORTS),
        "FIRST-LAST: ports of the VIPs at which HAProxy listens on plain hosts, one for each listener that takes it. No"
        " daemon of a host listens at all addresses on one of them. A listener keeps the port that it has.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Location of the keys and certificates that load balancers refer to."""

    directory: str = _path(
        PathKind.FOLDER,
        "",
        "A folder with a folder for each project, by its id; what `--default-tls-container-ref` and its like name is a"
        " file there: PEM, or PKCS#12 without a pass phrase, that not everybody may open. Empty: listeners that need"
        " keys are refused, unless there is a Barbican.",
    )
    barbican: str = _option(
        "",
        "http://HOST:PORT or https://HOST:PORT/key-manager: Barbican, with or without /v1 at the end; what is a URL is"
        " there. It is read by the user of [keystone], whom tenants let read what they name;"
        " inside of an Octavia it has to be Octavia's user.",
    )
    barbican_ca: str = _path(
        PathKind.AUTHORITIES, "", "PEM file that vouches for its certificate; the system's own authorities without."
    )

    @property
    def root(self) -> str:
        """URL of Barbican, without version and trailing slash."""
        return self.barbican.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """Options of `fairlead agent`, which counts for statistics and announces Local IPs. Servers ignore them."""

    servers: str = _option("http://127.0.0.1:9876", "http://HOST:PORT or https://HOST:PORT; several with commas.")
    user: str = _option(
        "",
        "Who tells, where a server asks; the role is service, for this node's chassis. Over http the password can be"
        " read on the way.",
    )
    password_file: str = _path(PathKind.PASSWORD, "", "The file that has the password and nothing else.")
    ca: str = _path(
        PathKind.AUTHORITIES, "", "PEM file that vouches for the servers' certificates; the system's own without."
    )
    identity: str = _path(
        PathKind.IDENTITY,
        "/var/lib/fairlead/agent-identity.pem",
        "The file (0600) with this node's key and certificate, of `fairlead agent --enroll`. Where it is there the"
        " servers are those of the token's deployment, and no user is needed.",
        may_be_absent=True,
    )
    heartbeat: int = _option(
        5,
        "Seconds: so often it says that it lives. One that leaves out three is stale: others probe what is here, but"
        " not members behind a plain host.",
    )
    interval: int = _option(10, "Seconds from look to look. What was counted between a look and a change is lost.")
    state: str = _path(
        PathKind.FILE,
        "/var/lib/fairlead/agent.json",
        "The file in which the sums outlive a restart; what was announced is in another one beside it.",
        may_be_absent=True,
    )
    host: str = _option(
        "",
        "On a plain Linux host, without Open vSwitch: what `fairlead chassis host` calls it. It serves what announced"
        " networks have, and of the options below it reads those of HAProxy (proxies, renewal, haproxy, haproxy_memory)"
        " and most_connections alone.",
    )
    bridge: str = _option("br-int", "The integration bridge.")
    run_dir: str = _path(
        PathKind.FOLDER, "/var/run/openvswitch", "Where the sockets of Open vSwitch are.", may_be_absent=True
    )
    probe_namespace: str = _option(
        "fairlead-probes", "The network namespace (ip-netns) from which members are probed; the agent makes it."
    )
    proxy_namespaces: str = _option(
        "fairlead-proxy", "How the names of the network namespaces (ip-netns) begin in which proxies of networks run."
    )
    proxies: str = _path(
        PathKind.FOLDER,
        "/run/fairlead/proxies",
        "The folder of proxies' files, on a tmpfs: keys may be there.",
        may_be_absent=True,
    )
    renewal: int = _option(
        60, "Seconds from look to look whether a key or a certificate was renewed that a proxy here serves."
    )
    haproxy: str = _path(
        PathKind.FILE, "/usr/sbin/haproxy", "HAProxy, 2.6 or newer; the user haproxy runs it.", may_be_absent=True
    )
    haproxy_memory: int = _option(
        1024,
        "MB of memory for each HAProxy: enough for the 10,000 connections that one has at most. One that has filled it"
        " refuses connections, and its load balancers say why.",
    )
    most_connections: int = _option(
        200_000, "With more tracked at once those open are not counted: a switch stands still while it lists them."
    )

    @property
    def server_urls(self) -> tuple[str, ...]:
        return tuple(url for part in self.servers.split(",") if (url := part.strip()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    level: str = _option("info", "debug, info, warning or error.")
    audit: str = _path(
        PathKind.FILE,
        "",
        "File to which changes and failed log-ins are appended, a JSON object a line: who, from where, what, result."
        " They are in the log as well. Made anew after it was moved away; SIGHUP does that at once.",
        may_be_absent=True,
    )
    format: str = _option("text", "text: a line for people; json: an object a line, for programs that collect logs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    server: ServerOptions = ServerOptions()
    keystone: KeystoneOptions = KeystoneOptions()
    lxd: LxdOptions = LxdOptions()
    nodes: NodesOptions = NodesOptions()
    store: StoreOptions = StoreOptions()
    ovn: OvnOptions = OvnOptions()
    network: NetworkOptions = NetworkOptions()
    quota: QuotaOptions = QuotaOptions()
    probes: ProbeOptions = ProbeOptions()
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
    "probes": ProbeOptions,
    "providers": ProviderOptions,
    "keys": KeyOptions,
    "agent": AgentOptions,
    "log": LogOptions,
}
