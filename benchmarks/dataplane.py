"""Compares a VIP with three other paths to the same process: new connections per second, and throughput of one stream.

    make bench                       everything, followed by the evenness
    python benchmarks/dataplane.py --rounds 3 --json

Paths, on a lab of three nodes:
* `direct`: the member's own address.
* `plain`: a load balancer made with ovn-nbctl (`lb-add`, `ls-lb-add`), with one backend.
* `vip`: a load balancer made through Fairlead's API, with one member.
* `proxy`: HAProxy in TCP mode in a workload of the third node, apart from client and member, like a product with a
  proxy in a virtual machine.

All of them share the cores of one machine, so a ratio compares the work per connection, on whichever node it is done.

The machine is shared and small, so absolute numbers mean little. The paths are measured in turn for a second each, in
an order that rotates by round, and the result is the median of the ratios within rounds. Connections: wrk with
`Connection: close` and HAProxy as HTTP server (the server closes first, so the client has no TIME_WAIT). Throughput:
iperf3. Cases of ten members have ten ports of the same process, to compare the cost of a slot table of 128 buckets with
OVN's own group of ten.

Rates vary, and the number of datapath lookups of all nodes per connection does not: it is counted once for each path,
after the rounds, and compares their work independently of the load of the machine.

Open vSwitch 3.1 in user space loses the translation of a connection with a reused source port that it still tracks, and
tens of thousands of ports are reused per second. So connection tracking is flushed before each measurement. The
member's kernel still remembers, and assigns a SYN that looks older to an earlier connection; because Linux starts the
timestamps of each pair of addresses and ports at a random value, no two services share a port of the member.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from fairlead.lab import Lab, LabError, take_down

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
warnings.simplefilter("ignore")

from harness.lab.site import LabSite, open_site  # noqa: E402 - the tests are not installed

LAB = "bench"
PATHS = ("direct", "plain", "vip", "proxy")
HTTP = dict(zip(PATHS, range(8100, 8500, 100), strict=True))
"""First port of each path, with one member at the same port. The next port has ten members, at the ports after it."""
IPERF = dict(zip(PATHS, range(5201, 5205), strict=True))
PLACES = {"server": "chassis1", "near": "chassis1", "far": "chassis2", "proxy": "chassis3"}
MANUAL_VIPS = {4: "172.31.0.10", 6: "fd00:ffff::10"}
"""Outside the subnet: OVN answers ARP for such a VIP only on a router, so clients reach it through the gateway."""
UNITS = {"new connections": "1/s", "throughput": "Mbit/s"}
GOALS = {
    ("plain", "new connections"): 0.95,
    ("plain", "throughput"): 0.95,
    ("proxy", "new connections"): 1.5,
}
"""Minimum ratio of the VIP's rate to that of the path."""

DEFAULTS = """defaults
  mode {mode}
  timeout client 5s
  timeout server 5s
  timeout connect 5s
"""
SERVER = """frontend f
  option httpclose
{binds}
  http-request return status 200 content-type text/plain string ok
"""
PROXY = """listen v{version}-{port}
  bind {bind}:{port}{only}
{servers}
"""


@dataclass(frozen=True)
class ThroughputCase:
    version: int
    client: str
    measurement: str
    members: int = 1

    def __str__(self) -> str:
        several = f" to {self.members} members" if self.members > 1 else ""
        return f"IPv{self.version}, {'same' if self.client == 'near' else 'other'} node, {self.measurement}{several}"


CASES = [
    *(ThroughputCase(version, client, "new connections") for version in (4, 6) for client in ("near", "far")),
    *(ThroughputCase(4, client, "new connections", members=10) for client in ("near", "far")),
    *(ThroughputCase(version, client, "throughput") for version in (4, 6) for client in ("near", "far")),
]
Round = dict[tuple[ThroughputCase, str], float]


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            site, targets = prepare(stack, Lab.up(LAB, chassis=3))
            rounds = [measure_round(site, targets, turn, options) for turn in range(options.rounds)]
            lookups = [
                count_lookups(site.lab, targets, case) for case in CASES if case.measurement == "new connections"
            ]
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    results = [summarize(str(case), case.measurement, [case], rounds) for case in CASES]
    results += [
        summarize(f"all, {what}", what, [case for case in CASES if case.measurement == what], rounds) for what in UNITS
    ]
    if options.json:
        print(json.dumps({"rates": results, "lookups": lookups}, indent=2))
    else:
        print("\n".join([*render(results), "", *render_lookups(lookups)]))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The VIP beside other ways to the same process; ratios of one run.")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds (12)")
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement (1)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


# The lab


