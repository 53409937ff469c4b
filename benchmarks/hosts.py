"""Cost of thousands of load balancers on a plain Linux host: initial apply, change, restart, and connections.

    make scale                                                 after OVN
    python benchmarks/hosts.py --balancers 1000 --hosts 1 --json

It uses network namespaces with this machine's kernel: a host that runs the agent's parts (`PlainHost`, with reconciler
and driver) on a slice made in memory, a machine behind it with the addresses of all members, and outside of it the
clients and the other hosts. Members are spread over the hosts, and those behind this one answer. The host holds every
VIP with a member here, so that a routing daemon announces it: one in ten if ten members are spread over a hundred
hosts, all of them if there is only one host. The kernel scans all addresses of a device when one is added.

`serving` is the time from a host without Fairlead's rules until all load balancers are applied, with the CPU time of
the process and of the kernel on its behalf. `away` is the longest time without a return to the agent's event loop, by
the clock, and by the CPU time of its longest step, which other load does not increase. A restart ends the agent and
starts another one; its writes are counted by `nft monitor` and `ip monitor`. New connections alternate with connections
to members without a load balancer, so their ratio is the cost of lookups.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from fairlead.compilers.native import NATIVE
from fairlead.dataplane.flow_slot import flow_slot
from fairlead.dataplane.native import LocalMember, Service
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.loadbalancer import LoadBalancer, Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import find_balancers_in_prefixes
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import UNREACHABLE_HOSTS, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.node.plain_host import PlainHost
from fairlead.node.reports import Reports
from fairlead.runtime.gc_tuning import frozen

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from announced import (
    MEMBER_PORT,
    MEMBERS_START,
    PORT,
    VIPS_START,
    is_here,
    make_slice,
    with_one_more,
    with_wire_defaults,
)

from harness.fixed_slice import FixedSlice
from harness.net_namespace import NetNamespace, net_namespace
from harness.waiting import wait_until

CHANGE_ROUNDS, CONNECTION_COUNT, HOT_VIPS = 100, 1_000, 10
"""Number of changes, of connections of each kind, and of VIPs that are used repeatedly."""
APPLY_TIMEOUT = 60.0
LINGER_RESET = struct.pack("ii", 1, 0)  # struct linger, socket(7)
SERVER = """
import socket
with socket.create_server(("", 8080), backlog=4096) as server:
    while True:
        server.accept()[0].close()
