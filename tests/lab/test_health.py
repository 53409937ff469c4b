"""End to end: members fail in all ways in which members fail, and recover, under real connections."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import httpx
import pytest

from fairlead.lab import Lab, Protocol, Traffic
from fairlead.lab.load import Load, LoadTarget
from fairlead.lab.server import start, stop
from harness.lab.members import (
    ask,
    cut_cable,
    end_process,
    mend_cable,
    plug,
    retransmitted_segments,
    start_process,
    unplug,
    wait_members,
    wait_replicas,
)
from harness.lab.site import PORT, CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = ("m1", "m2", "m3")
SPARE = "spare"
DELAYS = {Protocol.TCP: 1, Protocol.UDP: 3}
"""Seconds; Octavia requires at least three for UDP-CONNECT."""
TIMEOUT, RETRIES = 1, 2
MONITOR = {"timeout": TIMEOUT, "max_retries": RETRIES, "max_retries_down": RETRIES}
KEYS = 60


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members on both chassis, a client on the same switch and one across a router."""
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


Act = Callable[[LabSite, str], None]
DEATHS: dict[str, tuple[Act, Act]] = {
    "its process ends": (end_process, start_process),
    "it is cut off": (cut_cable, mend_cable),
    "it is stopped": (unplug, plug),
}
CASES = [
    *((protocol, version, "its process ends") for protocol, version in ((Protocol.TCP, 4), (Protocol.UDP, 6))),
    (Protocol.TCP, 6, "it is cut off"),
    (Protocol.TCP, 4, "it is stopped"),
    *(
        pytest.param(*case, marks=pytest.mark.extended)
        for case in (
            (Protocol.TCP, 6, "its process ends"),
            (Protocol.UDP, 4, "its process ends"),
            (Protocol.TCP, 4, "it is cut off"),
            (Protocol.UDP, 6, "it is stopped"),
        )
    ),
]


def monitor(protocol: Protocol) -> dict[str, object]:
    return {**MONITOR, "delay": DELAYS[protocol], "type": "TCP" if protocol is Protocol.TCP else "UDP-CONNECT"}


def keys(site: LabSite, balancer: CreatedBalancer, protocol: Protocol) -> dict[int, str]:
    """Member that answers each of a fixed set of source ports; ports without an answer are missing."""
    return dict(ask(site, "far", balancer, protocol, count=KEYS, source_port_from=20_000).keys)


@pytest.mark.parametrize(("protocol", "version", "death"), CASES)
def test_dead_member_gets_no_connections_and_regains_its_keys_on_recovery(
    site: LabSite, protocol: Protocol, version: int, death: str
):
    pool = {"protocol": protocol.value.upper(), "version": version, "healthmonitor": monitor(protocol)}
    with site.balancer(f"rose-v{version}", MEMBERS, **pool) as balancer, ExitStack() as stack:
        wait_members(site, ONLINE=3)
        before = keys(site, balancer, protocol)
        assert (len(before), set(before.values())) == (KEYS, set(MEMBERS))
        with dead(site, death, "m1"):
            target = LoadTarget(to=balancer.vip, port=80, protocol=protocol)
            running = stack.enter_context(site.lab.load("near", steady(target)))
            anybody = ask(site, "far", balancer, protocol)
            without = keys(site, balancer, protocol)
        survivors = {port: name for port, name in before.items() if name != "m1"}
        assert survivors.items() <= without.items()
        assert "m1" not in without.values()
        if protocol is Protocol.TCP:
            assert len(without) == KEYS
        else:  # the same port is the same connection, which conntrack keeps on its member
            assert without == survivors
        assert set(anybody.answers) == {"m2", "m3"}
        assert anybody.errors == {}
        wait_until(lambda: "m1" in ask(site, "near", balancer, protocol).answers, "m1 answers again")
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert keys(site, balancer, protocol) == before
        assert running.stop().failed == [], "no connection fails once the death is known, nor by the return"


@contextmanager
def dead(site: LabSite, death: str, name: str) -> Iterator[None]:
    """Make one of three members fail, wait until no chassis has flows to it, and restore it at the end."""
    die, revive = DEATHS[death]
    die(site, name)
    try:
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        yield
    finally:
        revive(site, name)


def steady(*targets: LoadTarget) -> Load:
    return Load(targets=targets, rate=20, count=6000, held=0, seconds=300, timeout=30)


def test_backup_serves_for_dead_members_until_the_backup_is_dead_too(site: LabSite):
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
                wait_until(
                    partial(refused_by_the_first_segment, site, client, balancer), "a SYN is refused, not only the next"
                )
        finally:
            for name in ("m1", "m2", SPARE):
                with suppress(Exception):
                    start_process(site, name)
        wait_members(site, ONLINE=3)
        site.lab.wait_synced()
        assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"m1", "m2"}


def refused_by_the_first_segment(site: LabSite, client: str, balancer: CreatedBalancer) -> bool:
    """Whether the first segment of each connection is refused.

    A slow machine may take more than a second, after which a SYN is sent again (RFC 6298, section 2).
    """
    before = retransmitted_segments(site, client)
    refused = ask(site, client, balancer, Protocol.TCP, count=4)
    assert refused.errors == {"refused": 4}
    return retransmitted_segments(site, client) == before


