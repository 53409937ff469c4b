"""Cost of a change, a list, a start and a resync with many load balancers, in Fairlead and in OVN.

    make scale                              10, 1,000 and 10,000 load balancers, and the OVSDB client: about 15 minutes
    python benchmarks/scale.py --sizes 10,100 --json

One lab with two compute nodes and the real OVN grows from size to size; it needs root. Each load balancer has two
listeners with ten members each, on one of twenty unconnected networks.

* Fairlead alone: ovn-northd is paused, so Fairlead and the Northbound's ovsdb-server are measured.
* With OVN: ovn-northd runs, and is idle before each change. Databases and switches themselves report the row and the
  flows of a changed member (watch.py), first with the ports of one network bound on both nodes, then with those of all
  twenty, because a node gets flows only for the networks of its own ports.
* Reads and writes of one change are counted in a separate server (counting_server.py). None may grow with the size.

The machine is small and shared, so only columns of one run are comparable.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx
import ovsdb
from counting_server import COUNTS_VARIABLE, NAMES, make_counts, read_counts
from population import LBS, STATISTICS, MemberChange, Population, wait_active, wait_idle
from watch import VipWatch

from fairlead.lab import Lab, LabError, take_down
from fairlead.lab.port_workloads import Placement, workload_of_port
from fairlead.lab.processes import LAB_VARIABLE

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.lab.site import free_port

LAB = "scale"
PROBES, LISTS, RESYNCS, COUNTED = 100, 20, 3, 20
CHANGES = {"one network": 5, "all networks": 3}
"""Number of changes of a member with OVN, for each size."""
INTERVAL = 0.005
START_TIMEOUT = 120
SYNC_TIMEOUT = 300
IDLE_TIMEOUT = 60.0
CPU_SAMPLE_SECONDS, IDLE_CPU_SHARE = 0.25, 0.1
BEGAN = monotonic()
Results = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="What things cost with many load balancers.")
    parser.add_argument("--sizes", default="10,1000,10000", help="numbers of load balancers, with commas")
    parser.add_argument("--no-ovsdb", action="store_true", help="leave the OVSDB client out")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    sizes = sorted(map(int, options.sizes.split(",")))
    results: Results = {"sizes": {size: {} for size in sizes}}
    failure = ""
    try:
        take_down(LAB)
        measure_all(results["sizes"])
    except LabError as error:
        failure = str(error)
    finally:
        take_down(LAB)
    if not options.no_ovsdb:
        results["ovsdb"] = ovsdb.measure(100_000, 3, say)
    say(failure or "done")
    print(json.dumps(results, indent=2) if options.json else "\n".join(render(results)))
    return bool(failure)


def say(text: str) -> None:
    print(f"scale: {monotonic() - BEGAN:6.0f} s: {text}", file=sys.stderr, flush=True)


def render(results: Results) -> Iterator[str]:
    columns = results["sizes"]
    yield f"| load balancers | {' | '.join(f'{size:,}' for size in columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in next(iter(columns.values())):
        yield f"| {name} | {' | '.join(str(column.get(name, '')) for column in columns.values())} |"
    if "ovsdb" in results:
        yield ""
        yield from ovsdb.render(results["ovsdb"])


# One size after the other


@dataclass
class ScaleBench:
    """A lab, and at most one Fairlead server on its Northbound database."""

    lab: Lab
    listen: str
    population: Population
    process: "subprocess.Popen[bytes] | None" = None
    client: httpx.Client = field(default_factory=httpx.Client)

    def start(self, program: Sequence[str] = ("-m", "fairlead.cli.main", "server"), **environment: str) -> None:
        """Start the server, and wait until it serves.

        Its PID file is in the lab's folder, so taking the lab down ends it.
        """
        folder = self.lab.layout.directory / "fairlead"
        folder.mkdir(exist_ok=True)
        environment |= {
            LAB_VARIABLE: str(self.lab.layout.directory),
            "FAIRLEAD_SERVER_LISTEN": self.listen,
            "FAIRLEAD_STORE_PATH": str(folder / "fairlead.db"),
            "FAIRLEAD_OVN_NORTHBOUND": self.lab.northbound,
        }
        with (folder / "server.log").open("ab") as log:
            argv = [sys.executable, *program]
            self.process = subprocess.Popen(argv, env={**os.environ, **environment}, stdout=log, stderr=log)
        (folder / "server.pid").write_text(str(self.process.pid))
        self.client = httpx.Client(base_url=f"http://{self.listen}", timeout=120)
        self.population.client = self.client
        await_answer(self.client, self.process)

    def stop(self) -> None:
        self.client.close()
        if self.process:
            self.process.terminate()
            self.process.wait(START_TIMEOUT)
            self.process = None

    @property
    def url(self) -> str:
        return f"http://{self.listen}"

    @property
    def pid(self) -> int:
        assert self.process
        return self.process.pid

    def northd(self, order: str) -> None:
        self.lab.exec("central", ["ovn-appctl", "-t", "ovn-northd", order])

    def change(self) -> MemberChange:
        return MemberChange(self.client, self.population.first["pools"][0]["id"])


def await_answer(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    deadline = monotonic() + START_TIMEOUT
    while True:
        try:
            client.get("/")
        except httpx.TransportError:
            if process.poll() is not None or monotonic() > deadline:
                raise SystemExit("scale: the server does not serve") from None
            sleep(0.01)
        else:
            return


def measure_all(results: dict[int, Results]) -> None:
    """Measure all sizes. Earlier results are kept after a failure."""
    lab = Lab.up(LAB, chassis=2, progress=say)
    bench = ScaleBench(lab, f"127.0.0.1:{free_port()}", Population(httpx.Client()))
    try:
        bench.start()
        bench.population.make_networks()
        bind(bench, range(1))
        for size, result in results.items():
            measure(bench, size, result)
    finally:
        bench.stop()


def measure(bench: ScaleBench, size: int, result: Results) -> None:
    bench.northd("pause")
    say(f"making {size:,} load balancers")
    result["made, load balancers a second"] = round(bench.population.grow(size))
    say(f"{size:,}: Fairlead by itself")
    result |= measure_changes(bench) | reads(bench)
    result["memory of the server, MB (highest)"] = memory(bench.pid)
    bench.stop()
    result |= counts(bench)
    result |= beginning(bench)
    say(f"{size:,}: with OVN")
    bench.northd("resume")
    result["OVN: the first time, northd / controllers, s"] = synced(bench.lab)
    result |= changes_with_ovn(bench, "one network")
    added = bind(bench, range(1, len(bench.population.networks)))
    result["OVN: the other networks bound, northd / controllers, s"] = synced(bench.lab)
    result |= changes_with_ovn(bench, "all networks")
    result |= memory_of_ovn(bench.lab)
    unbind(bench, added)


# Fairlead alone


def measure_changes(bench: ScaleBench) -> Results:
    change, row, vip = bench.change(), *row_of(bench)
    with VipWatch(bench.lab, row, vip) as watch:
        answered, there = [], []
        worked = seconds(bench.pid)
        for _ in range(PROBES):
            watch.clear()
            began = perf_counter()
            change.do()
            answered.append((perf_counter() - began) * 1000)
            there.append((watch.northbound.wait()[0] - began) * 1000)
        worked = seconds(bench.pid) - worked
    return {
        "POST until ACTIVE, ms p50 / p99": quantiles(posts(bench, PROBES)),
        "member PUT answered, ms p50 / p99": quantiles(answered),
        "member PUT until the Northbound has it, ms p50 / p99": quantiles(there),
        "member PUT, processor time of the server, ms": round(worked * 1000 / PROBES, 1),
    }


def posts(bench: ScaleBench, count: int) -> list[float]:
    """Durations of creating load balancers on the network with bound ports.

    Each is deleted, so the size is constant.
    """
    took = []
    for _ in range(count):
        began = perf_counter()
        made = bench.population.create(0)["id"]
        wait_active(bench.client, made)
        took.append((perf_counter() - began) * 1000)
        bench.population.delete(made)
        wait_idle(bench.client)
    return took


def reads(bench: ScaleBench) -> Results:
    client, one = bench.client, f"{LBS}/{bench.population.first['id']}"
    with measure_waiting(bench) as waited:
        lists = [timed(lambda: client.get(f"{LBS}?limit=1000").raise_for_status()) for _ in range(LISTS)]
    return {
        "GET one, ms p50 / p99": quantiles([timed(lambda: client.get(one)) for _ in range(PROBES)]),
        "GET list of 1,000 (or all), ms p50 / p99": quantiles(lists),
        "GET one while lists are made, ms p50 / highest": extremes(waited),
    }


def beginning(bench: ScaleBench) -> Results:
    began = perf_counter()
    bench.start()
    result: Results = {
        "start until it serves, s": round(perf_counter() - began, 2),
        "start, processor time, s": seconds(bench.pid),
    }
    result["memory of the server after its start, MB (highest)"] = memory(bench.pid)
    took, changed, worked = [], 0, seconds(bench.pid)
    with measure_waiting(bench) as waited:
        for _ in range(RESYNCS):
            began = perf_counter()
            changed += bench.client.post("/operator/resync").raise_for_status().json()["changed"]
            took.append(perf_counter() - began)
    result["full resync, s"] = round(statistics.median(took), 2)
    result["full resync, processor time with what is asked meanwhile, s"] = round(
        (seconds(bench.pid) - worked) / RESYNCS, 2
    )
    result["owners that the resync changed"] = changed
    result["GET one while a resync runs, ms p50 / highest"] = extremes(waited)
    return result


@contextmanager
def measure_waiting(bench: ScaleBench) -> Iterator[list[float]]:
    """Measure how long another client waits for one load balancer, with a request every 5 ms."""
    took: list[float] = []
    ended = Event()
    path = f"{LBS}/{bench.population.first['id']}"

    def ask() -> None:
        with httpx.Client(base_url=bench.client.base_url, timeout=60) as client:
            client.get(path)
            while not ended.wait(INTERVAL):
                took.append(timed(lambda: client.get(path).raise_for_status()))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    try:
        sleep(0.1)
        took.clear()
        yield took
    finally:
        ended.set()
        thread.join()


# Reads and writes of one change


def counts(bench: ScaleBench) -> Results:
    say("counting")
    path = bench.lab.layout.directory / "counts"
    make_counts(path)
    made: list[str] = []
    bench.start([str(Path(__file__).parent / "counting_server.py")], **{COUNTS_VARIABLE: str(path)})
    bench.client.post("/operator/resync").raise_for_status()  # waits for the resync of the start, which compiles all
    result = counted(bench.client, path, "POST", partial(one_post, bench, made))
    for each in made:
        bench.population.delete(each)
    result |= counted(bench.client, path, "member PUT", bench.change().do)
    bench.stop()
    return result


def one_post(bench: ScaleBench, made: list[str]) -> None:
    """Create a load balancer without further requests, which would be counted."""
    made.append(bench.population.create(0)["id"])
    sleep(0.05)


def counted(client: httpx.Client, path: Path, kind: str, do: Callable[[], object]) -> Results:
    for _ in range(2):
        do()
    wait_idle(client)
    owners = client.get(STATISTICS).json()
    before = read_counts(path)
    for _ in range(COUNTED):
        do()
    sleep(0.2)
    after = read_counts(path)
    now = client.get(STATISTICS).json()
    result = {
        f"{kind}: owners {name}": round((now[name] - owners[name]) / COUNTED, 2) for name in ("compiled", "applied")
    }
    return result | {f"{kind}: {name}": round((after[name] - before[name]) / COUNTED, 2) for name in NAMES}


# With OVN


def bind(bench: ScaleBench, numbers: range) -> list[str]:
    """Bind a port on each compute node, on each of these networks."""
    made = []
    for number in numbers:
        for node in bench.lab.record.chassis:
            name = f"n{number}-{node.name.removeprefix('chassis')}"
            found = bench.client.get("/network/v2.0/ports", params={"name": name}).json()["ports"]
            if not found:
                port = {"name": name, "network_id": bench.population.networks[number]}
                bench.client.post("/network/v2.0/ports", json={"port": port}).raise_for_status()
            bench.lab.add_workload(workload_of_port(bench.url, name, Placement(name=name, chassis=node.name)))
            made.append(name)
    return made


def unbind(bench: ScaleBench, names: list[str]) -> None:
    """Unbind ports. A controller keeps flows of networks that it no longer needs until a recompute."""
    for name in names:
        bench.lab.remove_workload(name)
    for node in bench.lab.record.chassis:
        bench.lab.exec(node.name, ["ovn-appctl", "-t", "ovn-controller", "inc-engine/recompute"])


def changes_with_ovn(bench: ScaleBench, which: str) -> Results:
    """Durations by component: Fairlead to the Northbound, northd to the Southbound, then the nodes."""
    say(f"changes with {which} bound on both nodes")
    change, (row, vip) = bench.change(), row_of(bench)
    shares: dict[str, list[float]] = {name: [] for name in ("Fairlead", "northd", "nodes", "all")}
    worked: list[Mapping[str, float]] = []
    rested = []
    with VipWatch(bench.lab, row, vip) as watch:
        for _ in range(CHANGES[which]):
            rested.append(wait_ovn_idle(bench.lab))
            watch.clear()
            before = processor_time(bench)
            began = perf_counter()
            change.do()
            northbound, backends = watch.northbound.wait()
            southbound, _ = watch.southbound.wait(lambda each, wanted=backends: each == wanted)
            flows = max(watch.installed(chassis, backends) for chassis in watch.chassis)
            wait_ovn_idle(bench.lab)
            after = processor_time(bench)
            worked.append({name: after[name] - before[name] for name in before})
            times = (northbound - began, southbound - northbound, flows - southbound, flows - began)
            for share, took in zip(shares.values(), times, strict=True):
                share.append(took * 1000)
    medians = [f"{statistics.median(share):,.0f}" for share in shares.values()]
    result: Results = {
        f"OVN, {which} bound: member PUT until both nodes have the flow, ms": f"{medians[3]}",
        f"OVN, {which} bound: of these Fairlead / northd and Southbound / nodes, ms": " / ".join(medians[:3]),
        f"OVN, {which} bound: had come to rest before the change": f"{sum(rested)} of {len(rested)}",
        f"OVN, {which} bound: processor time of one change, ms": ", ".join(
            f"{name} {statistics.median(each[name] for each in worked) * 1000:,.0f}" for name in worked[0]
        ),
    }
    wait_ovn_idle(bench.lab)
    result[f"OVN, {which} bound: its own account of no change, northd / controllers, s"] = synced(bench.lab)
    result[f"OVN, {which} bound: POST until ACTIVE, ms p50 / highest"] = extremes(posts(bench, 10))
    result[f"OVN, {which} bound: flows of a node"] = flows_of(bench.lab)
    result[f"OVN, {which} bound: an agent's look, s, of it processor time of agent / switch"] = measure_agent_run(
        bench.lab
    )
    return result


def row_of(bench: ScaleBench) -> tuple[str, str]:
    first = bench.population.first
    return f"{first['id']}-tcp", f"{first['vip_address']}:80"


def synced(lab: Lab) -> str:
    """Times reported by OVN itself: `--print-wait-time` of ovn-nbctl(8). The controllers' time includes northd's."""
    argv = ["ovn-nbctl", f"--timeout={SYNC_TIMEOUT}", "--print-wait-time", "--wait=hv", "sync"]
    said = lab.exec("central", argv, timeout=SYNC_TIMEOUT + 10)
    times = [int(text) / 1000 for text in re.findall(r"completion:\s+(\d+)ms", said)]
    return " / ".join(f"{each:.2f}" for each in times)


def flows_of(lab: Lab) -> str:
    said = lab.exec(lab.record.chassis[0].name, ["ovs-ofctl", "dump-aggregate", "br-int"])
    found = re.search(r"flow_count=(\d+)", said)
    return f"{int(found[1]):,}" if found else said


def measure_agent_run(lab: Lab) -> str:
    """Cost of `fairlead agent --once` on a node: it starts, reads the switch's counters, and prints them."""
    node = lab.record.chassis[0].name
    switch = int((lab.layout.node_directory(node) / "ovs-vswitchd.pid").read_text())
    environment = {**os.environ, "FAIRLEAD_AGENT_RUN_DIR": str(lab.layout.node_directory(node))}
    before, began = (resource.getrusage(resource.RUSAGE_CHILDREN), seconds(switch)), perf_counter()
    argv = [sys.executable, "-m", "fairlead.cli.main", "agent", "--once"]
    said = subprocess.run(argv, env=environment, capture_output=True, check=True, timeout=SYNC_TIMEOUT).stdout
    took, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    agent = after.ru_utime + after.ru_stime - before[0].ru_utime - before[0].ru_stime
    return f"{took:.2f}, {agent:.2f} / {seconds(switch) - before[1]:.2f}; {len(json.loads(said)):,} services"


