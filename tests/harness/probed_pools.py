"""All combinations of pool and monitor, with real members on loopback, probed by Fairlead and by an amphora's HAProxy.

A cell is one member: its pool and monitor, where it is probed, and the protocols that its server requires there.
"""

import contextlib
import csv
import io
import shutil
import socket
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import Target, Verdict
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    HttpMonitor,
    LoadBalancer,
    Member,
    MonitorType,
    PlainMonitor,
    Pool,
    PoolProtocol,
    PoolTls,
)
from fairlead.model.queries.probes import targets
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model
from harness.language import COMMON
from harness.ports import free_port
from harness.proxied import PROGRAM
from harness.waiting import DEADLINE, wait_until

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"
needs_nginx = pytest.mark.skipif(not Path(NGINX).exists(), reason="nginx is not installed here")
HOSTS = {4: "127.0.0.1", 6: "::1"}
PROXY_PROTOCOLS = frozenset({PoolProtocol.PROXY, PoolProtocol.PROXYV2})
PROTOCOLS = (PoolProtocol.TCP, PoolProtocol.HTTP, PoolProtocol.HTTPS, *sorted(PROXY_PROTOCOLS))
TYPES = (MonitorType.TCP, MonitorType.HTTP, MonitorType.HTTPS, MonitorType.TLS_HELLO)
UNROUTED_PORT = 9
"""The member's own port if it is probed at another one; nothing listens there."""
OTHER_ADDRESSES = {4: "127.0.0.5", 6: "::5"}
"""The member's own address if it is probed at another one, by IP version."""


@dataclass(frozen=True, order=True)
class RequiredProtocols:
    """Protocols that a server requires of every connection."""

    header: bool
    """PROXY protocol header."""
    tls: bool


KINDS = tuple(RequiredProtocols(*each) for each in product((False, True), repeat=2))


class ProbeLocation(StrEnum):
    """Where a member is probed."""

    MEMBER = "member"
    """At its own address and port."""
    PORT = "port"
    """At the member's monitor_port."""
    ADDRESS = "address"
    """At the member's monitor_address, on its own port."""


@dataclass(frozen=True, order=True)
class ProbeCell:
    protocol: PoolProtocol
    tls_enabled: bool
    type: MonitorType
    place: ProbeLocation
    server: RequiredProtocols
    """Protocols that the server requires at the probed address and port."""
    version: int

    def __str__(self) -> str:
        server = [*(["PROXY"] if self.server.header else []), "TLS" if self.server.tls else "plain"]
        return f"{self.pool}: {'+'.join(server)}, IPv{self.version}"

    @property
    def pool(self) -> str:
        tls = ["tls_enabled"] if self.tls_enabled else []
        return " ".join([self.protocol, *tls, self.type, self.place])

    @property
    def expected_protocols(self) -> RequiredProtocols:
        """Protocols that the probe has to use."""
        at_member = self.place is ProbeLocation.MEMBER
        by_type = self.type in (MonitorType.HTTPS, MonitorType.TLS_HELLO)
        return RequiredProtocols(
            self.protocol in PROXY_PROTOCOLS and at_member, by_type or (self.tls_enabled and at_member)
        )

    @property
    def verdict(self) -> Verdict:
        """Expected verdict. A TCP monitor without TLS only connects, so it needs no answer."""
        needs_no_answer = self.type is MonitorType.TCP and not self.expected_protocols.tls
        return Verdict.UP if needs_no_answer or self.expected_protocols == self.server else Verdict.DOWN

    @property
    def differs_from_amphora(self) -> bool:
        """Whether an amphora's verdict differs: its TLS-HELLO monitor only connects if the pool has no TLS."""
        is_open = not (self.tls_enabled and self.place is ProbeLocation.MEMBER)
        return self.type is MonitorType.TLS_HELLO and is_open and self.verdict is Verdict.DOWN


CELLS = tuple(ProbeCell(*each) for each in product(PROTOCOLS, (False, True), TYPES, ProbeLocation, KINDS, HOSTS))


Ports = Mapping[tuple[RequiredProtocols, int], int]


def free_ports() -> Ports:
    return {(kind, version): free_port(HOSTS[version]) for kind in KINDS for version in HOSTS}


