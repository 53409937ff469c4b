#!/usr/bin/env python3
"""Benefit of a proxy on the client's own node, and effect of changes under load on clients.

It needs root, OVN, Open vSwitch, wrk and HAProxy. Two nodes have an agent each; the client is on the first, members are
on both. Requests are sent on persistent connections, in rounds of three alternating paths, so that other load on the
machine affects all of them; each ratio is of one round:
* near: an HTTP listener, by the HAProxy on the client's node.
* far: the same listener by the HAProxy on the other node, at the proxy's own address.
* L4: a TCP listener, which the switch balances to the same members.

Then the HTTP listener is changed repeatedly under load (weights, added and removed members, disabled members, monitors,
timeouts). Reported are failed requests, replaced processes, and the 99.9th percentile of latencies, compared with
rounds without changes, and with rounds with the same changes of a load balancer on another network with proxies on the
same nodes: effects common to both are those of shared CPUs, the others are those of the proxy. The CPU time of each
program is reported as well. Both nodes are on one machine. Everything is done over IPv4 and IPv6.
"""

import argparse
import json
import os
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataplane import DEFAULTS, await_listening, endpoint, haproxy, spread
from fairlead.drivers.haproxy.network import folder_name
from fairlead.lab import Lab, LabError, agents, take_down
from fairlead.lab.databases import poll_until
from harness.lab.site import LabSite, open_site

LAB = "benchproxies"
OPTIONS = {"FAIRLEAD_HEALTH_PROBER": "agents", "FAIRLEAD_PROVIDERS_NAMES": "fairlead=fairlead,ovn=ovn"}
PORT, CLIENT = 8100, "client"
MEMBERS = {"here": "chassis1", "there": "chassis2", "more": "chassis2"}
OTHERS = {"here2": "chassis1", "there2": "chassis2", "more2": "chassis2"}
VERSIONS = (4, 6)
CHANGE_MODES = ("quiet", "own", "other")
SERVER = f"""frontend f
  bind :::{PORT} v4v6
  http-request return status 200 content-type text/plain string ok
"""
SCRIPT = """
done = function(summary, latency)
  local e = summary.errors
  print(string.format('{"requests": %d, "seconds": %f, "failed": %d, "p50": %f, "p999": %f}', summary.requests,
    summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50),
    latency:percentile(99.9)))
end
"""
CHANGES_PER_RELOAD = 100
"""Number of changes of which one replaces the process, because a listener's own attributes change rarely."""


@dataclass
class ProxyBench:
    site: LabSite
    script: Path
    balancer: Any
    other: Any
    """Load balancer on another network, without clients."""
    rounds: int
    seconds: int

    def run_wrk(self, address: str, port: int, connections: int = 8) -> Mapping[str, float]:
        """Run wrk once on the client."""
        url = f"http://{endpoint(address, port)}/"
        words = ["wrk", "-t1", f"-c{connections}", f"-d{self.seconds}s", "-s", str(self.script), url]
        said = self.site.lab.exec(CLIENT, words, timeout=self.seconds + 30)
        found = re.search(r"\{.*\}", said)
        if found is None:
            raise LabError(f"no answer from {url}: {said}")
        result: Mapping[str, float] = json.loads(found[0])
        return result


def prepare(stack: ExitStack, options: argparse.Namespace) -> ProxyBench:
    site = open_site(Lab.up(LAB, chassis=2), **OPTIONS)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24", "fd00:a::/64")
    site.network("other", "10.0.1.0/24", "fd00:b::/64")
    site.machines("net", {**MEMBERS, CLIENT: "chassis1"})
    site.machines("other", OTHERS)
    folder = Path(stack.enter_context(TemporaryDirectory()))
    (folder / "done.lua").write_text(SCRIPT)
    for name in (*MEMBERS, *OTHERS):
        stack.enter_context(haproxy(site.lab, name, folder, DEFAULTS.format(mode="http") + SERVER))
        await_listening(site.lab, name, PORT)
    for agent in agents.start(site.lab.layout, site.url):
        stack.callback(agent.stop)
    made = make(site, "net", tuple(MEMBERS))
    other = make(site, "other", tuple(OTHERS))
    bench = ProxyBench(site, folder / "done.lua", made, other, options.rounds, options.seconds)
    for each in (made, other):
        poll_until(60, "both proxies serve", lambda its=each: len(configurations(site, its)) == 2)
    for version in VERSIONS:
        poll_until(60, "both listeners answer", lambda v=version: all(answers(bench, v, port) for port in (80, 81)))
    return bench


def make(site: LabSite, network: str, members: Sequence[str]) -> Any:
    made = site.cloud.load_balancer.create_load_balancer(
        name=network,
        vip_subnet_id=site.subnet(f"{network}-v4").id,
        additional_vips=[{"subnet_id": site.subnet(f"{network}-v6").id}],
        listeners=[listener(site, members, "HTTP", 80), listener(site, members, "TCP", 81)],
    )
    site.settle(made.id)
    return made


