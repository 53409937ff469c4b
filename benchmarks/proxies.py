#!/usr/bin/env python3
"""What a proxy on the client's own node is worth, and what changes under load cost those who ask.

Needs root, OVN, Open vSwitch, wrk and HAProxy. Two nodes with an agent each, a client on the first, members on both.

Requests on connections that stay, in rounds in which three ways take turns, so that whatever else the machine does
touches all of them; each ratio is of one round:

* near: a listener of HTTP, by the HAProxy on the client's node.
* far: the same listener of the HAProxy on the other node, asked at the proxy's own address.
* L4: a listener of TCP, which the switch leads to the same members.

Then changes of the listener of HTTP (weights, members that come and go, that are switched off and on, monitors, and its
time-outs), one after the other, while requests go on: those that fail, the processes that were replaced, and the
longest thousandth of the latencies beside that of rounds without a change. Both nodes are on this one machine.
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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dataplane import DEFAULTS, await_listening, endpoint, haproxy, spread
from fairlead.lab import Lab, LabError, agents, take_down
from fairlead.lab.databases import until
from lab.site import Site, open_site

LAB = "benchproxies"
OPTIONS = {"FAIRLEAD_PROBES_BY": "agents", "FAIRLEAD_PROVIDERS_NAMES": "fairlead=fairlead,ovn=ovn"}
PORT, CLIENT = 8100, "client"
MEMBERS = {"here": "chassis1", "there": "chassis2", "more": "chassis2"}
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
RELOADED_EVERY = 100
"""Changes, of which one needs another process: a listener's own values change seldom."""


@dataclass
class Bench:
    site: Site
    script: Path
    balancer: Any
    rounds: int
    seconds: int

    def ask(self, address: str, port: int, connections: int = 8) -> Mapping[str, float]:
        """One run of wrk by the client."""
        url = f"http://{endpoint(address, port)}/"
        words = ["wrk", "-t1", f"-c{connections}", f"-d{self.seconds}s", "-s", str(self.script), url]
        said = self.site.lab.exec(CLIENT, words, timeout=self.seconds + 30)
        found = re.search(r"\{.*\}", said)
        if found is None:
            raise LabError(f"no answer from {url}: {said}")
        result: Mapping[str, float] = json.loads(found[0])
        return result


def prepare(stack: ExitStack, options: argparse.Namespace) -> Bench:
    site = open_site(Lab.up(LAB, chassis=2), **OPTIONS)
    stack.callback(site.close)
    site.network("net", "10.0.0.0/24")
    site.machines("net", {**MEMBERS, CLIENT: "chassis1"})
    folder = Path(stack.enter_context(TemporaryDirectory()))
    (folder / "done.lua").write_text(SCRIPT)
    for name in MEMBERS:
        stack.enter_context(haproxy(site.lab, name, folder, DEFAULTS.format(mode="http") + SERVER))
        await_listening(site.lab, name, PORT)
    for agent in agents.start(site.lab.layout, site.url):
        stack.callback(agent.stop)
    made = site.cloud.load_balancer.create_load_balancer(
        name="web",
        vip_subnet_id=site.subnet("net-v4").id,
        listeners=[listener(site, "HTTP", 80), listener(site, "TCP", 81)],
    )
    site.settle(made.id)
    bench = Bench(site, folder / "done.lua", made, options.rounds, options.seconds)
    until(60, "both proxies serve", lambda: len(configurations(site)) == 2)
    until(60, "both listeners answer", lambda: all(answers(bench, port) for port in (80, 81)))
    return bench


def listener(site: Site, protocol: str, port: int) -> dict[str, Any]:
    bodies = [{"name": name, "address": site.address(name), "protocol_port": PORT} for name in ("here", "there")]
    monitor = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "url_path": "/"}
    pool: dict[str, Any] = {"name": protocol, "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": bodies}
    if protocol == "HTTP":
        pool["healthmonitor"] = monitor
    else:
        pool["lb_algorithm"] = "SOURCE_IP_PORT"
    return {"name": protocol, "protocol": protocol, "protocol_port": port, "default_pool": pool}


def answers(bench: Bench, port: int) -> bool:
    try:
        words = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-m", "2"]
        return bench.site.lab.exec(CLIENT, [*words, f"http://{bench.balancer.vip_address}:{port}/"]) == "200"
    except LabError:
        return False


def configurations(site: Site) -> dict[str, Path]:
    """Chassis -> the folder of its proxy."""
    folders = (site.lab.layout.directory / "fairlead").glob("agent-*.proxies/*/pid")
    return {each.parent.parent.name.removeprefix("agent-").removesuffix(".proxies"): each.parent for each in folders}


