"""End to end: members die in the ways that members die, and come back, under real connections that are timed.

What was measured is printed (`pytest -s`), a line a test.
"""

import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult, namespaces, processes
from fairlead.lab.layout import workload_device
from fairlead.lab.load import Load, Target
from fairlead.lab.service import start, stop
from harness.lab.site import PATIENCE, PORT, Balancer, Site, open_site
from harness.pace import pace

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = ("m1", "m2", "m3")
SPARE = "spare"
DELAYS = {Protocol.TCP: 1, Protocol.UDP: 3}
"""Seconds; Octavia wants three at least for UDP-CONNECT."""
TIMEOUT, RETRIES = 1, 2
MONITOR = {"timeout": TIMEOUT, "max_retries": RETRIES, "max_retries_down": RETRIES}
KEYS = 60
LATE = 3.0
"""Seconds after which a connection has failed. A SYN that is sent again meanwhile goes where the first one went."""


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


def failed_within(protocol: Protocol, retries: int = RETRIES) -> float:
    """An answer that does not come takes its time-out on top of the delay; and what OVN and we take to act on it."""
    return (DELAYS[protocol] + TIMEOUT) * retries + 2.0


def back_within(protocol: Protocol, retries: int = RETRIES) -> float:
    return DELAYS[protocol] * (retries + 1) + TIMEOUT + 2.0


def ask(site: Site, client: str, balancer: Balancer, protocol: Protocol, **more: int) -> TrafficResult:
    traffic = Traffic(
        to=balancer.vip, port=80, protocol=protocol, timeout=LATE, **{"count": 24, "concurrency": 12, **more}
    )
    return site.lab.traffic(client, traffic)


def keys(site: Site, balancer: Balancer, protocol: Protocol) -> dict[int, str]:
    """Who answers each of the same source ports; nobody, if the answer is not in it."""
    return dict(ask(site, "far", balancer, protocol, count=KEYS, source_port_from=20_000).keys)


def statuses(site: Site, who: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{site.url}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(f"fairlead_{who}{{")]
    return {line.split('"')[1]: int(float(line.split()[1])) for line in lines}


def members(site: Site) -> dict[str, int]:
    return statuses(site, "members")


def wait_members(site: Site, **wanted: int) -> float:
    """Seconds until the probes say this of all members."""
    return wait_statuses(site, "members", wanted)


def wait_statuses(site: Site, who: str, wanted: Mapping[str, int]) -> float:
    began = time.monotonic()
    while (now := statuses(site, who)) != wanted:
        assert time.monotonic() - began < PATIENCE, f"{now}, not {wanted}"
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
        steady = Load(targets=(target,), rate=20, count=1200, held=0, seconds=60, timeout=LATE)
        with pace() as machine, site.lab.load("near", steady) as running:
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
        assert failed < failed_within(protocol) * machine.slowest + LATE
        survivors = {port: name for port, name in before.items() if name != "m1"}
        assert survivors.items() <= without.items()
        assert "m1" not in without.values()
        if protocol is Protocol.TCP:
            assert len(without) == KEYS
        else:  # the same ports are the same connection, and that stays with its member (conntrack)
            assert without == survivors
        assert set(anybody.answers) == {"m2", "m3"}
        assert anybody.errors == {}
        with pace() as machine:
            while "m1" not in ask(site, "near", balancer, protocol).answers:
                assert time.monotonic() - revived < back_within(protocol) * machine.slowest
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
                with pace() as machine:
                    refused = ask(site, client, balancer, Protocol.TCP, count=4)
                assert refused.errors == {"refused": 4}
                assert refused.seconds < machine.slowest  # a SYN is sent again after a second (RFC 6298, section 2)
        finally:
            for name in ("m1", "m2", SPARE):
                with suppress(Exception):
                    start_process(site, name)
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"m1", "m2"}


@dataclass(frozen=True, kw_only=True)
class Led:
    """A Local IP."""

    owner: str
    version: int
    protocol: Protocol
    """Of its monitor."""
    mode: str = "translate"
    fallback: str = "forward"

    @property
    def last(self) -> str:
        """What clients get while no replica on their chassis serves."""
        return {"forward": self.owner, "reject": "refused", "drop": "timeout"}[self.fallback]


OWNERS = ("ash", "elm")
LED = (
    Led(owner="ash", version=4, protocol=Protocol.TCP),
    Led(owner="ash", version=6, protocol=Protocol.TCP, mode="passthrough", fallback="reject"),
    Led(owner="elm", version=4, protocol=Protocol.UDP, fallback="drop"),
    Led(owner="elm", version=6, protocol=Protocol.UDP),
)
ONCE = {"max_retries": 1, "max_retries_down": 1}


