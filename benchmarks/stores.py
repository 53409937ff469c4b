"""A deployment of many load balancers on SQLite and on an etcd of three members, and copies from one into the other.

    python benchmarks/stores.py                      10,000 load balancers with ten members in each of two listeners
    python benchmarks/stores.py --size 500 --json    no root; some minutes

A real server runs on a real Northbound ovsdb-server without northd. The data is created through the API on SQLite,
copied into etcd, served from there, copied back into another file, and served again. The rows that each start writes
are counted in the Northbound database. All files are on one disk with a sync for each transaction, so three etcd
members sync three times as often as SQLite, on the same disk and CPUs. Writes through the store's own interface
alternate.
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic, perf_counter, sleep
from typing import Any

import httpx
from ovsdb import DATABASE, northbound
from population import LBS, MemberChange, Population, wait_idle

from fairlead.store.interface import Store
from fairlead.store.opening import open_store

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness.etcd import EtcdCluster, etcd_cluster
from harness.event_loop_lag import longest_lag
from harness.ports import free_port

WRITES = 300
SERVER_TIMEOUT = 300.0
INTERVAL = 0.005
DOCUMENT = 5_000
"""Size in bytes of documents written through the stores' own interface."""
IGNORED_TABLES = ("NB_Global", "Connection", "SSL")
BEGAN = monotonic()
Results = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description="SQLite beside etcd, and copies between them.")
    parser.add_argument("--size", type=int, default=10_000, help="load balancers")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    results: Results = {}
    with TemporaryDirectory(dir=options.folder) as name, etcd_cluster(folder=Path(name)) as etcd:
        folder = Path(name)
        with northbound(folder) as remote:
            measure(StoreBench(folder, remote, etcd), options.size, results)
    lines = [f"| {what} | {value} |" for what, value in results.items()]
    print(json.dumps(results, indent=2) if options.json else "\n".join(lines))
    return 0


def say(text: str) -> None:
    print(f"stores: {monotonic() - BEGAN:6.0f} s: {text}", file=sys.stderr, flush=True)


