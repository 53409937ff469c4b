#!/usr/bin/env python3
"""Compares new connections per second to a VIP of plain hosts with three other paths to the same process.

    python benchmarks/plain_hosts.py --rounds 12 --json

It needs root, nftables, HAProxy and wrk. Namespaces of one machine: a client behind a router, hosts behind the router,
and a member behind the first host. Paths:
* `direct`: the member's own address.
* `vip`: the rows that an agent writes, written by the same driver.
* `dnat`: an administrator's nftables rules for one port of one address (a hash of the flow, a map to members, kernel
  connection tracking).
* `proxy`: HAProxy in TCP mode on the host.

A connection arrives from the router at the host with the member, or starts on this host, or on another one, whose
kernel selects the member as well and forwards through a tunnel. Compared with it is the path that would be installed
there.

The machine is shared and small, so absolute numbers mean little. The paths are measured in turn for a second each, in
an order that rotates by round, and the result is the median of the ratios within rounds. wrk sends requests with
`Connection: close` to HAProxy as HTTP server, which closes first. Each path has its own ports at the member. Hosts
delete closed connections within a second, because full connection tables would distort the results.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from tempfile import TemporaryDirectory

from dataplane import DEFAULTS, SERVER, spread
from fairlead.dataplane.native import LocalMember, NativeRow, OtherHost, Service, Target, Vip
from fairlead.model.documents.addresses import IPAddress, render_endpoint
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import VIPS, Fabric, fabric, host_address, member_address
from harness.net_namespace import NetNamespace

PATHS = ("direct", "dnat", "vip", "proxy")
FIRST_PORTS = dict(zip(PATHS, range(8100, 8500, 100), strict=True))
"""First port of each path, with one member at the same port. The next port has ten members, at the ports after it."""
DNAT: dict[int, IPAddress] = {4: IPv4Address("203.0.113.6"), 6: IPv6Address("2001:db8::6")}
"""Address of the nftables rules; it is also an address of the host with them."""
GOALS = {"direct": 0.90, "proxy": 1.3}
"""Minimum ratio of the VIP's rate to that of the path."""
MEMBER_HOST, OTHER_HOST = 1, 2
CONNECT_TIMEOUT = 15.0
CLOSED_STATES = "time_wait", "close", "close_wait", "last_ack", "fin_wait"
"""States of tracked connections that have ended."""


class Unanswered(Exception):
    """Raised if a service to be measured does not answer."""


class ConnectionOrigin(Enum):
    OUTSIDE = "by a router"
    HERE = "on the member's host"
    THERE = "on another host"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPathCase:
    version: int
    origin: ConnectionOrigin
    members: int

    def __str__(self) -> str:
        return f"IPv{self.version}, {self.origin.value}, {self.members} member{'s' if self.members > 1 else ''}"

    @property
    def entry(self) -> int:
        """Host that selects the member."""
        return OTHER_HOST if self.origin is ConnectionOrigin.THERE else MEMBER_HOST

    def port(self, way: str) -> int:
        return FIRST_PORTS[way] + (self.members > 1 and way != "direct")

    def target(self, way: str) -> IPAddress:
        if way == "vip":
            return next(vip for vip in VIPS if vip.version == self.version)
        return {
            "direct": member_address(MEMBER_HOST, self.version),
            "dnat": DNAT[self.version],
            "proxy": host_address(self.entry, self.version),
        }[way]


CASES = [
    HostPathCase(version=version, origin=begun, members=members)
    for begun in ConnectionOrigin
    for version in (4, 6)
    for members in (1, 10)
]
Round = dict[tuple[HostPathCase, str], float]


def main() -> int:
    options = parse_arguments()
    with ExitStack() as stack:
        site = stack.enter_context(fabric())
        serve(stack, site)
        try:
            rounds = [measure_round(site, turn, options) for turn in range(options.rounds)]
        except Unanswered as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    results = [summarize(str(case), [case], rounds) for case in CASES]
    results += [
        summarize(f"all, {begun.value}", [case for case in CASES if case.origin is begun], rounds)
        for begun in ConnectionOrigin
    ]
    print(json.dumps(results, indent=2) if options.json else "\n".join(render(results)))
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A VIP of plain hosts beside other ways; ratios of one run.")
    parser.add_argument("--rounds", type=int, default=12, help="interleaved rounds (12)")
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement (1)")
    parser.add_argument("--json", action="store_true", help="for programs")
    return parser.parse_args()


def serve(stack: ExitStack, site: Fabric) -> None:
    """Run all paths to the member behind the first host."""
    folder = Path(stack.enter_context(TemporaryDirectory()))
    for place in (site.client, *site.hosts.values()):
        place.run("sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 65000")
        for state in CLOSED_STATES:
            place.set_sysctl(f"net/netfilter/nf_conntrack_tcp_timeout_{state}", 1)
    binds = "\n".join(f"  bind :::{first}-{first + 10} v4v6" for first in FIRST_PORTS.values())
    server = DEFAULTS.format(mode="http") + SERVER.format(binds=binds)
    stack.enter_context(running_haproxy(site.members[MEMBER_HOST], folder, "server", server))
    site.open()
    for number in (MEMBER_HOST, OTHER_HOST):
        site.put(number, vip_rows(number))
        site.hosts[number].nft(dnat_rules())
        host = site.hosts[number]
        stack.enter_context(running_haproxy(host, folder, f"proxy{number}", proxy_configuration(number)))
    site.route_to(MEMBER_HOST)
    site.router.ip(
        *(f"route replace {address} via {host_address(MEMBER_HOST, version)}" for version, address in DNAT.items())
    )