@contextmanager
def local_ips(site: Site, *replicas: str) -> Iterator[dict[Target, Led]]:
    """All of them. The replicas are in the order of their age."""
    made, targets = list[str](), dict[Target, Led]()
    with httpx.Client(base_url=f"{site.url}/network/v2.0") as client, ExitStack() as stack:
        for led in LED:
            target = Target(to=site.address(led.owner, led.version), port=PORT, protocol=led.protocol)
            body = {
                "local_port_id": port_of(site, led.owner),
                "local_ip_address": target.to,
                "ip_mode": led.mode,
                "fallback": led.fallback,
                "health_monitor": {**monitor(led.protocol), **ONCE, "port": PORT},
            }
            answer = client.post("/local_ips", json={"local_ip": body})
            assert answer.status_code == 201, answer.text
            path = f"/local_ips/{answer.json()['local_ip']['id']}"
            stack.callback(client.delete, path, params={"force": "true"})
            made.append(f"{path}/port_associations")
            targets[target] = led
            for name in replicas if led.mode == "passthrough" else ():
                site.lab.exec(name, ["ip", "address", "add", target.to, "dev", "lo"])
                stack.callback(site.lab.exec, name, ["ip", "address", "del", target.to, "dev", "lo"])
        for path in made:
            for name in replicas:
                answer = client.post(path, json={"port_association": {"fixed_port_id": port_of(site, name)}})
                assert answer.status_code == 201, answer.text
        yield targets


def port_of(site: Site, machine: str) -> str:
    return site.lab.workload(machine).port_id


def who_answers(site: Site, client: str, targets: Iterable[Target]) -> dict[Target, set[str]]:
    """Each target's machines, and errors."""
    found = dict[Target, set[str]]()
    for each in targets:
        asked = Traffic(to=each.to, port=PORT, protocol=each.protocol, count=6, concurrency=6, timeout=1)
        result = site.lab.traffic(client, asked)
        found[each] = {*result.answers, *result.errors}
    return found


def wait_answers(site: Site, client: str, wanted: Mapping[Target, str]) -> float:
    """Seconds until the client began to ask and got these answers alone."""
    began, alone = time.monotonic(), {target: {name} for target, name in wanted.items()}
    while True:
        asked = time.monotonic()
        found = who_answers(site, client, wanted)
        if found == alone:
            return asked - began
        assert asked - began < PATIENCE, f"{found}, not {alone}"


def test_a_replica_that_dies_leaves_its_chassis_to_the_next_one_and_the_last_one_to_the_fallback(site: Site):
    """A Local IP of each IP version under a monitor of each type. Two replicas are beside the clients, one is not."""
    site.machines("rose", dict.fromkeys(OWNERS, "chassis2"), serve=[PORT])
    with ExitStack() as stack:
        for name in OWNERS:
            stack.callback(site.lab.remove_workload, name)
        targets = stack.enter_context(local_ips(site, "m2", SPARE, "m3"))
        first, second, elsewhere = (dict.fromkeys(targets, name) for name in ("m2", SPARE, "m3"))
        last = {target: led.last for target, led in targets.items()}
        wait_statuses(site, "replicas", {"ONLINE": 3 * len(targets)})
        site.lab.wait_synced()
        for client, wanted in (("near", first), ("far", first), ("m1", elsewhere)):
            wait_answers(site, client, wanted)
        steady = Load(targets=tuple(targets), rate=20, count=1200, held=0, seconds=60, timeout=LATE)
        deaths = list[float]()
        with pace() as machine, site.lab.load("near", steady) as running:
            try:
                for name, wanted in (("m2", second), (SPARE, last)):
                    deaths.append(time.time())
                    end_process(site, name)
                    wait_answers(site, "far", wanted)
                wait_answers(site, "m1", elsewhere)
                broken = running.stop().broken
            finally:
                for name in ("m2", SPARE):
                    with suppress(Exception):
                        start_process(site, name)
        failed = dict.fromkeys(Protocol, 0.0)
        for each in broken:
            died = max(at for at in deaths if at <= each.at)
            if died == deaths[0] or targets[each.target].fallback == "forward":
                failed[each.target.protocol] = max(failed[each.target.protocol], each.at - died)
        most = {protocol: failed_within(protocol, 1) * machine.slowest + LATE for protocol in failed}
        assert all(seconds < most[protocol] for protocol, seconds in failed.items()), (deaths, broken)
        with pace() as machine:
            back = wait_answers(site, "near", first)
        assert back < back_within(Protocol.UDP, 1) * machine.slowest
    told = ", ".join(f"{protocol.value} {seconds:.1f} s" for protocol, seconds in failed.items())
    print(f"\nreplicas: last failed connection after {told}; the first one answers again after {back:.1f} s")


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