def listener(site: LabSite, members: Sequence[str], protocol: str, port: int) -> dict[str, Any]:
    """Create a listener whose pool has IPv4 and IPv6 members.

    A proxy connects a client to members of both versions; the switch only to members of the client's IP version.
    """
    bodies = [
        {"name": name, "address": site.address(name, version), "protocol_port": PORT}
        for name in members[:2]
        for version in VERSIONS
    ]
    monitor = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "url_path": "/"}
    pool: dict[str, Any] = {"name": protocol, "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": bodies}
    if protocol == "HTTP":
        pool["healthmonitor"] = monitor
    else:
        pool["lb_algorithm"] = "SOURCE_IP_PORT"
    return {"name": protocol, "protocol": protocol, "protocol_port": port, "default_pool": pool}


def vip(balancer: Any, version: int) -> str:
    return balancer.vip_address if version == 4 else balancer.additional_vips[0]["ip_address"]


def answers(bench: ProxyBench, version: int, port: int) -> bool:
    try:
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "2"]
        return bench.site.lab.exec(CLIENT, [*words, f"http://{endpoint(vip(bench.balancer, version), port)}/"]) == "200"
    except LabError:
        return False


def configurations(site: LabSite, balancer: Any) -> dict[str, Path]:
    """Folder of the proxy of this load balancer's network on each chassis."""
    its = folder_name(balancer.vip_network_id)
    folders = (site.lab.layout.directory / "fairlead").glob(f"agent-*.proxies/{its}/pid")
    return {each.parent.parent.name.removeprefix("agent-").removesuffix(".proxies"): each.parent for each in folders}


def place_of(bench: ProxyBench, chassis: str, version: int) -> tuple[str, int]:
    """Address and port at which the proxy of this node accepts connections."""
    text = (configurations(bench.site, bench.balancer)[chassis] / "haproxy.cfg").read_text()
    found = re.search({4: r"bind '?([\d.]+):(\d+)", 6: r"bind '?\[([0-9a-f:]+)\]:(\d+)"}[version], text)
    if found is not None:
        return found[1], int(found[2])
    raise LabError(f"the proxy of {chassis} takes no connections: {text}")


