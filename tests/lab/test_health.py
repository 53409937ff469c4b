"""End to end: members die in the ways that members die, and come back, under real connections that are timed.

What was measured is printed (`pytest -s`), a line a test.
"""

import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult, namespaces, processes
from fairlead.lab.layout import workload_device
from fairlead.lab.load import Load, Target
from fairlead.lab.service import start, stop
from lab.site import Balancer, Site, open_site

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = ("m1", "m2", "m3")
SPARE = "spare"
DELAYS = {Protocol.TCP: 1, Protocol.UDP: 3}
"""Seconds; Octavia wants three at least for UDP-CONNECT."""
TIMEOUT, RETRIES = 1, 2
MONITOR = {"timeout": TIMEOUT, "max_retries": RETRIES, "max_retries_down": RETRIES}
KEYS = 60
PATIENCE = 20.0


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    """Members on both chassis, a client beside them and one across a router."""
    site = open_site(lab)
    site.network("rose", "10.0.0.0/24", "fd00:a::/64")
    site.network("teal", "10.0.1.0/24", "fd00:b::/64")
    site.router("health", "rose-v4", "rose-v6", "teal-v4", "teal-v6")
    site.machines("rose", {"m1": "chassis2", "m2": "chassis1", "m3": "chassis2", SPARE: "chassis1"}, serve=[8080])
    site.machines("rose", {"near": "chassis1"})
    site.machines("teal", {"far": "chassis1"})
    yield site
    for name in (*MEMBERS, SPARE, "near", "far"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


def end_process(site: Site, name: str) -> None:
    namespace = site.lab.layout.namespace(name)
    processes.end(namespaces.processes([namespace]), lambda pid: pid in namespaces.processes([namespace]))


def start_process(site: Site, name: str) -> None:
    folder = site.lab.layout.node_directory(name)
    files = ("--pidfile", str(folder / "answer.pid"), "--log-file", str(folder / "answer.log"))
    argv = (sys.executable, "-m", "fairlead.lab.answer", "--name", name, "--port", "8080", *files, "--detach")
    site.lab.exec(name, argv)


def cut_cable(site: Site, name: str) -> None:
    """Nobody answers any more, not even for the machine."""
    site.lab.exec(site.lab.workload(name).chassis, ["ip", "link", "set", workload_device(name), "down"])


def mend_cable(site: Site, name: str) -> None:
    site.lab.exec(site.lab.workload(name).chassis, ["ip", "link", "set", workload_device(name), "up"])


def unplug(site: Site, name: str) -> None:
    """As when a virtual machine is stopped: no chassis has its port."""
    chassis, device = site.lab.workload(name).chassis, workload_device(name)
    site.lab.exec(chassis, ["ovs-vsctl", "remove", "Interface", device, "external_ids", "iface-id"])


def plug(site: Site, name: str) -> None:
    workload = site.lab.workload(name)
    port = f'external_ids:iface-id="{workload.port_id}"'
    site.lab.exec(workload.chassis, ["ovs-vsctl", "set", "Interface", workload_device(name), port])


Act = Callable[[Site, str], None]
DEATHS: dict[str, tuple[Act, Act]] = {
    "its process ends": (end_process, start_process),
    "it is cut off": (cut_cable, mend_cable),
    "it is stopped": (unplug, plug),
}
CASES = [
    *((protocol, version, "its process ends") for protocol in Protocol for version in (4, 6)),
    *((Protocol.TCP, version, "it is cut off") for version in (4, 6)),
    *((protocol, version, "it is stopped") for protocol, version in ((Protocol.TCP, 4), (Protocol.UDP, 6))),
]


def monitor(protocol: Protocol) -> dict[str, object]:
    return {**MONITOR, "delay": DELAYS[protocol], "type": "TCP" if protocol is Protocol.TCP else "UDP-CONNECT"}


def failed_within(protocol: Protocol) -> float:
    """An answer that does not come takes its time-out on top of the delay; and what OVN and we take to act on it."""
    return (DELAYS[protocol] + TIMEOUT) * RETRIES + 2.0


def back_within(protocol: Protocol) -> float:
    return DELAYS[protocol] * (RETRIES + 1) + TIMEOUT + 2.0


def ask(site: Site, client: str, balancer: Balancer, protocol: Protocol, **more: int) -> TrafficResult:
    traffic = Traffic(
        to=balancer.vip, port=80, protocol=protocol, timeout=1, **{"count": 24, "concurrency": 12, **more}
    )
    return site.lab.traffic(client, traffic)


def keys(site: Site, balancer: Balancer, protocol: Protocol) -> dict[int, str]:
    """Who answers each of the same source ports; nobody, if the answer is not in it."""
    return dict(ask(site, "far", balancer, protocol, count=KEYS, source_port_from=20_000).keys)


def members(site: Site) -> dict[str, int]:
    with urllib.request.urlopen(f"{site.url}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("fairlead_members{")]
    return {line.split('"')[1]: int(float(line.split()[1])) for line in lines}


def wait_members(site: Site, **wanted: int) -> float:
    """Seconds until the probes say this of all members."""
    began = time.monotonic()
    while members(site) != wanted:
        assert time.monotonic() - began < PATIENCE, f"{members(site)}, not {wanted}"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.parametrize(("protocol", "version", "death"), CASES)
def test_who_dies_gets_no_new_connections_and_who_is_back_gets_its_own(
    site: Site, protocol: Protocol, version: int, death: str
):
    die, revive = DEATHS[death]
    check = monitor(protocol)
    pool = {"protocol": protocol.value.upper(), "version": version, "healthmonitor": check}
    with site.balancer(f"rose-v{version}", MEMBERS, **pool) as balancer:
        wait_members(site, ONLINE=3)
        before = keys(site, balancer, protocol)
        assert (len(before), set(before.values())) == (KEYS, set(MEMBERS))
        target = Target(to=balancer.vip, port=80, protocol=protocol)
        seconds = failed_within(protocol) + 3
        steady = Load(targets=(target,), rate=20, count=int(20 * seconds), held=0, seconds=seconds, timeout=0.9)
        with site.lab.load("near", steady) as running:
            died = time.time()
            die(site, "m1")
            try:
                wait_members(site, ONLINE=2, ERROR=1)
                site.lab.wait_synced()
                anybody = ask(site, "far", balancer, protocol)
                without = keys(site, balancer, protocol)
                broken = running.stop().broken
            finally:
                revived = time.monotonic()
                revive(site, "m1")
        failed = max((each.at for each in broken), default=died) - died
        assert failed < failed_within(protocol)
        survivors = {port: name for port, name in before.items() if name != "m1"}
        assert survivors.items() <= without.items()
        assert "m1" not in without.values()
        if protocol is Protocol.TCP:
            assert len(without) == KEYS
        else:  # the same ports are the same connection, and that stays with its member (conntrack)
            assert without == survivors
        assert set(anybody.answers) == {"m2", "m3"}
        assert anybody.errors == {}
        while "m1" not in ask(site, "near", balancer, protocol).answers:
            assert time.monotonic() - revived < back_within(protocol)
        back = time.monotonic() - revived
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert keys(site, balancer, protocol) == before
    print(
        f"\nhealth: {protocol.value} IPv{version}, {death}: last failed connection after {failed:.1f} s"
        f" ({len(broken)} of {int(20 * failed)} meanwhile), first one after it is back {back:.1f} s"
    )


def test_a_backup_serves_when_all_others_are_dead_and_nobody_when_it_is_too(site: Site):
    with site.balancer("rose-v4", ("m1", "m2", SPARE), healthmonitor=monitor(Protocol.TCP)) as balancer:
        site.set_member(balancer, SPARE, backup=True)
        wait_members(site, ONLINE=3)
        try:
            for name in ("m1", "m2"):
                end_process(site, name)
            wait_members(site, ONLINE=1, ERROR=2)
            site.lab.wait_synced()
            for client in ("near", "far"):
                assert set(ask(site, client, balancer, Protocol.TCP).answers) == {SPARE}
            end_process(site, SPARE)
            wait_members(site, ERROR=3)
            site.lab.wait_synced()
            for client in ("near", "far"):
                refused = ask(site, client, balancer, Protocol.TCP, count=4)
                assert refused.errors == {"refused": 4}
                assert refused.seconds < 1  # as long as it takes until a SYN is sent again (RFC 6298, section 2)
        finally:
            for name in ("m1", "m2", SPARE):
                with suppress(Exception):
                    start_process(site, name)
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"m1", "m2"}


def test_the_dead_do_not_serve_when_the_server_starts_again(site: Site):
    with ExitStack() as stack:
        balancer = stack.enter_context(site.balancer("rose-v4", MEMBERS, healthmonitor=monitor(Protocol.TCP)))
        wait_members(site, ONLINE=3)
        stack.callback(start_process, site, "m1")
        end_process(site, "m1")
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        steady = Load(targets=(Target(to=balancer.vip, port=80),), rate=20, count=300, held=0, seconds=15, timeout=2)
        with site.lab.load("near", steady) as running:
            stop(site.lab.layout, site.service)
            again = start(site.lab.layout, site.url.removeprefix("http://"))
            wait_members(site, ONLINE=2, ERROR=1)
            time.sleep(1)
            result = running.stop()
        assert result.broken == []
        assert set(result.answers) == {"m2", "m3"}
    stop(site.lab.layout, again)
