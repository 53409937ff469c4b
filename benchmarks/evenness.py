"""Evenness of a VIP's distribution of connections, compared with OVN's own load balancer, and its cost in flows.

    make bench                       after the rates
    python benchmarks/evenness.py --json

10,000 connections, each from a different source port, from a workload on one node to members on another. The switch
selects the member, and each member counts. Members are ports of one workload (`ports.py`). Chi-square is the sum of
(counted - expected)² / expected over the members, with expected numbers by weight; p is the probability of a value at
least as large if every connection selects at random by weight. `max/min` is the largest number of connections per
weight divided by the smallest.

For comparison the same connections are made to a plain OVN load balancer with the same members. OVN has no weights, so
each member is repeated as often as its weight, which OVN accepts.

A table of 256 slots cannot give 100 members equal shares, so p decreases when the number of connections is large enough
to show that. Therefore chi-square is also computed for the shares of the slots, which tests the hash alone.
"""

import argparse
import json
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import erfc, exp, gamma, inf, sqrt
from pathlib import Path
from time import sleep

from fairlead.lab import Lab, LabError, take_down

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
warnings.simplefilter("ignore")

from harness.lab.site import LabSite, open_site  # noqa: E402 - the tests are not installed

LAB = "bench"
PORTS = Path(__file__).with_name("ports.py")
PLACES = {"members": "chassis1", "client": "chassis2"}
FIRST_PORT = 9001
VIP_PORT = 80
SIZES = (2, 3, 5, 10, 30, 100)
STEPS = (100, 1_000, 10_000)
MANUAL_VIPS = {4: "172.31.0.10", 6: "fd00:ffff::10"}
"""Outside the subnet: OVN answers ARP for such a VIP only on a router, so clients reach it through the gateway."""
KEEP_FLOWS_MS = 120_000
"""Open vSwitch deletes flows that were idle for 10 s by default, and they are counted afterwards."""

Counts = Mapping[int, int]


@dataclass(frozen=True)
class Spread:
    """Connections and weights of members, both by port."""

    counts: Counts
    weights: Counts
    failed: int

    @property
    def max_to_min(self) -> float:
        shares = [self.counts.get(port, 0) / weight for port, weight in self.weights.items()]
        return max(shares) / min(shares) if min(shares) else inf

    def chi_square(self, shares: Counts) -> float:
        connections, total = sum(self.counts.values()), sum(shares.values())
        due = {port: connections * share / total for port, share in shares.items()}
        return sum((self.counts.get(port, 0) - each) ** 2 / each for port, each in due.items())


@dataclass(frozen=True)
class EvennessCase:
    members: int
    weighted: bool = False
    protocol: str = "tcp"
    version: int = 4

    @property
    def weights(self) -> dict[int, int]:
        return {FIRST_PORT + place: 1 + place % 3 * self.weighted for place in range(self.members)}

    def __str__(self) -> str:
        how = "weights 1, 2, 3, 1, ..." if self.weighted else "equal"
        return f"{self.members}, {how}, {self.protocol.upper()}, IPv{self.version}"


