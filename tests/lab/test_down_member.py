"""End to end, with an agent on each chassis: connections of a member that fails or is removed."""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import pytest

from fairlead.lab import Lab, Protocol, Traffic, agents
from fairlead.lab.records import allocate_source_ports
from harness.lab.busy_connections import BusyConnections, ConnectionRecord, busy_connections
from harness.lab.gateway import ping, set_gateway
from harness.lab.members import cut_cable, mend_cable, wait_members
from harness.lab.site import CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

QUICK = {"type": "TCP", "delay": 1, "delay_ms": 200, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
OPEN = 12
"""connections per client"""
AT = {4: "10.0.0.", 6: "fd00:a::"}
TENANTS = ("acacia", "juniper")
"""Tenants with a network of machines each, with identical addresses."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    for tenant in TENANTS:
        site.network(tenant, "10.0.0.0/24", "fd00:a::/64")
        names = {f"{tenant}-1": "chassis2", f"{tenant}-2": "chassis1"}
        hosts = {name: tuple(AT[version] + f"1{name[-1]}" for version in (4, 6)) for name in names}
        site.machines(tenant, names, serve=[8080], at=hosts)
        client = {f"{tenant}-client": ("10.0.0.20", "fd00:a::20")}
        site.machines(tenant, dict.fromkeys(client, "chassis1"), at=client)
    router = site.router("acacia", "acacia-v4", "acacia-v6")
    set_gateway(site, router, site.outside(), snat=False)
    for host in ("203.0.113.1", "2001:db8::1"):
        ping(site, "acacia-client", host)
    yield site
    for tenant in TENANTS:
        for machine in ("1", "2", "client"):
            lab.remove_workload(f"{tenant}-{machine}")
    site.close()


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[None]:
    started = agents.start(site.lab.layout, site.url)
    yield
    for agent in started:
        agent.stop()


@contextmanager
def balanced(
    site: LabSite, tenant: str, version: int, protocol: Protocol, down_member: str
) -> Iterator[CreatedBalancer]:
    """A load balancer of the tenant. Both tenants' load balancers have the same address."""
    with site.balancer(
        f"{tenant}-v{version}",
        (f"{tenant}-1", f"{tenant}-2"),
        protocol=protocol.value.upper(),
        version=version,
        vip_address=f"{AT[version]}50",
        healthmonitor=QUICK,
        down_member=down_member,
    ) as balancer:
        yield balancer


@contextmanager
def talking(site: LabSite, place: str, balancer: CreatedBalancer, protocol: Protocol) -> Iterator[BusyConnections]:
    """Open connections that are all answered."""
    with busy_connections(site.lab, place, balancer.vip, protocol) as speaker:
        speaker.open(OPEN)
        wait_until(lambda: all(each.last for each in speaker.read_records().values()), "all are answered")
        yield speaker


def of(speeches: Mapping[int, ConnectionRecord], name: str) -> list[ConnectionRecord]:
    return [each for each in speeches.values() if each.first == name]


@contextmanager
def dead(site: LabSite, *names: str) -> Iterator[None]:
    """Disconnect these members, and wait until the probes report them down."""
    for name in names:
        cut_cable(site, name)
    try:
        wait_members(site, ERROR=len(names), ONLINE=4 - len(names))
        yield
    finally:
        for name in names:
            mend_cable(site, name)
        wait_members(site, ONLINE=4)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", list(Protocol)[:2])
def test_down_member_reset_ends_only_connections_of_the_dead_member(site: LabSite, protocol: Protocol, version: int):
    """Another tenant has the same addresses, with a working member at the same address."""
    with ExitStack() as stack:
        mine, theirs = (stack.enter_context(balanced(site, each, version, protocol, "RESET")) for each in TENANTS)
        assert mine.vip == theirs.vip
        wait_members(site, ONLINE=4)
        speaker = stack.enter_context(talking(site, "acacia-client", mine, protocol))
        others = stack.enter_context(talking(site, "juniper-client", theirs, protocol))
        outside = stack.enter_context(talking(site, "outside", mine, protocol))
        for each in (speaker, others, outside):
            assert of(each.read_records(), "acacia-1") or of(each.read_records(), "juniper-1")
        with dead(site, "acacia-1"):
            for each in (speaker, outside):
                wait_all(each, "acacia-1", done(protocol))
            check_alive(speaker, "acacia-2")
            check_alive(outside, "acacia-2")
            check_alive(others, "juniper-1")
            check_alive(others, "juniper-2")


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", list(Protocol)[:2])
@pytest.mark.extended
def test_death_of_the_last_member_resets_connections_and_refuses_new_ones(
    site: LabSite, protocol: Protocol, version: int
):
    with ExitStack() as stack:
        mine, theirs = (stack.enter_context(balanced(site, each, version, protocol, "RESET")) for each in TENANTS)
        wait_members(site, ONLINE=4)
        speaker = stack.enter_context(talking(site, "acacia-client", mine, protocol))
        others = stack.enter_context(talking(site, "juniper-client", theirs, protocol))
        outside = stack.enter_context(talking(site, "outside", mine, protocol))
        with dead(site, "acacia-1", "acacia-2"):
            for each in (speaker, outside):
                for name in ("acacia-1", "acacia-2"):
                    wait_all(each, name, lambda speech: speech.is_broken)
            for client in ("acacia-client", "outside"):
                traffic = Traffic(to=mine.vip, port=80, protocol=protocol, count=5, concurrency=5, timeout=30)
                assert site.lab.traffic(client, traffic).errors == {"refused": 5}
            check_alive(others, "juniper-1")
            check_alive(others, "juniper-2")


def wait_all(speaker: BusyConnections, name: str, is_done: Callable[[ConnectionRecord], bool]) -> None:
    wait_equal(lambda: [each for each in of(speaker.read_records(), name) if not is_done(each)], [])


def done(protocol: Protocol) -> Callable[[ConnectionRecord], bool]:
    """Condition of a moved connection: TCP is reset, UDP changes the member."""
    return lambda each: each.is_broken if protocol is Protocol.TCP else each.has_changed_member


def wait_answered(speaker: BusyConnections, name: str) -> None:
    """Wait until each of this member's connections has another answer."""
    before = {port: each.answers for port, each in speaker.read_records().items() if each.first == name}

    def unanswered() -> list[int]:
        return [port for port, each in speaker.read_records().items() if each.answers == before.get(port)]

    wait_equal(unanswered, [])


def check_alive(speaker: BusyConnections, name: str) -> None:
    """Assert that all of this member's connections continue with it."""
    wait_answered(speaker, name)
    assert not any(each.is_broken or each.has_changed_member for each in of(speaker.read_records(), name))


def test_down_member_keep_leaves_connections_of_a_dead_member_open(site: LabSite):
    with ExitStack() as stack:
        mine, _ = (stack.enter_context(balanced(site, each, 4, Protocol.TCP, "KEEP")) for each in TENANTS)
        wait_members(site, ONLINE=4)
        speaker = stack.enter_context(talking(site, "acacia-client", mine, Protocol.TCP))
        with dead(site, "acacia-1"):
            site.lab.wait_synced()
            check_alive(speaker, "acacia-2")
            kept = of(speaker.read_records(), "acacia-1")
            assert kept
            check_alive(speaker, "acacia-2")
            assert of(speaker.read_records(), "acacia-1") == kept, "nothing has answered them since"
            assert not any(each.is_broken or each.has_changed_member for each in kept)
        wait_answered(speaker, "acacia-1")


@pytest.mark.parametrize("version", [pytest.param(4, marks=pytest.mark.extended), 6])
def test_udp_flows_leave_disabled_and_removed_members_but_not_draining_ones(site: LabSite, version: int):
    """Senders never pause. Another tenant has the same addresses."""
    with ExitStack() as stack:
        mine, theirs = (stack.enter_context(balanced(site, each, version, Protocol.UDP, "KEEP")) for each in TENANTS)
        wait_members(site, ONLINE=4)
        speaker = stack.enter_context(talking(site, "acacia-client", mine, Protocol.UDP))
        others = stack.enter_context(talking(site, "juniper-client", theirs, Protocol.UDP))
        outside = stack.enter_context(talking(site, "outside", mine, Protocol.UDP))
        site.set_member(mine, "acacia-1", weight=0)
        for each in (speaker, outside):
            check_alive(each, "acacia-1")
        site.set_member(mine, "acacia-1", is_admin_state_up=False)
        for each in (speaker, outside):
            wait_all(each, "acacia-1", lambda speech: speech.last == "acacia-2")
        site.set_member(mine, "acacia-1", is_admin_state_up=True, weight=1)
        member = site.cloud.load_balancer.get_member(site.member(mine, "acacia-1"), mine.pool)
        again = stack.enter_context(talking(site, "acacia-client", mine, Protocol.UDP))
        assert of(again.read_records(), "acacia-1")
        site.cloud.load_balancer.delete_member(member, mine.pool)
        wait_all(again, "acacia-1", lambda speech: speech.last == "acacia-2")
        check_alive(others, "juniper-1")
        check_alive(others, "juniper-2")


@pytest.mark.extended
@pytest.mark.parametrize("version", [4, 6])
def test_udp_flows_of_a_deleted_load_balancer_move_to_its_replacement(site: LabSite, version: int):
    """The load balancer is created again immediately, with the same address and one of the members."""
    with ExitStack() as stack:
        with balanced(site, "acacia", version, Protocol.UDP, "KEEP") as mine:
            speaker = stack.enter_context(talking(site, "acacia-client", mine, Protocol.UDP))
            outside = stack.enter_context(talking(site, "outside", mine, Protocol.UDP))
        address = {"vip_address": mine.vip}
        settings = {"protocol": "UDP", "version": version, **address}
        stack.enter_context(site.balancer(f"acacia-v{version}", ("acacia-2",), **settings))
        for each in (speaker, outside):
            wait_all(each, "acacia-1", lambda speech: speech.last == "acacia-2")
            check_goes_on(each)


def check_goes_on(speaker: BusyConnections) -> None:
    for name in ("acacia-1", "acacia-2"):
        wait_answered(speaker, name)


@pytest.mark.extended
@pytest.mark.parametrize("version", [4, 6])
def test_udp_flows_leave_a_dead_member_under_down_member_keep(site: LabSite, version: int):
    with ExitStack() as stack:
        mine, _ = (stack.enter_context(balanced(site, each, version, Protocol.UDP, "KEEP")) for each in TENANTS)
        wait_members(site, ONLINE=4)
        speaker = stack.enter_context(talking(site, "acacia-client", mine, Protocol.UDP))
        with dead(site, "acacia-1"):
            wait_all(speaker, "acacia-1", lambda speech: speech.last == "acacia-2")
            check_alive(speaker, "acacia-2")


@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.extended)])
def test_unanswered_connections_to_a_dead_member_reach_another_member_on_retry(site: LabSite, version: int):
    """Their SYNs were lost before the failure was detected. Established connections are kept."""
    with ExitStack() as stack:
        mine, _ = (stack.enter_context(balanced(site, each, version, Protocol.TCP, "KEEP")) for each in TENANTS)
        wait_members(site, ONLINE=4)
        kept = stack.enter_context(talking(site, "acacia-client", mine, Protocol.TCP))
        monitor = site.cloud.load_balancer.get_pool(mine.pool).health_monitor_id
        site.cloud.load_balancer.update_health_monitor(monitor, is_admin_state_up=False)
        site.settle(mine.id)
        cut_cable(site, "acacia-1")
        stack.callback(wait_members, site, ONLINE=4)
        stack.callback(mend_cable, site, "acacia-1")
        first = allocate_source_ports(site.lab.layout, "acacia-client", OPEN)
        ports = set(range(first, first + OPEN))
        ports -= connect(site, mine, ports)
        assert ports, "the first segments of some are lost"
        assert str(AT[version]) + "11" in attempts(site)
        site.cloud.load_balancer.update_health_monitor(monitor, is_admin_state_up=True)
        wait_members(site, ERROR=1, ONLINE=3)
        connected = set[int]()
        wait_until(
            lambda: connected.update(connect(site, mine, ports - connected)) or connected == ports, "all connect"
        )
        assert not any(each.is_broken for each in kept.read_records().values())


CONNECT = """
import socket, struct, sys
for port in map(int, sys.argv[2:]):
    with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.bind(("", port))
        client.settimeout(0.3)
        try:
            client.connect((sys.argv[1], 80))
        except OSError:
            continue
        print(port)
"""


def connect(site: LabSite, balancer: CreatedBalancer, ports: Collection[int]) -> set[int]:
    """Source ports from which a connection is established immediately. Tracked entries of the others are refreshed."""
    words = [sys.executable, "-c", CONNECT, balancer.vip, *map(str, sorted(ports))]
    return set(map(int, site.lab.exec("acacia-client", words).split()))


def attempts(site: LabSite) -> set[str]:
    """Members with unanswered connections on the client's chassis."""
    text = site.lab.exec("chassis1", ["ovs-appctl", "dpctl/dump-conntrack"])
    return set(re.findall(r"reply=\(src=([^,]+),.*state=SYN_SENT", text))
