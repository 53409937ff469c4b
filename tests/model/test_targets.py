"""Probe targets of agents, and the source addresses of probes."""

from dataclasses import replace

import pytest

from fairlead.model.documents.addresses import derive_link_local, parse_address, parse_network
from fairlead.model.documents.checks import (
    Check,
    HttpCheck,
    PlainCheck,
    ProbeSchedule,
    ProxyHeader,
    Target,
    check_of,
    make_schedule,
    parse_expected_codes,
)
from fairlead.model.documents.health import PROBE_TRANSPORTS, Endpoint, Health
from fairlead.model.documents.loadbalancer import HttpMonitor, MonitorType, PlainMonitor, Transport
from fairlead.model.documents.local_ip import ReplicaMonitor
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.probe_devices import ProbeDevice, probe_device
from fairlead.model.queries.probes import derive_health, endpoints, targets
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model
from harness.language import COMMON

MODEL = """
network net1 10.0.0.0/24 10.0.2.0/24 fd00::/64
network net2 10.1.0.0/24
network net3 fd01::/64
network net4 10.3.0.0/24
port vm1 net1 10.0.0.11 fd00::11
port vm2 net1 10.0.2.12
port vm4 net4 10.3.0.11 project=other
probes net1 10.0.0.2
probes net1 10.0.2.2
web vip=10.0.0.10,fd00::10 on=net1 tcp:80{monitor=HTTP}=a/10.0.0.11:80,b/10.0.2.12:80@10.0.0.11:81,six/[fd00::11]:80!
api vip=10.0.0.20 on=net1 tcp:80+81{monitor=PING+delay=9}=c/10.0.0.11,gone/10.0.0.99 tcp:82{monitor=TCP+off}=d/10.0.0.11
"""


def snapshot_of(model: str, agents_probe: bool = True) -> Snapshot:
    documents, _ = parse_model(model.strip(), {})
    empty = Snapshot(agents_probe=agents_probe)
    return apply_changes(empty, Changes(puts=tuple(documents.values())), 1)


def asked(snapshot: Snapshot, balancer: str) -> list[Target]:
    return list(targets(snapshot, snapshot.load_balancers[balancer]))


def endpoint(port: str, address: str, number: int, over: Transport, asker: str) -> Endpoint:
    return Endpoint(port, parse_address(address), number, over, "net1", asker)


def test_monitor_probes_each_member_at_each_port_with_its_own_check():
    snapshot = snapshot_of(MODEL)
    http = HttpCheck(is_tls=False, method="GET", path="/", version="1.0", host="10.0.0.11", codes=frozenset({200}))
    times = ProbeSchedule(delay=5.0, timeout=2.0, max_retries=2, max_retries_down=3)
    assert asked(snapshot, "web") == [
        Target(
            endpoint=endpoint("vm1", "10.0.0.11", number, Transport.TCP, "web-tcp-80-monitor"),
            check=http,
            schedule=times,
            project_id="demo",
        )
        for number in (80, 81)
    ]
    ping, slow = PlainCheck(type=MonitorType.PING), replace(times, delay=9.0)
    once = endpoint("vm1", "10.0.0.11", 0, Transport.ANY, "api-tcp-80+81-monitor")
    nobodys = endpoint("", "10.0.0.99", 0, Transport.ANY, "api-tcp-80+81-monitor")
    assert asked(snapshot, "api") == [
        Target(endpoint=each, check=ping, schedule=slow, project_id="demo") for each in (once, nobodys)
    ]


def test_agents_have_no_targets_where_ovn_probes():
    snapshot = snapshot_of(MODEL, agents_probe=False)
    assert asked(snapshot, "web") == []
    assert {each.monitor_id for each in endpoints(snapshot, snapshot.load_balancers["api"])} == set()


def test_agents_can_probe_every_monitor_type():
    assert set(PROBE_TRANSPORTS) == set(MonitorType)
    snapshot = snapshot_of(MODEL)
    web = Owner(Kind.LOAD_BALANCER, "web")
    seen = {each.endpoint: Health.ERROR for each in asked(snapshot, "web")[:1]}
    snapshot = derive_health(replace(snapshot, health=snapshot.health.update(seen)), [web])
    assert snapshot.down["web"] == {"web-a"}


def test_probe_timing_follows_the_monitor_with_octavia_defaults():
    monitor = PlainMonitor(id="m", type=MonitorType.TCP, delay=0, timeout=0, max_retries=1, **COMMON)
    assert make_schedule(monitor) == ProbeSchedule(delay=1.0, timeout=1.0, max_retries=1, max_retries_down=3)
    quick = make_schedule(replace(monitor, delay=1, delay_ms=100))
    assert (quick.delay, quick.effective_timeout) == (0.1, pytest.approx(0.075))
    assert make_schedule(ReplicaMonitor(port=80, delay=7, timeout=2)).delay == 7.0


