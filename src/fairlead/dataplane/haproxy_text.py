"""Files of one HAProxy process, rendered from rows: its configuration and the crt-lists of its frontends.

Paths in the configuration are relative to its own directory, so the same rows give the same text on every node. It has
no `namespace` and no `user` keyword, because the process is started inside the network's namespace as an unprivileged
user. It has no health checks, because Fairlead's own probes decide which members are down, and no log.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fairlead.dataplane.haproxy import (
    EXPORTER,
    METRICS,
    AnyProcess,
    Backend,
    Certificate,
    Frontend,
    HAProxyRow,
    Server,
    list_path,
)
from fairlead.dataplane.haproxy_words import Line, Unwritable, read_line, render_line
from fairlead.model.secrets import Secret

CONFIGURATION = "haproxy.cfg"
PEERS = "kept"
"""Peers section through which a process transfers stick tables to its successor (configuration manual, 3.5)."""
_SELF = "this"
_SECTIONS = frozenset({"global", "defaults", "peers", "frontend", "backend"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sockets:
    """Absolute paths of a process's Unix sockets; each process has its own."""

    control: str
    """Runtime API socket."""
    peers: str
    exporter: str = ""
    """Socket of the process's metrics, which the agent reads."""
    metrics: str = ""
    """Socket where the agent serves the metrics of a load balancer."""


def files(
    process: AnyProcess, rows: Iterable[HAProxyRow], sockets: Sockets, missing: Collection[Secret] = ()
) -> Mapping[str, str]:
    """Return path -> text of all files of this process except secrets. Rows of other processes are ignored.

    `missing` are secrets that could not be read; sections that need one are left out. Raises Unwritable.
    """
    found = list(rows)
    lists = _lists(found)
    backends = _backends(process, found, missing)
    frontends = served(process, found, missing)
    texts = {list_path(each.name): _list(lists[each.name]) for each in frontends if lists[each.name]}
    text = _written(_configuration(process, frontends, backends.values(), _servers(found), sockets))
    return {CONFIGURATION: text, **texts}


def served(process: AnyProcess, rows: Iterable[HAProxyRow], missing: Collection[Secret] = ()) -> list[Frontend]:
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


def _servers(rows: Iterable[HAProxyRow]) -> Mapping[str, list[Server]]:
    found: dict[str, list[Server]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Server):
            found[row.backend].append(row)
    return found


def _configuration(
    process: AnyProcess,
    frontends: Collection[Frontend],
    backends: Collection[Backend],
    servers: Mapping[str, list[Server]],
    sockets: Sockets,
) -> Iterator[tuple[Line, ...]]:
    """Yield the sections."""
    yield _global(process, sockets)
    yield ("defaults",), ("option", "redispatch"), ("retries", "3"), ("option", "dontlognull"), ("option", "contstats")
    tables = sorted({backend.table for backend in backends if backend.table})
    yield ("peers", PEERS), ("bind", f"unix@{sockets.peers}", "mode", "600"), ("server", _SELF), *tables
    yield from (each.section for each in sorted(frontends, key=lambda row: row.name))
    if any(("default_backend", METRICS) in each.lines for each in frontends):
        yield from _metrics(sockets)
    for backend in sorted(backends, key=lambda row: row.name):
        lines = (server.line for server in sorted(servers[backend.name], key=lambda row: row.name))
        yield (*backend.section, *lines)


def _metrics(sockets: Sockets) -> Iterator[tuple[Line, ...]]:
    """Sections for metrics: the process's own exporter for the agent, and the agent's exporter by Octavia's names.

    At most two requests to the agent run concurrently.
    """
    yield (
        ("frontend", EXPORTER),
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


def _global(process: AnyProcess, sockets: Sockets) -> tuple[Line, ...]:
    socket = ("stats", "socket", f"unix@{sockets.control}", "mode", "600", "level", "admin", "expose-fd", "listeners")
    return (
        ("global",),
        ("default-path", "config"),
        ("localpeer", _SELF),
        ("maxconn", str(process.connections)),
        ("no", "strict-limits"),  # with too low an open-files limit it reduces `maxconn` and starts
        ("nbthread", str(process.threads)),
        ("hard-stop-after", OUTLIVES),
        socket,
        ("stats", "timeout", "1m"),
        ("tune.ssl.default-dh-param", "2048"),
        ("ssl-default-bind-options", "ssl-min-ver", "TLSv1.2"),
        ("ssl-default-server-options", "ssl-min-ver", "TLSv1.2"),
    )


OUTLIVES = "1h"
"""Maximum time that a replaced process keeps its connections, because each process uses memory of the node."""


def _written(sections: Iterable[tuple[Line, ...]]) -> str:
    """Render the sections. Raises Unwritable if reading them back gives other sections or directives."""
    wanted = list(sections)
    text = "\n".join("\n".join(_indented(lines)) + "\n" for lines in wanted)
    if read_sections(text) != wanted:
        raise Unwritable("a text that would be read as another one")
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
            raise Unwritable("a directive outside a section")
        elif line:
            found[-1].append(line)
    return [tuple(section) for section in found]