CASES = [
    *(EvennessCase(members, weighted) for weighted in (False, True) for members in SIZES),
    *(
        EvennessCase(members, False, protocol, version)
        for members in (3, 10)
        for protocol, version in (("tcp", 6), ("udp", 4), ("udp", 6))
    ),
]


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            site = prepare(stack, Lab.up(LAB, chassis=2))
            spreads = [measure_spread(site, case, options.connections) for case in CASES]
            flows = [measure_flows(site, members) for members in (2, 10, 100)]
    except LabError as error:
        print(f"evenness: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"evenness": spreads, "flows": flows}, indent=2))
    else:
        print("\n".join([*table(spreads), "", *table(flows)]))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How evenly connections spread, beside OVN's own load balancer.")
    parser.add_argument("--connections", type=int, default=10_000, help="of each measurement (10,000)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


# The lab


def prepare(stack: ExitStack, lab: Lab) -> LabSite:
    site = open_site(lab)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00::/64")
    site.router("router", "net-v4", "net-v6")
    site.machines("net", PLACES)
    for node in lab.record.chassis:
        lab.exec(node.name, ["ovs-vsctl", "set", "Open_vSwitch", ".", f"other_config:max-idle={KEEP_FLOWS_MS}"])
    server = lab.command("members", [sys.executable, str(PORTS), "serve", "--first", str(FIRST_PORT), "--count", "100"])
    process = stack.enter_context(subprocess.Popen(server.argv, env=server.full_environment()))
    stack.callback(process.terminate)
    while not lab.exec("members", ["ss", "-Hltn", f"sport = :{FIRST_PORT + 99}"]):
        if process.poll() is not None:
            raise LabError("the members do not run")
    return site


@contextmanager
def vip(site: LabSite, case: EvennessCase) -> Iterator[tuple[str, Counts]]:
    """A load balancer of Fairlead: its VIP, and the slots of each port."""
    address = site.address("members", case.version)
    members = [{"address": address, "protocol_port": port, "weight": weight} for port, weight in case.weights.items()]
    protocol = case.protocol.upper()
    pool = {"name": "pool", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": members}
    made = site.cloud.load_balancer.create_load_balancer(
        name="evenness",
        vip_subnet_id=site.subnet(f"net-v{case.version}").id,
        listeners=[{"protocol": protocol, "protocol_port": VIP_PORT, "default_pool": pool}],
    )
    site.settle(made.id)
    try:
        ports = re.findall(
            rf"{re.escape(endpoint(address, 0))[:-1]}(\d+)", find_vips(site, f"{made.id}-{case.protocol}")
        )
        yield made.vip_address, Counter(int(port) for port in ports)
    finally:
        site.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)
        while find_vips(site, f"{made.id}-{case.protocol}"):
            sleep(0.05)
        site.lab.wait_synced()


def find_vips(site: LabSite, row: str) -> str:
    command = ["ovn-nbctl", "--bare", "--columns=vips", "find", "Load_Balancer", f"name={row}"]
    return site.lab.exec("central", command).strip()


@contextmanager
def manual_balancer(site: LabSite, case: EvennessCase) -> Iterator[str]:
    address = site.address("members", case.version)
    backends = [endpoint(address, port) for port, weight in case.weights.items() for _ in range(weight)]
    virtual = endpoint(MANUAL_VIPS[case.version], VIP_PORT)
    switch = site.cloud.network.find_network("net").id
    site.lab.exec("central", ["ovn-nbctl", "lb-add", "plain", virtual, ",".join(backends), case.protocol])
    site.lab.exec("central", ["ovn-nbctl", "ls-lb-add", switch, "plain"])
    site.lab.wait_synced()
    try:
        yield MANUAL_VIPS[case.version]
    finally:
        site.lab.exec("central", ["ovn-nbctl", "lb-del", "plain"])


def endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def on_switch(lab: Lab, node: str, *command: str) -> str:
    return lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", *command])


# Measurements


def measure_spread(site: LabSite, case: EvennessCase, connections: int) -> dict[str, object]:
    print(f"members: {case}", file=sys.stderr, flush=True)
    with vip(site, case) as (address, slots):
        ours = ask(site, case, address, connections)
    with manual_balancer(site, case) as address:
        theirs = ask(site, case, address, connections)
    of_slots = ours.chi_square(slots)
    return {
        "members": str(case),
        "slots": sum(slots.values()),
        "degrees of freedom": case.members - 1,
        "VIP max/min": round(ours.max_to_min, 2),
        "VIP chi²": round(ours.chi_square(case.weights), 1),
        "VIP p": p_value(ours.chi_square(case.weights), case.members - 1),
        "VIP chi² of the slots": round(of_slots, 1),
        "VIP p of the slots": p_value(of_slots, case.members - 1),
        "OVN max/min": round(theirs.max_to_min, 2),
        "OVN chi²": round(theirs.chi_square(case.weights), 1),
        "OVN p": p_value(theirs.chi_square(case.weights), case.members - 1),
        "unanswered": f"{ours.failed}, {theirs.failed}",
    }


def ask(site: LabSite, case: EvennessCase, address: str, connections: int) -> Spread:
    """Open connections from a fixed set of source ports.

    Flushes connection tracking first, because ports are reused.
    """
    for node in site.lab.record.chassis:
        on_switch(site.lab, node.name, "dpctl/flush-conntrack")
    words = ["--to", address, "--port", str(VIP_PORT), "--protocol", case.protocol, "--connections", str(connections)]
    said = json.loads(site.lab.exec("client", [sys.executable, str(PORTS), "ask", *words], timeout=90))
    counts = {int(port): count for port, count in said["answers"].items()}
    return Spread(counts=counts, weights=case.weights, failed=said["failed"])


def p_value(chi_square: float, degrees: int) -> float:
    """Upper tail of the chi-square distribution, in closed form for integer degrees of freedom."""
    half = chi_square / 2
    if degrees % 2 == 0:
        tail = exp(-half) * sum(half**i / gamma(i + 1) for i in range(degrees // 2))
    else:
        tail = erfc(sqrt(half)) + exp(-half) * sum(
            half ** (i - 0.5) / gamma(i + 0.5) for i in range(1, degrees // 2 + 1)
        )
    return float(f"{tail:.2g}")


def measure_flows(site: LabSite, members: int) -> dict[str, object]:
    """OpenFlow flows that one more VIP of a network adds, and datapath flows of connections to it, on both nodes."""
    print(f"flows: {members} members", file=sys.stderr, flush=True)
    case = EvennessCase(members)
    with ExitStack() as stack:
        stack.enter_context(vip(site, EvennessCase(1)))
        before = count_openflow(site.lab)
        address, slots = stack.enter_context(vip(site, case))
        with_vip = count_openflow(site.lab)
        result: dict[str, object] = {"members": members, "buckets": sum(slots.values())}
        result |= {f"OpenFlow {what}": with_vip[what] - before[what] for what in before}
        for connections in STEPS:
            for node in site.lab.record.chassis:
                on_switch(site.lab, node.name, "revalidator/purge")
            ask(site, case, address, connections)
            result[f"datapath flows after {connections:,}"] = count_datapath(site.lab)
        since = count_openflow(site.lab)
        return result | {f"OpenFlow {what} since": since[what] - with_vip[what] for what in with_vip}


def count_openflow(lab: Lab) -> dict[str, int]:
    count = {"flows": 0, "groups": 0}
    for node in lab.record.chassis:
        said = lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "dump-aggregate", "br-int"])
        count["flows"] += int(said.partition("flow_count=")[2].split()[0])
        said = lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br-int"])
        count["groups"] += said.count("group_id=")
    return count


def count_datapath(lab: Lab) -> int:
    """Number of IP flows in the datapaths; those of ARP are independent of connections."""
    return sum(on_switch(lab, node.name, "dpctl/dump-flows").count("eth_type(0x0800)") for node in lab.record.chassis)


# Reports


def table(results: Sequence[dict[str, object]]) -> Iterator[str]:
    """Results as a Markdown table."""
    yield "| " + " | ".join(results[0]) + " |"
    yield "|---" * len(results[0]) + "|"
    for result in results:
        yield "| " + " | ".join(str(value) for value in result.values()) + " |"


if __name__ == "__main__":
    sys.exit(main())
