"""A thousand agents on one server: delay of a change to all, duration of a storm of reconnects, memory per agent.

Agents use TLS with a certificate and an address each; server and agents are two processes.

    python benchmarks/agents.py [AGENTS] [CHANGES]
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import sys
import tempfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter, thread_time

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from immutables import Map

from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.enrolment import IssuedCertificate, Node
from fairlead.model.documents.network import FixedIP
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import CHASSIS
from fairlead.node.channel import NodeSlice, SliceReceiver
from fairlead.node.connection import Remote
from fairlead.node.identity import _make_tls_context, _request, _write, read_identity
from fairlead.runtime.gc_tuning import frozen
from fairlead.runtime.loop_lag import LoopLag
from harness.nodes import NodesDeployment, nodes_deployment

BALANCERS = 100
ROUNDS = 5


def memory(pid: int | str = "self") -> float:
    """Private and proportional memory of a process (PSS) in MiB."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) / 1024


def address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


async def populate(stage: NodesDeployment, agents: int) -> None:
    """Create a network with a machine on every chassis, load balancers, and a certificate for each chassis."""
    model, now = stage.services.model, datetime.now(UTC)
    web, vm = model.snapshot.load_balancers["web"], model.snapshot.ports["vm2"]
    subnet = vm.fixed_ips[0].subnet_id
    ports = [
        replace(vm, id=f"m{n}", mac_address=f"02:00:00:01:{n // 256:02x}:{n % 256:02x}",
                fixed_ips=(FixedIP(subnet_id=subnet, address=_address(n)),))
        for n in range(agents)
    ]  # fmt: skip
    balancers = [_copy(web, n) for n in range(BALANCERS)]
    nodes = []
    for n in range(agents):
        key, request = _request(f"c{n}")
        signed = stage.nodes.enrolment().authority.sign(request, f"c{n}", now)
        _write(stage.folder / f"c{n}.pem", key, signed.pem, stage.nodes.enrolment().authority.pem)
        issued = IssuedCertificate(fingerprint=signed.fingerprint, not_after=signed.not_after)
        nodes.append(Node(name=f"c{n}", enrolled_at=now, certificates=(issued,)))
    await model.write(lambda _: Changes(puts=(*ports, *balancers, *nodes)))
    chassis = {f"c{n}": Chassis(name=f"c{n}", host=f"c{n}", ports=Map({f"m{n}": True})) for n in range(agents)}
    stage.observe(CHASSIS, chassis)


def _address(number: int) -> object:
    from ipaddress import ip_address

    return ip_address(0xFD00 << 112 | 0x10000 + number)


def _copy(web: object, number: int) -> object:
    identity = f"{number:08d}"
    pools = tuple(
        replace(pool, id=f"{pool.id}-{identity}", health_monitor=None,
                members=tuple(replace(each, id=f"{each.id}-{identity}") for each in pool.members))
        for pool in web.pools
    )  # fmt: skip
    listeners = tuple(
        replace(
            each,
            id=f"{each.id}-{identity}",
            default_pool_id=each.default_pool_id and f"{each.default_pool_id}-{identity}",
        )
        for each in web.listeners
    )
    return replace(web, id=f"lb{identity}", name=f"lb{identity}", pools=pools, listeners=listeners,
                   vip=replace(web.vip, port_id=f"vip-{identity}"))  # fmt: skip


async def serve(agents: int, changes: int) -> None:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        async with nodes_deployment(Path(folder)) as stage:
            await populate(stage, agents)
            stack.enter_context(frozen())
            lag = LoopLag()
            beating = asyncio.create_task(lag.measure())
            channel, before = stage.services.nodes.channel, await asyncio.to_thread(memory)
            command = [sys.executable, __file__, "listen", str(agents), stage.url, folder]
            clients = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26
            )

            async def said() -> list[float]:
                return json.loads(await clients.stdout.readline())

            for number in range(ROUNDS):
                began, cpu = perf_counter(), thread_time()
                clients.stdin.write(b"storm\n")
                heard = await said()
                print(
                    f"storm {number}: {agents} agents have all of their slice in {max(heard) - began:.2f} s,"
                    f" of the server's processor {thread_time() - cpu:.2f} s; the loop was held {_longest(lag)}",
                    flush=True,
                )
            after = await asyncio.to_thread(memory)  # in a thread: it is slow
            print(f"memory: {(after - before) * 1024 / agents:.0f} KiB of the server for each agent that listens")
            assert channel.connected_count == agents
            await asyncio.sleep(2)
            told, written, worked = [], [], []
            for number in range(changes):
                web = stage.snapshot.load_balancers["lb00000001"]
                clients.stdin.write(b"change\n")
                await clients.stdout.readline()
                published: list[tuple[float, float]] = []
                watcher = lambda _, published=published: published.append((perf_counter(), thread_time()))  # noqa: E731
                stage.services.model._watchers.insert(0, watcher)  # noqa: SLF001
                await stage.services.model.write(
                    lambda _, web=web, n=number: Changes(puts=(replace(web, name=f"n{n}"),))
                )
                while channel.writing:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0)
                (began, cpu), *_ = published
                written.append(perf_counter() - began)
                worked.append(thread_time() - cpu)
                stage.services.model._watchers.remove(watcher)  # noqa: SLF001
                told.append(max(await said()) - began)
                await asyncio.sleep(0.2)
            print(f"one change, ms: median of {changes}, lowest to highest")
            print(f"  the server has told all {agents} after {_median(written)}")
            print(f"  of its own processor time {_median(worked)}")
            print(f"  all have heard it after {_median(told)}", flush=True)
            own = await asyncio.create_subprocess_exec(sys.executable, __file__, "agent", stage.url, folder)
            await own.wait()
            print(f"changes and one agent more: the loop was held {_longest(lag)}")
            clients.stdin.write(b"end\n")
            await clients.wait()
            beating.cancel()


