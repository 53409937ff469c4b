"""The control plane with many load balancers: what one change costs, and how long a start and a resync take.

    make scale                              1,000 and 10,000 load balancers
    python benchmarks/scale.py --sizes 100,1000 --json

A real ovsdb-server with the Northbound schema (no northd: its time is OVN's), a real Fairlead server process, its HTTP
API. Each load balancer has two listeners with ten members each, on one of twenty networks. The last line of each size
counts what one change compiled and wrote: it must not grow.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fairlead.lab.databases import PATIENCE_SECONDS
from lab.site import free_port

SCHEMA = "/usr/share/ovn/ovn-nb.ovsschema"
NETWORKS = 20
BATCH = 25
PROBES = 50
LBS = "/load-balancer/v2.0/lbaas/loadbalancers"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a change, a start and a resync cost with many load balancers.")
    parser.add_argument("--sizes", default="10,1000,10000", help="numbers of load balancers, with commas")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    results = {}
    for size in map(int, options.sizes.split(",")):
        results[size] = measure(size)
        if not options.json:
            for name, value in results[size].items():
                print(f"{size:>6} load balancers  {name:<44} {value}", flush=True)
    if options.json:
        print(json.dumps(results, indent=2))
    return 0


def measure(size: int) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="fairlead-scale-")))
        remote = stack.enter_context(northbound(folder))
        result: dict[str, Any] = {}
        with server(folder, remote) as (client, process):
            began = time.monotonic()
            subnets, pools = fill(client, size)
            result["loaded, load balancers a second"] = round(size / (time.monotonic() - began))
            result |= probe(client, subnets, pools)
            result["memory of the server, MB"] = memory(process)
        began = time.monotonic()
        with server(folder, remote) as (client, process):
            result["start until it serves, s"] = round(time.monotonic() - began, 2)
            began = time.monotonic()
            answer = client.post("/operator/resync", timeout=120).json()
            result["full resync, s"] = round(time.monotonic() - began, 2)
            result["owners that the resync changed"] = answer["changed"]
        return result


def fill(client: httpx.Client, size: int) -> tuple[list[str], list[str]]:
    """Answers the subnets, and a pool of each of the newest load balancers."""
    subnets = []
    for number in range(NETWORKS):
        network = post(client, "/network/v2.0/networks", "network", name=f"net{number}")
        cidr = f"10.{number}.0.0/16"
        made = post(client, "/network/v2.0/subnets", "subnet", network_id=network["id"], cidr=cidr, ip_version=4)
        subnets.append(made["id"])
    pools: list[str] = []
    for number in range(size):
        made = create(client, subnets, number)
        pools = [*pools[-PROBES:], made["pools"][0]["id"]]
        if sys.stderr.isatty() and number % BATCH == 0:
            print(f"\r{number} of {size}", end="\r", file=sys.stderr)
    wait_idle(client)
    return subnets, pools


def create(client: httpx.Client, subnets: list[str], number: int) -> Any:
    listeners = [
        {
            "protocol": protocol,
            "protocol_port": port,
            "default_pool": {
                "name": f"pool-{port}",
                "protocol": protocol,
                "lb_algorithm": "SOURCE_IP_PORT",
                "members": [
                    {"address": f"10.{number % NETWORKS}.255.{member + 1}", "protocol_port": 8080}
                    for member in range(10)
                ],
            },
        }
        for protocol, port in (("TCP", 80), ("UDP", 53))
    ]
    subnet = subnets[number % len(subnets)]
    return post(client, LBS, "loadbalancer", name=f"lb{number}", vip_subnet_id=subnet, listeners=listeners)


def probe(client: httpx.Client, subnets: list[str], pools: list[str]) -> dict[str, Any]:
    compiled = client.get("/operator/statistics").json()
    active = [timed(lambda: until_active(client, create(client, subnets, 0)["id"])) for _ in range(PROBES)]
    after = client.get("/operator/statistics").json()
    members = [timed(lambda pool=pool: change_member(client, pool)) for pool in pools[-PROBES:]]
    one = client.get(f"{LBS}?limit=1").json()["loadbalancers"][0]["id"]
    return {
        "POST until ACTIVE, ms p50 / p99": quantiles(active),
        "member PUT answered, ms p50 / p99": quantiles(members),
        "GET one, ms p50 / p99": quantiles([timed(lambda: client.get(f"{LBS}/{one}")) for _ in range(PROBES)]),
        "GET list of up to 1,000, ms p50 / p99": quantiles([timed(lambda: client.get(LBS)) for _ in range(5)]),
        "compiled / applied owners per POST": " / ".join(
            str(round((after[name] - compiled[name]) / PROBES, 2)) for name in ("compiled", "applied")
        ),
    }


def change_member(client: httpx.Client, pool: str) -> None:
    path = f"/load-balancer/v2.0/lbaas/pools/{pool}/members"
    member = client.get(path).json()["members"][0]["id"]
    answer = client.put(f"{path}/{member}", json={"member": {"weight": 2}})
    answer.raise_for_status()


def until_active(client: httpx.Client, identity: str) -> None:
    while client.get(f"{LBS}/{identity}").json()["loadbalancer"]["provisioning_status"] != "ACTIVE":
        pass


def wait_idle(client: httpx.Client) -> None:
    deadline = time.monotonic() + 120
    while client.get("/operator/statistics").json()["waiting"]:
        if time.monotonic() > deadline:
            raise SystemExit("scale: the reconciler does not come to rest")


def post(client: httpx.Client, path: str, root: str, **body: Any) -> Any:
    answer = client.post(path, json={root: body})
    answer.raise_for_status()
    return answer.json()[root]


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def quantiles(samples: list[float]) -> str:
    ordered = sorted(samples)
    return f"{statistics.median(ordered):.1f} / {ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]:.1f}"


def memory(process: "subprocess.Popen[bytes]") -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


@contextmanager
def northbound(folder: Path) -> Iterator[str]:
    database, socket = folder / "nb.db", folder / "nb.sock"
    subprocess.run(["ovsdb-tool", "create", str(database), SCHEMA], check=True)
    argv = ["ovsdb-server", str(database), f"--remote=punix:{socket}", "--no-chdir", f"--unixctl={folder}/ctl"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, env={**os.environ, "OVS_RUNDIR": str(folder)}) as process:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield f"unix:{socket}"
        finally:
            process.terminate()


@contextmanager
def server(folder: Path, remote: str) -> Iterator[tuple[httpx.Client, "subprocess.Popen[bytes]"]]:
    listen = f"127.0.0.1:{free_port()}"
    environment = {
        "FAIRLEAD_SERVER_LISTEN": listen,
        "FAIRLEAD_STORE_PATH": str(folder / "fairlead.db"),
        "FAIRLEAD_OVN_NORTHBOUND": remote,
        "FAIRLEAD_LOG_LEVEL": "warning",
    }
    argv = [sys.executable, "-m", "fairlead.cli", "server"]
    with (
        subprocess.Popen(argv, env={**os.environ, **environment}) as process,
        httpx.Client(base_url=f"http://{listen}") as client,
    ):
        try:
            while True:
                try:
                    client.get("/")
                    break
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise SystemExit("scale: the server ended") from None
            yield client, process
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