def place_of(site: Site, chassis: str) -> tuple[str, int]:
    """Where the proxy of this node takes connections."""
    text = (configurations(site)[chassis] / "haproxy.cfg").read_text()
    found = re.search(r"bind '?([\d.]+):(\d+)", text)
    if found is None:
        raise LabError(f"the proxy of {chassis} takes no connections: {text}")
    return found[1], int(found[2])


def compare(bench: Bench) -> Iterator[dict[str, Any]]:
    vip = bench.balancer.vip_address
    ways = {"near": (vip, 80), "far": place_of(bench.site, "chassis2"), "L4": (vip, 81)}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(bench.rounds):
        for name in list(ways) if turn % 2 else reversed(ways):
            found = bench.ask(*ways[name])
            rates[name].append(found["requests"] / found["seconds"])
    for one, other in (("near", "far"), ("L4", "near"), ("L4", "far")):
        yield {
            "case": f"requests a second, {one} / {other}",
            one: round(statistics.median(rates[one])),
            other: round(statistics.median(rates[other])),
            "ratio": spread([a / b for a, b in zip(rates[one], rates[other], strict=True)]),
        }


class Changing:
    """Makes one change after the other, and counts the processes that it has seen."""

    def __init__(self, bench: Bench, most: int) -> None:
        self._api, self._site, self._most = bench.site.cloud.load_balancer, bench.site, most
        [self._listener] = [each for each in self._api.listeners() if each.name == "HTTP"]
        [self._pool] = [each for each in self._api.pools() if each.name == "HTTP"]
        self._monitor = self._pool.health_monitor_id
        self._dice = random.Random(7)
        self._extra = ""
        self._members = [each.id for each in self._api.members(self._pool)]
        self.made = 0
        self.processes: set[tuple[str, str]] = set()
        self.look()

    def run(self, ended: threading.Event) -> None:
        while not ended.is_set() and self.made < self._most:
            self.made += 1
            if self.made % RELOADED_EVERY == 0:
                self._api.update_listener(self._listener, timeout_client_data=50_000 + self.made)
            else:
                self._dice.choice(self._changes)()
            self.look()

    @property
    def _changes(self) -> list[Callable[[], object]]:
        """One member always takes connections."""
        member, pool, dice = self._members[1], self._pool, self._dice
        update = self._api.update_member
        return [
            lambda: update(self._members[0], pool, weight=dice.randint(1, 9)),
            lambda: update(member, pool, weight=dice.randint(0, 9)),
            lambda: update(member, pool, admin_state_up=dice.random() < 0.5),
            lambda: self._api.update_health_monitor(self._monitor, max_retries=dice.randint(1, 3)),
            self._come_or_go,
        ]

    def _come_or_go(self) -> None:
        if self._extra:
            self._api.delete_member(self._extra, self._pool)
            self._extra = ""
        else:
            address = self._site.address("more")
            self._extra = self._api.create_member(self._pool, address=address, protocol_port=PORT).id

    def look(self) -> None:
        for chassis, folder in configurations(self._site).items():
            self.processes.add((chassis, (folder / "pid").read_text()))


def change(bench: Bench, most: int) -> Iterator[dict[str, Any]]:
    changing, vip = Changing(bench, most), bench.balancer.vip_address
    first = len(changing.processes)
    quiet, busy = [], []
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        while changing.made < most:
            quiet.append(bench.ask(vip, 80, 4))
            ended = threading.Event()
            work = threads.submit(changing.run, ended)
            try:
                busy.append(bench.ask(vip, 80, 4))
            finally:
                ended.set()
            work.result()
    changing.look()
    yield {
        "case": "changes under load",
        "changes": changing.made,
        "seconds": round(time.monotonic() - began),
        "requests": sum(round(each["requests"]) for each in busy),
        "failed": sum(round(each["failed"]) for each in busy),
        "failed without changes": sum(round(each["failed"]) for each in quiet),
        "processes replaced, both nodes": len(changing.processes) - first,
        "changes that needed a reload": f"{50 * (len(changing.processes) - first) / changing.made:.1f} %",
    }
    for what, name in (("p50", "median"), ("p999", "longest thousandth")):
        there = [each[what] for each in busy]
        yield {
            "case": f"latency in us, {name}, under changes / quiet",
            "under changes": round(statistics.median(there)),
            "quiet": round(statistics.median(each[what] for each in quiet)),
            "ratio": spread([a[what] / b[what] for a, b in zip(busy, quiet, strict=True)]),
        }


def main() -> int:
    options = parse_arguments()
    take_down(LAB)
    try:
        with ExitStack() as stack:
            stack.callback(take_down, LAB)
            bench = prepare(stack, options)
            print(json.dumps({"processors": os.cpu_count(), "load": os.getloadavg()[0]}), flush=True)
            for found in compare(bench):
                print(json.dumps(found), flush=True)
            for found in change(bench, options.changes):
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
