#!/usr/bin/env python3
"""Benefit of a member on the client's own node: same client and address, with a member on its chassis or on another.

It needs root, OVN, Open vSwitch, wrk, iperf3 and HAProxy. Of two nodes the first has the client. Two paths alternate,
and each ratio is of one round, so that other load on the machine affects both:
* local: a VIP with a member on each node and `locality` CHASSIS, so the member on the client's node answers.
* remote: a VIP with its only member on the other node.

With --local-ip it compares Local IPs: one with a replica on the client's node, and one without, whose owner is on the
other node.

Measured are requests on a persistent connection (wrk's median latency), new connections with a request each, and one
TCP stream, and in addition the number of datapath lookups of all nodes per new connection, which is independent of the
load. Both nodes are on this machine, so a real network and its distance would add to the difference.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from dataplane import (
    DEFAULTS,
    await_listening,
    connections,
    endpoint,
    forget_connections,
    haproxy,
    on_switches,
    run_wrk,
    running,
    spread,
    throughput,
)
from fairlead.lab import Lab, LabError, take_down
from fairlead.lab.databases import poll_until
from harness.lab.site import LabSite, open_site

LAB = "benchnear"
HTTP, IPERF = 8100, 5201
"""Ports of VIPs. Local IPs have the next ones, so that services share no port of a member.

A member's kernel would assign a SYN from a remembered client port to the old connection of another service (see
dataplane.py).
"""
MEMBERS = {"here": "chassis1", "there": "chassis2"}
CLIENT = "client"
SERVER = """frontend f
  bind :::8100-8101 v4v6
  http-request return status 200 content-type text/plain string ok
"""
MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True, kw_only=True)
class ServicePath:
    """A service with an HTTP and an iperf3 port, and its client."""

    address: str
    client: str = CLIENT
    http_port: int = HTTP
    iperf_port: int = IPERF


Measure = Callable[[Lab, ServicePath, int], float]
"""Measurement with a duration in seconds."""


def latency(lab: Lab, way: ServicePath, seconds: int) -> float:
    """Median latency in microseconds of requests on an open connection."""
    url = f"http://{endpoint(way.address, way.http_port)}/"
    said = lab.exec(way.client, ["wrk", "-t1", "-c1", f"-d{seconds}s", "--latency", url], timeout=seconds + 30)
    found = re.search(r"50%\s+([\d.]+)(us|ms|s)", said)
    if found is None or not re.search(r"[1-9]\d* requests in", said):
        raise LabError(f"no answer from {url}: {said}")
    return float(found[1]) * MICROSECONDS[found[2]]


MEASURES: Mapping[str, tuple[str, Measure]] = {
    "latency": ("us", latency),
    "new connections": (
        "1/s",
        lambda lab, way, seconds: connections(lab, way.client, way.address, way.http_port, seconds),
    ),
    "throughput": (
        "Mbit/s",
        lambda lab, way, seconds: throughput(lab, way.client, way.address, way.iperf_port, seconds),
    ),
}


def compare(
    lab: Lab, name: str, local: ServicePath, remote: ServicePath, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Both medians of each measurement, and the ratios local/remote of the rounds."""
    ways = {"local": local, "remote": remote}
    for way in ways.values():
        await_answer(lab, way)
    for what, (unit, measure) in MEASURES.items():
        samples: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way in list(ways) if turn % 2 else reversed(ways):
                forget_connections(lab)
                samples[way].append(measure(lab, ways[way], options.seconds))
        yield {
            "case": f"{name}, {what}",
            "unit": unit,
            **{way: round(statistics.median(found), 1) for way, found in samples.items()},
            "ratio": spread([here / there for here, there in zip(*samples.values(), strict=True)]),
        }
    yield {"case": f"{name}, lookups for each connection", **{way: lookups(lab, each) for way, each in ways.items()}}


def await_answer(lab: Lab, way: ServicePath) -> None:
    """Wait until the service answers. OVN's routers resolve an address at its first packet, which may be lost."""

    def answers() -> bool:
        try:
            return latency(lab, way, 1) > 0
        except LabError:
            return False

    poll_until(30, f"{way.address} answers", answers)


def lookups(lab: Lab, way: ServicePath) -> float:
    """Number of packets per connection that matched a flow of any node, including recirculated ones."""
    forget_connections(lab)
    on_switches(lab, "revalidator/purge")
    said = run_wrk(lab, way.client, way.address, way.http_port, 1)
    found = re.findall(r"packets:(\d+)", on_switches(lab, "dpctl/dump-flows"))
    return round(sum(map(int, found)) / int(said["count"]), 1)


