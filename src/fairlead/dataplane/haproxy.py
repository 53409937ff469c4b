"""Rows of the HAProxy on a node: the sections of its configuration, and what it stands in.

A network has one on each node that has a proxy there, and only load balancers of the network's own project lead to it.
On plain hosts each project has one for its VIPs on an announced network.
So what one tenant asks (an expression that takes long, ciphers that nobody has, its metrics) concerns no other.

Frontends and backends are kept as words, in the order of their directives, and `haproxy_words.py` is the only way from
there to text. A server is kept in its parts, because it changes while the process runs.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fairlead.dataplane.haproxy_words import Line, name, render_line
from fairlead.dataplane.rows import Key
from fairlead.model.addresses import IPAddress, render_endpoint
from fairlead.model.secrets import Role, Secret

METRICS = "metrics"
"""The backend of who wants metrics: this node's agent. No pool is called so: their names have the listener's too."""
EXPORTER = "exporter"
"""The frontend at which the agent asks for them."""
LISTS = "lists"
"""A folder, below that of the configuration; that of secrets is beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """By this address into everything that is not on the network."""

    destination: str
    """A prefix."""
    nexthop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The HAProxy of one network on this node, in a namespace of its own with an interface that has the MAC and the
    addresses of the port. Without a frontend it has nothing to do, and need not run."""

    network: str
    port: str
    """The id of the port, which is the `iface-id` of the interface."""
    mac: str
    mtu: int
    addresses: tuple[str, ...]
    """Each with the length of its subnet's prefix."""
    routes: tuple[Route, ...] = ()
    connections: int
    """At once, of all its frontends together."""
    threads: int

    @property
    def key(self) -> Key:
        return ("Process", self.network)

    @property
    def lasting(self) -> tuple[str, str, str, int, int]:
        """What does not change while it runs: its device and what its configuration says, not the rest of its place."""
        return self.network, self.port, self.mac, self.connections, self.threads

    def __str__(self) -> str:
        routes = "".join(f" {route.destination} via {route.nexthop}" for route in self.routes)
        where = f"port={self.port} mac={self.mac} mtu={self.mtu} {' '.join(self.addresses)}{routes}"
        return f"Process {self.network} {where} connections={self.connections} threads={self.threads}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """The HAProxy of one project's VIPs on one announced network, on a plain host: it takes connections at the VIPs
    themselves, which the host holds, and goes to members by the host's own ways."""

    network: str
    port: str
    """The name by which its agent says what it serves; on a node that is its port's, and a host has no such port."""
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
    """A listener."""

    name: str
    """Its id: statistics have it."""
    process: str
    """The network's id."""
    connections: int
    lines: tuple[Line, ...]
    """All directives but `maxconn`."""
    backends: tuple[str, ...] = ()
    """All that it may lead to."""
    secrets: tuple[Secret, ...] = ()
    """What has to be read before it can be bound, beside its certificates."""

    @property
    def key(self) -> Key:
        return ("Frontend", self.name)

    @property
    def section(self) -> tuple[Line, ...]:
        return ("frontend", name(self.name)), ("maxconn", str(self.connections)), *self.lines

    def __str__(self) -> str:
        return (
            f"Frontend {name(self.name)} process={self.process} connections={self.connections}: {_joined(self.lines)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A pool, with the settings of the listeners that lead to it."""

    name: str
    process: str
    lines: tuple[Line, ...]
    table: Line = ()
    """The stick table that its lines name, in the words of the `peers` section; backends of one pool share it."""
    secrets: tuple[Secret, ...] = ()
    """What has to be read before it can have a server."""

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
    """A member."""

    backend: str
    name: str
    number: int
    """Unique in the backend, and the same on every node: hashes that are consistent go by it, and tables of clients."""
    address: IPAddress
    port: int
    weight: int
    maintained: bool = False
    """Whether it gets nothing: it is off, or its monitor calls it down."""
    options: Line = ()
    """What cannot change while it exists."""
    cookie_key: str = ""
    """That of the backend whose cookies name servers. One that comes at run time has a cookie when it is said again."""

    @property
    def key(self) -> Key:
        return ("Server", self.backend, self.name)

    @property
    def words(self) -> Line:
        """All but its state."""
        place = render_endpoint(self.address, self.port)
        return place, "id", str(self.number), "weight", str(self.weight), *self.options

    @property
    def line(self) -> Line:
        return "server", name(self.name), *self.words, *(("disabled",) if self.maintained else ())

    @property
    def lasting(self) -> tuple[int, Line, str]:
        """What no command changes."""
        return self.number, self.options, self.cookie_key

    def __str__(self) -> str:
        return f"Server {self.backend}/{self.name} {render_line(self.line[2:])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """One that a frontend shows: a line of its list."""

    frontend: str
    reference: str
    is_default: bool = False
    """Whether it is shown to those who ask for no name that any has."""

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
    """Of the certificates that a frontend shows."""
    return f"{LISTS}/{name(frontend)}"


def references(row: HAProxyRow) -> tuple[Key, ...]:
    """Sections do not refer to their process: a port that goes takes both at once, whichever is looked at first, and
    sections without a process are in no file."""
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
