"""Files of one HAProxy process, rendered from rows: its configuration and the crt-lists of its frontends.

Paths in the configuration are relative to its own directory, so the same rows give the same text on every node. It has
no `namespace` and no `user` keyword, because the process is started inside the network's namespace as an unprivileged
user. It has no health checks, because Fairlead's own probes decide which members are down, and no log.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from fairlead.dataplane.haproxy import (
    EXPORTER_FRONTEND,
    METRICS,
    AnyProcess,
    Backend,
    Certificate,
    Frontend,
    HAProxyRow,
    Server,
    list_path,
)
from fairlead.dataplane.haproxy_policies import Slots, assign_all_policy_slots, map_path, map_text, policy_lines
from fairlead.dataplane.haproxy_words import Line, Unwritable, read_line, render_line
from fairlead.model.queries.secrets import Secret

CONFIGURATION = "haproxy.cfg"
PEERS_SECTION = "kept"
"""Name of the peers section, with which a process passes its stick tables to its successor (configuration manual,
3.5)."""
HARD_STOP_AFTER = 3_600
"""Seconds that a replaced process may continue to serve its connections. Each such process uses memory of the node."""
_SELF = "this"
_SECTIONS = frozenset({"global", "defaults", "peers", "frontend", "backend"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySockets:
    """Absolute paths of a process's Unix sockets; each process has its own."""

    control: str
    """Runtime API socket."""
    peers: str
    exporter: str = ""
    """Socket of the process's metrics, which the agent reads."""
    metrics: str = ""
    """Socket where the agent serves the metrics of a load balancer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """State of a process besides its rows."""

    missing: Collection[Secret] = ()
    """Secrets that could not be read. Frontends and backends that need one are left out."""
    slots: Mapping[str, Slots] = field(default_factory=dict)
    """Slots of L7 policies, by frontend."""
    hard_stop_after: int = HARD_STOP_AFTER
    """Seconds that the process may continue to serve its connections after it has been replaced."""


NO_STATE = ProcessState()


@dataclass(frozen=True, slots=True)
class TextPart:
    """Section of the configuration, or map of a frontend."""

    source: tuple[object, ...]
    """Input of the rendering."""
    text: str


Parts: TypeAlias = Mapping[str, TextPart]
"""Parts of a process's files, by name. Parts with the same source are not rendered again."""


def render_files(
    process: AnyProcess, rows: Iterable[HAProxyRow], sockets: ProxySockets, held: ProcessState = NO_STATE
) -> Mapping[str, str]:
    """Map relative paths to contents: all files of this process except secrets. Rows of other processes are ignored.
    Raises Unwritable."""
    return render(process, rows, sockets, held, {})[0]


def render(
    process: AnyProcess, rows: Iterable[HAProxyRow], sockets: ProxySockets, held: ProcessState, known: Parts
) -> tuple[Mapping[str, str], Parts]:
    """Return `files`, and their parts for the next call. Only parts that differ from the `known` ones are rendered.
    Raises Unwritable."""
    found = list(rows)
    lists = _lists(found)
    backends = _backends(process, found, held.missing)
    frontends = sorted(loadable_frontends(process, found, held.missing), key=lambda row: row.name)
    slots = assign_all_policy_slots(held.slots, {each.name: each.desired_policies for each in frontends})
    parts = dict[str, TextPart]()

    def part(name: str, source: tuple[object, ...], make: Callable[[], str]) -> str:
        old = known.get(name)
        parts[name] = found = old if old is not None and old.source == source else TextPart(source, make())
        return found.text

    def frontend(row: Frontend) -> str:
        its = slots.get(row.name)
        return part(f"frontend {row.name}", (row, its), lambda: _written([_frontend(row, its)]))

    def backend(row: Backend, its: tuple[Server, ...]) -> str:
        return part(f"backend {row.name}", (row, its), lambda: _written([_backend(row, its)]))

    servers = _servers(found)
    sections = (
        _written((_global(process, sockets, held.hard_stop_after), *_first_sections(backends.values(), sockets))),
        *map(frontend, frontends),
        *(_written(_metrics(sockets)) if any(map(_has_metrics, frontends)) else "",),
        *(backend(row, servers[row.name]) for _, row in sorted(backends.items())),
    )
    texts = {list_path(each.name): _list(lists[each.name]) for each in frontends if lists[each.name]}
    texts |= {
        path: part(path, (its,), partial(map_text, its))
        for path, its in ((map_path(frontend), its) for frontend, its in slots.items())
    }
    return {CONFIGURATION: "\n".join(filter(None, sections)), **texts}, parts


def _frontend(row: Frontend, slots: Slots | None) -> tuple[Line, ...]:
    return row.section(tuple(policy_lines(row.name, slots)) if slots is not None else ())


def _backend(row: Backend, servers: Iterable[Server]) -> tuple[Line, ...]:
    return *row.section, *(server.line for server in servers)