@dataclass(frozen=True, kw_only=True)
class ForwardedClients:
    """A Local IP of the test."""

    owner: str
    version: int
    protocol: Protocol
    """Protocol of its monitor."""
    mode: str = "translate"
    fallback: str = "forward"

    @property
    def last_member(self) -> str:
        """Result for clients without a working replica on their chassis."""
        return {"forward": self.owner, "reject": "refused", "drop": "timeout"}[self.fallback]


OWNERS = ("ash", "elm")
LED = (
    ForwardedClients(owner="ash", version=4, protocol=Protocol.TCP),
    ForwardedClients(owner="ash", version=6, protocol=Protocol.TCP, mode="passthrough", fallback="reject"),
    ForwardedClients(owner="elm", version=4, protocol=Protocol.UDP, fallback="drop"),
    ForwardedClients(owner="elm", version=6, protocol=Protocol.UDP),
)
ONCE = {"max_retries": 1, "max_retries_down": 1}


@contextmanager
def local_ips(site: LabSite, *replicas: str) -> Iterator[dict[LoadTarget, ForwardedClients]]:
    """All Local IPs, with the replicas in the order of their age."""
    made, targets = list[str](), dict[LoadTarget, ForwardedClients]()
    with httpx.Client(base_url=f"{site.url}/network/v2.0") as client, ExitStack() as stack:
        for led in LED:
            target = LoadTarget(to=site.address(led.owner, led.version), port=PORT, protocol=led.protocol)
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


def port_of(site: LabSite, machine: str) -> str:
    return site.lab.workload(machine).port_id


def who_answers(site: LabSite, client: str, targets: Iterable[LoadTarget]) -> dict[LoadTarget, set[str]]:
    """Names and errors of the answers of each target."""
    found = dict[LoadTarget, set[str]]()
    for each in targets:
        asked = Traffic(to=each.to, port=PORT, protocol=each.protocol, count=6, concurrency=6, timeout=3)
        result = site.lab.traffic(client, asked)
        found[each] = {*result.answers, *result.errors}
    return found


def wait_answers(site: LabSite, client: str, wanted: Mapping[LoadTarget, str]) -> None:
    """Wait until the client gets exactly these answers."""
    wait_equal(lambda: who_answers(site, client, wanted), {target: {name} for target, name in wanted.items()})


def test_dead_local_ip_replica_yields_to_the_next_one_then_to_the_fallback(site: LabSite):
    """A Local IP of each IP version with a monitor of each type.

    Two replicas are on the clients' chassis, one is not.
    """
    site.machines("rose", dict.fromkeys(OWNERS, "chassis2"), serve=[PORT])
    with ExitStack() as stack:
        for name in OWNERS:
            stack.callback(site.lab.remove_workload, name)
        targets = stack.enter_context(local_ips(site, "m2", SPARE, "m3"))
        first, second, elsewhere = (dict.fromkeys(targets, name) for name in ("m2", SPARE, "m3"))
        last = {target: led.last_member for target, led in targets.items()}
        wait_replicas(site, ONLINE=3 * len(targets))
        site.lab.wait_synced()
        for client, wanted in (("near", first), ("far", first), ("m1", elsewhere)):
            wait_answers(site, client, wanted)
        try:
            end_process(site, "m2")
            wait_replicas(site, ONLINE=2 * len(targets), ERROR=len(targets))
            site.lab.wait_synced()
            wait_answers(site, "far", second)
            with site.lab.load("near", steady(*targets)) as running:
                wait_answers(site, "near", second)
                assert running.stop().failed == [], "the next one serves all"
            end_process(site, SPARE)
            wait_replicas(site, ONLINE=len(targets), ERROR=2 * len(targets))
            site.lab.wait_synced()
            wait_answers(site, "far", last)
            wait_answers(site, "m1", elsewhere)
            owned = [target for target, led in targets.items() if led.fallback == "forward"]
            with site.lab.load("near", steady(*owned)) as running:
                wait_answers(site, "near", last)
                assert running.stop().failed == [], "the owner serves all"
        finally:
            for name in ("m2", SPARE):
                with suppress(Exception):
                    start_process(site, name)
        wait_answers(site, "near", first)


def test_dead_member_gets_no_connections_after_a_server_restart(site: LabSite):
    with ExitStack() as stack:
        balancer = stack.enter_context(site.balancer("rose-v4", MEMBERS, healthmonitor=monitor(Protocol.TCP)))
        wait_members(site, ONLINE=3)
        stack.callback(start_process, site, "m1")
        end_process(site, "m1")
        wait_members(site, ONLINE=2, ERROR=1)
        site.lab.wait_synced()
        with site.lab.load("near", steady(LoadTarget(to=balancer.vip, port=80))) as running:
            stop(site.lab.layout, site.service)
            again = start(site.lab.layout, site.url.removeprefix("http://"))
            wait_members(site, ONLINE=2, ERROR=1)
            site.await_applied()
            assert set(ask(site, "far", balancer, Protocol.TCP).answers) == {"m2", "m3"}
            result = running.stop()
        assert result.failed == []
        assert set(result.answers) == {"m2", "m3"}
    stop(site.lab.layout, again)