"""


def main() -> int:
    options = parse_arguments()
    results: dict[str, dict[str, str]] = {}
    before = os.getloadavg()[0]
    for size in sorted({*(each for each in (10, 1_000) if each < options.balancers), options.balancers}):
        results[f"{size:,}"] = measure(options, size)
    told = {"load of the machine before": f"{before:.1f}", "hosts": options.hosts, "members": options.members}
    print(json.dumps({**told, "balancers": results}, indent=2) if options.json else f"{as_table(results)}\n\n{told}")
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What thousands of load balancers cost a plain Linux host.")
    parser.add_argument("--balancers", type=int, default=10_000)
    parser.add_argument("--members", type=int, default=10, help="of each")
    parser.add_argument("--hosts", type=int, default=100, help="over which members are spread; this one is the first")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def as_table(results: dict[str, dict[str, str]]) -> str:
    names = dict.fromkeys(name for found in results.values() for name in found)
    lines = [f"| load balancers | {' | '.join(results)} |", f"|---{'|---' * len(results)}|"]
    lines += [f"| {name} | {' | '.join(found.get(name, '') for found in results.values())} |" for name in names]
    return "\n".join(lines)


# The host


@dataclass
class HostBench:
    host: NetNamespace
    outside: NetNamespace
    member_network: NetNamespace


@contextmanager
def site(hosts: int) -> Iterator[HostBench]:
    with ExitStack() as stack:
        host, outside, behind = (stack.enter_context(net_namespace()) for _ in range(3))
        host.set_sysctl("net/ipv6/conf/default/accept_dad", 0)  # no late changes of addresses
        host.ip(f"link add outer type veth peer name outer netns {outside.path}")
        host.ip(f"link add inner type veth peer name inner netns {behind.path}")
        host.set_sysctl("net/ipv4/ip_forward", 1)
        host.ip(
            "addr add 10.20.0.1/16 dev outer",
            "link set outer up",
            "addr add 10.20.255.1/30 dev inner",
            "link set inner up",
        )
        host.ip(f"route add {MEMBERS_START}/15 via 10.20.255.2", "route add default via 10.20.254.1")
        others = (f"addr add {ip_address('10.20.0.1') + number}/16 dev outer" for number in range(1, hosts))
        outside.ip("addr add 10.20.254.1/16 dev outer", *others, "link set outer up")
        outside.ip(f"route add {MEMBERS_START}/15 via 10.20.0.1", f"route add {VIPS_START}/15 via 10.20.0.1")
        behind.ip("addr add 10.20.255.2/30 dev inner", "link set inner up", "route add default via 10.20.255.1")
        behind.ip(f"route add local {MEMBERS_START}/15 dev lo")
        with behind.inside():
            server = subprocess.Popen([sys.executable, "-c", SERVER])
        stack.callback(server.wait)
        stack.callback(server.kill)
        with behind.inside():
            wait_until(answers)
        yield HostBench(host, outside, behind)


def answers() -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", MEMBER_PORT)) == 0


class MissingOwners(Reports):
    """Reports whose set of missing owners empties as they are applied."""

    def __init__(self) -> None:
        super().__init__(lambda: None, lambda: (), 0)  # type: ignore[arg-type, return-value]
        self.missing: set[Owner] = set()
        self.done = asyncio.Event()
        self.errors: dict[Owner, str] = {}

    def expect(self, owners: Sequence[Owner]) -> None:
        self.missing, self.errors = set(owners), {}
        self.done.clear()

    def set_apply_error(self, dataplane: str, owner: Owner, error: str | None) -> None:
        if error is None:
            self.missing.discard(owner)
            if not self.missing:
                self.done.set()
        else:
            self.errors[owner] = error


@asynccontextmanager
async def agent(given: FixedSlice, told: MissingOwners) -> AsyncIterator[None]:
    running = asyncio.ensure_future(PlainHost(given, told, Native()).run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


async def wait_applied(told: MissingOwners) -> None:
    try:
        async with asyncio.timeout(APPLY_TIMEOUT):
            await told.done.wait()
    except TimeoutError:
        sys.exit(f"{len(told.missing)} are missing: {list(told.errors.values())[:3]}")


class LoopBlocking:
    """Longest time in seconds without a return to the event loop: by the clock, and by CPU time of a step."""

    def __init__(self) -> None:
        self.longest = self.step = 0.0
        self._task = asyncio.ensure_future(self._tick())
        self._run = asyncio.events.Handle._run  # noqa: SLF001 - there is no other place
        asyncio.events.Handle._run = self._timed()  # type: ignore[method-assign]  # noqa: SLF001

    def _timed(self):  # type: ignore[no-untyped-def]
        run = self._run

        def timed(handle: asyncio.Handle) -> None:
            began = time.thread_time()
            run(handle)  # type: ignore[arg-type]
            self.step = max(self.step, time.thread_time() - began)

        return timed

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - began - 0.001)

    def end(self) -> str:
        self._task.cancel()
        asyncio.events.Handle._run = self._run  # type: ignore[method-assign]  # noqa: SLF001
        return f"{self.longest * 1000:.0f} / {self.step * 1000:.0f}"


def measure(options: argparse.Namespace, size: int) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as name, site(options.hosts) as made, made.host.inside(), frozen():
        logging.basicConfig(filename=Path(name) / "log", level=logging.INFO, force=True)
        return asyncio.run(measure_inside(options, size, Path(name), made))


async def measure_inside(options: argparse.Namespace, size: int, folder: Path, made: HostBench) -> dict[str, str]:
    empty = memory()
    known = make_slice(size, options.members, options.hosts)
    given, told = FixedSlice("h1", folder / "slice", known), MissingOwners()
    gc.collect()
    sliced, kernel = memory(), kernel_memory()
    owners = [Owner(Kind.LOAD_BALANCER, each) for each in known.load_balancers]
    timed = ApplyTimer(told, owners)
    async with agent(given, told):
        found = await timed.end("serving")
        found["kernel, MB"] = f"{(kernel_memory() - kernel) / 1e6:.0f}"
        found["process, MB, slice / rows"] = f"{(sliced - empty) / 1e6:.0f} / {(memory() - sliced) / 1e6:.0f}"
        found |= await asyncio.to_thread(connect_in_turns, made, known)
        found |= await change(given, told)
        if options.hosts > 1:
            found |= await disconnect_host(made, given, told)
            found |= await drain(given, told)
    found |= await restart(given, told, owners)
    await Native().remove()
    return found


class ApplyTimer:
    """Measures until all these owners are applied."""

    def __init__(self, told: MissingOwners, owners: Sequence[Owner]) -> None:
        told.expect(owners)
        self._told, self._holds = told, LoopBlocking()
        self._began, self._before = time.perf_counter(), os.times()

    async def end(self, name: str) -> dict[str, str]:
        await wait_applied(self._told)
        took, now = time.perf_counter() - self._began, os.times()
        processor = f"{now.user - self._before.user:.2f} / {now.system - self._before.system:.2f}"
        return {
            f"{name}, s": f"{took:.2f}",
            f"{name}, processor, s, process / kernel": processor,
            f"{name}, event loop away, ms, clock / step": self._holds.end(),
        }


async def change(given: FixedSlice, told: MissingOwners) -> dict[str, str]:
    """Add a member, and remove it again."""
    chance, times = random.Random(3), list[float]()
    balancers = list(given.current.load_balancers.values())
    for revision in range(2, 2 + CHANGE_ROUNDS):
        balancer = chance.choice(balancers)
        for after in (with_one_more(balancer), balancer):
            told.expect([with_wire_defaults(after)])
            snapshot = apply_changes(given.current, Changes(puts=(after,)), revision)
            began = time.perf_counter()
            given.replace(snapshot, with_wire_defaults(after))
            await wait_applied(told)
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    shown = f"{percentile(times, 0.5)} / {percentile(times, 0.99)} / {times[-1]:.1f}"
    return {"one change, ms, median / 99 of 100 / highest": shown}


def percentile(ordered: Sequence[float], share: float) -> str:
    return f"{ordered[int(len(ordered) * share)]:.1f}"


async def disconnect_host(made: HostBench, given: FixedSlice, told: MissingOwners) -> dict[str, str]:
    """Disconnect another host and reconnect it: its slots move to other members here, and back."""
    known, lost = given.current, frozenset({"h2"})
    owners = list(UNREACHABLE_HOSTS.affected_owners(known, with_facts(known, UNREACHABLE_HOSTS, lost), lost))
    found = {"load balancers with a member behind one that dies": f"{len(owners):,}"}
    for name, words in (("dies", "del"), ("is back", "add")):
        timed = ApplyTimer(told, owners)
        made.outside.ip(f"addr {words} 10.20.0.2/16 dev outer")
        found |= await timed.end(f"another host {name}")
    return found


async def drain(given: FixedSlice, told: MissingOwners) -> dict[str, str]:
    """Drain another host, then let it serve again.

    Slots that it gives to this host keep a record of the previous owner.
    """
    known, kernel, found = given.current, kernel_memory(), dict[str, str]()
    host = known.hosts["h2"]
    for name, changed in (("is drained", replace(host, draining=True)), ("may serve again", host)):
        after = apply_changes(given.current, Changes(puts=(changed,)), given.current.revision + 1)
        owners = [
            Owner(Kind.LOAD_BALANCER, each)
            for each in find_balancers_in_prefixes(after, [p.cidr for p in host.prefixes])
        ]
        timed = ApplyTimer(told, owners)
        given.replace(after, *owners)
        found |= await timed.end(f"another host {name}")
        if changed.draining:
            found["another host is drained, kernel, MB more"] = f"{(kernel_memory() - kernel) / 1e6:.0f}"
    return found


async def restart(given: FixedSlice, told: MissingOwners, owners: Sequence[Owner]) -> dict[str, str]:
    commands = (("nft", "monitor"), ("ip", "monitor", "address", "route", "rule"))
    watching = [await asyncio.create_subprocess_exec(*each, stdout=subprocess.PIPE) for each in commands]
    await asyncio.sleep(1)  # until they listen
    timed = ApplyTimer(told, owners)
    async with agent(given, told):
        found = await timed.end("restart")
    lines = []
    for each in watching:
        each.terminate()
        lines += (await each.communicate())[0].splitlines()
    return {**found, "restart, lines of nft monitor and ip monitor": str(len(lines))}


# Connections


def connect_in_turns(made: HostBench, known: Snapshot) -> dict[str, str]:
    """Connect to a few VIPs repeatedly, and to random ones, which are not in CPU caches."""
    chance, balancers = random.Random(5), sorted(known.load_balancers.values(), key=lambda each: each.id)
    here = [each for each in balancers if any(is_here(member) for member in each.pools[0].members)]
    asked = [(chance.choice(here[:HOT_VIPS]), chance.choice(here)) for _ in range(CONNECTION_COUNT)]
    with made.outside.inside():
        times = [
            [connect(*local_flow(known, few)), connect(*local_flow(known, one)), connect(*direct(few))]
            for few, one in asked
        ]
    few, one, member = (statistics.median(column) * 1e6 for column in zip(*times, strict=True))
    return {
        "new connection, µs, one of few VIPs / any VIP / a member": f"{few:.0f} / {one:.0f} / {member:.0f}",
        "ratio to a member's, one of few VIPs / any VIP": f"{few / member:.2f} / {one / member:.2f}",
    }


_PORTS = iter(range(20_000, 1_000_000))


def source() -> int:
    return 20_000 + next(_PORTS) % 40_000


def local_flow(known: Snapshot, balancer: LoadBalancer) -> tuple[int, tuple[str, int]]:
    """Source port with a slot of a local member, and the target."""
    rows = NATIVE.compile(known, with_wire_defaults(balancer)).values()
    [service] = (row for row in rows if isinstance(row, Service))
    client, to = ip_address("10.20.254.1"), (balancer.vip.address, PORT)
    while True:
        port = source()
        if isinstance(service.targets[service.slots[flow_slot((client, port), to, Transport.TCP)]], LocalMember):
            return port, (str(to[0]), PORT)


def direct(balancer: LoadBalancer) -> tuple[int, tuple[str, int]]:
    member = next(each for each in balancer.pools[0].members if is_here(each))
    return source(), (str(member.address), MEMBER_PORT)


def connect(port: int, to: tuple[str, int]) -> float:
    """Seconds until the connection is established. It is closed by a reset, so no TIME_WAIT remains."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        client.bind(("10.20.254.1", port))
        client.settimeout(5)
        began = time.perf_counter()
        client.connect(to)
        return time.perf_counter() - began


# Measured values


def memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def kernel_memory() -> int:
    """Kernel memory of the whole machine in bytes, including that of other activity."""
    figures = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(figures[name].split()[0]) * 1024 for name in ("SUnreclaim", "VmallocUsed", "Percpu"))


if __name__ == "__main__":
    sys.exit(main())
