"""Longest steps of a server's event loop with many load balancers, for each kind of request and of database update.

    python benchmarks/loop_lag.py                     10,000 load balancers; five minutes, no root
    python benchmarks/loop_lag.py --size 1000 --folder DIR    keeps the data in DIR, and uses it the next time

A server (loop_lag_server.py) runs on real ovsdb-servers without ovn-northd, whose rows this program writes. The load
balancers are those of `make scale`, and one for every ten has a health monitor, with ten members that are ports. A step
is the CPU time of the loop's thread until it returns to the loop, which other load on the machine does not increase.
The goal is 50 ms.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from loop_lag_server import LAG_VARIABLE, LagRecord, create_lag_file, read_lag, reset_lag
from population import LBS, MemberChange, Population, post, wait_idle

from fairlead.drivers.ovsdb.client import Client, Settings
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json

SCHEMAS = {"nb": Path("/usr/share/ovn/ovn-nb.ovsschema"), "sb": Path("/usr/share/ovn/ovn-sb.ovsschema")}
OCTAVIA, NETWORK = "/load-balancer/v2.0/lbaas", "/network/v2.0"
MEMBERS, BULK, CHASSIS = 10, 100, 1000
READY_TIMEOUT = 180.0
MAX_LAG = 0.05
"""Seconds that a single piece of work may block an event loop."""
IDLE_INTERVAL, IDLE_COUNT = 0.2, 8
"""Interval in seconds, and number of consecutive intervals without work until the server counts as idle.