@contextlib.contextmanager
def running(command: Iterable[str], log: Path, ports: Ports) -> Iterator[None]:
    """Run a server. Returns as soon as it listens on all ports."""
    with log.open("wb") as output, subprocess.Popen([*command], stdout=output, stderr=output) as process:
        try:
            wait_until(lambda: _accepting(process, log, ports), "the members to listen", retry=(ConnectionError,))
            yield
        finally:
            process.terminate()
            process.wait(DEADLINE)


def _accepting(process: subprocess.Popen[bytes], log: Path, ports: Ports) -> bool:
    assert process.poll() is None, log.read_text()
    for (_, version), port in ports.items():
        socket.create_connection((HOSTS[version], port), DEADLINE).close()
    return True


@contextlib.contextmanager
def haproxy_members(folder: Path, certificate: Path) -> Iterator[Ports]:
    """HAProxy with one frontend of each kind and IP version."""
    ports = free_ports()
    binds = "".join(
        f"    bind {_endpoint(HOSTS[version], port)}{' accept-proxy' if kind.header else ''}"
        f"{f' ssl crt {certificate}' if kind.tls else ''}\n"
        for (kind, version), port in ports.items()
    )
    text = (
        f"defaults\n    mode http\n    timeout client 1m\nfrontend members\n{binds}    http-request return status 200\n"
    )
    path = folder / "members.cfg"
    path.write_text(text)
    with running([PROGRAM, "-db", "-q", "-f", str(path)], folder / "members.log", ports):
        yield ports


@contextlib.contextmanager
def nginx_members(folder: Path, certificate: Path) -> Iterator[Ports]:
    ports = free_ports()
    servers = "".join(
        f"server {{ listen {_endpoint(HOSTS[version], port)}{' proxy_protocol' if kind.header else ''}"
        f"{' ssl' if kind.tls else ''}; return 200 up; }}\n"
        for (kind, version), port in ports.items()
    )
    places = "".join(f"{each}_temp_path {folder}/{each};" for each in _TEMPORARY)
    text = (
        f"daemon off; worker_processes 1; pid {folder}/pid; error_log stderr;\nevents {{}}\n"
        f"http {{ access_log off; {places}\nssl_certificate {certificate}; ssl_certificate_key {certificate};\n"
        f"{servers}}}\n"
    )
    path = folder / "nginx.conf"
    path.write_text(text)
    command = [NGINX, "-p", str(folder), "-e", "stderr", "-c", str(path)]
    with running(command, folder / "nginx.log", ports):
        yield ports


