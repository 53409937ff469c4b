"""The VIP against the direct path between the same two workloads: new connections per second, and throughput.

    make bench                       all, about two minutes
    python benchmarks/dataplane.py --rounds 3 --seconds 1 --json

The machine is shared and small, so absolute numbers say little: direct and VIP are measured in turn, a few seconds
each, and what counts is the median of the ratios of each round. Every turn has a fresh lab: Open vSwitch 3.1 in user
space loses the translation of a connection whose port comes back while the switch remembers it, and tens of thousands
of ports come back each round. Connections: wrk with `Connection: close` against
HAProxy as an HTTP server (the server closes first, so that TIME_WAIT is not the client's). Throughput: iperf3.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator
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
UNITS = {"throughput": "Mbit/s", "new connections": "1/s"}
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
class Case:
    version: int
    place: str

    def __str__(self) -> str:
        return f"IPv{self.version}, {'same' if self.place == 'near' else 'other'} node"


CASES = [Case(version, place) for version in (4, 6) for place in PLACES]
Sample = dict[tuple[Case, str], float]


def main() -> int:
    options = parse_arguments()
    samples: dict[str, list[Sample]] = {way: [] for way in WAYS}
    try:
        for turn in range(options.rounds):
            for way in reversed(WAYS) if turn % 2 else WAYS:
                print(f"round {turn + 1} of {options.rounds}: {way}", file=sys.stderr, flush=True)
                samples[way].append(measure_way(way, options.seconds))
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    results = {f"{case}, {what}": summarize(case, what, samples) for case in CASES for what in UNITS}
    if options.json:
        print(json.dumps(results, indent=2))
    else:
        print("\n".join(f"{name:<38} {render(result)}" for name, result in results.items()))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The VIP against the direct path; ratios of one run.")
    parser.add_argument("--rounds", type=int, default=6, help="interleaved rounds (6)")
    parser.add_argument("--seconds", type=int, default=2, help="of each measurement (2)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


def measure_way(way: str, seconds: int) -> Sample:
    """All cases of one way, in a lab of its own. A load balancer is there either way."""
    take_down(LAB)
    with ExitStack() as stack:
        stack.callback(take_down, LAB)
        site = prepare(stack, Lab.up(LAB, chassis=2))
        sample: Sample = {}
        for case in CASES:
            member = site.address("server", case.version)
            vip = make_vip(site, case.version, member)
            address = vip if way == "vip" else member
            sample[case, "throughput"] = throughput(site.lab, case.place, address, seconds)
            sample[case, "new connections"] = connections(site.lab, case.place, address, seconds)
        return sample


def prepare(stack: ExitStack, lab: Lab) -> Site:
    site = open_site(lab)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00::/64")
    site.machines("net", {"server": "chassis1", **PLACES})
    for client in PLACES:
        lab.exec(client, ["sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65000"])
    stack.enter_context(running(lab, "server", ["iperf3", "-s", "-p", str(IPERF)]))
    folder = stack.enter_context(TemporaryDirectory())
    configuration = Path(folder) / "haproxy.cfg"
    configuration.write_text(SERVER.format(port=HTTP))
    stack.enter_context(running(lab, "server", ["haproxy", "-db", "-q", "-f", str(configuration)]))
    for port in (IPERF, HTTP):
        await_listening(lab, "server", port)
    return site


def make_vip(site: Site, version: int, member: str) -> str:
    made = site.cloud.load_balancer.create_load_balancer(
        name="bench",
        vip_subnet_id=site.subnet(f"net-v{version}").id,
        listeners=[listener(member, HTTP), listener(member, IPERF)],
    )
    site.settle(made.id)
    vip: str = made.vip_address
    return vip


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


def listener(member: str, port: int) -> dict[str, object]:
    pool = {"name": f"pool-{port}", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT"}
    members = [{"address": member, "protocol_port": port}]
    return {"protocol": "TCP", "protocol_port": port, "default_pool": {**pool, "members": members}}


def connections(lab: Lab, client: str, address: str, seconds: int) -> float:
    """New connections per second."""
    url = f"http://[{address}]:{HTTP}/" if ":" in address else f"http://{address}:{HTTP}/"
    argv = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-H", "Connection: close", url]
    said = lab.exec(client, argv, timeout=seconds + 30)
    return float(found[1]) if (found := re.search(r"Requests/sec:\s+([\d.]+)", said)) else 0.0


def throughput(lab: Lab, client: str, address: str, seconds: int) -> float:
    """Mbit/s of one TCP stream."""
    argv = ["iperf3", "-c", address, "-p", str(IPERF), "-t", str(seconds), "-J"]
    said = json.loads(lab.exec(client, argv, timeout=seconds + 30))
    return float(said["end"]["sum_received"]["bits_per_second"]) / 1e6


def summarize(case: Case, what: str, samples: dict[str, list[Sample]]) -> dict[str, object]:
    direct, vip = ([sample[case, what] for sample in samples[way]] for way in WAYS)
    ratios = sorted(through / plain for plain, through in zip(direct, vip, strict=True))
    return {
        "unit": UNITS[what],
        "direct": round(statistics.median(direct)),
        "vip": round(statistics.median(vip)),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def render(result: dict[str, object]) -> str:
    unit, ratios = result["unit"], result["ratios"]
    assert isinstance(ratios, list)
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds"
    return f"direct {result['direct']:>6} {unit:<6}  VIP {result['vip']:>6}  ratio {result['ratio']:<5}  ({spread})"


if __name__ == "__main__":
    sys.exit(main())