A database takes some time to send ten thousand rows.
"""
RECONNECT = 6.0
"""Seconds; more than the longest reconnect pause of a client (drivers/ovsdb/client.py) and the start of a database."""
ROWS = 1000
"""Rows per transaction, unless a single transaction is required."""


@dataclass
class LagBench:
    folder: Path
    listen: str
    client: httpx.Client
    databases: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    server: "subprocess.Popen[bytes] | None" = None
    results: dict[str, LagRecord] = field(default_factory=dict)

    @property
    def lag_file(self) -> Path:
        return self.folder / "holds"

    def remote(self, name: str) -> str:
        return f"unix:{self.folder}/{name}.sock"

    def start_database(self, name: str) -> None:
        path = self.folder / f"{name}.db"
        if not path.exists():
            subprocess.run(["ovsdb-tool", "create", path, SCHEMAS[name]], check=True)
        listen = f"--remote=punix:{self.folder}/{name}.sock"
        command = ["ovsdb-server", listen, f"--unixctl={self.folder}/{name}.ctl", "-vconsole:off", str(path)]
        self.databases[name] = subprocess.Popen(command, cwd=self.folder)

    def stop_database(self, name: str) -> None:
        process = self.databases.pop(name)
        process.terminate()
        process.wait()

    def start_server(self) -> None:
        environment = {
            LAG_VARIABLE: str(self.lag_file),
            "FAIRLEAD_SERVER_LISTEN": self.listen,
            "FAIRLEAD_STORE_PATH": str(self.folder / "fairlead.db"),
            "FAIRLEAD_OVN_NORTHBOUND": self.remote("nb"),
            "FAIRLEAD_OVN_SOUTHBOUND": self.remote("sb"),
            "FAIRLEAD_HEALTH_MAX_PROBES_PER_SECOND": "-1",
            "FAIRLEAD_HEALTH_MAX_PROBES_PER_SECOND_PER_PORT": "-1",
        }
        create_lag_file(self.lag_file)
        program = [sys.executable, str(Path(__file__).parent / "loop_lag_server.py")]
        with (self.folder / "log").open("ab") as log:
            self.server = subprocess.Popen(program, env={**os.environ, **environment}, stdout=log, stderr=log)
        self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            try:
                if self.client.get("/readyz").is_success:
                    break
            except httpx.TransportError:
                pass
            if time.monotonic() > deadline:
                raise SystemExit("holds: the server is not ready")
            time.sleep(0.02)
        wait_idle(self.client)

    def stop(self) -> None:
        for process in (self.server, *self.databases.values()):
            if process is not None:
                process.terminate()
                process.wait()

    def measure(self, name: str, act: Callable[[], object]) -> None:
        wait_idle(self.client)
        reset_lag(self.lag_file)
        act()
        self.settle()
        self.results[name] = held = read_lag(self.lag_file)
        say(f"{name}: {show(held)} {held.name.rstrip(bytes(1)).decode(errors='replace')}")

    def settle(self) -> None:
        """Wait until the server is idle, which means little CPU time in consecutive intervals."""
        worked, calm = 0.0, 0
        while calm < IDLE_COUNT:
            time.sleep(IDLE_INTERVAL)
            now = read_lag(self.lag_file).total
            worked, calm = now, calm + 1 if now - worked < IDLE_INTERVAL / 10 else 0

    def get(self, path: str) -> Callable[[], object]:
        return lambda: self.client.get(path).raise_for_status()

    def operate(self, name: str, operations: list[Json]) -> None:
        asyncio.run(self._operate(name, operations))

    async def _operate(self, name: str, operations: list[Json]) -> None:
        database = {"nb": "OVN_Northbound", "sb": "OVN_Southbound"}[name]
        settings = Settings(remotes=parse_remotes(self.remote(name)), database=database, tables={})
        async with Client(settings, lambda _: None) as client:
            await client.wait_connected(READY_TIMEOUT)
            await client.transact(operations, READY_TIMEOUT)


def main() -> int:
    parser = argparse.ArgumentParser(description="What holds the event loop with many load balancers.")
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="where what is made is kept")
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(TemporaryDirectory()))
        results = measure_all(stack, folder, options.size)
    if options.json:
        print(json.dumps({name: [held.longest, held.garbage, held.total] for name, held in results.items()}))
    else:
        print("\n".join(render(results, options.size)))
    return any(held.longest > MAX_LAG for held in results.values())


def say(text: str) -> None:
    print(f"holds: {text}", file=sys.stderr, flush=True)


def show(held: LagRecord) -> str:
    return f"{1000 * held.longest:.0f} | {1000 * held.garbage:.0f} | {1000 * held.total:,.0f}"


def render(results: dict[str, LagRecord], size: int) -> Iterator[str]:
    yield f"| {size:,} load balancers | longest step, ms | longest look for garbage, ms | all steps, ms |"
    yield "|---|---|---|---|"
    yield from (f"| {name} | {show(held)} |" for name, held in results.items())


def measure_all(stack: ExitStack, folder: Path, size: int) -> dict[str, LagRecord]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{probe.getsockname()[1]}"
    client = stack.enter_context(httpx.Client(base_url=f"http://{listen}", timeout=READY_TIMEOUT))
    bench = LagBench(folder, listen, client)
    stack.callback(bench.stop)
    is_new = not (folder / "fairlead.db").exists()
    for name in SCHEMAS:
        bench.start_database(name)
    bench.start_server()
    if is_new:
        populate(bench, size)
        bench.server.terminate()
        bench.server.wait()
        bench.start_server()  # a server that has just created them has warm caches and garbage
    measure_reads(bench)
    measure_changes(bench)
    measure_updates(bench, size)
    return bench.results


# Existing objects


def populate(bench: LagBench, size: int) -> None:
    population = Population(bench.client)
    population.make_networks()
    population.grow(size)
    for number in range(size // MEMBERS):
        addresses = make_ports(bench, population, number)
        pool = {
            "name": "watched",
            "protocol": "TCP",
            "lb_algorithm": "SOURCE_IP_PORT",
            "members": [{"address": address, "protocol_port": 80} for address in addresses],
            "healthmonitor": {"type": "TCP", "delay": 10, "timeout": 5, "max_retries": 2},
        }
        listener = {"protocol": "TCP", "protocol_port": 80, "default_pool": pool}
        subnet = population.subnets[number % len(population.subnets)]
        post(bench.client, LBS, "loadbalancer", name=f"watched{number}", vip_subnet_id=subnet, listeners=[listener])
    wait_idle(bench.client)


def make_ports(bench: LagBench, population: Population, number: int) -> list[str]:
    port = {"network_id": population.networks[number % len(population.networks)]}
    body = {"ports": [{**port, "name": f"machine{number}-{each}"} for each in range(MEMBERS)]}
    made = bench.client.post(f"{NETWORK}/ports", json=body).raise_for_status().json()["ports"]
    return [each["fixed_ips"][0]["ip_address"] for each in made]


# Requests


def measure_reads(bench: LagBench) -> None:
    client = bench.client
    balancers = client.get(f"{LBS}?limit=2").json()["loadbalancers"]
    one, pool = balancers[0]["id"], balancers[0]["pools"][0]["id"]
    network = client.get(f"{NETWORK}/networks").json()["networks"][0]["id"]
    for path in (
        "/healthz", "/readyz", "/metrics", "/operator/statistics", "/operator/plan", "/operator/owners/lb77",
        f"/operator/owners/load-balancer/{one}", f"{LBS}/{one}", f"{LBS}/{one}/status", f"{LBS}?limit=1000", LBS,
        f"{LBS}?name=lb77", f"{LBS}?provisioning_status=ERROR", f"{LBS}?sort=name:desc&limit=1000",
        f"{OCTAVIA}/listeners?limit=1000", f"{OCTAVIA}/listeners?name=nobody", f"{OCTAVIA}/pools",
        f"{OCTAVIA}/pools?operating_status=ERROR", f"{OCTAVIA}/pools/{pool}/members", f"{OCTAVIA}/healthmonitors",
        f"{OCTAVIA}/l7policies", f"{OCTAVIA}/quotas", f"{NETWORK}/ports?limit=1000", f"{NETWORK}/ports",
        f"{NETWORK}/ports?network_id={network}", f"{NETWORK}/ports?status=DOWN", f"{NETWORK}/networks",
        f"{NETWORK}/subnets", f"{NETWORK}/network-ip-availabilities", f"{NETWORK}/quotas/default/details",
        "/load-balancer/openapi.json", "/network/openapi.json",
    ):  # fmt: skip
        name = path.replace(one, "ID").replace(pool, "ID").replace(network, "ID")
        try:
            bench.measure(f"GET {name}", bench.get(path))
        except httpx.HTTPStatusError as error:
            say(f"GET {name}: {error.response.status_code}")


def measure_changes(bench: LagBench) -> None:
    client = bench.client
    population = Population(client)
    networks = client.get(f"{NETWORK}/networks").json()["networks"]
    population.networks = [each["id"] for each in networks]
    population.subnets = [each["subnets"][0] for each in networks]
    first = client.get(f"{LBS}?name=lb0").json()["loadbalancers"][0]
    change = MemberChange(client, first["pools"][0]["id"])
    bench.measure("PUT member", change.do)
    bench.measure("PUT member, 100 times", lambda: [change.do() for _ in range(100)])
    made: list[str] = []
    bench.measure("POST load balancer", lambda: made.append(population.create(10**6 // 20)["id"]))
    bench.measure("DELETE load balancer", lambda: population.delete(made[-1]))
    bench.measure("POST load balancers, 300 times", lambda: create_and_delete(population, 150))
    network = f"{NETWORK}/networks/{networks[0]['id']}"
    for mtu in (1400, 1442):
        body = {"network": {"mtu": mtu}}
        bench.measure(
            f"PUT network of 500 VIPs, mtu {mtu}", lambda body=body: client.put(network, json=body).raise_for_status()
        )
    router = post(client, f"{NETWORK}/routers", "router", name="r")["id"]
    for action in ("add", "remove"):
        path, body = f"{NETWORK}/routers/{router}/{action}_router_interface", {"subnet_id": population.subnets[0]}
        bench.measure(
            f"PUT {action}_router_interface of it",
            lambda path=path, body=body: client.put(path, json=body).raise_for_status(),
        )
    client.delete(f"{NETWORK}/routers/{router}").raise_for_status()
    quota = {"quota": {"load_balancer": -1}}
    bench.measure("PUT quota", lambda: client.put(f"{OCTAVIA}/quotas/default", json=quota).raise_for_status())
    bench.measure("POST /operator/resync", lambda: client.post("/operator/resync").raise_for_status())


def create_and_delete(population: Population, count: int) -> None:
    for number in range(count):
        population.delete(population.create(10**6 // 20 + number)["id"])


# Updates of the databases


def measure_updates(bench: LagBench, size: int) -> None:
    bench.measure("Northbound connects anew", lambda: reconnect(bench, "nb"))
    row = ["name", "!=", "nothing"]
    change = {"op": "update", "table": "Load_Balancer", "where": [row], "row": {"options": ["map", [["x", "y"]]]}}
    bench.measure("Northbound: somebody changes all load balancers", lambda: bench.operate("nb", [change]))
    ports = all_ports(bench)
    chassis = insert_chassis(bench)
    bench.measure("Southbound: all nodes appear, and all ports", lambda: insert_bindings(bench, chassis, ports))
    bench.measure("Southbound: all are probed", lambda: insert_monitors(bench, ports))
    for status in ("offline", "online", "offline"):
        update = {"op": "update", "table": "Service_Monitor", "where": [], "row": {"status": status}}
        bench.measure(f"Southbound: all are {status}", lambda update=update: bench.operate("sb", [update]))
    for up in (False, True):
        update = {"op": "update", "table": "Port_Binding", "where": [], "row": {"up": up}}
        bench.measure(f"Southbound: all ports up: {up}", lambda update=update: bench.operate("sb", [update]))
    count = {"op": "update", "table": "Chassis_Private", "where": [], "row": {"nb_cfg": 7, "nb_cfg_timestamp": 7000}}
    bench.measure("Southbound: all nodes confirm a count", lambda: bench.operate("sb", [count]))
    bench.measure("Southbound: each of them by itself", lambda: confirm_one_by_one(bench))
    bench.measure("Southbound connects anew", lambda: reconnect(bench, "sb"))
    for table in ("Service_Monitor", "Port_Binding", "Chassis_Private", "Chassis", "Encap", "Datapath_Binding"):
        delete = {"op": "delete", "table": table, "where": []}
        bench.measure(f"Southbound: all of {table} go", lambda delete=delete: bench.operate("sb", [delete]))


def reconnect(bench: LagBench, name: str) -> None:
    bench.stop_database(name)
    time.sleep(0.2)
    bench.start_database(name)
    time.sleep(RECONNECT)
    bench.wait_ready()


def all_ports(bench: LagBench) -> list[tuple[str, str]]:
    """Id and address of each machine's port."""
    found: list[tuple[str, str]] = []
    query = "limit=1000&device_owner="
    while True:
        ports = bench.client.get(f"{NETWORK}/ports?{query}").json()["ports"]
        found += [(each["id"], each["fixed_ips"][0]["ip_address"]) for each in ports if "machine" in each["name"]]
        if len(ports) < ROWS:
            return found
        query = f"limit=1000&device_owner=&marker={ports[-1]['id']}"


