"""Packets through plain hosts with proxies: each reaches the proxy that owns its slot, whichever host receives it."""

import asyncio
import contextlib
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import product
from pathlib import Path
from queue import Queue
from socketserver import BaseRequestHandler, ThreadingTCPServer
from tempfile import TemporaryDirectory

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.compilers.native import NATIVE
from fairlead.dataplane.flow_slot import flow_slot
from fairlead.dataplane.native import NativeRow, Vip
from fairlead.dataplane.rows import diff
from fairlead.drivers.haproxy import HAProxy, HostNamespace
from fairlead.drivers.haproxy.process import Program, read_running, stop
from fairlead.drivers.interface import Requeue
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.host_proxies import host_slots
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from harness.case import read_state
from harness.fabric import HOSTS, PORT, VIPS, ClientFlow, Fabric, fabric, host_address, member_address
from harness.net_namespace import NetNamespace, require_root
from harness.proxied import PROGRAM
from harness.waiting import DEADLINE

pytestmark = pytest.mark.slow

PROXY = 2000
WITH_PROXY_HEADER = {("PROXY", "81"): 2001, ("PROXYV2", "82"): 2002, ("PROXY", "83-84"): 2003}
"""Pools with the PROXY protocol, and ports of their listeners -> port of the proxy."""
DESTINATION_SERVER = 8081
BALANCER, POOL = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.NETWORK, "pool")
NAMES = {number: f"h{number}" for number in HOSTS}


def model(serving: Sequence[int] = HOSTS, draining: Sequence[int] = ()) -> Snapshot:
    lines = ["network pool announced 203.0.113.0/24 2001:db8::/64", "agents probe"]
    for number, name in NAMES.items():
        addresses = f"{host_address(number)} {host_address(number, 6)}"
        prefixes = f"10.30.{number}.0/24 fd30:{number}::/64"
        lines.append(f"host {name} {number} {addresses} {prefixes}{' draining' if number in draining else ''}")
        lines.append(f"plugged {name}")
        if number in serving:
            lines.append(f"serves {name} pool/demo {' '.join(map(str, (PROXY, *WITH_PROXY_HEADER.values())))}")
    members = (f"m{number}/{member_address(number, 4)}:8080" for number in HOSTS)
    vips = ",".join(map(str, VIPS))
    asked = [f"tcp:{PORT}{{proxy={PROXY},LEAST_CONNECTIONS}}={','.join(members)}"]
    for (protocol, ports), number in WITH_PROXY_HEADER.items():
        asked.append(f"tcp:{ports}{{proxy={number},pool={protocol}}}=g/{member_address(1, 4)}:{DESTINATION_SERVER}")
    lines.append(f"web vip={vips} on=pool provider=native {' '.join(asked)}")
    return read_state("now", "\n".join(lines), {}, {}).snapshot()


@dataclass
class Proxied:
    fabric: Fabric
    folder: Path

    def begin(self) -> None:
        """Start a proxy on each host, as the host's agent does from its slice."""
        snapshot = model()
        for number, name in NAMES.items():
            self.fabric.run_on_host(number, self._apply(number, slice_of(snapshot, name)))
        self.route_to(snapshot)

    async def _apply(self, number: int, view: Snapshot) -> None:
        settled = asyncio.Event()
        driver = HAProxy(self.folder / NAMES[number], HostNamespace(), lambda *_: None, Program(path=PROGRAM, user=""))
        driver.subscribe(lambda _: settled.set(), lambda _: None)
        await driver.open()
        for owner in (POOL, BALANCER):
            rows = HAPROXY.compile(view, owner)
            with contextlib.suppress(Requeue):
                await driver.apply(owner, diff(rows, await driver.read(owner)))
                continue
            await settled.wait()
            await driver.apply(owner, diff(rows, await driver.read(owner)))
        await driver.close()

    def route_to(self, snapshot: Snapshot, numbers: Sequence[int] = HOSTS) -> None:
        """Apply the load balancer's rows on these hosts."""
        for number in numbers:
            rows = NATIVE.compile(slice_of(snapshot, NAMES[number]), BALANCER).values()
            self.fabric.put(number, [row for row in rows if isinstance(row, NativeRow)], BALANCER)

    async def end(self) -> None:
        for each in self.folder.glob("*/*"):
            if each.is_dir() and (running := read_running(each)) is not None:
                await stop(running)

    def flows(self, *places: NetNamespace, count: int = 12) -> list[ClientFlow]:
        return [self.fabric.flow(Transport.TCP, vip, where) for vip in VIPS for where in places for _ in range(count)]


@pytest.fixture
def site() -> Iterator[Proxied]:
    require_root("/usr/sbin/nft", PROGRAM)
    with TemporaryDirectory() as folder, fabric() as made:  # socket paths have a length limit
        made.open()
        found = Proxied(made, Path(folder))
        try:
            found.begin()
            yield found
        finally:
            made.run_on_host(1, found.end())


def serving_host(flow: ClientFlow) -> str:
    """Return the host whose proxy the member sees as client."""
    near = {f"10.30.{number}.1": name for number, name in NAMES.items()}
    far = {str(host_address(number)): name for number, name in NAMES.items()}
    return (near | far)[flow.request(b"from").removeprefix("::ffff:")]


def expected(flow: ClientFlow, snapshot: Snapshot) -> str:
    balancer = snapshot.load_balancers["web"]
    return host_slots(snapshot, balancer, balancer.listeners[0]).current[
        flow_slot(flow.client, (flow.vip, PORT), flow.transport)
    ]