class StoreBench:
    """One Northbound database, one etcd, and at most one server."""

    def __init__(self, folder: Path, remote: str, etcd: EtcdCluster) -> None:
        self.folder = folder
        self.remote = remote
        self.urls = {
            "SQLite": f"sqlite://{folder}/one.db",
            "etcd": f"{etcd.url}/bench",
            "SQLite again": f"sqlite://{folder}/two.db",
        }
        self.address = f"127.0.0.1:{free_port()}"
        self.client = httpx.Client(base_url=f"http://{self.address}", timeout=120)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, store: str) -> Results:
        """Start the server, and wait until it serves."""
        began = perf_counter()
        environment = {
            "FAIRLEAD_SERVER_LISTEN": self.address,
            "FAIRLEAD_STORE_URL": self.urls[store],
            "FAIRLEAD_OVN_NORTHBOUND": self.remote,
            "FAIRLEAD_OVN_SOUTHBOUND": f"unix:{self.folder}/none",
        }
        with (self.folder / "server.log").open("ab") as log:
            command = [sys.executable, "-m", "fairlead.cli.main", "server"]
            self.process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
            assert perf_counter() - began < SERVER_TIMEOUT, "it does not serve"
            sleep(0.01)
        return {
            f"start on {store} until it serves, s": round(perf_counter() - began, 2),
            f"start on {store}, processor time, s": self.cpu_seconds(),
        }

    def _answers(self) -> bool:
        try:
            return self.client.get("/").status_code < 500
        except httpx.TransportError:
            return False

    def cpu_seconds(self) -> float:
        assert self.process
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)

    def stop(self) -> None:
        assert self.process
        self.process.terminate()
        self.process.wait(SERVER_TIMEOUT)

    def command(self, *words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "fairlead.cli.main", "store", *words, "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def rows(self) -> dict[str, str]:
        """Hash of each row of the Northbound database with all its columns, by table and UUID."""
        dumped = subprocess.run(
            ["ovsdb-client", "--format=json", "dump", self.remote, DATABASE], check=True, capture_output=True, text=True
        ).stdout
        tables = [json.loads(line) for line in dumped.splitlines() if line.startswith("{")]
        return {
            f"{table['caption']} {row[table['headings'].index('_uuid')][1]}": hashlib.sha256(_text(row)).hexdigest()
            for table in tables
            if table["caption"].split()[0] not in IGNORED_TABLES
            for row in table["data"]
        }

    def max_loop_lag(self) -> str:
        """Upper bound of the event loop's longest lag in milliseconds."""
        return f"{(longest_lag(self.client.get('/metrics').text) or 0.0) * 1000:.0f}"


def _text(row: list[Any]) -> bytes:
    """Row as canonical text, because sets and maps are unordered."""

    def ordered(value: Any) -> Any:
        if isinstance(value, list):
            return sorted((ordered(each) for each in value), key=repr)
        return value

    return repr([ordered(each) for each in row]).encode()


def measure(site: StoreBench, size: int, results: Results) -> None:
    site.start("SQLite")
    population = Population(site.client)
    population.make_networks()
    say(f"making {size:,} load balancers")
    results["made on SQLite, load balancers a second"] = round(population.grow(size))
    results |= written(site, "SQLite", population)
    site.stop()
    results |= site.start("SQLite")
    before = rows_after_resync(site)
    results["rows of the Northbound database"] = len(before)
    for source, target in (("SQLite", "etcd"), ("etcd", "SQLite again")):
        say(f"{source} to {target}")
        results |= moved(site, source, target, population)
        after = rows_after_resync(site)
        results[f"rows changed by the copy from {source} to {target}"] = len(before.items() ^ after.items())
        if target == "etcd":
            results |= written(site, "etcd", population)
            before = rows_after_resync(site)
    site.stop()
    say("the stores by themselves")
    results |= asyncio.run(alternate_writes(site))


def rows_after_resync(site: StoreBench) -> dict[str, str]:
    """Rows after a resync that changed nothing."""
    wait_idle(site.client)
    changed = site.client.post("/operator/resync").raise_for_status().json()["changed"]
    assert changed == 0, f"a resync changed {changed} owners"
    return site.rows()


def moved(site: StoreBench, source: str, target: str, population: Population) -> Results:
    """Copy the store while its server runs, then replace the server by one on the copy."""
    with waiting(site, f"{LBS}/{population.first['id']}") as waited:
        done = site.command("copy", site.urls[source], site.urls[target])
    refused = site.client.put(f"{LBS}/{population.first['id']}", json={"loadbalancer": {"name": "x"}})
    assert refused.status_code == 503, refused.text
    assert site.urls[target] in refused.text, refused.text
    name = f"from {source} to {target}"
    results: Results = {
        f"copy {name}, s": done["seconds"],
        f"copy {name}, documents and claims / MB": f"{done['documents']:,} / {done['bytes'] / 1e6:.0f}",
        f"GET one of the server on {source} meanwhile, ms p50 / highest": extremes(waited),
        f"longest hold of the loop of the server on {source}, ms": site.max_loop_lag(),
    }
    site.stop()
    results |= site.start(target)
    file = site.folder / f"{target}.fairlead"
    began = perf_counter()
    kept = site.command("backup", str(file), "--store", site.urls[target])
    results[f"backup of {target}, s / MB"] = f"{perf_counter() - began:.1f} / {kept['bytes'] / 1e6:.1f}"
    return results


def written(site: StoreBench, store: str, population: Population) -> Results:
    """Durations of writes by one client, one after the other."""
    change = MemberChange(site.client, population.first["pools"][0]["id"])
    took = [timed(change.do) for _ in range(WRITES)]
    wait_idle(site.client)
    created = []
    for _ in range(WRITES // 3):
        began = perf_counter()
        made = population.create(0)["id"]
        created.append((perf_counter() - began) * 1000)
        population.delete(made)
        wait_idle(site.client)
    return {
        f"member PUT answered on {store}, ms p50 / p99": quantiles(took),
        f"POST of a whole load balancer on {store}, ms p50 / p99": quantiles(created),
    }


async def alternate_writes(site: StoreBench) -> Results:
    stores = {name: await open_store(site.urls[name]) for name in ("SQLite again",)}
    stores["etcd"] = await open_store(site.urls["etcd"] + "-alone")
    took: dict[str, list[float]] = {name: [] for name in stores}
    for number in range(WRITES):
        for name, store in stores.items():
            took[name].append(await one_write(store, number))
    results: Results = {f"transact by itself on {name}, ms p50 / p99": quantiles(each) for name, each in took.items()}
    for store in stores.values():
        await store.close()
    return results


async def one_write(store: Store, number: int) -> float:
    value = b"%05d" % number + b"x" * DOCUMENT
    began = perf_counter()
    await store.transact(guards={}, puts={f"claim/bench/{number % 50}": value}, deletes=[])
    return (perf_counter() - began) * 1000


@contextmanager
def waiting(site: StoreBench, path: str) -> Iterator[list[float]]:
    took: list[float] = []
    ended = Event()

    def ask() -> None:
        with httpx.Client(base_url=site.client.base_url, timeout=60) as client:
            while not ended.wait(INTERVAL):
                took.append(timed(lambda: client.get(path).raise_for_status()))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


def timed(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return (perf_counter() - began) * 1000


def quantiles(took: Sequence[float]) -> str:
    return f"{statistics.median(took):.1f} / {sorted(took)[int(len(took) * 0.99)]:.1f}"


def extremes(took: Sequence[float]) -> str:
    return f"{statistics.median(took):.1f} / {max(took):.0f}"


if __name__ == "__main__":
    sys.exit(main())
