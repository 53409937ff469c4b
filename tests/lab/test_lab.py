"""The lab itself: isolated nodes, tunnelled traffic, and no leftovers."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.lab import (
    Lab,
    LabConnectionLost,
    LabError,
    Protocol,
    Traffic,
    Workload,
    names,
    namespaces,
    processes,
    take_down,
)
from fairlead.lab.command import main
from fairlead.lab.errors import InvalidWorkload, LabMismatch, LabNotFound, MissingTools, UnknownNode, WorkloadExists
from fairlead.lab.layout import Layout
from fairlead.lab.namespaces import EPHEMERAL_PORTS
from fairlead.lab.records import SOURCE_PORTS
from fairlead.lab.server import ServerProcess, stop
from harness.lab.labs import assert_nothing_left, lab_name, lab_processes
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.lab

SWITCH = "labnet"
ROUTER_MAC = "02:00:00:00:01:01"
VIPS = {
    "lab-vip4": ("10.0.0.100:80", "10.0.0.11:8080,10.0.0.12:8080"),
    "lab-vip6": ("[fd00::100]:80", "[fd00::11]:8080,[fd00::12]:8080"),
}
BOTH_FAMILIES = pytest.mark.parametrize("address", ["10.0.0.12", "fd00::12"])
BOTH_VIPS = pytest.mark.parametrize("vip", ["10.0.0.100", "fd00::100"])


def workload(number: int, chassis: str, *serve: int) -> Workload:
    return Workload(
        name=f"w{number}",
        chassis=chassis,
        port_id=f"lab-p{number}",
        mac=f"02:00:00:00:00:{number}",
        addresses=(f"10.0.0.{number}/24", f"fd00::{number}/64"),
        gateways=("10.0.0.1", "fd00::1"),
        serve=serve,
    )


WORKLOADS = (workload(11, "chassis1", 8080), workload(12, "chassis2", 8080), workload(13, "chassis1"))


def northbound(lab: Lab, *words: str) -> str:
    return lab.exec("central", ("ovn-nbctl", *words))


def make_network(lab: Lab) -> None:
    """Create a switch with the workloads' ports and a router, and a load balancer per IP version."""
    router_port = ("type=router", "addresses=router", "options:router-port=lab-rp")
    northbound(lab, "ls-add", SWITCH, "--", "lr-add", "lab-r")
    northbound(lab, "lrp-add", "lab-r", "lab-rp", ROUTER_MAC, "10.0.0.1/24", "fd00::1/64")
    northbound(lab, "lrp-add", "lab-r", "lab-rp2", "02:00:00:00:01:02", "10.1.0.1/24", "fd01::1/64")
    northbound(lab, "lsp-add", SWITCH, "lab-rs", "--", "set", "Logical_Switch_Port", "lab-rs", *router_port)
    for each in WORKLOADS:
        addresses = " ".join((each.mac, *(str(interface.ip) for interface in each.interfaces)))
        northbound(lab, "lsp-add", SWITCH, each.port_id, "--", "lsp-set-addresses", each.port_id, addresses)
    for name, (vip, backends) in VIPS.items():
        northbound(
            lab, "lb-add", name, vip, backends, "--", "ls-lb-add", SWITCH, name, "--", "lr-lb-add", "lab-r", name
        )


def unmake_network(lab: Lab) -> None:
    northbound(lab, "ls-del", SWITCH, "--", "lr-del", "lab-r")
    northbound(lab, *(word for name in VIPS for word in ("--", "lb-del", name)))


@pytest.fixture(scope="module")
def network(lab: Lab) -> Iterator[Lab]:
    make_network(lab)
    for each in WORKLOADS:
        lab.add_workload(each)
    lab.wait_bound(*(each.name for each in WORKLOADS))
    lab.wait_synced()
    yield lab
    for each in WORKLOADS:
        lab.remove_workload(each.name)
    unmake_network(lab)