def test_flow_reaches_the_proxy_of_its_slot_from_any_host_and_client(site: Proxied) -> None:
    snapshot, own = model(), site.fabric
    for entry in HOSTS:
        own.route_to(entry)
        flows = site.flows(own.client, own.hosts[1], own.members[2])
        assert [serving_host(flow) for flow in flows] == [expected(flow, snapshot) for flow in flows], entry
        assert {flow.request() for flow in flows} == {"m1", "m2", "m3"}


def test_flows_keep_their_proxy_while_routes_and_draining_hosts_change(site: Proxied) -> None:
    own = site.fabric
    own.route_to(1)
    site.route_to(model(serving=(1, 2)))
    old = site.flows(own.client, own.members[3], own.hosts[2], count=20)
    at = [serving_host(flow) for flow in old]
    assert set(at) == {"h1", "h2"}
    for entry in HOSTS:
        own.route_to(entry)
        assert [serving_host(flow) for flow in old] == at, f"by host {entry}"
    for told in (3, 1, 2):  # new owners of slots first, because otherwise they return packets, which loop
        site.route_to(model(), (told,))
        assert [serving_host(flow) for flow in old] == at, f"the third one serves, host {told} knows it"
    later = site.flows(own.client, own.members[3], own.hosts[2], count=20)
    there = [serving_host(flow) for flow in later]
    assert there == [expected(flow, model()) for flow in later]
    drained = model(draining=(3,))
    site.route_to(drained)
    for entry in HOSTS:
        own.route_to(entry)
        assert [serving_host(flow) for flow in later] == there, "one is drained"
    fresh = site.flows(own.client, count=20)
    begun = [serving_host(flow) for flow in fresh]
    assert begun == [expected(flow, drained) for flow in fresh]
    assert "h3" not in begun
    for told in (3, 1, 2):
        site.route_to(model(), (told,))
    for entry in HOSTS:
        own.route_to(entry)
        assert [serving_host(flow) for flow in (*fresh, *later)] == begun + there, "it is not drained any more"


def test_proxy_header_has_the_vip_and_port_of_the_client(site: Proxied) -> None:
    """The PROXY header has the client's destination; for a listener with several ports over IPv6, the first port."""
    own = site.fabric
    own.route_to(2)
    with first_bytes(own.members[1]) as read:
        for vip, port in product(VIPS, (81, 82, 83, 84)):
            with own.client.inside():
                client = socket.create_connection((str(vip), port), DEADLINE)
            with client:
                client.sendall(b"x")
                told = 83 if (vip.version, port) == (6, 84) else port
                assert (str(vip), told) == destination_of(read.get(timeout=DEADLINE))


@contextmanager
def first_bytes(where: NetNamespace) -> Iterator[Queue[bytes]]:
    """Yield the first bytes of each connection to a member at `TOLD`."""
    read = Queue[bytes]()

    class Reader(BaseRequestHandler):
        def handle(self) -> None:
            read.put(self.request.recv(1000))

    with where.inside():
        server = ThreadingTCPServer(("0.0.0.0", DESTINATION_SERVER), Reader)
    with server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield read
        server.shutdown()


def destination_of(said: bytes) -> tuple[str, int]:
    """Parse a PROXY protocol header (haproxy, doc/proxy-protocol.txt, 2.1 and 2.2)."""
    if said.startswith(b"PROXY "):
        _, _, _, address, _, port = said.partition(b"\r\n")[0].decode().split(" ")
        return address, int(port)
    size = {0x11: 4, 0x21: 16}[said[13]]
    return str(ip_address(said[16 + size : 16 + 2 * size])), int.from_bytes(said[18 + 2 * size : 20 + 2 * size])


def test_proxy_port_rejects_direct_connections(site: Proxied) -> None:
    own = site.fabric
    own.route_to(1)
    for where in (own.client, own.members[1], own.members[2], *own.hosts.values()):
        for vip, number in product(VIPS, HOSTS):
            for address in (vip, host_address(number, vip.version)):
                with where.inside(), pytest.raises(ConnectionRefusedError):
                    socket.create_connection((str(address), PROXY), timeout=DEADLINE)


def test_listener_without_a_serving_proxy_rejects_connections(site: Proxied) -> None:
    own = site.fabric
    site.route_to(model(serving=()))
    own.route_to(1)
    for where in (own.client, own.hosts[1], own.members[1]):
        for vip in VIPS:
            with pytest.raises(ConnectionRefusedError):
                own.flow(Transport.TCP, vip, where)


def test_rows_of_a_draining_host_survive_an_agent_restart_and_are_removable(site: Proxied) -> None:
    own = site.fabric
    site.route_to(model(draining=(3,)))
    applied = own.applied[3, BALANCER]
    assert {(row.is_local, row.is_received) for row in applied.values() if isinstance(row, Vip)} == {(False, True)}
    own.run_on_host(3, own.drivers[3].close())
    own.drivers[3] = Native()
    assert own.run_on_host(3, own.drivers[3].read_all())[BALANCER] == applied
    assert len(taken(own.hosts[3])) == 2
    own.run_on_host(3, own.drivers[3].remove())
    assert taken(own.hosts[3]) == []


def taken(host: NetNamespace) -> list[str]:
    """Return Fairlead's routes in the table `local`."""
    words = (f"ip {version} route show table local proto 250".split() for version in ("-4", "-6"))
    with host.inside():
        return [line for each in words for line in subprocess.check_output(each, text=True).splitlines()]
