"""The lab of plain hosts: routes as operators configure them, and failures of the fabric.

The hosts have no agent here: the tests add VIPs to `lo`, and a server on each host answers with the host's name.
"""

import json
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fairlead.lab import LabError, Protocol, Traffic, namespaces, processes, server, take_down
from fairlead.lab.command import main
from fairlead.lab.errors import InvalidWorkload, LabMismatch, UnknownNode, WorkloadExists
from fairlead.lab.layout import Layout
from fairlead.lab.native import Machine, NativeLab, plan, routing
from harness.lab.labs import assert_nothing_left, lab_name
from harness.lab.native_hosts import HOSTS, ROUTERS, await_routes, machine, pid_of, serve
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.lab

VIPS = ("203.0.113.10", "2001:db8:f::10")
BOTH = pytest.mark.parametrize("vip", VIPS)


@pytest.fixture(scope="module")
def site(native: NativeLab) -> Iterator[NativeLab]:
    """A client outside, one behind a host, and a server behind each host as well as on the host itself."""
    added = [machine(native, "client", "outside", 10), machine(native, "inner", "host1", 10)]
    added += [machine(native, f"web{host[-1]}", host, 11, 8080) for host in HOSTS]
    for each in added:
        native.add_workload(each)
    for host in HOSTS:
        serve(native, host)
    yield native
    for host in HOSTS:
        processes.end([pid_of(native, host)], lambda pid: processes.is_marked(pid, native.layout.directory))
    for each in added:
        native.remove_workload(each.name)


@contextmanager
def announced(lab: NativeLab, vip: str, *hosts: str) -> Iterator[None]:
    """Add the VIP to `lo` of these hosts, and wait until both routers have the routes."""
    hold(lab, "add", vip, hosts)
    try:
        await_routes(lab, vip, *hosts)
        yield
    finally:
        hold(lab, "del", vip, hosts)
        await_routes(lab, vip)


def hold(lab: NativeLab, change: str, vip: str, hosts: tuple[str, ...]) -> None:
    for host in hosts:
        lab.exec(host, ("ip", "address", change, vip, "dev", "lo"))


def ask(lab: NativeLab, vip: str, count: int = 60) -> dict[int, str]:
    """Answering host of each source port of a fixed set."""
    asked = Traffic(to=vip, port=80, count=count, concurrency=10, source_port_from=20_000)
    result = lab.traffic("client", asked)
    assert result.errors == {}
    return dict(result.keys)


@pytest.mark.parametrize("client", ["client", "inner"])
@pytest.mark.parametrize("protocol", list(Protocol))
def test_machines_are_reached_through_the_fabric(site: NativeLab, client: str, protocol: Protocol) -> None:
    for number, host in enumerate(HOSTS, 1):
        for address in site.workload(f"web{number}").addresses:
            result = site.traffic(client, Traffic(to=address, port=8080, protocol=protocol, count=5))
            assert (result.answers, result.errors) == ({f"web{number}": 5}, {}), (host, address)


@BOTH
def test_an_address_on_lo_is_announced_and_withdrawn(site: NativeLab, vip: str) -> None:
    hold(site, "add", vip, ("host1",))
    await_routes(site, vip, "host1")
    hold(site, "add", vip, ("host2",))
    await_routes(site, vip, "host1", "host2")
    hold(site, "del", vip, ("host1", "host2"))
    await_routes(site, vip)


BEGIN, END = ("192.0.2.254/32", "2001:db8:fffe::/128"), ("192.0.2.255/32", "2001:db8:ffff::/128")
"""Unused routes of each IP version, which mark the beginning and the end of a monitor's output."""


