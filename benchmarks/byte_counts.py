#!/usr/bin/env python3
"""Cost of counting the bytes of answers by QoS rows of OVN: rates with and without them, in pairs.

    python benchmarks/byte_counts.py --rounds 10

It needs root, OVN, Open vSwitch, wrk, HAProxy and iperf3. Lab and methods are those of `dataplane.py`.

A row has the largest rate of a meter (4.29 Tbit/s), so it drops nothing; its flow counts, and each packet passes its
meter. Rates vary on a shared machine; the switches' CPU time per connection, megabyte or packet varies less, and is
reported too.

* Connections: as in `dataplane.py`.
* Throughput: one TCP stream from the member to the client, because answers are counted.
* Packets: UDP datagrams of 64 bytes in the same direction, at the member's maximum rate, counted on arrival.
"""

import argparse
import json
import statistics
import sys
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import sysconf
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlead.lab import Lab, LabError, take_down

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests")]
warnings.simplefilter("ignore")

from dataplane import await_listening, connections, forget_connections, haproxy, render_server, running  # noqa: E402
from harness.lab.site import LabSite, open_site  # noqa: E402 - the tests are not installed

LAB = "benchbytes"
HTTP, IPERF = 8100, 5201
PLACES = {"server": "chassis1", "near": "chassis1", "far": "chassis2"}
UNITS = {"new connections": "1/s", "throughput": "MB/s", "packets": "1/s"}
UNLIMITED = (1 << 32) - 1
SERVICES = (("tcp", HTTP), ("tcp", IPERF), ("udp", IPERF))
MODES = ("plain", "counted", "plain again")
"""The third way repeats the first one, to show the difference between two identical measurements."""


@dataclass(frozen=True)
class Sample:
    rate: float
    cost: float
    """CPU time of the switches in microseconds per connection, megabyte or packet."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Rates with and without QoS rows that count, in pairs.")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--version", type=int, choices=(4, 6), default=4)
    options = parser.parse_args()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            site, vip = prepare(stack, Lab.up(LAB, chassis=2), options.version)
            rounds = [measure_round(site, vip, turn, options.seconds) for turn in range(options.rounds)]
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print("\n".join(render(rounds)))
    return 0


def prepare(stack: ExitStack, lab: Lab, version: int) -> tuple[LabSite, str]:
    site = open_site(lab)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00::/64")
    site.machines("net", PLACES)
    for machine in ("near", "far"):
        lab.exec(machine, ["sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65000"])
    folder = Path(stack.enter_context(TemporaryDirectory()))
    stack.enter_context(running(lab, "server", ["iperf3", "-s", "-p", str(IPERF)]))
    stack.enter_context(haproxy(lab, "server", folder, render_server()))
    for port in (HTTP, IPERF):
        await_listening(lab, "server", port)
    member = site.address("server", version)
    made = site.cloud.load_balancer.create_load_balancer(
        name="vip",
        vip_subnet_id=site.subnet(f"net-v{version}").id,
        listeners=[listener(protocol, port, member) for protocol, port in SERVICES],
    )
    site.settle(made.id)
    return site, made.vip_address


def listener(protocol: str, port: int, member: str) -> dict[str, object]:
    members = [{"address": member, "protocol_port": port}]
    pool = {"protocol": protocol.upper(), "lb_algorithm": "ROUND_ROBIN", "members": members}
    return {"protocol": protocol.upper(), "protocol_port": port, "default_pool": {"name": f"{protocol}{port}", **pool}}


def count(site: LabSite, vip: str, *, counted: bool) -> None:
    """Add or remove the rows, and wait until each node has applied the change."""
    network = site.cloud.network.find_network("net", ignore_missing=False).id
    family = "ip6" if ":" in vip else "ip4"
    for protocol, port in SERVICES:
        match = f"{family}.src == {vip} && {protocol}.src == {port}"
        words = [network, "to-lport", "1", match]
        site.lab.exec(
            "central",
            [
                "ovn-nbctl",
                *(["--may-exist", "qos-add", *words, f"rate={UNLIMITED}"] if counted else ["qos-del", *words]),
            ],
        )
    site.lab.exec("central", ["ovn-nbctl", "--wait=hv", "sync"])


def measure_round(site: LabSite, vip: str, turn: int, seconds: int) -> dict[tuple[str, str, str], Sample]:
    print(f"round {turn + 1}", file=sys.stderr, flush=True)
    first = turn % len(MODES)
    found = {}
    for client in ("near", "far"):
        for what in UNITS:
            for way in MODES[first:] + MODES[:first]:
                count(site, vip, counted=way == "counted")
                forget_connections(site.lab)
                before = processor_time(site.lab)
                rate = measure(site.lab, client, what, vip, seconds)
                spent = processor_time(site.lab) - before
                found[client, what, way] = Sample(rate=rate, cost=spent * 1e6 / (rate * seconds))
    return found


def processor_time(lab: Lab) -> float:
    """CPU time in seconds of the switches of all nodes (proc(5))."""
    ticks = 0
    for node in lab.record.chassis:
        ticks += sum(
            map(int, Path(f"/proc/{switch_pid(lab, node.name)}/stat").read_text().rpartition(")")[2].split()[11:13])
        )
    return ticks / sysconf("SC_CLK_TCK")


def switch_pid(lab: Lab, node: str) -> int:
    return int((lab.layout.node_directory(node) / "ovs-vswitchd.pid").read_text())


def measure(lab: Lab, client: str, what: str, vip: str, seconds: int) -> float:
    if what == "new connections":
        return connections(lab, client, vip, HTTP, seconds)
    argv = ["iperf3", "-c", vip, "-p", str(IPERF), "-t", str(seconds), "-J", "-R"]
    if what == "throughput":
        said = json.loads(lab.exec(client, argv, timeout=seconds + 30))
        return float(said["end"]["sum_received"]["bits_per_second"]) / 8e6
    said = json.loads(lab.exec(client, [*argv, "-u", "-l", "64", "-b", "0"], timeout=seconds + 30))
    total = said["end"]["sum"]
    return float(total["packets"] - total["lost_packets"]) / float(total["seconds"])


def render(rounds: Sequence[dict[tuple[str, str, str], Sample]]) -> Sequence[str]:
    head = ["case", *(f"{way}, {figure}" for figure in ("rate", "µs of switches") for way in (*MODES[:2],))]
    ratios = [f"{way}/plain, {figure}" for figure in ("rate", "µs") for way in MODES[1:]]
    lines = [f"| {' | '.join([*head, *ratios])} |", "|---" * (len(head) + len(ratios)) + "|"]
    for what, unit in UNITS.items():
        for client in ("near", "far"):
            cells = [f"{'same' if client == 'near' else 'other'} node, {what} ({unit})"]
            for figure in ("rate", "cost"):
                values = {way: [getattr(each[client, what, way], figure) for each in rounds] for way in MODES}
                cells[len(cells) :] = [f"{statistics.median(values[way]):,.1f}" for way in MODES[:2]]
            for figure in ("rate", "cost"):
                values = {way: [getattr(each[client, what, way], figure) for each in rounds] for way in MODES}
                cells += [spread(values[way], values["plain"]) for way in MODES[1:]]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def spread(rates: Sequence[float], others: Sequence[float]) -> str:
    """Median and interquartile range of the ratios within rounds."""
    ratios = sorted(a / b for a, b in zip(rates, others, strict=True))
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    return f"{statistics.median(ratios):.3f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