def serve_members(stack: ExitStack, lab: Lab, names: Sequence[str]) -> None:
    """Run the servers of `Way` on each of these workloads."""
    folder = Path(stack.enter_context(TemporaryDirectory()))
    for name in names:
        stack.enter_context(haproxy(lab, name, folder, DEFAULTS.format(mode="http") + SERVER))
        for port in (IPERF, IPERF + 1):
            stack.enter_context(running(lab, name, ["iperf3", "-s", "-p", str(port)]))
        for port in (HTTP, HTTP + 1, IPERF, IPERF + 1):
            await_listening(lab, name, port)


def prepare(stack: ExitStack, lab: Lab) -> LabSite:
    site = open_site(lab)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00::/64")
    site.machines("net", {**MEMBERS, "owner": MEMBERS["there"], CLIENT: MEMBERS["here"]})
    lab.exec(CLIENT, ["sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65000"])
    serve_members(stack, lab, list(MEMBERS))
    return site


def balanced(site: LabSite, version: int) -> tuple[ServicePath, ServicePath]:
    local = make_vip(site, version, list(MEMBERS), "CHASSIS")
    return local, make_vip(site, version, ["there"], "NONE")


def local_ips(site: LabSite, version: int) -> tuple[ServicePath, ServicePath]:
    local = make_local_ip(site, version, "owner")
    replica = {"fixed_port_id": port_of(site, "here"), "fixed_ip": site.address("here", version)}
    site.cloud.network.create_local_ip_association(local, **replica)
    remote = make_local_ip(site, version, "there")
    return local_ip_path(local), local_ip_path(remote)


def local_ip_path(local_ip: Any) -> ServicePath:
    return ServicePath(address=local_ip.local_ip_address, http_port=HTTP + 1, iperf_port=IPERF + 1)


def make_local_ip(site: LabSite, version: int, owner: str) -> Any:
    address = site.address(owner, version)
    return site.cloud.network.create_local_ip(local_port_id=port_of(site, owner), local_ip_address=address)


def port_of(site: LabSite, name: str) -> str:
    found: str = site.cloud.network.find_port(name, ignore_missing=False).id
    return found


def settle(site: LabSite) -> None:
    """Wait until the plan is empty, for objects without a status."""
    poll_until(30, "all is applied", lambda: not httpx.get(f"{site.url}/operator/plan").json()["plan"])
    site.lab.wait_synced()


def make_vip(site: LabSite, version: int, members: Sequence[str], locality: str) -> ServicePath:
    made = site.cloud.load_balancer.create_load_balancer(
        name=f"{locality}{version}",
        vip_subnet_id=site.subnet(f"net-v{version}").id,
        listeners=[listener(site, version, port, members, locality) for port in (HTTP, IPERF)],
    )
    site.settle(made.id)
    return ServicePath(address=made.vip_address)


def listener(site: LabSite, version: int, port: int, members: Sequence[str], locality: str) -> dict[str, Any]:
    bodies = [{"address": site.address(name, version), "protocol_port": port} for name in members]
    pool = {"name": f"pool{port}", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "locality": locality}
    return {"protocol": "TCP", "protocol_port": port, "default_pool": {**pool, "members": bodies}}


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            site = prepare(stack, Lab.up(LAB, chassis=2))
            sorts = {"VIP": balanced, **({"Local IP": local_ips} if options.local_ip else {})}
            pairs = {f"{sort}, IPv{each}": make(site, each) for sort, make in sorts.items() for each in (4, 6)}
            settle(site)
            results = (each for name, pair in pairs.items() for each in compare(site.lab, name, *pair, options))
            lines = iter([json.dumps([*results], indent=2)]) if options.json else render(results)
            for line in lines:  # print each line immediately, because all of them take minutes
                print(line, flush=True)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="A member on the client's node beside one on another; ratios of one run."
    )
    parser.add_argument("--rounds", type=int, default=10, help="interleaved rounds of each measure (10)")
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement (1)")
    parser.add_argument("--local-ip", action="store_true", help="Local IPs too")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


def render(results: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Rows of a Markdown table; a ratio is the median and the interquartile range of the measurements."""
    yield "| case | local | remote |  | local/remote |"
    yield "|---|---|---|---|---|"
    for each in results:
        ratio = each.get("ratio")
        share = f"{each['local'] / each['remote']:.2f}" if ratio is None else quartiles(ratio)
        yield f"| {each['case']} | {each['local']:,} | {each['remote']:,} | {each.get('unit', '')} | {share} |"


def quartiles(ratio: Mapping[str, float]) -> str:
    return f"{ratio['median']:.2f} ({ratio['low quarter']:.2f} to {ratio['high quarter']:.2f})"


if __name__ == "__main__":
    sys.exit(main())