def insert_chassis(bench: LagBench) -> list[str]:
    """Insert chassis, and return their UUIDs."""
    return asyncio.run(_insert_chassis(bench))


async def _insert_chassis(bench: LagBench) -> list[str]:
    settings = Settings(remotes=parse_remotes(bench.remote("sb")), database="OVN_Southbound", tables={})
    operations: list[Json] = []
    for number in range(CHASSIS):
        encap = {"type": "geneve", "ip": f"192.0.{number >> 8}.{number & 255}", "chassis_name": f"c{number}"}
        chassis = {"name": f"c{number}", "hostname": f"c{number}", "encaps": ["named-uuid", f"e{number}"]}
        private = {"name": f"c{number}", "chassis": ["named-uuid", f"c{number}"], "nb_cfg": 6, "nb_cfg_timestamp": 6000}
        operations += [
            {"op": "insert", "table": "Encap", "uuid-name": f"e{number}", "row": encap},
            {"op": "insert", "table": "Chassis_Private", "row": private},
            {"op": "insert", "table": "Chassis", "uuid-name": f"c{number}", "row": chassis},
        ]
    async with Client(settings, lambda _: None) as client:
        await client.wait_connected(READY_TIMEOUT)
        return [each["uuid"][1] for each in (await client.transact(operations, READY_TIMEOUT))[2::3]]


