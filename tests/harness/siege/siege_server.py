"""A server under attack, and tenants that keep working: failures, and for `make siege` the time of each request."""

import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx

from harness.event_loop_lag import longest_lag
from harness.fuzz.machine import FuzzedServer, fuzzed_server
from harness.pools import upper_half
from harness.ports import free_port
from harness.siege.attackers import BALANCER, LXD, NETWORK, TENANTS
from harness.waiting import DEADLINE, wait_until

BCRYPT_COST = 10
"""bcrypt cost of the passwords, 60 ms of CPU per check; the default of `htpasswd -B` takes 2 ms"""
NEW_USERS = 40
"""Users that log in for the first time during the attack."""
MAX_OPEN_FILES = 1024
"""Maximum number of open files of the server: systemd's default for services."""
REGULAR_TIMEOUT = 60.0  # seconds; without limits on attackers a log-in took 120
MEBIBYTE = 2**20
CIDR = "10.0.0.0/24"


@dataclass
class RequestTimes:
    """Requests of one kind: seconds that each took, and failures."""

    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unavailable: int = 0
    """Responses with status 503, after which a client may retry."""

    def measure(self, act: Any) -> None:
        began = time.perf_counter()
        try:
            answer = act()
            if answer.status_code == 503:
                self.unavailable += 1
            elif answer.status_code >= 400:
                self.failed.append(f"{answer.status_code} {answer.text[:100]}")
        except httpx.HTTPError as error:
            self.failed.append(type(error).__name__)
        self.took.append(time.perf_counter() - began)

    @property
    def done(self) -> int:
        return len(self.took) - len(self.failed) - self.unavailable

    def percentile(self, hundredth: int) -> float:
        return statistics.quantiles(self.took, n=100, method="inclusive")[hundredth - 1] if len(self.took) > 1 else 0.0

    def __str__(self) -> str:
        words = [
            f"{1000 * value:.0f}" for value in (self.percentile(50), self.percentile(99), max(self.took, default=0))
        ]
        bad = {"deferred": self.unavailable, "failed": len(self.failed)}
        return ", ".join(
            [f"{' / '.join(words)} ms of {len(self.took)}", *(f"{bad[each]} {each}" for each in bad if bad[each])]
        )


@dataclass
class SiegeReport:
    """Results of the regular tenants, and the state of the server."""

    writes: RequestTimes = field(default_factory=RequestTimes)
    reads: RequestTimes = field(default_factory=RequestTimes)
    logins: RequestTimes = field(default_factory=RequestTimes)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    memory: int = 0
    """Peak growth of memory in bytes."""
    metrics_took: float = 0.0
    metrics_lines: int = 0
    loop_lag: float | None = None
    """Longest time in seconds without a return to the event loop; None if the server does not report it."""
    store: int = 0
    """Size of the store's files in bytes."""

    def fewest_completed(self) -> int:
        """Number of completed requests of the kind with the fewest."""
        return min(each.done for each in (self.writes, self.reads, self.logins))


@dataclass(frozen=True, kw_only=True)
class SiegeOptions:
    seconds: float
    """Minimum duration of an attack."""
    share: float
    """Share of the observed counts of attackers."""
    min_regular_requests: int
    """Minimum number of regular requests of each kind before the attack ends."""


