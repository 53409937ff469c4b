"""Three plain hosts with one member each, a router that routes the VIPs to a host chosen by the test, and a client."""

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, TypeVar

from fairlead.dataplane.native import HostTunnel, LocalMember, NativeRow, OtherHost, Service, Vip
from fairlead.dataplane.rows import Key, diff
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from harness.net_namespace import NetNamespace, net_namespace
from harness.waiting import DEADLINE

VIPS: tuple[IPAddress, ...] = (IPv4Address("203.0.113.5"), IPv6Address("2001:db8::5"))
PORT, MEMBER_PORT = 80, 8080
LARGE_REPEATS = 50_000
"""Repetitions of the member's name in a large answer."""
LONG_REPEATS = 700
"""Repetitions of the member's name in an answer that fills a packet."""
OWNER = Owner(Kind.LOAD_BALANCER, "11111111-1111-4111-8111-111111111111")
HOSTS = (1, 2, 3)
CLIENT = {4: ip_address("198.51.100.2"), 6: ip_address("fd51::2")}
NO_REPLY_TIMEOUT = 0.3  # seconds to wait for an answer that must not come
_T = TypeVar("_T")
_TYPES = {Transport.TCP: socket.SOCK_STREAM, Transport.UDP: socket.SOCK_DGRAM}


def host_address(number: int, version: int = 4) -> IPAddress:
    return ip_address(f"10.20.0.1{number}" if version == 4 else f"fd20::1{number}")


def member_address(number: int, version: int) -> IPAddress:
    return ip_address(f"10.30.{number}.2" if version == 4 else f"fd30:{number}::2")


@dataclass
class ClientFlow:
    """A connected socket of the client."""

    socket: socket.socket
    transport: Transport
    client: tuple[IPAddress, int]
    vip: IPAddress

    def request(self, text: bytes = b"who") -> str:
        """Name of the member that answers. Raises OSError, also after a timeout."""
        self.socket.sendall(text)
        return self.socket.recv(2000).decode()

    def acknowledge(self) -> None:
        """Acknowledge received TCP data immediately, because a delayed ACK comes at an unpredictable time."""
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def request_large(self) -> int:
        """Size in bytes of a large answer. Raises OSError."""
        self.socket.sendall(b"large")
        left = 2 * LARGE_REPEATS
        while left:
            left -= len(self.socket.recv(left))
        return 2 * LARGE_REPEATS


@dataclass
class PendingConnection:
    """A TCP connection that is being established."""

    socket: socket.socket

    def request(self, *, within: float = DEADLINE) -> str:
        """Name of the member that answers. Raises OSError, also after a timeout."""
        _, writable, _ = select.select([], [self.socket], [], within)
        if not writable:
            raise TimeoutError
        if error := self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(error, os.strerror(error))
        self.socket.settimeout(within)
        self.socket.sendall(b"who")
        return self.socket.recv(2000).decode()


@dataclass
class Fabric:
    router: NetNamespace
    client: NetNamespace
    hosts: Mapping[int, NetNamespace]
    members: Mapping[int, NetNamespace]
    drivers: dict[int, Native] = field(default_factory=dict)
    flows: list["ClientFlow"] = field(default_factory=list)
    pending: list[PendingConnection] = field(default_factory=list)
    applied: dict[tuple[int, Owner], Mapping[Key, NativeRow]] = field(default_factory=dict)

    def run_on_host(self, number: int, work: Coroutine[Any, Any, _T]) -> _T:
        with self.hosts[number].inside():
            return asyncio.run(work)

    def open(self, version: int = 4) -> None:
        """Start a driver on each host, with tunnels to the other hosts over this IP version."""
        for number in self.hosts:
            self.drivers[number] = Native()
            self.run_on_host(number, self.drivers[number].open())
            self.run_on_host(number, self.drivers[number].open_tunnels())
            for other in self.hosts.keys() - {number}:
                way = HostTunnel(host=other, address=host_address(other, version))
                self.put(number, [way], Owner(Kind.HOST, f"host{other}"))

    def put(self, number: int, rows: Iterable[NativeRow], owner: Owner = OWNER) -> None:
        wanted = {row.key: row for row in rows}
        change = diff(wanted, self.applied.get((number, owner), {}))
        self.run_on_host(number, self.drivers[number].apply(owner, change))
        self.applied[number, owner] = wanted

    def serve(self, number: int, slots: bytes, **known: Any) -> None:
        self.put(number, rows_of(number, slots, **known))

    def route_to(self, number: int) -> None:
        """Route the VIPs to this host."""
        self.router.ip(
            *(f"route replace {vip} via {host_address(number, vip.version)}" for vip in VIPS),
        )

    def flow(
        self, transport: Transport, vip: IPAddress, where: NetNamespace | None = None, timeout: float = DEADLINE
    ) -> ClientFlow:
        family = socket.AF_INET if vip.version == 4 else socket.AF_INET6
        with (where or self.client).inside():
            made = socket.socket(family, _TYPES[transport])
            made.settimeout(timeout)
            try:
                made.connect((str(vip), PORT))
            except OSError:
                made.close()
                raise
        name = made.getsockname()
        self.flows.append(ClientFlow(made, transport, (ip_address(name[0]), name[1]), vip))
        return self.flows[-1]

    def start_connecting(self, vip: IPAddress) -> PendingConnection:
        """Start to connect from the external client, and return while the connection is being established."""
        with self.client.inside():
            made = socket.socket(socket.AF_INET if vip.version == 4 else socket.AF_INET6)
        made.setblocking(False)
        made.connect_ex((str(vip), PORT))
        self.pending.append(PendingConnection(made))
        return self.pending[-1]


