"""Compares Fairlead's OVSDB client with `ovs` and `ovsdbapp`, on one ovsdb-server in one run.

    python benchmarks/ovsdb.py                      part of `make scale`; about three minutes, no root
    python benchmarks/ovsdb.py --rows 10000 --rounds 1 --json

First sync: time until a new client has the whole database. It has 100,000 rows: 20,000 of Load_Balancer in groups, and
ports on switches of 400; all clients monitor the same columns. `stream` only reads the bytes, which measures
ovsdb-server alone. `driver` is Fairlead's driver on its client: rows as values, by owner. The second value is per
second of the client's own CPU time, without the time in which it waits for ovsdb-server.

Transactions: one row of Load_Balancer each, in a database that is otherwise empty and monitored by the same client, one
after the other or with 500 in flight (ovsdbapp has one queue and one committing thread: 16 threads fill it).

Every measurement is a process of its own, and starts when its libraries are loaded. Clients alternate in each round;
the result is the median, and the median of the ratios within rounds.
"""

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time, sleep
from typing import Any
from uuid import UUID

from fairlead.dataplane.ovn import (
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    LogicalSwitch,
    LogicalSwitchPort,
    OvnRow,
    VirtualService,
    by_key,
    pairs,
)
from fairlead.dataplane.rows import NO_ROWS, diff
from fairlead.drivers.ovn.northbound.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.northbound.encoder import Encoder
from fairlead.drivers.ovn.northbound.marks import Mark
from fairlead.drivers.ovsdb.client import Client, FullContents, Settings
from fairlead.drivers.ovsdb.protocol import TableMonitor, encode_monitors
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json
from fairlead.model.documents.owner import Kind, Owner

SCHEMA = Path("/usr/share/ovn/ovn-nb.ovsschema")
DATABASE = "OVN_Northbound"
MARK = Mark("bench")
TABLES = ("Logical_Switch", "Logical_Switch_Port", "Load_Balancer", "Load_Balancer_Group")
GROUPS = 20
PORTS_OF_A_SWITCH = 400
OWNERS_OF_A_TRANSACTION = 100
IN_FLIGHT = 500
THREADS = 16
RUN_TIMEOUT = 180
SETS = {"first sync": "sync", "transactions in flight": "pipelined", "transactions one by one": "serial"}
Rates = tuple[float, float]
"""Per second, and per second of the client's own CPU time."""
Outcome = tuple[int, float, float]
"""Number of rows or transactions, seconds, and seconds of CPU time."""
COUNTS = {
    "pipelined": {"fairlead": 20_000, "ovs": 4_000, "ovsdbapp": 3_000},
    "serial": {"fairlead": 4_000, "ovs": 2_000, "ovsdbapp": 1_500},
}


