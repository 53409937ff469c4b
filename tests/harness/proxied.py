"""Load balancers served by HAProxy: their configuration, and the real program running with it on loopback."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from immutables import Map

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Process
from fairlead.dataplane.haproxy_text import CONFIGURATION, ProcessState, ProxySockets, render_files
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    Pool,
    PoolProtocol,
    Vip,
)
from fairlead.model.documents.network import FixedIP, Network, Port, PortUse, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import one_port
from fairlead.model.queries.proxies import proxy_port_id
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.language import COMMON
from harness.waiting import DEADLINE, wait_until

PROGRAM = shutil.which("haproxy") or "/usr/sbin/haproxy"
needs_haproxy = pytest.mark.skipif(not Path(PROGRAM).exists(), reason="HAProxy is not installed here")
WEB = Owner(Kind.LOAD_BALANCER, "web")
CIDRS = ("127.0.0.0/24", "::/120")
ADDRESSES = ("127.0.0.1", "::1")


def member(name: str, port: int, address: str = "127.0.0.1", **known: Any) -> Member:
    number = int("".join(filter(str.isdecimal, name)) or 0)
    known = {"ordinal": number} | known
    return Member(id=name, address=parse_address(address), port=port, **known, **COMMON)


def pool(name: str, *members: Member, **known: Any) -> Pool:
    known = {"protocol": PoolProtocol.HTTP, "algorithm": Algorithm.ROUND_ROBIN} | known
    return Pool(id=name, members=members, **known, **COMMON)


def listener(name: str, proxy_port: int, default: Pool | None = None, **known: Any) -> Listener:
    known = {"protocol": ListenerProtocol.HTTP, "ports": one_port(80)} | known
    default_id = default.id if default is not None else None
    return Listener(id=name, default_pool_id=default_id, proxy_port=proxy_port, **known, **COMMON)


def view(listeners: Iterable[Listener], pools: Iterable[Pool], *, down: Iterable[str] = (), **known: Any) -> Snapshot:
    """Slice of a node that has a proxy on loopback."""
    subnets = tuple(
        Subnet(id=cidr, cidr=parse_network(cidr), gateway=None, allocation_pools=(), **COMMON) for cidr in CIDRS
    )
    network = Network(id="net1", mtu=1442, subnets=subnets, **COMMON)
    fixed = tuple(FixedIP(subnet_id=c, address=parse_address(a)) for c, a in zip(CIDRS, ADDRESSES, strict=True))
    proxy = Port(
        id=proxy_port_id("net1", "node"),
        network_id="net1",
        mac_address="02:00:00:00:00:01",
        fixed_ips=fixed,
        device_owner=PortUse.PROXY,
        device_id="net1",
        host="node",
        **COMMON,
    )
    vips = [Vip(address=parse_address(a), port_id="vip", subnet_id=c, network_id="net1") for c, a in VIPS]
    balancer = LoadBalancer(
        id="web",
        provider="fairlead",
        vip=vips[0],
        additional_vips=tuple(vips[1:]),
        listeners=tuple(listeners),
        pools=tuple(pools),
        **{**COMMON, **known},
    )
    facts = Snapshot(chassis=Map({"node": Chassis(name="node")}), down=Map({"web": frozenset(down)}))
    return apply_changes(facts, Changes(puts=(network, proxy, balancer)), 1)


VIPS = (("127.0.0.0/24", "127.0.0.10"), ("::/120", "::10"))


def rows_of(snapshot: Snapshot) -> Rows:
    return {**HAPROXY.compile(snapshot, Owner(Kind.NETWORK, "net1")), **HAPROXY.compile(snapshot, WEB)}


def write_files(rows: Rows, folder: Path, missing: Iterable[Any] = ()) -> Mapping[str, str]:
    """Write the files of the only process to the folder, and return them."""
    process = next(row for row in rows.values() if isinstance(row, Process))
    sockets = ProxySockets(control=f"{folder}/control", peers=f"{folder}/peers")
    texts = render_files(process, rows.values(), sockets, ProcessState(missing=tuple(missing)))
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return texts


def validation_error(folder: Path) -> str:
    """HAProxy's error or warning for the configuration, or an empty string. With `-q` it would print nothing."""
    command = [PROGRAM, "-c", "-f", str(folder / CONFIGURATION)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE)
    return done.stdout + done.stderr if done.returncode else done.stderr


@dataclass
class RunningProxy:
    folder: Path
    process: subprocess.Popen[bytes]

    def send_command(self, command: str) -> str:
        """Response of the runtime API to a command."""
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{self.folder}/control")
            client.sendall(command.encode() + b"\n")
            client.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        return answer.decode().strip()

    def reload(self) -> None:
        """Start a new process that takes over sockets and stick tables, and wait until the old one has exited."""
        old = self.replace()
        wait_until(lambda: old.poll() is not None)

    def replace(self) -> subprocess.Popen[bytes]:
        """Start a new process and return the old one, which may still serve its connections."""
        old, before = self.process, self._arguments()
        more = ["-x", f"{self.folder}/control", "-sf", str(old.pid)]
        self.process = subprocess.Popen([*before, *more])
        return old

    def _arguments(self) -> list[str]:
        return [PROGRAM, "-db", "-q", "-f", str(self.folder / CONFIGURATION)]


@contextlib.contextmanager
def running(rows: Rows, prepared: Mapping[str, str] | None = None) -> Iterator[RunningProxy]:
    """Run HAProxy with these rows. `prepared` are further files, such as secrets."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in (prepared or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        write_files(rows, folder)
        assert validation_error(folder) == ""
        it = RunningProxy(folder, subprocess.Popen([PROGRAM, "-db", "-q", "-f", str(folder / CONFIGURATION)]))
        try:
            wait_until(lambda: it.send_command("show info"), retry=(OSError,))
            yield it
        finally:
            it.process.terminate()
            it.process.wait(DEADLINE)
