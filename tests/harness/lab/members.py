"""Members of the lab as machines that fail and recover, and the server's reports of their health."""

import os
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from fairlead.lab import Protocol, Traffic, TrafficResult, namespaces, processes
from fairlead.lab.layout import workload_device
from harness.lab.counters import read_counter
from harness.lab.site import CreatedBalancer, LabSite
from harness.waiting import wait_equal

TIMEOUTS = {Protocol.TCP: 30.0, Protocol.UDP: 3.0}
"""Seconds. A lost datagram is not sent again; a lost SYN is, and goes to the same member."""


def end_process(site: LabSite, name: str) -> None:
    namespace = site.lab.layout.namespace(name)
    processes.end(namespaces.processes([namespace]), lambda pid: pid in namespaces.processes([namespace]))


def start_process(site: LabSite, name: str) -> None:
    folder = site.lab.layout.node_directory(name)
    files = ("--pidfile", str(folder / "answer.pid"), "--log-file", str(folder / "answer.log"))
    argv = (sys.executable, "-m", "fairlead.lab.echo_server", "--name", name, "--port", "8080", *files, "--detach")
    site.lab.exec(name, argv)


def cut_cable(site: LabSite, name: str) -> None:
    """Cut the machine's link, so nothing answers on its behalf either."""
    site.lab.exec(site.lab.workload(name).chassis, ["ip", "link", "set", workload_device(name), "down"])


def mend_cable(site: LabSite, name: str) -> None:
    site.lab.exec(site.lab.workload(name).chassis, ["ip", "link", "set", workload_device(name), "up"])


def unplug(site: LabSite, name: str) -> None:
    """Unbind the machine's port, as when a virtual machine is stopped."""
    chassis, device = site.lab.workload(name).chassis, workload_device(name)
    site.lab.exec(chassis, ["ovs-vsctl", "remove", "Interface", device, "external_ids", "iface-id"])


def plug(site: LabSite, name: str) -> None:
    workload = site.lab.workload(name)
    port = f'external_ids:iface-id="{workload.port_id}"'
    site.lab.exec(workload.chassis, ["ovs-vsctl", "set", "Interface", workload_device(name), port])


def ask(site: LabSite, client: str, balancer: CreatedBalancer, protocol: Protocol, **more: int) -> TrafficResult:
    traffic = Traffic(
        to=balancer.vip,
        port=80,
        protocol=protocol,
        timeout=TIMEOUTS[protocol],
        **{"count": 24, "concurrency": 12, **more},
    )
    return site.lab.traffic(client, traffic)


def retransmitted_segments(site: LabSite, place: str) -> int:
    """TCP segments that the kernel of a workload has retransmitted (RFC 4022, tcpRetransSegs)."""
    return read_counter(site.lab.exec(place, ["cat", "/proc/net/snmp"]), "Tcp", "RetransSegs")


def statuses(site: LabSite, name: str) -> dict[str, int]:
    """Numbers of the metric `name` by status, without those that are 0."""
    with urllib.request.urlopen(f"{site.url}/metrics", timeout=60) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"{name}{{")]
    numbers = {line.split('"')[1]: int(float(line.split()[1])) for line in lines}
    return {status: number for status, number in numbers.items() if number}


def members(site: LabSite) -> dict[str, int]:
    return statuses(site, "fairlead_members")


def wait_members(site: LabSite, **wanted: int) -> None:
    """Wait until the server reports these numbers of members by status."""
    wait_equal(lambda: members(site), wanted)


def wait_replicas(site: LabSite, **wanted: int) -> None:
    wait_equal(lambda: statuses(site, "fairlead_local_ip_replicas"), wanted)


HTTP = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2}


@contextmanager
def frozen_process(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)