def compare(bench: ProxyBench, version: int) -> Iterator[dict[str, Any]]:
    its = vip(bench.balancer, version)
    ways = {"near": (its, 80), "far": place_of(bench, "chassis2", version), "L4": (its, 81)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(bench.rounds):
        for name in list(ways) if turn % 2 else reversed(ways):
            found = bench.run_wrk(*ways[name])
            rates[name].append(found["requests"] / found["seconds"])
    for one, other in (("near", "far"), ("L4", "near"), ("L4", "far")):
        yield {
            "case": f"IPv{version}, requests a second, {one} / {other}",
            one: round(statistics.median(rates[one])),
            other: round(statistics.median(rates[other])),
            "ratio": spread([a / b for a, b in zip(rates[one], rates[other], strict=True)]),
        }


class ChangeLoop:
    """Makes changes one after the other, and counts processes."""

    def __init__(self, bench: ProxyBench, balancer: Any, more: str, rate: int) -> None:
        """Prepare the changes.

        `more` is a machine that is added and removed. `rate` limits changes per second; 0 is unlimited.
        """
        self._pause = 1 / rate if rate else 0.0
        self._api, self._site, self._balancer, self._more = bench.site.cloud.load_balancer, bench.site, balancer, more
        of = {"load_balancer_id": balancer.id}
        [self._listener] = [each for each in self._api.listeners(**of) if each.name == "HTTP"]
        [self._pool] = [each for each in self._api.pools(loadbalancer_id=balancer.id) if each.name == "HTTP"]
        self._monitor = self._pool.health_monitor_id
        self._dice = random.Random(7)
        self._extra = ""
        self._members = [each.id for each in self._api.members(self._pool)]
        self.made = 0
        self.processes: set[tuple[str, str]] = set()
        self.observe_processes()

    def run(self, ended: threading.Event) -> None:
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            due = max(due, time.monotonic()) + self._pause
            self.made += 1
            if self.made % CHANGES_PER_RELOAD == 0:
                self._api.update_listener(self._listener, timeout_client_data=50_000 + self.made)
            else:
                self._dice.choice(self._changes)()
            self.observe_processes()

    @property
    def _changes(self) -> list[Callable[[], object]]:
        """Possible changes, after each of which at least one member accepts connections."""
        member, pool, dice = self._members[1], self._pool, self._dice
        update = self._api.update_member
        return [
            lambda: update(self._members[0], pool, weight=dice.randint(1, 9)),
            lambda: update(member, pool, weight=dice.randint(0, 9)),
            lambda: update(member, pool, admin_state_up=dice.random() < 0.5),
            lambda: self._api.update_health_monitor(self._monitor, max_retries=dice.randint(1, 3)),
            self._toggle_member,
        ]

    def _toggle_member(self) -> None:
        if self._extra:
            self._api.delete_member(self._extra, self._pool)
            self._extra = ""
        else:
            address = self._site.address(self._more)
            self._extra = self._api.create_member(self._pool, address=address, protocol_port=PORT).id

    def observe_processes(self) -> None:
        for chassis, folder in configurations(self._site, self._balancer).items():
            self.processes.add((chassis, (folder / "pid").read_text()))


@dataclass
class RoundResult:
    asked: Mapping[str, float]
    cpu_seconds: Mapping[str, float]
    """CPU time in seconds, by program."""


def change(bench: ProxyBench, most: int, rate: int) -> Iterator[dict[str, Any]]:
    changing = {
        "own": ChangeLoop(bench, bench.balancer, "more", rate),
        "other": ChangeLoop(bench, bench.other, "more2", rate),
    }
    first = {way: len(each.processes) for way, each in changing.items()}
    rounds: dict[int, list[dict[str, RoundResult]]] = {version: [] for version in VERSIONS}
    with ThreadPoolExecutor(1) as threads:
        while changing["own"].made < most:
            for version, found in rounds.items():
                found.append({way: one_round(bench, version, changing.get(way), threads) for way in CHANGE_MODES})
    for way, each in changing.items():
        each.observe_processes()
        asked = [one[way].asked for found in rounds.values() for one in found]
        yield {
            "case": f"changes of the {way} load balancer under load",
            "changes": each.made,
            "requests": sum(round(one["requests"]) for one in asked),
            "failed": sum(round(one["failed"]) for one in asked),
            "processes replaced, both nodes": len(each.processes) - first[way],
            "changes that needed a reload": f"{50 * (len(each.processes) - first[way]) / each.made:.1f} %",
        }
    for version, found in rounds.items():
        for what, name in (("p50", "median"), ("p999", "longest thousandth")):
            values = {way: [one[way].asked[what] for one in found] for way in CHANGE_MODES}
            yield {
                "case": f"IPv{version}, latency in us, {name}, of {len(found)} rounds",
                **{way: round(statistics.median(its)) for way, its in values.items()},
                **{f"{a} / {b}": ratio(values[a], values[b]) for a, b in (("own", "quiet"), ("other", "quiet"))},
                "own / other": ratio(values["own"], values["other"]),
            }
    for way in CHANGE_MODES:
        spent = [one[way] for found in rounds.values() for one in found]
        programs = sorted({name for one in spent for name in one.cpu_seconds})
        shares = {
            n: sum(r.cpu_seconds.get(n, 0) for r in spent) / sum(r.asked["seconds"] for r in spent) for n in programs
        }
        yield {"case": f"processors busy, {way}", **{n: round(each, 2) for n, each in shares.items() if each >= 0.01}}


def ratio(over: Sequence[float], under: Sequence[float]) -> str:
    return spread([a / b for a, b in zip(over, under, strict=True)])


def one_round(
    bench: ProxyBench, version: int, changing: "ChangeLoop | None", threads: ThreadPoolExecutor
) -> RoundResult:
    ended, before = threading.Event(), cpu_seconds_by_program()
    work = threads.submit(changing.run, ended) if changing is not None else None
    try:
        asked = bench.run_wrk(vip(bench.balancer, version), 80, 4)
    finally:
        ended.set()
    after = cpu_seconds_by_program()
    if work is not None:
        work.result()
    return RoundResult(asked, {name: each - before.get(name, 0.0) for name, each in after.items()})


def cpu_seconds_by_program() -> dict[str, float]:
    """CPU time of all current processes and their reaped children on this machine."""
    found: dict[str, float] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdecimal():
            with suppress(OSError):
                fields = (each / "stat").read_text().rpartition(")")[2].split()
                name = program(each)
                found[name] = found.get(name, 0.0) + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return found


def program(process: Path) -> str:
    """Name of a program. Raises OSError."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    if any("fairlead" in word for word in words[:3]):
        return "agents" if "agent" in words else "server" if "server" in words else "fairlead"
    return "this program" if process.name == str(os.getpid()) else (process / "comm").read_text().strip()


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            bench = prepare(stack, options)
            print(json.dumps({"processors": os.cpu_count(), "load": os.getloadavg()[0]}), flush=True)
            for version in VERSIONS if options.rounds else ():
                for found in compare(bench, version):
                    print(json.dumps(found), flush=True)
            for found in change(bench, options.changes, options.rate):
                print(json.dumps(found), flush=True)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Proxies on the client's node, and changes of them under load.")
    parser.add_argument("--rounds", type=int, default=8, help="interleaved rounds of each way (8)")
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement (3)")
    parser.add_argument("--changes", type=int, default=1000, help="of the listener of HTTP (1000)")
    parser.add_argument("--rate", type=int, default=0, help="of changes, a second; 0 for one after the other (0)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