def prepare(stack: ExitStack, lab: Lab) -> tuple[LabSite, dict[tuple[int, str], str]]:
    """Set up everything, and return the address of each path by IP version."""
    site = open_site(lab)
    stack.callback(site.close)
    network = site.network("net", "10.0.0.0/24", "fd00::/64")
    site.router("router", "net-v4", "net-v6")
    site.machines("net", PLACES)
    for machine in ("near", "far", "proxy"):
        lab.exec(machine, ["sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65000"])
    folder = Path(stack.enter_context(TemporaryDirectory()))
    for port in IPERF.values():
        stack.enter_context(running(lab, "server", ["iperf3", "-s", "-p", str(port)]))
    stack.enter_context(haproxy(site.lab, "server", folder, render_server()))
    stack.enter_context(haproxy(site.lab, "proxy", folder, render_proxy(site)))
    for place, port in [("proxy", HTTP["proxy"]), *(("server", port) for port in (*HTTP.values(), *IPERF.values()))]:
        await_listening(lab, place, port)
    targets = {}
    for version in (4, 6):
        targets[version, "direct"] = site.address("server", version)
        targets[version, "plain"] = create_manual_balancer(site, version, network.id)
        targets[version, "vip"] = make_vip(site, version)
        targets[version, "proxy"] = site.address("proxy", version)
    lab.wait_synced()
    return site, targets


def services(way: str) -> dict[int, list[int]]:
    """Ports of a path, and the members' ports for each."""
    first = HTTP[way]
    return {first: [first], first + 1: list(range(first + 1, first + 11)), IPERF[way]: [IPERF[way]]}


def render_server() -> str:
    binds = "\n".join(f"  bind :::{first}-{first + 10} v4v6" for first in HTTP.values())
    return DEFAULTS.format(mode="http") + SERVER.format(binds=binds)


def render_proxy(site: LabSite) -> str:
    sections = []
    for version, bind, only in ((4, "0.0.0.0", ""), (6, "::", " v6only")):
        for port, members in services("proxy").items():
            address = site.address("server", version)
            servers = "\n".join(f"  server m{member} {address}:{member}" for member in members)
            sections.append(PROXY.format(version=version, port=port, bind=bind, only=only, servers=servers))
    return DEFAULTS.format(mode="tcp") + "".join(sections)


@contextmanager
def haproxy(lab: Lab, place: str, folder: Path, configuration: str) -> Iterator[None]:
    """Run HAProxy with its default of one thread per core."""
    path = folder / f"{place}.cfg"
    path.write_text(configuration)
    with running(lab, place, ["haproxy", "-db", "-q", "-f", str(path)]):
        yield


def create_manual_balancer(site: LabSite, version: int, switch: str) -> str:
    name, address = f"plain{version}", MANUAL_VIPS[version]
    for port, members in services("plain").items():
        backends = ",".join(endpoint(site.address("server", version), member) for member in members)
        site.lab.exec("central", ["ovn-nbctl", "lb-add", name, endpoint(address, port), backends, "tcp"])
    site.lab.exec("central", ["ovn-nbctl", "ls-lb-add", switch, name])
    return address


def make_vip(site: LabSite, version: int) -> str:
    member = site.address("server", version)
    made = site.cloud.load_balancer.create_load_balancer(
        name=f"vip{version}",
        vip_subnet_id=site.subnet(f"net-v{version}").id,
        listeners=[listener(port, member, ports) for port, ports in services("vip").items()],
    )
    site.settle(made.id)
    vip: str = made.vip_address
    return vip


def listener(port: int, member: str, ports: Sequence[int]) -> dict[str, object]:
    pool = {"name": f"pool-{port}", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}
    members = [{"address": member, "protocol_port": each} for each in ports]
    return {"protocol": "TCP", "protocol_port": port, "default_pool": {**pool, "members": members}}


def endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def await_listening(lab: Lab, place: str, port: int) -> None:
    """Poll until a program listens that does not report when it is ready."""
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


# Measurements


def measure_round(site: LabSite, targets: dict[tuple[int, str], str], turn: int, options: argparse.Namespace) -> Round:
    """Measure each case for all paths, immediately one after the other, in an order that rotates by round."""
    print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    first = turn % len(PATHS)
    sample: Round = {}
    for case in CASES:
        for way in PATHS[first:] + PATHS[:first]:
            forget_connections(site.lab)
            sample[case, way] = measure(site.lab, case, way, targets[case.version, way], options.seconds)
    return sample


def forget_connections(lab: Lab) -> None:
    on_switches(lab, "dpctl/flush-conntrack")