@contextmanager
def routes_of(lab: NativeLab, place: str, version: int) -> Iterator[list[str]]:
    """Changes of routes that the kernel reports during the context, for use after it."""
    ip, heard = ("ip", f"-{version}"), list[str]()
    watching = lab.command(place, (*ip, "monitor", "route"))

    def mark(prefix: str) -> None:
        for change in ("add", "del"):
            lab.exec(place, (*ip, "route", change, "blackhole", prefix))

    with subprocess.Popen(watching.argv, env=watching.full_environment(), stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None

        def marked() -> bool:
            mark(BEGIN[version == 6])
            return bool(select.select([monitor.stdout], [], [], 0.1)[0])

        try:
            wait_until(marked)
            yield heard
            mark(END[version == 6])
            for line in iter(monitor.stdout.readline, ""):
                if END[version == 6].partition("/")[0] in line:
                    break
                heard.append(line.strip())
        finally:
            monitor.kill()


@BOTH
def test_router_always_has_a_route_while_one_host_joins_and_leaves(site: NativeLab, vip: str) -> None:
    with announced(site, vip, "host1", "host2"):
        with routes_of(site, "router1", 6 if ":" in vip else 4) as heard:
            hold(site, "add", vip, ("host3",))
            await_routes(site, vip, *HOSTS)
            hold(site, "del", vip, ("host3",))
            await_routes(site, vip, "host1", "host2")
        assert [line for line in heard if line.startswith(f"Deleted {vip} ")] == []


@BOTH
def test_router_spreads_flows_over_all_hosts_and_a_rehash_moves_them(site: NativeLab, vip: str) -> None:
    for router in ROUTERS:
        site.rehash(router, 7)
    with announced(site, vip, *HOSTS):
        wait_equal(lambda: site.next_hops("outside", vip), frozenset(ROUTERS))
        first = ask(site, vip)
        assert set(first.values()) == set(HOSTS)
        assert first == ask(site, vip)
        for router in ROUTERS:
            site.rehash(router, 77)
        assert first != ask(site, vip)


def test_only_host_routes_of_the_address_pool_are_announced(site: NativeLab) -> None:
    """Routes received from another host are not announced to the other router either."""
    beside = ["192.0.2.1/32", "2001:db8:e::1/128", "203.0.113.64/29", "2001:db8:f:1::1/64"]
    hold(site, "add", "203.0.113.11", ("host1",))
    for each in beside:
        hold(site, "add", each, ("host1",))
    await_routes(site, "203.0.113.11", "host1")
    ways = site.exec("router1", ("ip", "route")) + site.exec("router1", ("ip", "-6", "route"))
    for each in ("192.0.2.1", "2001:db8:e::1", "203.0.113.64", "2001:db8:f:1::"):
        assert each not in ways
    assert site.next_hops("router2", site.chassis("host1").loopback_addresses[0]) == {"host1"}
    for each in ["203.0.113.11", *beside]:
        hold(site, "del", each, ("host1",))


def test_host_uses_its_own_source_address_despite_a_lower_vip(site: NativeLab) -> None:
    with announced(site, VIPS[0], "host1"), announced(site, VIPS[1], "host1"):
        for own, to in zip(site.chassis("host1").loopback_addresses, site.workload("client").addresses, strict=True):
            chosen = json.loads(site.exec("host1", ("ip", "-json", "route", "get", to)))
            assert chosen[0]["prefsrc"] == own


def test_dead_host_gets_no_traffic_and_returns_after_boot(site: NativeLab) -> None:
    with announced(site, VIPS[0], "host1", "host2"), announced(site, VIPS[1], "host1", "host2"):
        for vip in VIPS:
            hold(site, "add", vip, ("host3",))
            await_routes(site, vip, *HOSTS)
        with asked_by(site, "host3") as heard:
            site.power_off("host3")
            for vip in VIPS:
                await_routes(site, vip, "host1", "host2")
                assert set(ask(site, vip).values()) == {"host1", "host2"}
            with pytest.raises(BlockingIOError):  # no process is left to close the connection
                heard.recv(1)
        assert not site.status().is_healthy
        site.power_on("host3")
        serve(site, "host3")
        site.wait_routed()
        assert site.status().is_healthy
        assert site.next_hops("router1", VIPS[0]) == {"host1", "host2"}  # the kernel's earlier state is lost
        result = site.traffic("client", Traffic(to=site.workload("web3").addresses[0], port=8080, count=5))
        assert (result.answers, result.errors) == ({"web3": 5}, {})


ASK = "import urllib.request; print(urllib.request.urlopen({url!r}, timeout=60).read().decode(), end='')"


@contextmanager
def asked_by(lab: NativeLab, host: str) -> Iterator[socket.socket]:
    """A connection from a program on the host to this machine, waiting for a response."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE)
        address = "{}:{}".format(*listener.getsockname())
        lab.forward_port(address)
        asking = lab.command(host, (sys.executable, "-c", ASK.format(url=f"http://{address}/")))
        with subprocess.Popen(asking.argv, env=asking.full_environment(), stderr=subprocess.DEVNULL):
            heard, _ = listener.accept()
            with heard:
                assert heard.recv(1000).startswith(b"GET / ")
                heard.setblocking(False)
                yield heard


def test_traffic_avoids_a_dead_router(site: NativeLab) -> None:
    """Hosts and the external machine use the other router, although no link loses its carrier."""
    own = site.chassis("host2").loopback_addresses[0]
    with announced(site, VIPS[0], *HOSTS):
        site.power_off("router1")
        wait_equal(lambda: site.next_hops("outside", VIPS[0]), {"router2"})
        wait_equal(lambda: site.next_hops("host1", own), {"router2"})
        assert set(ask(site, VIPS[0]).values()) == set(HOSTS)
        site.power_on("router1")
        site.wait_routed()
    assert site.status().is_healthy


def test_bfd_detects_a_dead_neighbour_within_a_second(site: NativeLab) -> None:
    """The detection time is that negotiated by both ends of each BFD session, in milliseconds."""
    for place in (*HOSTS, *ROUTERS, "outside"):
        peers = json.loads(site.exec(place, ("vtysh", "-c", "show bfd peers json")))
        assert peers, place
        for peer in peers:
            interval = max(peer["receive-interval"], peer["remote-transmit-interval"])
            assert interval * peer["remote-detect-multiplier"] < 1000, (place, peer)


def test_cut_link_removes_the_route_only_on_its_router(site: NativeLab) -> None:
    with announced(site, VIPS[0], *HOSTS):
        site.cut("router1", "host1")
        wait_equal(lambda: site.next_hops("router1", VIPS[0]), {"host2", "host3"})
        assert site.next_hops("router2", VIPS[0]) == set(HOSTS)
        site.mend("router1", "host1")
        site.wait_routed()


def test_ended_bgp_session_removes_the_route_only_on_its_router(site: NativeLab) -> None:
    with announced(site, VIPS[0], *HOSTS):
        site.end_session("router2", "host2")
        wait_equal(lambda: site.next_hops("router2", VIPS[0]), {"host1", "host3"})
        assert site.next_hops("router1", VIPS[0]) == set(HOSTS)
        site.begin_session("router2", "host2")
        site.wait_routed()


def test_killed_routing_daemons_withdraw_routes_and_the_kernel_keeps_its_own(site: NativeLab) -> None:
    """The host's kernel continues: its machines answer packets that still arrive there."""
    with announced(site, VIPS[1], *HOSTS):
        site.stop_routing("host2")
        await_routes(site, VIPS[1], "host1", "host3")
        assert len(site.next_hops("host2", site.chassis("host1").loopback_addresses[0])) == 2
        site.start_routing("host2")
        await_routes(site, VIPS[1], *HOSTS)
    site.wait_routed()


def test_bird_announces_the_same_routes_as_frr(site: NativeLab) -> None:
    """BIRD uses the configuration file for operators, in place of FRR on one host."""
    folder = site.layout.node_directory("host3")
    (folder / "bird.conf").write_text(routing.render_host(site.chassis("host3"), "bird.conf"))
    site.stop_routing("host3")
    site.exec("host3", ("ip", "nexthop", "flush"))
    files = ("-s", str(folder / "bird.ctl"), "-P", str(folder / "bird.pid"))
    site.exec("host3", ("bird", "-c", str(folder / "bird.conf"), *files))
    site.wait_routed()
    for vip in VIPS:
        hold(site, "add", vip, ("host3",))
        await_routes(site, vip, "host3")
        hold(site, "del", vip, ("host3",))
        await_routes(site, vip)
    pid = processes.read_pidfile(folder / "bird.pid")
    assert pid is not None
    processes.kill([pid], lambda each: processes.is_marked(each, site.layout.directory))
    site.exec("host3", ("ip", "route", "flush", "proto", "bird"))
    site.exec("host3", ("ip", "-6", "route", "flush", "proto", "bird"))
    site.start_routing("host3")
    site.wait_routed()


def test_hosts_reach_a_server_outside_the_lab(site: NativeLab) -> None:
    """A server for plain hosts needs no OVN."""
    listen = f"127.0.0.1:{free_port()}"
    started = server.start(site.layout, listen)
    try:
        site.forward_port(listen)
        for host in HOSTS:
            ready = site.exec(host, (sys.executable, "-c", ASK.format(url=f"http://{listen}/readyz")))
            assert ready == "ready\n"
        assert site.status().service[0].startswith(f"listens on {listen}")
    finally:
        server.stop(site.layout, started)


def test_up_leaves_a_healthy_lab_unchanged(site: NativeLab) -> None:
    before = site.status()
    assert before == NativeLab.up(site.name).status() == NativeLab.open(site.name).status()
    with pytest.raises(LabMismatch, match="runs with 3 hosts, which --chassis cannot change;"):
        NativeLab.up(site.name, chassis=2)


def test_command_line_handles_native_labs(site: NativeLab, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        code = main([*words, "--name", site.name])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    assert run("up") == (0, "host1 host2 host3\n")
    code, said = run("up", "--dataplane", "ovn")
    assert (code, "runs with the dataplane native" in said) == (1, True)
    code, said = run("status")
    assert (code, "web1        on host1 10.101.0.11 fd00:101::11" in said) == (0, True)
    assert run("workload", "add", "more", "--chassis", "host2", "--number", "12", "--answer", "80")[0] == 0
    assert site.workload("more") == machine(site, "more", "host2", 12, 80)
    assert run("workload", "remove", "more")[0] == 0
    assert run("fault", "cut", "router1", "host1")[0] == run("fault", "mend", "router1", "host1")[0] == 0
    assert run("fault", "rehash", "router1", "3")[0] == 0
    assert run("fault", "cut", "router1", "nobody")[0] == 1
    code, said = run("trace", "client", "web1")
    assert (code, "needs a lab with OVN" in said) == (1, True)
    site.wait_routed()


def test_machine_is_added_and_removed_without_leftovers(site: NativeLab) -> None:
    added = machine(site, "a-rather-long-name-2", "host2", 33, 80)
    site.add_workload(added)
    assert added == site.workload(added.name)
    with pytest.raises(WorkloadExists):
        site.add_workload(added)
    site.remove_workload(added.name)
    assert added not in site.workloads()
    assert namespaces.existing(site.layout.namespace(added.name)) == ()
    with pytest.raises(UnknownNode):
        site.power_off("nobody")


@pytest.mark.parametrize("wrong", [{"name": "router1"}, {"name": "A"}, {"addresses": ()}, {"addresses": ("x",)}])
def test_invalid_machine_is_rejected(wrong: dict[str, object]) -> None:
    right = {"name": "w", "chassis": "host1", "addresses": ("10.101.0.9",)}
    with pytest.raises(InvalidWorkload):
        Machine(**{**right, **wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [1, 255])
def test_machine_numbers_of_router_and_broadcast_are_rejected(number: int) -> None:
    with pytest.raises(LabError, match=r"out of range \(2-254\)"):
        plan.plan_hosts(1)[0].addresses(number)


# Labs of their own: leftovers


@pytest.fixture
def other(native_machine: None) -> Iterator[Layout]:
    name = lab_name("nother")
    take_down(name)
    yield Layout(name=name)
    take_down(name)


def test_take_down_removes_a_lab_killed_during_up(other: Layout) -> None:
    argv = (sys.executable, "-m", "fairlead.lab", "up", "--dataplane", "native", "--chassis", "1", "--name", other.name)
    daemons = [routing.folder(other, place) / "bgpd.pid" for place in ("outside", *ROUTERS, "host1")]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as up:
        wait_until(lambda: all(daemon.exists() for daemon in daemons))
        up.send_signal(signal.SIGKILL)
    assert len(processes.find_marked(other.directory)) >= 3 * 4
    with pytest.raises(LabError, match="is not running"):
        NativeLab.open(other.name)
    assert take_down(other.name)
    assert_nothing_left(other)
    assert not take_down(other.name)