class SiegeServer:
    """The server with its users; `ann` works in the project `shop`."""

    def __init__(self, server: FuzzedServer, folder: Path, lxd: str) -> None:
        """Prepare the clients. `lxd` is the address of LXD's listener."""
        self.server = server
        self._lxd = lxd
        self._folder = folder
        self._member = ""
        self._balancer = ""

    def client(self, user: str) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, auth=(user, f"password of {user}"), timeout=REGULAR_TIMEOUT)

    def settle(self) -> None:
        with self.client("ann") as ann:
            network = _checked(ann.post(f"{NETWORK}/networks", json={"network": {"name": "n"}}))["network"]["id"]
            subnet = {"network_id": network, "cidr": CIDR, "ip_version": 4, "allocation_pools": upper_half(CIDR)}
            _checked(ann.post(f"{NETWORK}/subnets", json={"subnet": subnet}))
            member = {"address": "10.0.0.9", "protocol_port": 80}
            pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "SOURCE_IP", "members": [member]}
            listener = {"name": "l", "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
            body = {"name": "shop", "vip_network_id": network, "listeners": [listener]}
            made = _checked(ann.post(f"{BALANCER}/loadbalancers", json={"loadbalancer": body}))["loadbalancer"]
            found = made["pools"][0] if made["pools"] else made["listeners"][0]["default_pool"]
            members = f"{BALANCER}/pools/{found['id']}/members"
            self._member = f"{members}/{_checked(ann.get(members))['members'][0]['id']}"
            self._balancer = f"{BALANCER}/loadbalancers/{made['id']}"

    def run_tenants(self, report: SiegeReport, ended: threading.Event) -> None:
        """Write and read, on a persistent and on a new connection; new users log in from time to time."""

        def work() -> None:
            number = 0
            with self.client("ann") as kept:
                while not ended.is_set():
                    number += 1
                    body = {"member": {"weight": 1 + number % 50}}
                    report.writes.measure(lambda: kept.put(self._member, json=body))  # noqa: B023 - called immediately
                    report.reads.measure(lambda: kept.get(self._balancer))
                    with self.client("ann") as fresh:
                        report.reads.measure(lambda: fresh.get(self._balancer))
                    ended.wait(0.05)

        def arrive() -> None:
            for number in range(NEW_USERS):
                with self.client(f"newcomer{number}") as newcomer:
                    report.logins.measure(lambda: newcomer.get(f"{NETWORK}/networks"))
                if ended.wait(1):
                    return

        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(work), threads.submit(arrive)]:
                done.result()

    def run_attack(self, names: Sequence[str], siege: SiegeOptions) -> SiegeReport:
        """Attack until the seconds are over and the regular tenants have made the minimum number of requests."""
        report, ended = SiegeReport(), threading.Event()
        before = self.server.memory()
        with ThreadPoolExecutor(1) as threads, _attackers(self.server.url, self._lxd, names, siege.share) as attackers:
            living = threads.submit(self.run_tenants, report, ended)
            try:
                attackers.attack(siege.seconds)
                wait_until(
                    lambda: living.done() or report.fewest_completed() >= siege.min_regular_requests,
                    f"{siege.min_regular_requests} of each request",
                )
            finally:
                ended.set()
            report.outcomes = attackers.outcomes()
            living.result()
        report.memory = _highest_memory(self.server) - before
        with self.client("root") as root:
            root.get("/healthz")
            began = time.perf_counter()
            text = root.get("/metrics").text
            report.metrics_took, report.metrics_lines = time.perf_counter() - began, text.count("\n")
        report.loop_lag = longest_lag(text)
        report.store = sum(path.stat().st_size for path in self._folder.glob("fairlead.db*"))
        return report


@dataclass(frozen=True)
class _Attackers:
    process: "subprocess.Popen[str]"

    def attack(self, seconds: float) -> None:
        """Wait for this time, or until the attackers have finished."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def outcomes(self) -> dict[str, dict[str, int]]:
        """End the attack, and return the outcomes of each attacker."""
        printed, _ = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0
        found: dict[str, dict[str, int]] = json.loads(printed)
        return found


@contextmanager
def _attackers(url: str, lxd: str, names: Sequence[str], share: float) -> Iterator[_Attackers]:
    """Attackers in a process of their own, so that their work does not delay the regular tenants."""
    argv = [sys.executable, "-m", "harness.siege.attackers", url, str(share), ",".join(names)]
    environment = {**os.environ, LXD: lxd, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield _Attackers(process)
        finally:
            process.kill()


def _highest_memory(server: FuzzedServer) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def _checked(answer: httpx.Response) -> Any:
    assert answer.is_success, answer.text
    return answer.json()


@contextmanager
def siege_server(folder: Path) -> Iterator[SiegeServer]:
    users = folder / "users"
    users.touch(mode=0o600)
    lines = [_user("root", "ops", "admin"), _user("ann", "shop", "member")]
    lines += [_user(each.__name__, each.__name__, "member") for each in TENANTS]
    lines += [_user(f"newcomer{number}", "shop", "reader") for number in range(NEW_USERS)]
    users.write_text("\n".join(lines))
    options = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(users)}
    lxd = f"127.0.0.1:{free_port()}"
    options["FAIRLEAD_LXD_LISTEN"] = lxd
    with fuzzed_server(folder, options, ["prlimit", f"--nofile={MAX_OPEN_FILES}:{MAX_OPEN_FILES}"]) as server:
        made = SiegeServer(server, folder, lxd)
        made.settle()
        yield made


def _user(name: str, project: str, role: str) -> str:
    hashed = bcrypt.hashpw(f"password of {name}".encode(), bcrypt.gensalt(BCRYPT_COST)).decode()
    return f"{name}:{hashed}:{project}:{role}"
