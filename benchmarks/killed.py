"""Three servers, an etcd cluster and OVN's database clusters: killed, stopped and partitioned while clients write.

    python benchmarks/killed.py                    1,000 steps and some minutes without; half an hour, needs root
    python benchmarks/killed.py --steps 40 --json  shorter, for programs

Everything runs in namespaces that end with this program. The exit code is 1 if an acknowledged write was lost, was
executed twice by a server, contradicts the order of others or is missing in OVN, or if a client with retries got an
error.
"""

import argparse
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fairlead.model.documents.quota import BALANCING, NETWORKING
from harness.ha.disturbances import DISTURBANCES, Disturbance, run_disturbances
from harness.ha.evaluation import (
    REMOTES,
    by_disturbance,
    evaluate,
    failed_checks,
    p50_p99,
    rows_of,
    summarize_clients,
    wait_idle,
)
from harness.ha.load import CLIENTS, RATE, WITH_RETRIES, LoadClient, SharedState, adapter
from harness.ha.three_hosts import HOSTS, ThreeHosts, three_hosts

BEGAN = monotonic()
NAMESPACE_VARIABLE = "KILLED_APART"
QUOTA = 10**6
"""Quota of all resources. It is not reached, and is enforced, so that its locking is part of the measurement."""
MEMORY = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(description="What clients see while any one of three is killed.")
    parser.add_argument("--steps", type=int, default=1000, help="of who kills, freezes and cuts off")
    parser.add_argument("--longest", type=float, default=2.0, help="seconds for which one thing is away")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds of writes before, on each store; 0: none")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after these no step begins")
    parser.add_argument("--retries", type=int, default=5, help="of clients that ask again")
    parser.add_argument("--only", default="", choices=["", *map(" ".join, DISTURBANCES)], help="one way to disturb")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args()
    if NAMESPACE_VARIABLE not in os.environ:
        apart = ("unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child")
        os.environ |= {NAMESPACE_VARIABLE: "yes", "no_proxy": "*"}
        os.execvp(apart[0], (*apart, sys.executable, "-W", "ignore", *sys.argv))
    memory = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="fairlead-ha-", dir=memory) as name, three_hosts(Path(name)) as place:
        results = measure(place, options)
    print(json.dumps(results, indent=2) if options.json else render_results(results))
    return 1 if results["failures"] else 0


def say(text: str) -> None:
    print(f"ha: {monotonic() - BEGAN:6.0f} s: {text}", file=sys.stderr, flush=True)


def measure(place: ThreeHosts, options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {"seed": options.seed, "retries": options.retries}
    say(f"etcd and OVN are there; seed {options.seed}")
    if options.quiet:
        results["quiet"] = {"on SQLite": alone(place, options)}
    others = {client: rows_of(client) for client in REMOTES}
    for host in HOSTS:
        place.start("server", host)
    for host in HOSTS:
        place.wait("server", host)
    say("three servers are ready")
    town = SharedState(subnet(), "ha", HOSTS, options.retries)
    steps: list[Disturbance] = []
    with clients(town, options.seed):
        sleep(options.quiet)
        if options.quiet:
            results["quiet"]["on etcd"] = {
                "write p50 / p99, ms": p50_p99(town.writes),
                **summarize_clients(town.writes),
            }
        chance = random.Random(options.seed)
        for step in run_disturbances(place, chance, options.steps, options.longest, options.only, town.wrote_since):
            steps.append(step)
            say(
                f"{len(steps)}/{options.steps} {step.title} of host {step.host}:"
                f" {step.ended_at - step.started_at:.1f} s"
            )
            if town.failures or monotonic() - BEGAN > options.seconds:
                break
    say("all is well again; judging")
    if town.failures:
        raise town.failures[0]
    disturbed = [each for each in town.writes if steps and each.called_at >= steps[0].started_at]
    results["steps"] = len(steps)
    results["by way"] = by_disturbance(town, steps)
    longest = max((table["longest pause, ms"] for table in results["by way"].values()), default=0)
    results["all"] = {
        "longest pause, ms": longest,
        "write p50 / p99, ms": p50_p99(disturbed),
        **summarize_clients(disturbed),
    }
    results["judged"] = evaluate(town, others) | {"mistakes in servers' logs": place.bug_reports()}
    seen = results["all"][f"errors {WITH_RETRIES}"]
    results["failures"] = failed_checks(results["judged"]) + ([f"errors of who asks again: {seen}"] if seen else [])
    return results


def alone(place: ThreeHosts, options: argparse.Namespace) -> dict[str, Any]:
    """Run one server on SQLite, with another owner tag on its rows."""
    store = f"sqlite://{place.folder}/alone.db"
    place.start("server", 0, FAIRLEAD_STORE_URL=store, FAIRLEAD_OVN_OWNER_TAG="alone")
    place.wait("server", 0)
    town = SharedState(subnet(), "alone", (0,))
    with clients(town, options.seed):
        sleep(options.quiet)
    wait_idle(town.servers)
    place.kill("server", 0)
    say(f"on SQLite: {p50_p99(town.writes)} ms")
    return {"write p50 / p99, ms": p50_p99(town.writes), **summarize_clients(town.writes)}


def subnet() -> str:
    """Create the subnet. Addresses that clients do not request explicitly are not the contended ones."""
    client, _ = adapter(0, 5)
    for door, names in (("load-balancer/v2.0/lbaas", BALANCING), ("network/v2.0", NETWORKING)):
        client.put(f"/{door}/quotas/default", json={"quota": {what.value: QUOTA for what in names}})
    network = client.post("/network/v2.0/networks", json={"network": {"name": "net"}}).json()["network"]
    body = {
        "network_id": network["id"],
        "cidr": "10.0.0.0/8",
        "ip_version": 4,
        "allocation_pools": [{"start": "10.200.0.2", "end": "10.220.255.254"}],
    }
    return str(client.post("/network/v2.0/subnets", json={"subnet": body}).json()["subnet"]["id"])


@contextmanager
def clients(town: SharedState, seed: int) -> Iterator[None]:
    """Run the clients. All their requests are answered at the end."""
    threads = [LoadClient(town, number, seed) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        town.end()
        for thread in threads:
            thread.join()


def render_results(results: dict[str, Any]) -> str:
    """Results as text: a table of the disturbances, and the final checks."""
    quiet = {f"quiet, {name}": table for name, table in results.get("quiet", {}).items()}
    by_name: dict[str, Any] = {**quiet, **results["by way"], "all": results["all"]}
    columns = ["times", *results["all"]]
    lines = [row(["", *columns]), row(["---"] * (len(columns) + 1))]
    lines += [row([name, *(table.get(column, "") for column in columns)]) for name, table in by_name.items()]
    judged = {**results["judged"], **{each: results[each] for each in ("steps", "seed", "retries")}}
    lines += ["", *(f"{what}: {value or 0}" for what, value in judged.items())]
    lines.append(f"at {RATE:.0f} writes a second; failures: {', '.join(results['failures']) or 'none'}")
    return "\n".join(lines)


def row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
