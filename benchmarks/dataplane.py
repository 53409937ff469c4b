"""The VIP against the direct path between the same two workloads: new connections per second, and throughput.

    make bench                       all, about two minutes
    python benchmarks/dataplane.py --rounds 3 --seconds 1 --json

The machine is shared and small, so absolute numbers say little: direct and VIP are measured in turn, a few seconds
each, and what counts is the median of the ratios of each round. Connections: wrk with `Connection: close` against
HAProxy as an HTTP server (the server closes first, so that TIME_WAIT is not the client's). Throughput: iperf3.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from fairlead.lab import Lab, LabError, take_down

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
warnings.simplefilter("ignore")

from lab.site import Site, open_site  # noqa: E402 - the tests are not installed

LAB = "bench"
HTTP, IPERF = 8080, 5201
PLACES = {"near": "chassis1", "far": "chassis2"}
WAYS = ("direct", "vip")
SERVER = """defaults
  mode http
  timeout client 5s
  timeout server 5s
  timeout connect 5s
  option httpclose
frontend f
  bind :::{port} v4v6
  http-request return status 200 content-type text/plain string ok
"""


@dataclass(frozen=True)
class Measure:
    """One kind of measurement between two machines, to the member's own address or to the VIP."""

    name: str
    unit: str
    take: Callable[[str, str], float]
    """From a client to an address."""


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            site = prepare(stack, Lab.up(LAB, chassis=2))
            results = {}
            for version in (4, 6):
                results |= measure_version(site, version, options.rounds, options.seconds, quiet=options.json)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(results, indent=2))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The VIP against the direct path; ratios of one run.")
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (6)")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement (2)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


def prepare(stack: ExitStack, lab: Lab) -> Site:
    site = open_site(lab)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00::/64")
    # A client for each way: Open vSwitch 3.1 in user space ends itself when one port reaches a member by two addresses.
    clients = {f"{place}-{way}": chassis for place, chassis in PLACES.items() for way in WAYS}
    site.machines("net", {"server": "chassis1", **clients})
    for client in clients:
        lab.exec(client, ["sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65000"])
    stack.enter_context(running(lab, "server", ["iperf3", "-s", "-p", str(IPERF)]))
    folder = stack.enter_context(TemporaryDirectory())
    configuration = Path(folder) / "haproxy.cfg"
    configuration.write_text(SERVER.format(port=HTTP))
    stack.enter_context(running(lab, "server", ["haproxy", "-db", "-q", "-f", str(configuration)]))
    for port in (IPERF, HTTP):
        await_listening(lab, "server", port)
    return site


def await_listening(lab: Lab, place: str, port: int) -> None:
    """A program that does not say when it is ready can only be looked at."""
    deadline = monotonic() + 10
    while not lab.exec(place, ["ss", "-Hltn", f"sport = :{port}"]):
        if monotonic() > deadline:
            raise LabError(f"nothing listens on port {port} of {place}")
        sleep(0.05)


@contextmanager
def running(lab: Lab, place: str, argv: list[str]) -> Iterator[None]:
    command = lab.command(place, argv)
    with subprocess.Popen(
        command.argv, env=command.full_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def measure_version(site: Site, version: int, rounds: int, seconds: int, *, quiet: bool) -> dict[str, object]:
    member = site.address("server", version)
    made = site.cloud.load_balancer.create_load_balancer(
        name=f"bench-{version}",
        vip_subnet_id=site.subnet(f"net-v{version}").id,
        listeners=[listener(member, HTTP), listener(member, IPERF)],
    )
    site.settle(made.id)
    results: dict[str, object] = {}
    for place, where in (("near", "same node"), ("far", "other node")):
        ends = {"direct": (f"{place}-direct", member), "vip": (f"{place}-vip", made.vip_address)}
        for measure in (connections(site.lab, seconds), throughput(site.lab, seconds)):
            name = f"IPv{version}, {where}, {measure.name}"
            results[name] = compare(name, measure, ends, rounds, quiet=quiet)
    return results


def listener(member: str, port: int) -> dict[str, object]:
    pool = {"name": f"pool-{port}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT"}
    members = [{"address": member, "protocol_port": port}]
    return {"protocol": "TCP", "protocol_port": port, "default_pool": {**pool, "members": members}}


def connections(lab: Lab, seconds: int) -> Measure:
    def take(client: str, address: str) -> float:
        url = f"http://[{address}]:{HTTP}/" if ":" in address else f"http://{address}:{HTTP}/"
        argv = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-H", "Connection: close", url]
        said = lab.exec(client, argv, timeout=seconds + 30)
        return float(found[1]) if (found := re.search(r"Requests/sec:\s+([\d.]+)", said)) else 0.0

    return Measure(name="new connections", unit="1/s", take=take)


def throughput(lab: Lab, seconds: int) -> Measure:
    def take(client: str, address: str) -> float:
        argv = ["iperf3", "-c", address, "-p", str(IPERF), "-t", str(seconds), "-J"]
        said = json.loads(lab.exec(client, argv, timeout=seconds + 30))
        return float(said["end"]["sum_received"]["bits_per_second"]) / 1e6

    return Measure(name="throughput", unit="Mbit/s", take=take)


def compare(
    name: str, measure: Measure, ends: dict[str, tuple[str, str]], rounds: int, *, quiet: bool
) -> dict[str, object]:
    """Direct and VIP in turn; which comes first changes with each round."""
    pairs = []
    for turn in range(rounds):
        order = reversed(WAYS) if turn % 2 else WAYS
        taken = {way: measure.take(*ends[way]) for way in order}
        pairs.append((taken["direct"], taken["vip"]))
    ratios = sorted(through / plain for plain, through in pairs)
    result: dict[str, object] = {
        "unit": measure.unit,
        "direct": round(statistics.median(plain for plain, _ in pairs)),
        "vip": round(statistics.median(through for _, through in pairs)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    if not quiet:
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(
            f"{name:<40} direct {result['direct']:>7} {measure.unit:<7} VIP {result['vip']:>7}"
            f"   ratio {result['ratio']:<6} ({spread} in {rounds} rounds)",
            flush=True,
        )
    return result


if __name__ == "__main__":
    sys.exit(main())