def _longest(lag: LoopLag) -> str:
    """Longest lag of the event loop since the last call, as text."""
    found, lag.longest = lag.longest, 0.0
    return f"for {1000 * found:.1f} ms at most"


def _median(seconds: list[float]) -> str:
    found = sorted(1000 * each for each in seconds)
    return f"{found[len(found) // 2]:.1f} ({found[0]:.1f} to {found[-1]:.1f})"


async def run_agent(url: str, folder: str) -> None:
    """Run one real agent with this slice."""
    before = memory()
    identity = read_identity(Path(folder) / "c0.pem")
    taken = NodeSlice("c0", Path(folder) / "slice")
    listening = asyncio.create_task(SliceReceiver(taken, lambda: [Remote(url=url, tls=identity.tls())]).run())
    await taken.ready.wait()
    documents = len(taken.snapshot.generations)
    print(f"an agent with {documents} documents takes {memory():.0f} MiB, {memory() - before:.0f} of them for these")
    listening.cancel()


class RecordingAgent(asyncio.Protocol):
    """Minimal agent that only records the time of a message."""

    def __init__(self, path: str, mark: bytes) -> None:
        self.path, self.mark = path, mark
        self.tail = b""
        self.received_at = 0.0
        self.connected = asyncio.Event()
        self.received = asyncio.Event()
        """Set when the message has arrived, or the connection is lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(f"GET {self.path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        if not self.connected.is_set() and self.mark in self.tail + data:
            self.received_at = perf_counter()
            self.connected.set()
            self.received.set()
        self.tail = data[-64:]

    def connection_lost(self, error: Exception | None) -> None:
        self.received.set()

    def expect_mark(self, mark: bytes) -> None:
        self.mark, self.tail = mark, b""
        self.connected.clear()


async def listen(agents: int, url: str, folder: str) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (agents + 100, max(agents + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    host, _, port = url.removeprefix("https://").partition(":")
    contexts = []
    for n in range(agents):
        identity = read_identity(Path(folder) / f"c{n}.pem")
        context = _make_tls_context(identity.authority)
        context.load_cert_chain(identity.path)
        contexts.append(context)
    loop, ears = asyncio.get_running_loop(), list[RecordingAgent]()

    async def connect(n: int) -> RecordingAgent:
        """Connect as an agent does: repeatedly, until the full slice has arrived."""
        while True:
            with contextlib.suppress(OSError):
                made = loop.create_connection(
                    lambda: RecordingAgent(f"/agent/chassis/c{n}/slice", b'"at":'),
                    host,
                    int(port),
                    ssl=contexts[n],
                    local_addr=(address(n), 0),
                )
                ear = (await made)[1]
                await ear.received.wait()
                if ear.connected.is_set():
                    return ear
            await asyncio.sleep(random.uniform(0, 0.5))

    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while (order := (await reader.readline()).strip()) in (b"storm", b"change"):
        if order == b"storm":
            for ear in ears:
                ear.transport.abort()
            ears = await asyncio.gather(*(connect(n) for n in range(agents)))
        else:
            for ear in ears:
                ear.expect_mark(b'"put":"loadbalancer/lb00000001"')
            print("ready", flush=True)
        await asyncio.gather(*(ear.connected.wait() for ear in ears))
        print(json.dumps([ear.received_at for ear in ears]), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["listen"]:
        uvloop.run(listen(int(sys.argv[2]), *sys.argv[3:5]))
        return
    if sys.argv[1:2] == ["agent"]:
        asyncio.run(run_agent(*sys.argv[2:4]))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    agents, changes = (int(text) for text in (*sys.argv[1:3], *("1000", "20")[len(sys.argv) - 1 :]))
    uvloop.run(serve(agents, changes))


if __name__ == "__main__":
    main()