def main() -> int:
    options = parse_arguments()
    if options.measure:
        done, took, worked = MEASUREMENTS[options.measure](options.remote, options.rows)
        print(json.dumps([done / took, done / worked]))
        return 0
    results = measure(options.rows, options.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    print(json.dumps(results, indent=2) if options.json else "\n".join(render(results)))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Fairlead's OVSDB client beside ovs and ovsdbapp.")
    parser.add_argument("--rows", type=int, default=100_000, help="of the database that is synced (100,000)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--measure", choices=sorted(MEASUREMENTS), help=argparse.SUPPRESS)
    parser.add_argument("--remote", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(rows: int, rounds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Rates per second, by kind and client."""
    results: dict[str, Any] = {"versions": versions()}
    with TemporaryDirectory(prefix="fairlead-ovsdb-") as folder, northbound(Path(folder)) as remote:
        for title, kind in reversed(SETS.items()):  # transactions first, while the database is empty
            if kind == "sync":
                progress(f"ovsdb: filling the database with {rows:,} rows")
                rows = asyncio.run(fill(remote, rows))
                results["rows"] = rows
            clients = [name.removeprefix(f"{kind} ") for name in MEASUREMENTS if name.startswith(f"{kind} ")]
            rates: dict[str, list[Rates]] = {client: [] for client in clients}
            for turn in range(rounds):
                for client in clients[turn % len(clients) :] + clients[: turn % len(clients)]:
                    progress(f"ovsdb: {title}, {client}, round {turn + 1} of {rounds}")
                    rates[client].append(run_in_process(f"{kind} {client}", remote, rows))
            results[title] = {client: summarize(each, rates["fairlead"]) for client, each in rates.items()}
    return results


def versions() -> dict[str, str]:
    import ovs.json

    parser = "with" if ovs.json.PARSER == ovs.json.PARSER_C else "without"
    server = subprocess.run(["ovsdb-server", "--version"], check=True, capture_output=True, text=True).stdout
    return {
        "ovs": f"{metadata.version('ovs')} {parser} its C extension",
        "ovsdbapp": metadata.version("ovsdbapp"),
        "ovsdb-server": server.split("\n", 1)[0].split()[-1],
    }


def summarize(rates: list[Rates], ours: list[Rates]) -> dict[str, float]:
    ratios = [mine / theirs for (mine, _), (theirs, _) in zip(ours, rates, strict=True)]
    return {
        "per second": round(statistics.median(rate for rate, _ in rates)),
        "lowest": round(min(rate for rate, _ in rates)),
        "highest": round(max(rate for rate, _ in rates)),
        "per second of its processor time": round(statistics.median(rate for _, rate in rates)),
        "fairlead is times as fast": round(statistics.median(ratios), 2),
    }


def render(results: dict[str, Any]) -> Iterator[str]:
    yield f"{results['rows']:,} rows; " + ", ".join(f"{name} {text}" for name, text in results["versions"].items())
    for title in SETS:
        for client, found in results[title].items():
            spread = f"({found['lowest']:,} to {found['highest']:,})"
            ratio = f"fairlead: {found['fairlead is times as fast']} times"
            own = found["per second of its processor time"]
            yield f"{title:<24} {client:<9} {found['per second']:>8,} /s {spread:<20} {own:>8,} /s of its own {ratio}"


def run_in_process(name: str, remote: str, rows: int) -> Rates:
    argv = [sys.executable, __file__, "--measure", name, "--remote", remote, "--rows", str(rows)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=RUN_TIMEOUT)
    if not name.startswith("sync"):
        empty(remote)
    rate, own = json.loads(said.stdout)
    return rate, own


def empty(remote: str) -> None:
    transaction = json.dumps([DATABASE, {"op": "delete", "table": "Load_Balancer", "where": []}])
    subprocess.run(["ovsdb-client", "transact", remote, transaction], check=True, capture_output=True)


@contextmanager
def northbound(folder: Path) -> Iterator[str]:
    """An ovsdb-server with an empty Northbound database, with the package's options, without a cluster."""
    database, remote = folder / "nb.db", folder / "nb.sock"
    subprocess.run(["ovsdb-tool", "create", str(database), str(SCHEMA)], check=True)
    argv = ["ovsdb-server", str(database), f"--remote=punix:{remote}", "--no-chdir", f"--unixctl={folder}/ctl"]
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL, env={**os.environ, "OVS_RUNDIR": str(folder)}) as process:
        try:
            deadline = monotonic() + 10
            while not remote.exists() and monotonic() < deadline:
                sleep(0.02)
            ready = ["ovsdb-client", "--timeout=10", "wait", f"unix:{remote}", DATABASE, "connected"]
            subprocess.run(ready, check=True, stderr=subprocess.DEVNULL)
            yield f"unix:{remote}"
        finally:
            process.terminate()


# Content of the database


def monitors() -> dict[str, TableMonitor]:
    """Monitored columns of the driver, for every row, because other clients cannot filter by the mark."""
    return {table: replace(found, where=()) for table, found in MARK.monitors().items() if table in TABLES}


def owners(rows: int) -> Iterator[tuple[Owner, list[OvnRow]]]:
    """A fifth of the rows are load balancers, each in a group; the others are ports, and their switches."""
    balancers = rows // 5
    switches = (rows - balancers - GROUPS) // (PORTS_OF_A_SWITCH + 1)
    for group in range(GROUPS):
        yield Owner(Kind.VIP_NETWORK, name("group", group)), [LoadBalancerGroup(name=name("group", group))]
    for number in range(balancers):
        yield Owner(Kind.LOAD_BALANCER, name("lb", number)), balancer(number)
    for number in range(switches):
        yield Owner(Kind.NETWORK, name("switch", number)), [LogicalSwitch(name=name("switch", number))]
    for number in range(switches * PORTS_OF_A_SWITCH):
        address = f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x} 10.{number >> 16}.{number >> 8 & 255}.1"
        port = LogicalSwitchPort(
            name=name("port", number),
            switch=name("switch", number // PORTS_OF_A_SWITCH),
            addresses=(address,),
            port_security=(address,),
        )
        yield Owner(Kind.PORT, port.name), [port]


def balancer(number: int) -> list[OvnRow]:
    backends = tuple(f"10.{number >> 8 & 255}.{number & 255}.{member + 1}:8080" for member in range(10))
    row = LoadBalancer(
        name=name("lb", number),
        protocol="tcp",
        services=(VirtualService(vip=f"172.16.{number >> 8 & 255}.{number & 255}:80", backends=backends),),
        options=pairs({"reject": "true", "neighbor_responder": "none"}),
    )
    return [row, GroupMember(group=name("group", number % GROUPS), load_balancer=row.name)]


def name(kind: str, number: int) -> str:
    """Name of realistic length."""
    return str(UUID(int=(sum(kind.encode()) << 96) + number))


async def fill(remote: str, rows: int) -> int:
    """Fill the database, and return the number of rows."""
    made, batch = 0, []
    async with client(remote, {}) as writer:
        writer.lock(MARK.default_lock)
        await writer.wait_connected(10)
        for owner, wanted in owners(rows):
            made += sum(not isinstance(row, GroupMember) for row in wanted)
            encoder = Encoder(mark=MARK, lock=MARK.default_lock, owner=owner, uuid_of=MARK.uuid)
            batch.append(encoder.encode(diff(by_key(wanted), NO_ROWS)).operations)
            if len(batch) == OWNERS_OF_A_TRANSACTION:
                await writer.transact(list(itertools.chain(*batch)), 60)
                batch.clear()
        await writer.transact(list(itertools.chain(*batch)), 60)
    return made


def one_row(number: int) -> dict[str, Json]:
    backends = ",".join(f"10.0.0.{member + 1}:8080" for member in range(10))
    return {"name": f"lb{number}", "protocol": "tcp", "vips": {f"10.{number >> 8}.{number & 255}.1:80": backends}}


class Stopwatch:
    def __init__(self) -> None:
        self._began = perf_counter(), process_time()

    def outcome(self, done: int) -> Outcome:
        began, worked = self._began
        return done, perf_counter() - began, process_time() - worked


# Fairlead


def client(remote: str, tables: dict[str, TableMonitor], on_event: Callable[[Any], None] = lambda _: None) -> Client:
    return Client(Settings(remotes=parse_remotes(remote), database=DATABASE, tables=tables), on_event)


def sync_stream(remote: str, rows: int) -> Outcome:
    """Read the bytes of the same reply. ovsdb-server ends a reply with its error."""
    request = {"id": 1, "method": "monitor_cond_since"}
    params = [DATABASE, "data", encode_monitors(monitors()), str(UUID(int=0))]
    watch = Stopwatch()
    with socket.socket(socket.AF_UNIX) as stream:
        stream.connect(remote.removeprefix("unix:"))
        stream.sendall(json.dumps({**request, "params": params}).encode())
        tail = b""
        while not tail.endswith(b'"error":null}'):
            tail = tail[-32:] + stream.recv(1 << 18)
    return watch.outcome(rows)


def sync_fairlead(remote: str, rows: int) -> Outcome:
    async def run() -> Outcome:
        found: list[FullContents] = []
        watch = Stopwatch()
        async with client(remote, monitors(), found.append) as reader:
            await reader.wait_connected(RUN_TIMEOUT)
            outcome = watch.outcome(rows)
        check(rows, sum(len(table) for table in found[0].tables.values()))
        return outcome

    return asyncio.run(run())


def sync_driver(remote: str, rows: int) -> Outcome:
    async def run() -> Outcome:
        watch = Stopwatch()
        async with OvnDriver(OvnSettings(remotes=parse_remotes(remote), mark=MARK.deployment)) as driver:
            await driver.wait_ready(RUN_TIMEOUT)
            outcome = watch.outcome(rows)
            found = (row for each in (await driver.read_all()).values() for row in each.values())
            check(rows, sum(not isinstance(row, GroupMember) for row in found))
        return outcome

    return asyncio.run(run())


def check(wanted: int, found: int) -> None:
    if wanted != found:
        raise SystemExit(f"ovsdb: {found} rows instead of {wanted}")


def transact_fairlead(remote: str, kind: str, in_flight: int) -> Outcome:
    count = COUNTS[kind]["fairlead"]

    async def work(writer: Client, numbers: Iterator[int]) -> None:
        for number in numbers:
            row = one_row(number)
            row["vips"] = ["map", list(row["vips"].items())]
            await writer.transact([{"op": "insert", "table": "Load_Balancer", "row": row}], RUN_TIMEOUT)

    async def run() -> Outcome:
        numbers = iter(range(count))
        async with client(remote, {"Load_Balancer": TableMonitor(columns=("name", "protocol", "vips"))}) as writer:
            await writer.wait_connected(10)
            watch = Stopwatch()
            await asyncio.gather(*(work(writer, numbers) for _ in range(in_flight)))
            return watch.outcome(count)

    return asyncio.run(run())


# ovs, the library of Open vSwitch, and ovsdbapp, which OpenStack uses on top of it


def helper(remote: str, tables: dict[str, tuple[str, ...]]) -> Any:
    from ovs.db import idl

    found = idl.SchemaHelper(str(SCHEMA))
    for table, columns in tables.items():
        found.register_columns(table, list(columns))
    return found


def make_tracked_idl() -> dict[str, tuple[str, ...]]:
    return {table: each.columns for table, each in monitors().items()}


def run_until(idl: Any, condition: Callable[[], bool]) -> None:
    from ovs import poller

    while True:
        idl.run()
        if condition():
            return
        waiting = poller.Poller()
        idl.wait(waiting)
        waiting.block()


def sync_ovs(remote: str, rows: int) -> Outcome:
    from ovs.db import idl

    watch = Stopwatch()
    reader = idl.Idl(remote, helper(remote, make_tracked_idl()))
    run_until(reader, reader.has_ever_connected)
    outcome = watch.outcome(rows)
    check(rows, sum(len(reader.tables[table].rows) for table in TABLES))
    return outcome


def sync_ovsdbapp(remote: str, rows: int) -> Outcome:
    from ovsdbapp.backend.ovs_idl import connection

    watch = Stopwatch()
    reader = connection.Connection(connection.OvsdbIdl(remote, helper(remote, make_tracked_idl())), RUN_TIMEOUT)
    reader.start()
    outcome = watch.outcome(rows)
    check(rows, sum(len(reader.idl.tables[table].rows) for table in TABLES))
    return outcome


ONE_TABLE = {"Load_Balancer": ("name", "protocol", "vips")}


def transact_ovs(remote: str, kind: str, in_flight: int) -> Outcome:
    from ovs.db import idl

    count = COUNTS[kind]["ovs"]
    writer = idl.Idl(remote, helper(remote, ONE_TABLE))
    run_until(writer, writer.has_ever_connected)
    numbers, pending = iter(range(count)), deque[Any]()

    def insert(number: int) -> None:
        transaction = idl.Transaction(writer)
        row = transaction.insert(writer.tables["Load_Balancer"])
        for column, value in one_row(number).items():
            setattr(row, column, value)
        transaction.commit()
        pending.append(transaction)

    def settle() -> bool:
        while pending and (status := pending[0].commit()) != idl.Transaction.INCOMPLETE:
            if status != idl.Transaction.SUCCESS:
                raise SystemExit(f"ovsdb: {status}: {pending[0].get_error()}")
            pending.popleft()
        return len(pending) < in_flight

    watch = Stopwatch()
    for number in numbers:
        insert(number)
        if len(pending) == in_flight:
            run_until(writer, settle)
    run_until(writer, lambda: settle() and not pending)
    return watch.outcome(count)


def transact_ovsdbapp(remote: str, kind: str, threads: int) -> Outcome:
    from ovsdbapp.backend.ovs_idl import connection
    from ovsdbapp.schema.ovn_northbound import impl_idl

    count = COUNTS[kind]["ovsdbapp"]
    idl = connection.OvsdbIdl(remote, helper(remote, ONE_TABLE))
    api = impl_idl.OvnNbApiIdlImpl(connection.Connection(idl, RUN_TIMEOUT))
    numbers = list(range(count))

    def work() -> None:
        while True:
            try:
                number = numbers.pop()
            except IndexError:
                return
            api.db_create("Load_Balancer", **one_row(number)).execute(check_error=True)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    watch = Stopwatch()
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    return watch.outcome(count)


Measurement = Callable[[str, int], Outcome]
MEASUREMENTS: dict[str, Measurement] = {
    "sync stream": sync_stream,
    "sync fairlead": sync_fairlead,
    "sync driver": sync_driver,
    "sync ovs": sync_ovs,
    "sync ovsdbapp": sync_ovsdbapp,
    "pipelined fairlead": lambda remote, _: transact_fairlead(remote, "pipelined", IN_FLIGHT),
    "pipelined ovs": lambda remote, _: transact_ovs(remote, "pipelined", IN_FLIGHT),
    "pipelined ovsdbapp": lambda remote, _: transact_ovsdbapp(remote, "pipelined", THREADS),
    "serial fairlead": lambda remote, _: transact_fairlead(remote, "serial", 1),
    "serial ovs": lambda remote, _: transact_ovs(remote, "serial", 1),
    "serial ovsdbapp": lambda remote, _: transact_ovsdbapp(remote, "serial", 1),
}


if __name__ == "__main__":
    sys.exit(main())