def on_switches(lab: Lab, command: str) -> str:
    nodes = (node.name for node in lab.record.chassis)
    return "".join(lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", command]) for node in nodes)


def measure(lab: Lab, case: ThroughputCase, way: str, address: str, seconds: int) -> float:
    if case.measurement == "throughput":
        return throughput(lab, case.client, address, IPERF[way], seconds)
    return connections(lab, case.client, address, service_port(case, way), seconds)


def service_port(case: ThroughputCase, way: str) -> int:
    return HTTP[way] + (case.members > 1 and way != "direct")


def connections(lab: Lab, client: str, address: str, port: int, seconds: int) -> float:
    """New connections per second."""
    said = run_wrk(lab, client, address, port, seconds)
    return float(said["rate"])


def run_wrk(lab: Lab, client: str, address: str, port: int, seconds: int) -> dict[str, str]:
    url = f"http://{endpoint(address, port)}/"
    argv = ["wrk", "-t1", "-c16", f"-d{seconds}s", "-H", "Connection: close", url]
    said = lab.exec(client, argv, timeout=seconds + 30)
    found = re.search(r"(?P<count>[1-9]\d*) requests in .*Requests/sec:\s+(?P<rate>[\d.]+)", said, re.DOTALL)
    if found is None:
        raise LabError(f"no connection from {client} to {url}: {said}")
    return found.groupdict()


def throughput(lab: Lab, client: str, address: str, port: int, seconds: int) -> float:
    """Throughput of one TCP stream in Mbit/s."""
    argv = ["iperf3", "-c", address, "-p", str(port), "-t", str(seconds), "-J"]
    said = json.loads(lab.exec(client, argv, timeout=seconds + 30))
    return float(said["end"]["sum_received"]["bits_per_second"]) / 1e6


def count_lookups(lab: Lab, targets: dict[tuple[int, str], str], case: ThroughputCase) -> dict[str, object]:
    """Number of packets per connection that matched a flow of any node, including recirculated ones."""
    counted: dict[str, object] = {"case": str(case)}
    for way in PATHS:
        forget_connections(lab)
        on_switches(lab, "revalidator/purge")
        said = run_wrk(lab, case.client, targets[case.version, way], service_port(case, way), 1)
        flows = on_switches(lab, "dpctl/dump-flows")
        counted[way] = round(
            sum(int(packets) for packets in re.findall(r"packets:(\d+)", flows)) / int(said["count"]), 1
        )
    return counted


# Reports


def summarize(name: str, what: str, cases: Sequence[ThroughputCase], rounds: Sequence[Round]) -> dict[str, object]:
    """Medians of the paths, and of the ratios of the VIP to each other path within rounds."""
    rates = {way: [sample[case, way] for sample in rounds for case in cases] for way in PATHS}
    others = [way for way in PATHS if way != "vip"]
    return {
        "case": name,
        "unit": UNITS[what],
        "rates": {way: round(statistics.median(rates[way])) for way in PATHS},
        "ratios": {way: spread([a / b for a, b in zip(rates["vip"], rates[way], strict=True)]) for way in others},
        "goals": {way: GOALS[way, what] for way in others if (way, what) in GOALS},
    }


def spread(ratios: Sequence[float]) -> dict[str, float]:
    ordered = sorted(ratios)
    return {
        "median": round(statistics.median(ordered), 3),
        "least": round(ordered[0], 3),
        "low quarter": round(ordered[len(ordered) // 4], 3),
        "high quarter": round(ordered[-1 - len(ordered) // 4], 3),
        "most": round(ordered[-1], 3),
        "measured": len(ordered),
    }


def render(results: Sequence[dict[str, object]]) -> Iterator[str]:
    """Rows of a Markdown table; a ratio is the median and the interquartile range of the measurements."""
    ratios = [f"VIP/{way}" for way in PATHS if way != "vip"]
    yield "| case | " + " | ".join((*PATHS, "", *ratios)) + " |"
    yield "|---" * (len(PATHS) + len(ratios) + 2) + "|"
    for result in results:
        rates, spreads, goals = result["rates"], result["ratios"], result["goals"]
        assert isinstance(rates, dict) and isinstance(spreads, dict) and isinstance(goals, dict)  # noqa: PT018
        cells = [f"{rate:,}" for rate in rates.values()] + [str(result["unit"])]
        cells += [render_ratio(each, goals.get(way)) for way, each in spreads.items()]
        yield f"| {result['case']} | " + " | ".join(cells) + " |"


def render_lookups(lookups: Sequence[dict[str, object]]) -> Iterator[str]:
    yield "| lookups in the datapaths for each connection | " + " | ".join(PATHS) + " |"
    yield "|---" * (len(PATHS) + 1) + "|"
    for counted in lookups:
        yield "| " + " | ".join(str(value) for value in counted.values()) + " |"


def render_ratio(ratio: dict[str, float], goal: float | None) -> str:
    text = f"{ratio['median']:.2f} ({ratio['low quarter']:.2f} to {ratio['high quarter']:.2f})"
    return text if goal is None else f"{text} {'≥' if ratio['median'] >= goal else '**<**'} {goal}"


if __name__ == "__main__":
    sys.exit(main())