@pytest.mark.parametrize(
    ("codes", "found"),
    [("200", {200}), ("200,202", {200, 202}), ("200 , 202", {200, 202}), ("200-203", {200, 201, 202, 203})],
)
def test_expected_codes_are_a_value_a_list_or_a_range(codes: str, found: set[int]):
    assert parse_expected_codes(codes) == found


def test_http_check_sends_the_member_address_or_domain_name_as_host():
    monitor = HttpMonitor(
        id="m", type=MonitorType.HTTPS, delay=5, timeout=2, max_retries=1, http_method="HEAD", url_path="/up", **COMMON
    )
    six = check_of(monitor, parse_address("fd00::11"))
    assert six == HttpCheck(
        is_tls=True, method="HEAD", path="/up", version="1.0", host="[fd00::11]", codes=frozenset({200})
    )
    named = check_of(replace(monitor, http_version="1.1", domain_name="web.example"), parse_address("10.0.0.1"))
    assert isinstance(named, HttpCheck)
    assert (named.version, named.host) == ("1.1", "web.example")


GREETED = """
network net1 10.0.0.0/24 10.0.2.0/24 fd00::/64
network net2 10.1.0.0/24
port vm1 net1 10.0.0.11 fd00::11
port vm2 net1 10.0.2.12
web vip=10.0.0.10,fd00::10 on=net1 provider=fairlead tcp:80{proxy=2000,%s}=%s
"""


@pytest.mark.parametrize(
    ("pool", "members", "wanted"),
    [
        ("pool=PROXY", "a/10.0.0.11:80,six/[fd00::11]:80", {("10.0.0.11", 80): True, ("fd00::11", 80): True}),
        ("pool=PROXYV2", "a/10.0.0.11:80@10.0.0.11:81", {("10.0.0.11", 81): False}),
        ("pool=PROXYV2", "six/[fd00::11]:80@[fd00::11]:81", {("fd00::11", 81): False}),
        ("pool=PROXY", "a/10.0.0.11:80@10.0.2.12:80", {("10.0.2.12", 80): False}),
        ("pool=PROXY", "a/10.0.0.11:80@10.0.0.11:80", {("10.0.0.11", 80): True}),
        ("pool=PROXY", "a/10.0.0.11:80,b/10.0.2.12:81@10.0.0.11:80", {("10.0.0.11", 80): True}),
        ("pool=PROXY", "off/10.0.0.11:80!,b/10.0.2.12:81@10.0.0.11:80", {("10.0.0.11", 80): True}),
        ("pool=TCP,limit=1", "a/10.0.0.11:80", {("10.0.0.11", 80): False}),
    ],
)
@pytest.mark.parametrize("kind", ["TCP", "HTTP", "HTTPS", "TLS-HELLO"])
def test_probe_sends_a_proxy_header_where_pool_connections_do(
    kind: str, pool: str, members: str, wanted: dict[tuple[str, int], bool]
):
    """Probes start with a PROXY header where a pool member takes connections with one; members with the same port share
    a probe."""
    snapshot = snapshot_of(GREETED % (f"monitor={kind},{pool}", members))
    header = ProxyHeader.V2 if "V2" in pool else ProxyHeader.V1
    found = {(str(each.endpoint.address), each.endpoint.port): each.check.header for each in asked(snapshot, "web")}
    assert found == {place: header if greeted else None for place, greeted in wanted.items()}


def checks(pool: str, members: str = "a/10.0.0.11:80") -> list[Check]:
    return [each.check for each in asked(snapshot_of(GREETED % (pool, members)), "web")]


def test_monitors_use_tls_where_members_do():
    assert checks("monitor=TCP,members-tls") == [PlainCheck(type=MonitorType.TLS_HELLO)]
    assert [each.is_tls for each in checks("monitor=HTTP,members-tls") if isinstance(each, HttpCheck)] == [True]
    at_its_own = "a/10.0.0.11:80@10.0.0.11:81"
    assert checks("monitor=TCP,members-tls", at_its_own) == [PlainCheck(type=MonitorType.TCP)]
    assert [each.is_tls for each in checks("monitor=HTTP,members-tls", at_its_own) if isinstance(each, HttpCheck)] == [
        False
    ]


def test_ping_probe_has_no_proxy_header():
    assert checks("monitor=PING,pool=PROXY") == [PlainCheck(type=MonitorType.PING)]


def test_probe_device_has_an_address_in_each_probed_subnet():
    snapshot = snapshot_of(MODEL)
    found = probe_device(snapshot, snapshot.networks["net1"])
    assert found is not None
    assert found == ProbeDevice(
        network_id="net1",
        port_name="probe-net1",
        mac=found.mac,
        mtu=1442,
        addresses=(parse_address("10.0.0.2"), parse_address("10.0.2.2"), derive_link_local(found.mac)),
        subnets=tuple(parse_network(each) for each in ("10.0.0.0/24", "10.0.2.0/24", "fd00::/64")),
    )
    assert probe_device(snapshot, snapshot.networks["net2"]) is None
    six = probe_device(snapshot, snapshot.networks["net3"])
    assert six is not None
    assert six.mac != found.mac