@pytest.fixture
def by_environment(network: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this lab the default of the command line."""
    monkeypatch.setenv("FAIRLEAD_LAB", network.name)


def received(lab: Lab, chassis: str) -> int:
    """Number of bytes that the chassis has received from the fabric."""
    links = json.loads(lab.exec(chassis, ("ip", "-j", "-s", "link", "show", "underlay")))
    return int(links[0]["stats64"]["rx"]["bytes"])


def test_every_chassis_registers(lab: Lab) -> None:
    status = lab.status()
    assert [(node.name, node.registered) for node in status.chassis] == [("chassis1", True), ("chassis2", True)]
    assert status.is_healthy
    assert {"chassis1", "chassis2"} == set(
        lab.exec("central", ("ovn-sbctl", "--bare", "--columns=name", "list", "Chassis")).split()
    )


@BOTH_FAMILIES
def test_the_first_ping_crosses_the_tunnel(network: Lab, address: str) -> None:
    assert " 0% packet loss" in network.exec("w11", ("ping", "-c", "1", "-W", "30", address))


@BOTH_FAMILIES
@pytest.mark.parametrize("protocol", list(Protocol))
def test_answers_cross_the_tunnel(network: Lab, address: str, protocol: Protocol) -> None:
    result = network.traffic("w11", Traffic(to=address, port=8080, protocol=protocol, count=20, concurrency=4))
    assert (result.answers, result.errors) == ({"w12": 20}, {})
    assert len(result.keys) == 20


@BOTH_FAMILIES
def test_a_large_transfer_crosses_the_tunnel(network: Lab, address: str) -> None:
    before = received(network, "chassis2")
    result = network.traffic("w11", Traffic(to=address, port=8080, size=20_000))
    assert (result.answers, result.errors) == ({"w12": 1}, {})
    assert received(network, "chassis2") - before > 20_000


def test_packet_of_the_mtu_fits_the_tunnel_and_a_larger_one_does_not(network: Lab) -> None:
    whole = ("ping", "-c", "1", "-W", "30", "-M", "do", "10.0.0.12", "-s")
    assert " 0% packet loss" in network.exec("w11", (*whole, str(1442 - 28)))
    with pytest.raises(LabError, match="message too long"):
        network.exec("w11", (*whole, str(1443 - 28)))


@BOTH_VIPS
def test_ovn_load_balancer_spreads_connections_over_both_backends(network: Lab, vip: str) -> None:
    result = network.traffic("w13", Traffic(to=vip, port=80, count=100, concurrency=10))
    assert result.errors == {}
    assert {"w11", "w12"} == set(result.answers)
    assert min(result.answers.values()) > 20


@BOTH_VIPS
def test_same_source_port_reaches_the_same_backend(network: Lab, vip: str) -> None:
    asked = Traffic(to=vip, port=80, count=50, concurrency=5, source_port_from=20_000)
    first, second = network.traffic("w13", asked), network.traffic("w13", asked)
    assert set(range(20_000, 20_050)) == set(first.keys)
    assert first.keys == second.keys


def test_ephemeral_ports_are_disjoint_from_explicit_source_ports(network: Lab) -> None:
    asking = (
        "import socket; print(*(socket.create_connection(('10.0.0.12', 8080)).getsockname()[1] for _ in range(200)))"
    )
    chosen = {int(port) for port in network.exec("w13", (sys.executable, "-c", asking)).split()}
    assert chosen <= set(EPHEMERAL_PORTS)
    assert not chosen & set(SOURCE_PORTS)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_held_connection_stays_with_its_backend(network: Lab, protocol: Protocol) -> None:
    with network.hold("w13", Traffic(to="10.0.0.12", port=8080, protocol=protocol)) as held:
        assert [held.exchange("one"), held.exchange("two")] == ["w12 one", "w12 two"]


def test_lost_connection_reports_the_kind_of_error(network: Lab) -> None:
    with pytest.raises(LabConnectionLost) as lost, network.hold("w13", Traffic(to="10.0.0.12", port=9)):
        pass
    assert lost.value.kind == "refused"


FAR = {"refused": 30.0, "timeout": 0.3}
"""Timeouts of clients in seconds: generous for an answer, and short where none can arrive."""


@pytest.mark.parametrize(
    ("to", "port", "protocol", "kind"),
    [
        ("10.0.0.12", 9, Protocol.TCP, "refused"),
        ("fd00::12", 9, Protocol.UDP, "refused"),
        ("10.0.0.77", 80, Protocol.UDP, "timeout"),
        ("fd00::77", 80, Protocol.TCP, "timeout"),
    ],
)
def test_traffic_errors_are_counted_by_kind(network: Lab, to: str, port: int, protocol: Protocol, kind: str) -> None:
    result = network.traffic("w13", Traffic(to=to, port=port, protocol=protocol, count=2, timeout=FAR[kind]))
    assert ({}, {kind: 2}) == (result.answers, result.errors)


def test_udp_server_answers_from_the_requested_address(network: Lab) -> None:
    """A backend that is addressed at a VIP on its loopback must not answer from its first address."""
    network.exec("w12", ("ip", "address", "add", "10.0.0.212/32", "dev", "lo"))
    network.exec("w12", ("ip", "-6", "address", "add", "fd00::212/128", "dev", "lo"))
    for vip in ("10.0.0.212", "fd00::212"):
        result = network.traffic("w12", Traffic(to=vip, port=8080, protocol=Protocol.UDP))
        assert result.answers == {"w12": 1}


OF_AGENTS = re.compile("f[lp][0-9a-f]{12,13}")
"""Devices for probes and proxies. Agents manage them, and they remain in a lab without agents."""


def test_offloads_are_off_on_every_veth(network: Lab) -> None:
    for place in ("fabric", "outside", "chassis1", "chassis2", "w11", "w12", "w13"):
        links = json.loads(network.exec(place, ("ip", "-j", "-d", "link")))
        found = [link["ifname"] for link in links if link.get("linkinfo", {}).get("info_kind") == "veth"]
        for device in [each for each in found if not OF_AGENTS.fullmatch(each)]:
            features = network.exec(place, ("ethtool", "-k", device)).splitlines()
            on = {line.strip() for line in features if line.strip().endswith(": on")}
            watched = ("tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload", "generic-receive")
            assert [line for line in on if line.startswith(watched)] == [], (place, device)


@pytest.mark.parametrize(
    ("target", "options", "output"),
    [
        ("w12", [], 'output to "lab-p12"'),
        ("fd00::12", ["--udp", "53"], 'output to "lab-p12"'),
        ("10.0.0.100", ["--tcp", "80"], 'output to "lab-p1'),
        ("fd00::100", ["--tcp", "80"], 'output to "lab-p1'),
        ("10.1.0.9", ["--icmp"], "lab-rp2"),
    ],
)
def test_trace_completes_the_packet_from_names_and_options(
    network: Lab, capsys: pytest.CaptureFixture[str], target: str, options: list[str], output: str
) -> None:
    assert main(["trace", "--name", network.name, "w13", target, *options]) == 0
    assert output in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["trace", "w13", "nobody"], 1, "it has: w11, w12, w13"),
        (["trace", "nobody", "w13"], 1, "it has: w11, w12, w13"),
        (["exec", "nobody", "--", "true"], 1, "central, fabric, outside, chassis1, chassis2, w11"),
        (["workload", "remove", "nobody"], 1, "it has: w11, w12, w13"),
        (
            [
                "workload",
                "add",
                "x",
                "--chassis",
                "chassis9",
                "--port",
                "p",
                "--mac",
                "02:00:00:00:00:99",
                "--address",
                "10.0.0.9/24",
            ],
            1,
            "it has: chassis1, chassis2",
        ),
        (
            [
                "workload",
                "add",
                "x",
                "--chassis",
                "chassis1",
                "--port",
                "p",
                "--mac",
                "nonsense",
                "--address",
                "10.0.0.9/24",
            ],
            2,
            "not a MAC address",
        ),
    ],
)
def test_command_line_reports_invalid_arguments(
    by_environment: None, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    assert code == main(words)
    assert says in capsys.readouterr().err


def test_workload_is_added_and_removed_without_leftovers(network: Lab) -> None:
    added = Workload(
        name="a-rather-long-name-1", chassis="chassis2", port_id="none", mac="02:00:00:00:00:99", serve=(80,)
    )
    network.add_workload(added)
    assert added == network.workload(added.name)
    with pytest.raises(WorkloadExists):
        network.add_workload(added)
    assert network.status().is_healthy
    network.remove_workload(added.name)
    assert added not in network.workloads()
    assert namespaces.existing(network.layout.namespace(added.name)) == ()
    with pytest.raises(UnknownNode):
        network.remove_workload(added.name)


def test_workload_recreated_on_another_chassis_has_traffic_immediately(network: Lab) -> None:
    for chassis in ("chassis1", "chassis2", "chassis1", "chassis1"):
        network.remove_workload("w13")
        network.add_workload(replace(WORKLOADS[2], chassis=chassis))
        network.wait_bound("w13")
        network.wait_synced()
        result = network.traffic("w13", Traffic(to="10.0.0.12", port=8080))
        assert (result.answers, result.errors) == ({"w12": 1}, {})


def test_moved_workload_keeps_its_connections(network: Lab) -> None:
    with network.hold("w13", Traffic(to="10.0.0.12", port=8080, timeout=20)) as held:
        assert held.exchange("before") == "w12 before"
        for chassis in ("chassis1", "chassis2"):
            network.move_workload("w12", chassis)
            assert network.workload("w12").chassis == chassis
            network.wait_bound("w12")
            assert held.exchange(chassis) == f"w12 {chassis}"


def test_failed_addition_of_a_workload_leaves_nothing(network: Lab) -> None:
    twice = Workload(name="twice", chassis="chassis1", port_id="none", mac="02:00:00:00:00:98", serve=(80, 80))
    with pytest.raises(LabError, match="in use"):
        network.add_workload(twice)
    assert twice not in network.workloads()
    assert namespaces.existing(network.layout.namespace("twice")) == ()


@pytest.mark.parametrize(
    "wrong", [{"name": "central"}, {"name": "A"}, {"mac": "1"}, {"addresses": ("x",)}, {"serve": (0,)}]
)
def test_invalid_workload_is_rejected(wrong: dict[str, object]) -> None:
    right = {"name": "w", "chassis": "chassis1", "port_id": "p", "mac": "02:00:00:00:00:01"}
    with pytest.raises(InvalidWorkload):
        Workload(**{**right, **wrong})  # type: ignore[arg-type]


# Labs of their own: leftovers and repair


@pytest.fixture
def other(machine: None) -> Iterator[Layout]:
    name = lab_name("other")
    take_down(name)
    yield Layout(name=name)
    take_down(name)


def up(layout: Layout) -> tuple[str, ...]:
    """Command that starts a lab."""
    return sys.executable, "-m", "fairlead.lab", "up", "--name", layout.name


def kill(lab: Lab, program: str) -> None:
    """Kill the first process of this program, and wait until it has exited."""
    victim = next(process.pid for process in lab.status().processes if process.program == program)
    assert victim is not None
    pidfd = os.pidfd_open(victim)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    select.select([pidfd], [], [])
    os.close(pidfd)


def mounts() -> list[str]:
    """Mount points, except those of network namespaces."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if f" {namespaces.DIRECTORY}/" not in line]


def test_down_removes_the_whole_lab(other: Layout) -> None:
    lab = Lab.up(other.name, chassis=1)
    lab.add_workload(Workload(name="w", chassis="chassis1", port_id="p", mac="02:00:00:00:00:01", serve=(80,)))
    assert len(lab_processes(other)) == 7
    lab.down()
    assert_nothing_left(other)
    with pytest.raises(LabNotFound):
        Lab.open(other.name)


def test_down_of_a_missing_lab_succeeds(other: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["down", "--name", other.name]) == 0
    assert "not found" in capsys.readouterr().err
    assert_nothing_left(other)


def test_two_labs_run_side_by_side(lab: Lab, other: Layout) -> None:
    second = Lab.up(other.name, chassis=1)
    assert {lab.name, other.name} <= set(names())
    second.down()
    assert lab.status().is_healthy
    assert_nothing_left(other)


def test_lab_runs_programs_from_another_root(other: Layout, tmp_path: Path) -> None:
    """The other root is the system itself in this test.

    Its programs run as those of another root, and no mount is left.
    """
    before = mounts()
    with pytest.raises(LabError, match="is not a directory"):
        Lab.up(other.name, root=str(tmp_path / "nothing"))
    with pytest.raises(MissingTools, match="ovs-vswitchd"):
        Lab.up(other.name, root=str(tmp_path))
    lab = Lab.up(other.name, chassis=1, root="/")
    assert lab.status().root == "/"
    assert (other.programs / "ovn-nbctl").read_text().startswith("#!/bin/sh")
    switch = lab.exec("chassis1", ["ovs-appctl", "-t", "ovs-vswitchd", "version"])
    assert "Open vSwitch" in switch
    with pytest.raises(LabMismatch, match="runs with the programs of /, which --root cannot change"):
        Lab.up(other.name, chassis=1, root="")
    assert before == mounts()
    lab.down()
    assert_nothing_left(other)


def test_up_leaves_a_healthy_lab_unchanged(lab: Lab) -> None:
    before = lab.status()
    assert before == Lab.up(lab.name, chassis=2).status()
    assert before == Lab.up(lab.name).status()
    with pytest.raises(LabMismatch, match="runs with 2 chassis, which --chassis cannot change;"):
        Lab.up(lab.name, chassis=3)


@pytest.mark.extended
def test_command_printed_by_status_restarts_the_server(other: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    """It starts for the same lab, with its number of chassis and its content."""
    listen = f"127.0.0.1:{free_port()}"

    def run(*words: str) -> None:
        """Run in a separate process, because the server must outlive the command."""
        command = [sys.executable, "-m", "fairlead.cli.main", "lab", *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run("up", "--name", other.name, "--zones", "a,a:b,", "--serve", listen)
    server = ServerProcess(url=f"http://{listen}", folder=other.directory / "fairlead")
    for _ in range(2):
        stop(other, server)
        capsys.readouterr()
        assert main(["status", "--name", other.name]) == 0
        words = re.search("start it with: fairlead lab (.*); log", capsys.readouterr().out)
        assert words
        run(*words[1].split())
    lab = Lab.open(other.name)
    status = lab.status()
    assert (len(status.chassis), status.is_healthy) == (3, True)
    said = ["ovn-sbctl", "get", "Chassis", "chassis2", "other_config:ovn-cms-options"]
    assert lab.exec("central", said).strip() == '"availability-zones=a:b"'
    assert status.service[0].startswith(f"listens on {listen}")
    assert main(["down", "--name", other.name]) == 0


@pytest.mark.parametrize("program", ["ovs-vswitchd", "ovn-controller", "ovnsb_db", "answer"])
def test_up_repairs_a_lab_with_a_killed_process(other: Layout, program: str) -> None:
    lab = Lab.up(other.name, chassis=1)
    lab.add_workload(Workload(name="w", chassis="chassis1", port_id="p", mac="02:00:00:00:00:01", serve=(80,)))
    kill(lab, program)
    assert not lab.status().is_healthy
    assert Lab.up(other.name, chassis=1).status().is_healthy


def test_workload_is_removed_while_its_vswitchd_is_dead(other: Layout) -> None:
    lab = Lab.up(other.name, chassis=1)
    lab.add_workload(Workload(name="w", chassis="chassis1", port_id="p", mac="02:00:00:00:00:01"))
    kill(lab, "ovs-vswitchd")
    lab.remove_workload("w")
    assert lab.workloads() == ()


def test_interrupted_up_removes_everything_created(other: Layout) -> None:
    # A shell without job control, as in CI, starts background commands with SIGINT ignored (POSIX, 2.12).
    command = ["env", "--default-signal=INT", *up(other)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()  # read to the end: a closed pipe would change the exit code
    assert (process.returncode, b"error: interrupted" in said) == (1, True)
    assert_nothing_left(other)


def test_two_concurrent_up_commands_create_one_lab(other: Layout) -> None:
    ups = [subprocess.Popen(up(other), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    assert [each.communicate(timeout=DEADLINE)[1] for each in ups] != [b"", b""]
    assert [each.returncode for each in ups] == [0, 0]
    assert Lab.open(other.name).status().is_healthy


@pytest.mark.parametrize("after", ["namespace", "database", "switch", "controller"])
def test_leftovers_of_a_killed_up_are_removed(other: Layout, after: str) -> None:
    signs = {
        "namespace": lambda: bool(namespaces.existing(other.prefix)),
        "database": lambda: Path(other.node_directory("central") / "ovnnb_db.sock").exists(),
        "switch": lambda: Path(other.node_directory("chassis1") / "ovs-vswitchd.pid").exists(),
        "controller": lambda: Path(other.node_directory("chassis1") / "ovn-controller.pid").exists(),
    }
    with subprocess.Popen(up(other), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or signs[after](), after)
        finally:
            process.kill()
    if after == "switch":
        assert Lab.up(other.name).status().is_healthy
    take_down(other.name)
    assert_nothing_left(other)


def test_take_down_ends_a_program_that_has_just_started(other: Layout) -> None:
    """A killed `up` leaves such a program: in no namespace of the lab yet, and without a pidfile."""
    with subprocess.Popen(["sleep", "60"], env={processes.LAB_VARIABLE: str(other.directory)}) as begun:
        wait_until(lambda: processes.is_marked(begun.pid, other.directory))  # its environment appears after the fork
        assert take_down(other.name)
        assert begun.wait() == -signal.SIGTERM
    assert not take_down(other.name)