def programs(lab: Lab) -> dict[str, list[int]]:
    """PIDs of OVN and Open vSwitch by component."""
    names = {
        "northd": ["central/ovn-northd"],
        "Northbound": ["central/ovnnb_db"],
        "Southbound": ["central/ovnsb_db"],
        "controller": [f"{node.name}/ovn-controller" for node in lab.record.chassis],
        "vswitchd": [f"{node.name}/ovs-vswitchd" for node in lab.record.chassis],
    }
    return {
        name: [int((lab.layout.directory / f"{path}.pid").read_text()) for path in paths]
        for name, paths in names.items()
    }


def processor_time(bench: ScaleBench) -> dict[str, float]:
    """CPU time in seconds by component, the mean of both nodes."""
    pids = {"Fairlead": [bench.pid], **programs(bench.lab)}
    return {name: statistics.mean(map(seconds, each)) for name, each in pids.items()}


def seconds(pid: int) -> float:
    """CPU time in seconds, with a resolution of 10 ms; other load affects it least."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_ovn_idle(lab: Lab) -> bool:
    """Wait until OVN is idle, and return whether it is: northd recomputes after each of its own changes."""
    pids = [pid for each in programs(lab).values() for pid in each]
    deadline = monotonic() + IDLE_TIMEOUT
    before = sum(map(seconds, pids))
    while monotonic() < deadline:
        sleep(CPU_SAMPLE_SECONDS)
        now = sum(map(seconds, pids))
        if now - before <= IDLE_CPU_SHARE * CPU_SAMPLE_SECONDS:
            return True
        before = now
    say(f"OVN does not come to rest in {IDLE_TIMEOUT:.0f} s")
    return False


def memory_of_ovn(lab: Lab) -> Results:
    each = {name: max(map(memory, pids)) for name, pids in programs(lab).items()}
    return {"OVN: memory, MB (highest)": ", ".join(f"{name} {size}" for name, size in each.items())}


# Measured values


def timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return (perf_counter() - began) * 1000


def quantiles(samples: list[float]) -> str:
    ordered = sorted(samples)
    return f"{statistics.median(ordered):.1f} / {ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:.1f}"


def extremes(samples: list[float]) -> str:
    return f"{statistics.median(samples):.1f} / {max(samples):.1f}" if samples else "too fast to see"


def memory(pid: int) -> int:
    """Peak resident memory in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.exit(main())