def loadable_frontends(
    process: AnyProcess, rows: Iterable[HAProxyRow], missing: Collection[Secret] = ()
) -> list[Frontend]:
    """Return the frontends that have all their secrets, and backends with all theirs."""
    found = list(rows)
    lists, backends = _lists(found), _backends(process, found, missing)
    return [
        each
        for each in found
        if isinstance(each, Frontend)
        and each.process == process.network
        and not _lacks((*each.secrets, *(line.secret for line in lists[each.name])), missing)
        and all(backend in backends for backend in each.backends)
    ]


def _backends(process: AnyProcess, rows: Iterable[HAProxyRow], missing: Collection[Secret]) -> Mapping[str, Backend]:
    own = (each for each in rows if isinstance(each, Backend) and each.process == process.network)
    return {each.name: each for each in own if not _lacks(each.secrets, missing)}


def _lacks(secrets: Iterable[Secret], missing: Collection[Secret]) -> bool:
    return any(secret in missing for secret in secrets)


def _lists(rows: Iterable[HAProxyRow]) -> Mapping[str, list[Certificate]]:
    """Return frontend -> its certificates, default first, because HAProxy's default is the first in the list."""
    found: dict[str, list[Certificate]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Certificate):
            found[row.frontend].append(row)
    for each in found.values():
        each.sort(key=lambda row: (not row.is_default, row.secret.path))
    return found


def _list(certificates: Iterable[Certificate]) -> str:
    return "".join(f"{each.secret.path}\n" for each in certificates)


def _servers(rows: Iterable[HAProxyRow]) -> Mapping[str, tuple[Server, ...]]:
    """Return backend -> its servers, by name."""
    found: dict[str, list[Server]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Server):
            found[row.backend].append(row)
    ordered = {backend: tuple(sorted(its, key=lambda row: row.name)) for backend, its in found.items()}
    return defaultdict(tuple, ordered)


def _first_sections(backends: Collection[Backend], sockets: ProxySockets) -> Iterator[tuple[Line, ...]]:
    """Yield the sections between `global` and the first frontend."""
    yield ("defaults",), ("option", "redispatch"), ("retries", "3"), ("option", "dontlognull"), ("option", "contstats")
    tables = sorted({backend.table for backend in backends if backend.table})
    yield ("peers", PEERS_SECTION), ("bind", f"unix@{sockets.peers}", "mode", "600"), ("server", _SELF), *tables


def _has_metrics(row: Frontend) -> bool:
    return ("default_backend", METRICS) in row.lines


def _metrics(sockets: ProxySockets) -> Iterator[tuple[Line, ...]]:
    """Sections for metrics: the process's own exporter for the agent, and the agent's exporter by Octavia's names.

    At most two requests to the agent run concurrently.
    """
    yield (
        ("frontend", EXPORTER_FRONTEND),
        ("mode", "http"),
        ("maxconn", "4"),
        ("bind", f"unix@{sockets.exporter}", "mode", "600"),
        ("timeout", "client", "10s"),
        ("http-request", "use-service", "prometheus-exporter"),
        ("http-after-response", "set-header", "X-Process", "%pid"),
    )
    yield (
        ("backend", METRICS),
        ("mode", "http"),
        ("timeout", "connect", "2s"),
        ("timeout", "queue", "10s"),
        ("timeout", "server", "15s"),
        ("server", "agent", f"unix@{sockets.metrics}", "maxconn", "2"),
    )


def _global(process: AnyProcess, sockets: ProxySockets, outlives: int) -> tuple[Line, ...]:
    socket = ("stats", "socket", f"unix@{sockets.control}", "mode", "600", "level", "admin", "expose-fd", "listeners")
    return (
        ("global",),
        ("default-path", "config"),
        ("localpeer", _SELF),
        ("maxconn", str(process.connections)),
        ("no", "strict-limits"),  # with too low an open-files limit it reduces `maxconn` and starts
        ("nbthread", str(process.threads)),
        ("hard-stop-after", f"{outlives}s"),
        socket,
        ("stats", "timeout", "1m"),
        ("tune.ssl.default-dh-param", "2048"),
        ("ssl-default-bind-options", "ssl-min-ver", "TLSv1.2"),
        ("ssl-default-server-options", "ssl-min-ver", "TLSv1.2"),
    )


def _written(sections: Iterable[tuple[Line, ...]]) -> str:
    """Render the sections. Raises Unwritable if reading them back gives other sections or directives."""
    wanted = list(sections)
    text = "\n".join("\n".join(_indented(lines)) + "\n" for lines in wanted)
    if read_sections(text) != wanted:
        raise Unwritable("configuration cannot be represented: HAProxy would read it differently")
    return text


def _indented(lines: tuple[Line, ...]) -> Iterator[str]:
    first, *rest = lines
    yield render_line(first)
    yield from (f"    {render_line(line)}" for line in rest)


def read_sections(text: str) -> list[tuple[Line, ...]]:
    """Parse a file as HAProxy does: the keyword of a section starts it, wherever it is. Raises Unwritable."""
    found: list[list[Line]] = []
    for line in map(read_line, text.split("\n")):
        if line and line[0] in _SECTIONS:
            found.append([line])
        elif line and not found:
            raise Unwritable("directive outside a section")
        elif line:
            found[-1].append(line)
    return [tuple(section) for section in found]