def insert_bindings(bench: LagBench, chassis: list[str], ports: list[tuple[str, str]]) -> None:
    where = {"tunnel_key": 1, "external_ids": ["map", [["name", "net"]]]}
    operations: list[Json] = [{"op": "insert", "table": "Datapath_Binding", "uuid-name": "net", "row": where}]
    for number, (port, _) in enumerate(ports):
        row = {
            "logical_port": port, "datapath": ["named-uuid", "net"], "tunnel_key": number + 1, "up": True,
            "chassis": ["uuid", chassis[number % len(chassis)]],
        }  # fmt: skip
        operations.append({"op": "insert", "table": "Port_Binding", "row": row})
    bench.operate("sb", operations)


def insert_monitors(bench: LagBench, ports: list[tuple[str, str]]) -> None:
    rows = [
        {"ip": address, "logical_port": port, "port": 80, "protocol": "tcp", "status": "online"}
        for port, address in ports
    ]
    bench.operate("sb", [{"op": "insert", "table": "Service_Monitor", "row": row} for row in rows])


def confirm_one_by_one(bench: LagBench) -> None:
    asyncio.run(_confirm_one_by_one(bench))


async def _confirm_one_by_one(bench: LagBench) -> None:
    settings = Settings(remotes=parse_remotes(bench.remote("sb")), database="OVN_Southbound", tables={})
    async with Client(settings, lambda _: None) as client:
        await client.wait_connected(READY_TIMEOUT)
        for number in range(CHASSIS):
            where, row = ["name", "==", f"c{number}"], {"nb_cfg": 8, "nb_cfg_timestamp": 8000 + number}
            await client.transact(
                [{"op": "update", "table": "Chassis_Private", "where": [where], "row": row}], READY_TIMEOUT
            )


if __name__ == "__main__":
    sys.exit(main())