_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def _endpoint(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Probes as Fairlead makes them


def cell_targets(cells: Iterable[ProbeCell], ports: Ports) -> dict[ProbeCell, Target]:
    """Targets that the agent of the members' node derives from the model."""
    found = list(cells)
    snapshot = _snapshot(found, ports)
    made = {
        (each.endpoint.monitor_id, each.endpoint.address.version, each.endpoint.port): each
        for each in targets(snapshot, snapshot.load_balancers["web"])
    }
    return {each: made[f"{each.pool} monitor", each.version, ports[each.server, each.version]] for each in found}


def _snapshot(cells: Sequence[ProbeCell], ports: Ports) -> Snapshot:
    members = defaultdict[str, list[Member]](list)
    for cell in cells:
        members[cell.pool].append(_member(cell, len(members[cell.pool]), ports))
    first = {cell.pool: cell for cell in cells}
    pools = tuple(replace(_pool(cell), members=tuple(members[name])) for name, cell in first.items())
    documents, _ = parse_model("network net1 127.0.0.0/24 ::/120\nport vm1 net1 127.0.0.1 ::1\n" + _BALANCER, {})
    puts = [replace(each, pools=pools) if isinstance(each, LoadBalancer) else each for each in documents.values()]
    return apply_changes(Snapshot(agents_probe=True), Changes(puts=tuple(puts)), 1)


_BALANCER = "web vip=127.0.0.10,::10 on=net1 provider=fairlead tcp:80{proxy=2000,limit=1}=-"


def _pool(cell: ProbeCell) -> Pool:
    kind = HttpMonitor if cell.type in (MonitorType.HTTP, MonitorType.HTTPS) else PlainMonitor
    times = {"delay": 5, "timeout": 2, "max_retries": 1, "max_retries_down": 1}
    return Pool(
        id=cell.pool,
        protocol=cell.protocol,
        algorithm=Algorithm.ROUND_ROBIN,
        tls=PoolTls(enabled=True) if cell.tls_enabled else None,
        health_monitor=kind(id=f"{cell.pool} monitor", type=cell.type, **times, **COMMON),  # type: ignore[arg-type]
        **COMMON,
    )


def _member(cell: ProbeCell, ordinal: int, ports: Ports) -> Member:
    address, number = member_address(cell, ports)
    return Member(
        id=f"{cell.pool} {ordinal}",
        ordinal=ordinal,
        address=parse_address(address),
        port=number,
        monitor_address=parse_address(HOSTS[cell.version]) if cell.place is ProbeLocation.ADDRESS else None,
        monitor_port=ports[cell.server, cell.version] if cell.place is ProbeLocation.PORT else None,
        **COMMON,
    )


def member_address(cell: ProbeCell, ports: Ports) -> tuple[str, int]:
    """Address and port at which the member accepts connections."""
    hosts = OTHER_ADDRESSES if cell.place is ProbeLocation.ADDRESS else HOSTS
    port = UNROUTED_PORT if cell.place is ProbeLocation.PORT else ports[cell.server, cell.version]
    return hosts[cell.version], port


# Probes as Octavia's amphora makes them


def amphora_verdicts(cells: Sequence[ProbeCell], ports: Ports) -> dict[ProbeCell, Verdict]:
    """Verdict of the amphora's HAProxy for each member after one check.

    The configuration is that of octavia 19.0.0, haproxy/combined_listeners/templates, `backend_macro` and
    `member_macro`.
    """
    backends = "".join(_backend(number, cell, ports) for number, cell in enumerate(cells))
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket has at most 107 bytes (unix(7))
        path, control = Path(folder, "haproxy.cfg"), Path(folder, "control")
        path.write_text(
            f"global\n    stats socket {control}\n    max-spread-checks 1s\ndefaults\n    timeout connect 1m\n"
            f"    timeout server 1m\n    timeout client 1m\nfrontend f\n    bind unix@{folder}/f\n"
            f"    default_backend b0\n{backends}"
        )
        with subprocess.Popen([PROGRAM, "-db", "-q", "-f", str(path)]) as process:
            try:
                found = wait_until(
                    lambda: _checked(process, control),
                    "checks",
                    retry=(OSError,),
                    is_enough=lambda x: len(x) == len(cells),
                )
            finally:
                process.kill()
    return {cell: Verdict.UP if found[f"b{number}"] else Verdict.DOWN for number, cell in enumerate(cells)}


def _backend(number: int, cell: ProbeCell, ports: Ports) -> str:
    port = ports[cell.server, cell.version]
    monitored = {
        ProbeLocation.PORT: ("port", str(port)),
        ProbeLocation.ADDRESS: ("addr", "127.0.0.1" if cell.version == 4 else "[::1]"),
    }
    asks = cell.type in (MonitorType.HTTP, MonitorType.HTTPS)
    request = "    option httpchk GET /\n    http-check expect rstatus 200\n" if asks else ""
    words = [
        *("check", *(("check-ssl", "verify", "none") if cell.type is MonitorType.HTTPS else ())),
        *("inter", "1m", "fall", "1", "rise", "1", *monitored.get(cell.place, ())),
        *_GREETINGS.get(cell.protocol, ()),
        *(("ssl", "verify", "none", "sni", "ssl_fc_sni") if cell.tls_enabled else ()),
    ]
    mode = "http" if cell.protocol is PoolProtocol.HTTP else "tcp"
    place = _endpoint(*member_address(cell, ports))
    return (
        f"backend b{number}\n    mode {mode}\n    timeout check 1m\n{request}    server s {place} {' '.join(words)}\n"
    )


_GREETINGS = {PoolProtocol.PROXY: ("send-proxy",), PoolProtocol.PROXYV2: ("send-proxy-v2",)}


def _checked(process: subprocess.Popen[bytes], control: Path) -> dict[str, bool]:
    """Whether each backend's checked member is up (HAProxy management guide, section 9.1, CSV format)."""
    assert process.poll() is None, "it ended"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(control))
        client.sendall(b"show stat\n")
        text = b"".join(iter(lambda: client.recv(65536), b"")).decode()
    rows = csv.DictReader(io.StringIO(text.removeprefix("# ")))
    done = (each for each in rows if each["svname"] == "s" and each["check_status"] not in ("", "INI"))
    return {
        each["pxname"]: each["status"].startswith("UP") for each in done if not each["check_status"].startswith("*")
    }
