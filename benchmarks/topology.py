"""Imported networks of Neutron: duration of the first import, memory, and cost of one change.

    python benchmarks/topology.py                      5,000 networks, 100,000 ports; about three minutes, no root
    python benchmarks/topology.py --networks 500 --json

Each network has a subnet with DHCP, a metadata port, a router interface and 18 machines; ten networks share a router
with a gateway on the one external network. The rows are those of Neutron 29 with all columns. The reader updates a
model, as in a server. `Held` is the longest CPU time without a return to the event loop. A change is one transaction of
Neutron, measured until the model has it.
"""

import argparse
import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fairlead.drivers.ovn.unmanaged.reader import DATABASE, TopologyReader, TopologySettings
from fairlead.drivers.ovsdb.client import Client, Settings, Timing
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.registry.facts import Fact
from fairlead.runtime.gc_tuning import frozen
from fairlead.runtime.loop_lag import POLL_INTERVAL, LoopLag
from fairlead.runtime.steps import Steps
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.neutron import NeutronNetwork, NeutronRouter, external_ids_mutation

SCHEMA = Path("/usr/share/ovn/ovn-nb.ovsschema")
MACHINES, SHARE = 18, 10
CHANGES = 200
IMPORT_TIMEOUT = 600
SLOW_TIMING = Timing(probe=60.0)
OUTSIDE = NeutronNetwork(name="outside", project="admin", external=True, physnet="wire")


def main() -> int:
    parser = argparse.ArgumentParser(description="What it costs to follow networks that Neutron wrote.")
    parser.add_argument("--networks", type=int, default=5000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with northbound() as remote:
        asyncio.run(fill(remote, arguments.networks))
        with frozen():
            found = asyncio.run(measure(remote, arguments.networks))
    print(json.dumps(found) if arguments.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    return 0


@contextmanager
def northbound() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        subprocess.run(["ovsdb-tool", "create", f"{folder}/db", SCHEMA], check=True)
        remote = f"unix:{folder}/sock"
        options = [f"--remote=p{remote}", f"--unixctl={folder}/ctl", "-vconsole:off"]
        process = subprocess.Popen(["ovsdb-server", *options, f"{folder}/db"])
        try:
            while not Path(folder, "sock").exists():
                sleep(0.05)
            yield remote
        finally:
            process.kill()
            process.wait()


def network(number: int) -> NeutronNetwork:
    return NeutronNetwork(name=f"net{number}", project=f"project{number // SHARE}")


def router(number: int) -> NeutronRouter:
    return NeutronRouter(name=f"router{number}", project=f"project{number}")


def rows(number: int) -> Iterator[Json]:
    """Rows of one network, and of its router if the network is the first one on it."""
    net, via = network(number), router(number // SHARE)
    first = IPv4Address(0x0A000000 + number * 256)
    yield from net.create()
    yield net.subnet(f"{first}/24", str(first + 1))
    if number % SHARE == 0:
        yield from via.create()
        outside = f"{IPv4Address(0xC0000002 + number)}/8"
        yield from via.insert_port(OUTSIDE, outside, gateway=True)
        yield from via.default_route(OUTSIDE, "192.0.0.1", "192.0.0.0/8")
        yield from via.snat(outside.partition("/")[0])
    yield from via.insert_port(net, f"{first + 1}/24")
    for each in range(MACHINES):
        yield from net.port(f"vm{each}", f"{first + 10 + each}/24", project=net.project, device=net.id, host="node1")


def by_reference(operations: list[Json]) -> list[Json]:
    """The same operations with references to rows instead of a search by name, because there are many."""
    made: dict[str, str] = {}
    for each in operations:
        if each["op"] == "insert" and each["table"] in ("Logical_Switch", "Logical_Router"):
            made[each["row"]["name"]] = each["uuid-name"] = f"row{len(made)}"
        elif each["op"] == "mutate" and (name := each["where"][0][2]) in made:
            each["where"] = [["_uuid", "==", ["named-uuid", made[name]]]]
    return operations


async def fill(remote: str, networks: int) -> None:
    settings = Settings(remotes=parse_remotes(remote), database=DATABASE, tables={}, timing=SLOW_TIMING)
    async with Client(settings, lambda event: None) as client:
        await client.wait_connected(10)
        await client.transact([*OUTSIDE.create()], IMPORT_TIMEOUT)
        for number in range(networks):
            await client.transact(by_reference([*rows(number)]), IMPORT_TIMEOUT)


class MeasuredModel:
    """A model, and the CPU time of its observer."""

    def __init__(self) -> None:
        self.model: Any = None
        self.seconds = 0.0
        self.updated = asyncio.Event()

    def observe(self, fact: Fact[Any], news: Any) -> Steps[None]:
        began = process_time()
        yield from self.model.observe(fact, news)
        self.seconds += process_time() - began
        self.updated.set()


async def measure(remote: str, networks: int) -> dict[str, Any]:
    watched, lag = MeasuredModel(), LoopLag()
    with TemporaryDirectory() as folder:
        watched.model = await Model.load(await SqliteStore.open(Path(folder, "store")), lambda snapshot, owner: None)
        beat = asyncio.create_task(lag.measure())
        gc.collect()
        before, began, worked = memory(), perf_counter(), process_time()
        reader = TopologyReader(TopologySettings(remotes=parse_remotes(remote), mark="bench"), watched.observe)
        reader.start()
        await reader.wait_connected(IMPORT_TIMEOUT)
        look = {
            "networks": len(watched.model.snapshot.networks),
            "ports": len(watched.model.snapshot.ports),
            "routers": len(watched.model.snapshot.routers),
            "first look, s": round(perf_counter() - began, 1),
            "of the processor, s": round(process_time() - worked, 1),
            "of these the model, s": round(watched.seconds, 1),
            "longest hold, ms": round(1000 * lag.longest, 1),
        }
        gc.collect()
        look["memory, MB"] = round((memory() - before) / 1e6)
        await asyncio.sleep(2 * POLL_INTERVAL)  # exclude the lag caused by this measurement
        lag.longest = 0.0
        changes = await change(remote, watched, networks)
        beat.cancel()
        await reader.close()
        return {**look, **changes, "longest hold of a change, ms": round(1000 * lag.longest, 1)}


async def change(remote: str, watched: MeasuredModel, networks: int) -> dict[str, Any]:
    """Rename ports, one after the other."""
    settings = Settings(remotes=parse_remotes(remote), database=DATABASE, tables={}, timing=SLOW_TIMING)
    taken, worked = [], []
    async with Client(settings, lambda event: None) as client:
        await client.wait_connected(10)
        for number in range(CHANGES):
            port = network(number % networks).port_id(f"vm{number % MACHINES}")
            began, before = perf_counter(), process_time()
            await client.transact(
                [external_ids_mutation("Logical_Switch_Port", port, port_name=f"new{number}")], IMPORT_TIMEOUT
            )
            while watched.model.snapshot.ports[port].name != f"new{number}":
                watched.updated.clear()
                await watched.updated.wait()
            taken.append(perf_counter() - began)
            worked.append(process_time() - before)
    return {
        "a change, ms": round(1000 * statistics.median(taken), 2),
        "of the processor, ms": round(1000 * statistics.median(worked), 2),
    }


def memory() -> int:
    """Current resident memory of the process in bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
