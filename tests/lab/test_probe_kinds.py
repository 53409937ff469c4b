"""End to end: every type of monitor with agents, on servers that work, fail, are slow, silent or half open, or reset.

The machines belong to two tenants with identical addresses. A server that fails on one works on the other.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.lab import Lab, agents
from fairlead.model.documents.checks import HttpCheck
from harness.lab import failing_servers
from harness.lab.site import LabSite, open_site
from harness.probed import CASES, ProbeCase, type_of
from harness.waiting import wait_equal

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

CLOSED = 8999
SCTP = {
    "sctp right": (7001, ""),
    "sctp refuses": (7002, "connection refused"),
    "sctp silent": (7004, "no answer in 1 s"),
}
"""Port of each case, and the error of the failing server."""
RHYTHM = {"delay": 2, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
"""Timing with the timeout of the error texts in `harness.probed`."""


@pytest.fixture(scope="module")
def site(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabSite]:
    """The machines `ill` and `well`, of two networks."""
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents", FAIRLEAD_HEALTH_MAX_PROBES_PER_SECOND_PER_PORT="-1")
    certificate = make_certificate(tmp_path_factory.mktemp("tls"))
    with ExitStack() as stack:
        stack.callback(site.close)
        for kind in ("ill", "well"):
            site.network(kind, "10.0.0.0/24", "fd00:a::/64")
            site.machines(kind, {kind: "chassis1"}, at={kind: failing_servers.ADDRESSES})
            stack.callback(lab.remove_workload, kind)
            stack.enter_context(serving(lab, kind, certificate))
        for agent in agents.start(lab.layout, site.url):
            stack.callback(agent.stop)
        yield site


def make_certificate(folder: Path) -> Path:
    """Certificate with a name that no client requests, with its key."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=wrong.example"
    made = [folder / name for name in ("key.pem", "chain.pem")]
    command = ["openssl", *words.split(), "-keyout", str(made[0]), "-out", str(made[1])]
    subprocess.run(command, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text("".join(each.read_text() for each in made))
    return both


@contextmanager
def serving(lab: Lab, machine: str, certificate: Path) -> Iterator[None]:
    command = lab.command(machine, [sys.executable, failing_servers.__file__, machine, str(certificate)])
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**command.full_environment(), "PYTHONPATH": path}
    with subprocess.Popen(command.argv, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        try:
            yield
        finally:
            process.kill()


def monitor(case: ProbeCase) -> dict[str, Any]:
    asked: dict[str, Any] = {"type": type_of(case.check).value, **RHYTHM}
    if isinstance(case.check, HttpCheck):
        asked["expected_codes"] = ",".join(map(str, sorted(case.check.codes)))
    return asked


def listener(port: int, name: str, address: str, number: int, asked: Mapping[str, Any]) -> dict[str, Any]:
    protocol = {"UDP-CONNECT": "UDP", "SCTP": "SCTP"}.get(asked["type"], "TCP")
    pool = {
        "name": name,
        "protocol": protocol,
        "lb_algorithm": "SOURCE_IP_PORT",
        "members": [{"name": name, "address": address, "protocol_port": number}],
        "healthmonitor": asked,
    }
    return {"name": name, "protocol": protocol, "protocol_port": port, "default_pool": pool}


@contextmanager
def asked(site: LabSite, kind: str, version: int) -> Iterator[str]:
    """A load balancer with a listener, a member and a monitor for each case."""
    address = failing_servers.ADDRESSES[version == 6]
    cases = [
        (name, number, monitor(case)) for number, (name, case) in enumerate(CASES.items(), failing_servers.FIRST_PORT)
    ]
    closed = [f"{each} closed" for each in ("TCP", "HTTP", "HTTPS", "TLS-HELLO", "UDP-CONNECT")]
    # Octavia's API requires a delay of more than three seconds for datagrams
    cases += [(name, CLOSED, {"type": name.split()[0], **RHYTHM, "delay": 4}) for name in closed]
    cases += [(name, number, {"type": "SCTP", **RHYTHM, "delay": 4}) for name, (number, _) in SCTP.items()]
    cases += [("PING", 1, {"type": "PING", **RHYTHM})]
    listeners = [
        listener(port, name, address, number, monitor_) for port, (name, number, monitor_) in enumerate(cases, 1000)
    ]
    made = site.cloud.load_balancer.create_load_balancer(
        name=f"{kind}{version}", vip_subnet_id=site.subnet(f"{kind}-v{version}").id, listeners=listeners
    )
    try:
        yield f"{kind}{version}"
    finally:
        site.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)


NO_ANSWER = re.compile(r"\bno answer in \d+ s")


def seen(site: LabSite, balancer: str) -> dict[str, tuple[str, str]]:
    """Status and error of each member. Agents of a slow node wait longer for an answer, so any time counts as 1 s."""
    rows = httpx.get(f"{site.url}/operator/health").json()["health"]
    found = (each for each in rows if each["owner_name"] == balancer)
    return {each["member"]: (each["status"], NO_ANSWER.sub("no answer in 1 s", each["error"])) for each in found}


def wanted(kind: str) -> dict[str, tuple[str, str]]:
    ill = {name: case.error if kind == "ill" else "" for name, case in CASES.items()}
    closed = dict.fromkeys(("TCP", "HTTP", "HTTPS", "TLS-HELLO", "UDP-CONNECT"), "connection refused")
    ill |= {name: error if kind == "ill" else "" for name, (_, error) in SCTP.items()}
    errors = {**ill, **{f"{name} closed": error for name, error in closed.items()}, "PING": ""}
    return {name: ("ERROR", error) if error else ("ONLINE", "") for name, error in errors.items()}


def test_every_monitor_type_reports_status_and_error_of_each_member(site: LabSite):
    with ExitStack() as stack:
        names = {
            stack.enter_context(asked(site, kind, version)): kind for kind in ("ill", "well") for version in (4, 6)
        }

        def wrong() -> dict[str, object]:
            found = {name: (seen(site, name), wanted(kind)) for name, kind in names.items()}
            return {
                f"{name}: {key}": (is_seen.get(key), right[key])
                for name, (is_seen, right) in found.items()
                for key in right
                if is_seen.get(key) != right[key]
            }

        wait_equal(wrong, {})