def rows_of(
    number: int,
    slots: bytes,
    *,
    before: Mapping[int, int] | None = None,
    held: bool = True,
    by_source: bool = False,
    clients: Any = None,
) -> list[NativeRow]:
    """Rows of a host. Slot value `n` assigns the member of host `n + 1`."""
    rows: list[NativeRow] = [Vip(address=vip, is_local=held) for vip in VIPS]
    moved = tuple(sorted((before or {}).items()))
    for vip in VIPS:
        for transport in _TYPES:
            order = list(dict.fromkeys(slots))
            there = {each: OtherHost(host=each + 1) for each in order if each + 1 != number}
            here = LocalMember(address=member_address(number, vip.version), port=MEMBER_PORT)
            rows.append(
                Service(
                    vip=vip,
                    transport=transport,
                    port=PORT,
                    by_source=by_source,
                    slots=bytes(order.index(each) for each in slots),
                    targets=tuple(there.get(each, here) for each in order),
                    previous_owners=moved,
                    clients=clients,
                )
            )
    return rows


@contextmanager
def fabric() -> Iterator[Fabric]:
    with ExitStack() as stack:
        router, client = stack.enter_context(net_namespace()), stack.enter_context(net_namespace())
        hosts = {number: stack.enter_context(net_namespace()) for number in HOSTS}
        members = {number: stack.enter_context(net_namespace()) for number in HOSTS}
        for each in (router, client, *hosts.values(), *members.values()):
            each.set_sysctl("net/ipv6/conf/default/accept_dad", 0)
        for each in (router, *hosts.values()):
            each.set_sysctl("net/ipv4/ip_forward", 1)
            each.set_sysctl("net/ipv6/conf/all/forwarding", 1)
        router.ip(
            "link add br0 type bridge",
            "link set br0 up",
            "addr add 10.20.0.1/24 dev br0",
            "addr add fd20::1/64 dev br0",
        )
        _link(router, "c0", client, "u0", ("198.51.100.1/24", "fd51::1/64"), ("198.51.100.2/24", "fd51::2/64"))
        for number, host in hosts.items():
            router.ip(f"link add h{number} type veth peer name u0 netns {host.path}")
            router.ip(f"link set h{number} master br0 up")
            host.ip(
                "link set u0 up",
                f"addr add {host_address(number)}/24 dev u0",
                f"addr add {host_address(number, 6)}/64 dev u0",
            )
            host.ip("route add default via 10.20.0.1", "route add default via fd20::1")
            theirs = f"10.30.{number}", f"fd30:{number}:"
            _link(
                *(host, "m0", members[number], "u0"),
                (f"{theirs[0]}.1/24", f"{theirs[1]}:1/64"),
                (f"{theirs[0]}.2/24", f"{theirs[1]}:2/64"),
            )
            router.ip(
                f"route add {theirs[0]}.0/24 via {host_address(number)}",
                f"route add {theirs[1]}:/64 via {host_address(number, 6)}",
            )
        for number, member in members.items():
            stack.enter_context(answering(member, f"m{number}"))
        made = Fabric(router, client, hosts, members)
        yield made
        for each in (*made.flows, *made.pending):
            each.socket.close()
        for number, driver in made.drivers.items():
            made.run_on_host(number, driver.close())


def _link(
    near: NetNamespace, device: str, far: NetNamespace, other: str, its: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Connect two namespaces by a veth pair. The far one has its default routes via the near one."""
    near.ip(f"link add {device} type veth peer name {other} netns {far.path}", f"link set {device} up")
    near.ip(*(f"addr add {each} dev {device}" for each in its))
    far.ip(f"link set {other} up", *(f"addr add {each} dev {other}" for each in others))
    far.ip(*(f"route add default via {each.partition('/')[0]}" for each in its))


@contextmanager
def answering(where: NetNamespace, name: str, port: int = MEMBER_PORT) -> Iterator[None]:
    """Answer requests over TCP and UDP with the member's name, and the TCP request `from` with the client's address."""
    with where.inside():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=500)
        packets = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        packets.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        packets.bind(("::", port))
    threads = [
        threading.Thread(target=_accept, args=(listener, name), daemon=True),
        threading.Thread(target=_serve_datagrams, args=(packets, name), daemon=True),
    ]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        for each in (listener, packets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _accept(listener: socket.socket, name: str) -> None:
    with contextlib.suppress(OSError):
        while True:
            taken, _ = listener.accept()
            threading.Thread(target=_serve_connection, args=(taken, name), daemon=True).start()


def _serve_connection(taken: socket.socket, name: str) -> None:
    with taken, contextlib.suppress(OSError):
        while asked := taken.recv(65536):
            if b"from" in asked:
                taken.sendall(taken.getpeername()[0].encode())
                continue
            taken.sendall(name.encode() * (LARGE_REPEATS if b"large" in asked else 1))


def _serve_datagrams(packets: socket.socket, name: str) -> None:
    """Answer UDP packets, from the requested address, because the machine has only one."""
    with contextlib.suppress(OSError):
        while True:
            asked, client = packets.recvfrom(65536)
            if client is None:
                return
            packets.sendto(name.encode() * (LONG_REPEATS if b"long" in asked else 1), client)
