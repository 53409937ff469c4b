"""A server under siege, and the tenants who live in it: they work on, and it is measured how."""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx

from harness.fuzz.machine import Machine, machine
from harness.pools import upper_half
from harness.siege.attackers import BALANCER, LXD, NETWORK, TENANTS

COST = 10
"""Of the passwords: 60 ms of a processor for a check. What `htpasswd -B` makes by default takes 2 ms."""
NEWCOMERS = 40
"""Users who log in for the first time while it lasts."""
FILES = 1024
"""That the server may have open: what systemd gives a service that asks for no more."""
MIBIBYTE = 2**20
CIDR = "10.0.0.0/24"


@dataclass
class Figures:
    """What one kind of work took, in seconds, and how often it did not work."""

    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def measure(self, act: Any) -> None:
        began = time.perf_counter()
        try:
            answer = act()
            if answer.status_code >= 400:
                self.failed.append(f"{answer.status_code} {answer.text[:100]}")
        except httpx.HTTPError as error:
            self.failed.append(type(error).__name__)
        self.took.append(time.perf_counter() - began)

    def part(self, hundredth: int) -> float:
        return statistics.quantiles(self.took, n=100, method="inclusive")[hundredth - 1] if len(self.took) > 1 else 0.0

    def __str__(self) -> str:
        words = [f"{1000 * value:.0f}" for value in (self.part(50), self.part(99), max(self.took, default=0))]
        return f"{' / '.join(words)} ms of {len(self.took)}" + (f", {len(self.failed)} failed" if self.failed else "")


@dataclass
class Report:
    """What the honest saw, and what became of the server."""

    writes: Figures = field(default_factory=Figures)
    reads: Figures = field(default_factory=Figures)
    logins: Figures = field(default_factory=Figures)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    memory: int = 0
    """Bytes, highest, that came on top of what it had before."""
    metrics_took: float = 0.0
    metrics_lines: int = 0
    hold: float | None = None
    """Seconds: the longest for which the event loop was held; None where a server does not say it."""
    store: int = 0
    """Bytes of the store's files."""


class Town:
    """The server with its users; `ann` works in the project `shop`."""

    def __init__(self, server: Machine, folder: Path, lxd: str) -> None:
        """`lxd` is where LXD's clients are let in."""
        self.server = server
        self._lxd = lxd
        self._folder = folder
        self._member = ""
        self._balancer = ""

    def client(self, user: str) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, auth=(user, f"password of {user}"), timeout=30)

    def settle(self) -> None:
        with self.client("ann") as ann:
            network = _good(ann.post(f"{NETWORK}/networks", json={"network": {"name": "n"}}))["network"]["id"]
            subnet = {"network_id": network, "cidr": CIDR, "ip_version": 4, "allocation_pools": upper_half(CIDR)}
            _good(ann.post(f"{NETWORK}/subnets", json={"subnet": subnet}))
            member = {"address": "10.0.0.9", "protocol_port": 80}
            pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "SOURCE_IP", "members": [member]}
            listener = {"name": "l", "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
            body = {"name": "shop", "vip_network_id": network, "listeners": [listener]}
            made = _good(ann.post(f"{BALANCER}/loadbalancers", json={"loadbalancer": body}))["loadbalancer"]
            found = made["pools"][0] if made["pools"] else made["listeners"][0]["default_pool"]
            members = f"{BALANCER}/pools/{found['id']}/members"
            self._member = f"{members}/{_good(ann.get(members))['members'][0]['id']}"
            self._balancer = f"{BALANCER}/loadbalancers/{made['id']}"

    def live(self, report: Report, until: threading.Event) -> None:
        """Write and read, on a connection that is kept and on a new one; newcomers log in from time to time."""

        def work() -> None:
            number = 0
            with self.client("ann") as kept:
                while not until.is_set():
                    number += 1
                    body = {"member": {"weight": 1 + number % 50}}
                    report.writes.measure(lambda: kept.put(self._member, json=body))  # noqa: B023 - called at once
                    report.reads.measure(lambda: kept.get(self._balancer))
                    with self.client("ann") as fresh:
                        report.reads.measure(lambda: fresh.get(self._balancer))
                    until.wait(0.05)

        def arrive() -> None:
            for number in range(NEWCOMERS):
                with self.client(f"newcomer{number}") as newcomer:
                    report.logins.measure(lambda: newcomer.get(f"{NETWORK}/networks"))
                if until.wait(1):
                    return

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(work), threads.submit(arrive)]:
                done.result()

    def besiege(self, names: Sequence[str], seconds: float, share: float) -> Report:
        report, until = Report(), threading.Event()
        before = self.server.memory()
        with ThreadPoolExecutor(1) as threads:
            living = threads.submit(self.live, report, until)
            report.outcomes = _attack(self.server.url, self._lxd, names, seconds, share)
            until.set()
            living.result()
        report.memory = _highest_memory(self.server) - before
        with self.client("root") as root:
            root.get("/healthz")
            began = time.perf_counter()
            text = root.get("/metrics").text
            report.metrics_took, report.metrics_lines = time.perf_counter() - began, text.count("\n")
        found = re.search(r"^fairlead_loop_longest_hold_seconds (\S+)", text, re.MULTILINE)
        report.hold = float(found[1]) if found else None
        report.store = sum(path.stat().st_size for path in self._folder.glob("fairlead.db*"))
        return report


def _attack(url: str, lxd: str, names: Sequence[str], seconds: float, share: float) -> dict[str, dict[str, int]]:
    """In a process of their own: what the attackers do must not keep the honest waiting."""
    argv = [sys.executable, "-m", "siege.attackers", url, str(seconds), str(share), ",".join(names)]
    environment = {**os.environ, LXD: lxd, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=seconds * 3 + 120)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


def _highest_memory(server: Machine) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def _good(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


@contextmanager
def town(folder: Path) -> Iterator[Town]:
    users = folder / "users"
    users.touch(mode=0o600)
    lines = [_user("root", "ops", "admin"), _user("ann", "shop", "member")]
    lines += [_user(each.__name__, each.__name__, "member") for each in TENANTS]
    lines += [_user(f"newcomer{number}", "shop", "reader") for number in range(NEWCOMERS)]
    users.write_text("\n".join(lines))
    options = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(users)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        lxd = f"127.0.0.1:{probe.getsockname()[1]}"
    options["FAIRLEAD_LXD_LISTEN"] = lxd
    with machine(folder, options, ["prlimit", f"--nofile={FILES}:{FILES}"]) as server:
        made = Town(server, folder, lxd)
        made.settle()
        yield made


def _user(name: str, project: str, role: str) -> str:
    hashed = bcrypt.hashpw(f"password of {name}".encode(), bcrypt.gensalt(COST)).decode()
    return f"{name}:{hashed}:{project}:{role}"
