"""Hosts and routers of a lab of plain hosts, machines behind them, and servers on the hosts themselves."""

import sys

from fairlead.lab import processes
from fairlead.lab.native import Machine, NativeLab
from harness.waiting import wait_equal

HOSTS = ("host1", "host2", "host3")

ROUTERS = ("router1", "router2")


def machine(lab: NativeLab, name: str, chassis: str, number: int, *serve: int) -> Machine:
    return Machine(name=name, chassis=chassis, addresses=lab.chassis(chassis).addresses(number), serve=serve)


def serve(lab: NativeLab, host: str) -> None:
    files = ("--pidfile", str(lab.layout.node_directory(host) / "answer.pid"))
    lab.exec(
        host, (sys.executable, "-m", "fairlead.lab.echo_server", "--name", host, "--port", "80", "--detach", *files)
    )


def pid_of(lab: NativeLab, host: str) -> int:
    """PID of the server that runs on the host itself."""
    pid = processes.read_pidfile(lab.layout.node_directory(host) / "answer.pid")
    assert pid is not None
    return pid


def await_routes(lab: NativeLab, vip: str, *hosts: str) -> None:
    """Wait until both routers have routes to the VIP via exactly these hosts."""
    for router in ROUTERS:
        wait_equal(lambda router=router: lab.next_hops(router, vip), frozenset(hosts))
