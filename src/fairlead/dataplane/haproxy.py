"""Rows of the HAProxy processes on a node: their configuration sections and network places.

A network has one process on each node where it has a proxy port, and only load balancers of the network's own project
use it. On plain hosts each project has one process for its VIPs on an announced network. So an expensive expression, an
unusual cipher or the metrics of one tenant do not affect another.

Frontends and backends are kept as words, in the order of their directives, and `haproxy_words.py` alone renders them as
text. A server is kept in parts, because it changes at run time.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fairlead.dataplane.haproxy_policies import DesiredPolicies, Policy
from fairlead.dataplane.haproxy_words import Line, name, render_line
from fairlead.dataplane.rows import Key
from fairlead.model.documents.addresses import IPAddress, render_endpoint
from fairlead.model.queries.secrets import Role, Secret

METRICS = "metrics"
"""Backend for metrics requests: the node's agent. No pool's backend has this name, because those contain ids."""
EXPORTER_FRONTEND = "exporter"
"""Name of the frontend at which the agent reads HAProxy's metrics."""
CRT_LIST_FOLDER = "lists"
"""Folder of crt-lists, relative to the folder of the configuration, next to the folder of secrets."""
_AFTER_POLICIES = frozenset({"http-request", "http-response", "default_backend"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Route out of the proxy's network."""

    destination: str
    """Prefix."""
    nexthop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """HAProxy process of one network on this node.

    It runs in its own network namespace with an interface that has the port's MAC and addresses. Without a frontend it
    does not need to run.
    """

    network: str
    port: str
    """Port id, which is the `iface-id` of the interface."""
    mac: str
    mtu: int
    addresses: tuple[str, ...]
    """Addresses with the prefix length of their subnet."""
    routes: tuple[Route, ...] = ()
    connections: int
    """Maximum concurrent connections of all its frontends together (`maxconn`)."""
    threads: int

    @property
    def key(self) -> Key:
        return ("Process", self.network)

    @property
    def reload_attributes(self) -> tuple[str, str, str, int, int]:
        """Attributes that need a restart when they change: the device and the global configuration."""
        return self.network, self.port, self.mac, self.connections, self.threads

    def __str__(self) -> str:
        routes = "".join(f" {route.destination} via {route.nexthop}" for route in self.routes)
        where = f"port={self.port} mac={self.mac} mtu={self.mtu} {' '.join(self.addresses)}{routes}"
        return f"Process {self.network} {where} connections={self.connections} threads={self.threads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """HAProxy process of one project's VIPs on one announced network, on a plain host.

    It listens on the VIPs, which the host holds, and connects to members by the host's routing table.
    """

    network: str
    port: str
    """Name that the agent reports for the process. On a chassis that is the proxy port's id; a host has no such
    port."""
    connections: int
    threads: int

    @property
    def key(self) -> Key:
        return ("Process", self.network)

    def __str__(self) -> str:
        return f"Process {self.network} of {self.port} connections={self.connections} threads={self.threads}"


AnyProcess: TypeAlias = Process | HostProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontend:
    """HAProxy frontend of a listener."""

    name: str
    """Listener id, used in statistics."""
    process: str
    """Network id."""
    connections: int
    lines: tuple[Line, ...]
    """All directives but `maxconn` and those of L7 policies."""
    policies: tuple[Policy, ...] = ()
    """L7 policies in the order in which they apply."""
    prepared: tuple[Policy, ...] = ()
    """Examples of shapes for which a new process has free slots (`haproxy_policies.py`)."""
    backends: tuple[str, ...] = ()
    """All backends that the frontend can use."""
    secrets: tuple[Secret, ...] = ()
    """Secrets needed to bind it, other than its certificates."""

    @property
    def key(self) -> Key:
        return ("Frontend", self.name)

    @property
    def desired_policies(self) -> DesiredPolicies:
        return DesiredPolicies(policies=self.policies, prepared=self.prepared)

    @property
    def patterns(self) -> int:
        return sum(policy.patterns for policy in self.policies)

    @property
    def reload_attributes(self) -> tuple[str, int, tuple[Line, ...], tuple[Secret, ...]]:
        """Attributes that no runtime command changes."""
        return self.process, self.connections, self.lines, self.secrets

    def section(self, policies: tuple[Line, ...] = ()) -> tuple[Line, ...]:
        """Return the directives, with those of L7 policies before all that change a request."""
        place = next((at for at, line in enumerate(self.lines) if line[0] in _AFTER_POLICIES), len(self.lines))
        first = ("frontend", name(self.name)), ("maxconn", str(self.connections))
        return *first, *self.lines[:place], *policies, *self.lines[place:]

    def __str__(self) -> str:
        policies = "".join(f" | policy {policy}" for policy in self.policies)
        where = f"process={self.process} connections={self.connections}"
        return f"Frontend {name(self.name)} {where}: {_joined(self.lines)}{policies}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """HAProxy backend: a pool, with the settings of the listeners that use it."""

    name: str
    process: str
    lines: tuple[Line, ...]
    table: Line = ()
    """Stick table that `lines` refer to, as a directive of the `peers` section. Backends of one pool share it."""
    secrets: tuple[Secret, ...] = ()
    """Secrets needed before the backend can have servers."""

    @property
    def key(self) -> Key:
        return ("Backend", self.name)

    @property
    def section(self) -> tuple[Line, ...]:
        return ("backend", name(self.name)), *self.lines

    def __str__(self) -> str:
        table = f" {render_line(self.table)}" if self.table else ""
        return f"Backend {name(self.name)} process={self.process}{table}: {_joined(self.lines)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """HAProxy server: a member."""

    backend: str
    name: str
    number: int
    """Server id, unique in the backend and equal on every node, because consistent hashes and stick tables use it."""
    address: IPAddress
    port: int
    weight: int
    maintained: bool = False
    """Whether it is in maintenance: administratively down, or failed by its health monitor."""
    options: Line = ()
    """Options that cannot change at run time."""
    cookie_key: str = ""
    """Dynamic cookie key of the backend. A server added at run time gets its cookie when the key is set again."""

    @property
    def key(self) -> Key:
        return ("Server", self.backend, self.name)

    @property
    def words(self) -> Line:
        """Address, id, weight and options: the server line without name and state."""
        place = render_endpoint(self.address, self.port)
        return place, "id", str(self.number), "weight", str(self.weight), *self.options

    @property
    def line(self) -> Line:
        return "server", name(self.name), *self.words, *(("disabled",) if self.maintained else ())

    @property
    def reload_attributes(self) -> tuple[int, Line, str]:
        """Attributes that no runtime command changes."""
        return self.number, self.options, self.cookie_key

    def __str__(self) -> str:
        return f"Server {self.backend}/{self.name} {render_line(self.line[2:])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Certificate of a frontend: one line of its crt-list."""

    frontend: str
    reference: str
    is_default: bool = False
    """Whether it is presented to clients with an unknown or no server name (SNI)."""

    @property
    def key(self) -> Key:
        return ("Shown_Certificate", self.frontend, self.reference)

    @property
    def secret(self) -> Secret:
        return Secret(role=Role.CERTIFICATE, reference=self.reference)

    def __str__(self) -> str:
        default = " default" if self.is_default else ""
        return f"Certificate of {self.frontend}: {self.secret.path} is {self.reference!r}{default}"


HAProxyRow: TypeAlias = Process | HostProcess | Frontend | Backend | Server | Certificate


def list_path(frontend: str) -> str:
    """Path of the crt-list of a frontend."""
    return f"{CRT_LIST_FOLDER}/{name(frontend)}"


def references(row: HAProxyRow) -> tuple[Key, ...]:
    """Keys of the rows that a row refers to.

    Sections do not refer to their process: when a proxy port is deleted, process and sections may be deleted in any
    order, and sections without a process are written to no file.
    """
    match row:
        case Process() | HostProcess() | Backend():
            return ()
        case Frontend(backends=backends):
            return tuple(("Backend", backend) for backend in backends)
        case Server(backend=backend):
            return (("Backend", backend),)
        case Certificate(frontend=frontend):
            return (("Frontend", frontend),)
        case unknown:
            assert_never(unknown)


def _joined(lines: tuple[Line, ...]) -> str:
    return " | ".join(map(render_line, lines))