def ports(way: str) -> dict[int, list[int]]:
    """Ports of clients, and the members' ports for each."""
    first = FIRST_PORTS[way]
    return {first: [first], first + 1: list(range(first + 1, first + 11))}


def vip_rows(number: int) -> Iterator[NativeRow]:
    for vip in VIPS:
        yield Vip(address=vip, is_local=number == MEMBER_HOST)
        for port, members in ports("vip").items():
            targets: list[Target] = [OtherHost(host=MEMBER_HOST)]
            if number == MEMBER_HOST:
                targets = [LocalMember(address=member_address(number, vip.version), port=each) for each in members]
            yield Service(
                vip=vip,
                transport=Transport.TCP,
                port=port,
                by_source=False,
                slots=bytes(slot % len(targets) for slot in range(256)),
                targets=tuple(targets),
            )


def dnat_rules() -> str:
    """Load balancing as in nft(8): a hash of the flow, and a map."""
    lines = []
    for version, address in DNAT.items():
        family, member = "ip" if version == 4 else "ip6", member_address(MEMBER_HOST, version)
        for port, members in ports("dnat").items():
            spread_by = f"jhash {family} saddr . tcp sport mod {len(members)}"
            to = ", ".join(f"{place} : {member} . {each}" for place, each in enumerate(members))
            lines.append(f"{family} daddr {address} tcp dport {port} dnat {family} to {spread_by} map {{ {to} }}")
    rules = "\n".join(lines)
    chains = "".join(
        f"chain {hook} {{ type nat hook {hook} priority -100; {rules}\n}}\n" for hook in ("prerouting", "output")
    )
    return f"table inet by_hand {{\n{chains}}}\n"


def proxy_configuration(number: int) -> str:
    sections = []
    for version in (4, 6):
        address, member = host_address(number, version), member_address(MEMBER_HOST, version)
        for port, members in ports("proxy").items():
            servers = "\n".join(f"  server m{each} {render_endpoint(member, each)}" for each in members)
            bind = render_endpoint(address, port)
            sections.append(f"listen v{version}-{port}\n  bind {bind}\n{servers}\n")
    return DEFAULTS.format(mode="tcp") + "".join(sections)


@contextmanager
def running_haproxy(place: NetNamespace, folder: Path, name: str, configuration: str) -> Iterator[None]:
    """Run HAProxy with its default of one thread per core."""
    path = folder / f"{name}.cfg"
    path.write_text(configuration)
    with place.inside():
        process = subprocess.Popen(["haproxy", "-db", "-q", "-f", str(path)])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


# Measurements


def measure_round(site: Fabric, turn: int, options: argparse.Namespace) -> Round:
    """Measure each case for all paths, immediately one after the other, in an order that rotates by round."""
    print(f"round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    first = turn % len(PATHS)
    sample: Round = {}
    for case in CASES:
        for way in PATHS[first:] + PATHS[:first]:
            sample[case, way] = connections(site, case, way, options.seconds)
    return sample


def connections(site: Fabric, case: HostPathCase, way: str, seconds: int) -> float:
    """New connections per second. Raises Unanswered."""
    place = site.client if case.origin is ConnectionOrigin.OUTSIDE else site.hosts[case.entry]
    url = f"http://{render_endpoint(case.target(way), case.port(way))}/"
    deadline = time.monotonic() + CONNECT_TIMEOUT
    while True:
        said = place.run("wrk", "-t1", "-c16", f"-d{seconds}s", "-H", "Connection: close", url)
        found = re.search(r"[1-9]\d* requests in .*Requests/sec:\s+(?P<rate>[\d.]+)", said, re.DOTALL)
        if found is not None:
            return float(found["rate"])
        if time.monotonic() > deadline:
            raise Unanswered(f"no connection to {url} ({case}, {way}): {said}")


# Reports


def summarize(name: str, cases: Sequence[HostPathCase], rounds: Sequence[Round]) -> dict[str, object]:
    """Medians of the paths, and of the ratios of the VIP to each other path within rounds."""
    rates = {way: [sample[case, way] for sample in rounds for case in cases] for way in PATHS}
    others = [way for way in PATHS if way != "vip"]
    return {
        "case": name,
        "rates": {way: round(statistics.median(rates[way])) for way in PATHS},
        "ratios": {way: spread([a / b for a, b in zip(rates["vip"], rates[way], strict=True)]) for way in others},
    }


def render(results: Sequence[dict[str, object]]) -> Iterator[str]:
    """Rows of a Markdown table; a ratio is the median and the interquartile range of the measurements."""
    ratios = [f"VIP/{way}" for way in PATHS if way != "vip"]
    yield "| new connections per second | " + " | ".join((*PATHS, *ratios)) + " |"
    yield "|---" * (len(PATHS) + len(ratios) + 1) + "|"
    for result in results:
        rates, spreads = result["rates"], result["ratios"]
        assert isinstance(rates, dict) and isinstance(spreads, dict)  # noqa: PT018
        cells = [f"{rate:,}" for rate in rates.values()]
        cells += [render_ratio(each, GOALS.get(way)) for way, each in spreads.items()]
        yield f"| {result['case']} | " + " | ".join(cells) + " |"


def render_ratio(ratio: dict[str, float], goal: float | None) -> str:
    text = f"{ratio['median']:.2f} ({ratio['low quarter']:.2f} to {ratio['high quarter']:.2f})"
    return text if goal is None else f"{text} {'≥' if ratio['median'] >= goal else '**<**'} {goal}"


if __name__ == "__main__":
    sys.exit(main())
