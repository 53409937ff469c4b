"""Packets through three plain hosts: the receiving host forwards each to the member that owns its slot."""

import socket
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import product

import pytest

from fairlead.dataplane.flow_slot import flow_slot, source_slot
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import HOSTS, LARGE_REPEATS, LONG_REPEATS, NO_REPLY_TIMEOUT, PORT, VIPS, ClientFlow, Fabric, fabric
from harness.net_namespace import NetNamespace, require_root
from harness.waiting import DEADLINE, wait_equal

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
BOTH = Transport.TCP, Transport.UDP


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def test_flow_reaches_the_member_of_its_slot_from_any_host(site: Fabric) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    for entry, vip, transport in product(HOSTS, VIPS, BOTH):
        site.route_to(entry)
        for _ in range(12):
            flow = site.flow(transport, vip)
            assert flow.request() == _expected(flow, EVEN), (entry, vip, transport)


def test_source_affinity_selects_one_member_over_ipv6_tunnels(site: Fabric) -> None:
    site.open(6)
    for number in HOSTS:
        site.serve(number, EVEN, by_source=True)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        flows = [site.flow(transport, vip) for transport in BOTH for _ in range(4)]
        wanted = f"m{EVEN[source_slot(flows[0].client[0], vip)] + 1}"
        assert {flow.request() for flow in flows} == {wanted}


def test_clients_on_and_behind_hosts_use_the_same_slot_table(site: Fabric) -> None:
    """One client is the selected member itself, which is reached from its host's address."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    for vip, transport, where in product(VIPS, BOTH, (site.hosts[2], site.members[2])):
        flows = [site.flow(transport, vip, where) for _ in range(24)]
        answers = [flow.request() for flow in flows]
        assert answers == [_expected(flow, EVEN) for flow in flows]
        assert set(answers) == {"m1", "m2", "m3"}


def test_host_without_a_default_route_sends_from_its_own_address(site: Fabric) -> None:
    """A host without a default route sends from an address of its own, not from the VIP that it holds."""
    for host in site.hosts.values():
        host.ip("route add 10.30.0.0/16 via 10.20.0.1", "route add fd30::/16 via fd20::1")
        host.ip("route del default via 10.20.0.1", "route del default via fd20::1")
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    for vip, transport in product(VIPS, BOTH):
        flows = [site.flow(transport, vip, site.hosts[2]) for _ in range(24)]
        assert [flow.request() for flow in flows] == [_expected(flow, EVEN) for flow in flows]
        assert vip not in {flow.client[0] for flow in flows}


def test_host_without_held_vips_still_forwards_its_clients(site: Fabric) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN, held=number != 2)
    site.route_to(1)
    for vip, transport, where in product(VIPS, BOTH, (site.hosts[2], site.members[2], site.client)):
        flows = [site.flow(transport, vip, where) for _ in range(12)]
        assert [flow.request() for flow in flows] == [_expected(flow, EVEN) for flow in flows]


@pytest.mark.parametrize("loose", [0, 1])
def test_flows_survive_moved_slots_on_any_host(site: Fabric, loose: int) -> None:
    """Flows survive moved slots on any host, while hosts are updated one by one and the router moves their packets,
    with both values of nf_conntrack_tcp_loose."""
    site.open()
    for host in site.hosts.values():
        host.set_sysctl("net/netfilter/nf_conntrack_tcp_loose", loose)
    places = site.client, site.hosts[1], site.hosts[3], site.members[1], site.members[3]
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    old = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    names = [flow.request() for flow in old]
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    for number in HOSTS:
        mine = {slot: 3 for slot, place in enumerate(EVEN) if place == 2 and drained[slot] == number - 1}
        site.serve(number, drained, before=mine)
        assert [flow.request() for flow in old] == names, f"host {number} was told"
    new = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    begun = [flow.request() for flow in new]
    assert begun == [_expected(flow, drained) for flow in new]
    for entry in HOSTS:
        site.route_to(entry)
        assert [flow.request() for flow in old] == names, f"by host {entry}"
        assert [flow.request() for flow in new] == begun, f"by host {entry}"
    for number in HOSTS:
        site.serve(number, drained)
    assert [flow.request() for flow in new] == begun, "the transition is over"


@pytest.mark.parametrize("order", [HOSTS, HOSTS[::-1]], ids=str)
@pytest.mark.parametrize("entry", HOSTS)
def test_flows_stay_with_their_members_when_a_drained_host_returns(
    site: Fabric, entry: int, order: tuple[int, ...]
) -> None:
    """Flows stay where they are when a drained host returns. While hosts disagree a packet may be lost, never
    misdelivered."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(entry)
    each_way = [*product(BOTH, VIPS)] * 8
    flows = [site.flow(*each) for each in each_way]
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    moved = {slot: drained[slot] + 1 for slot, place in enumerate(EVEN) if place == 2}
    names = [flow.request() for flow in flows]
    for number in HOSTS:
        site.serve(number, drained, before={slot: 3 for slot, to in moved.items() if to == number})
    meanwhile = [site.flow(*each) for each in each_way]
    begun = [flow.request() for flow in meanwhile]
    assert (set(names), set(begun)) == ({"m1", "m2", "m3"}, {"m1", "m2"})
    flows, names = flows + meanwhile, names + begun
    for number in order:
        site.serve(number, EVEN, before=moved if number == 3 else {})
        for flow, name in zip(flows, names, strict=True):
            assert _replying_member(flow) <= {name}, (number, flow)
    for other in HOSTS:
        site.route_to(other)
        assert [_replying_member(flow, DEADLINE) for flow in flows] == [{name} for name in names], f"by host {other}"
    fresh = [site.flow(*each) for each in each_way]
    assert [flow.request() for flow in fresh] == [_expected(flow, EVEN) for flow in fresh]


@pytest.mark.parametrize("entry", HOSTS)
def test_no_rst_is_sent_while_two_hosts_disagree_about_a_slot(site: Fabric, entry: int) -> None:
    """No RST is sent while two hosts take each other for a slot's owner: clients retry, and are served once both
    agree."""
    site.open()
    seconds, firsts = bytes([1] * 256), bytes(256)
    site.serve(1, seconds)
    for number in (2, 3):
        site.serve(number, firsts)
    site.route_to(entry)
    asking = [site.start_connecting(vip) for vip in VIPS]
    for each in asking:
        with pytest.raises(TimeoutError):
            each.request(within=NO_REPLY_TIMEOUT)
    site.serve(2, seconds)
    assert [each.request() for each in asking] == ["m2", "m2"]


def test_connections_of_returning_slots_are_translated_again(site: Fabric) -> None:
    """Slots that return are translated again, although the host's conntrack entries are those of forwarded
    connections."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(3)
    old = [
        flow for flow in (site.flow(Transport.TCP, vip) for vip in VIPS for _ in range(40)) if flow.request() == "m3"
    ]
    moved = bytes(0 if place == 2 else place for place in EVEN)
    site.serve(1, moved, before={slot: 3 for slot, place in enumerate(EVEN) if place == 2})
    for number in (2, 3):
        site.serve(number, moved)
    site.route_to(1)
    assert {flow.request() for flow in old} == {"m3"}
    for number in (3, 2, 1):
        site.serve(number, EVEN)
    for entry in HOSTS:
        site.route_to(entry)
        assert {flow.request() for flow in old} == {"m3"}
    fresh = [site.flow(Transport.TCP, vip) for vip in VIPS for _ in range(20)]
    assert [flow.request() for flow in fresh] == [_expected(flow, EVEN) for flow in fresh]


def test_client_outside_the_allowed_cidrs_gets_no_reply(site: Fabric) -> None:
    site.open()
    allowed = tuple(sorted((ip_network("198.51.100.2/31"), ip_network("fd51::/64")), key=str))
    others = tuple(sorted((ip_network("198.51.100.64/26"), ip_network("fd52::/64")), key=str))
    for number in HOSTS:
        site.serve(number, EVEN, clients=allowed)
    for entry, vip, transport in product(HOSTS, VIPS, BOTH):
        site.route_to(entry)
        assert site.flow(transport, vip).request()
    for number in HOSTS:
        site.serve(number, EVEN, clients=others)
    for vip in VIPS:
        with pytest.raises(TimeoutError):
            site.flow(Transport.TCP, vip, timeout=NO_REPLY_TIMEOUT)
        with pytest.raises(TimeoutError):
            site.flow(Transport.UDP, vip, timeout=NO_REPLY_TIMEOUT).request()


@pytest.mark.parametrize("held", [True, False])
def test_ports_without_members_or_listeners_refuse_connections(site: Fabric, held: bool) -> None:
    site.open()
    with site.hosts[1].inside():
        own = socket.create_server(("::", 22), family=socket.AF_INET6, dualstack_ipv6=True)
    for number in HOSTS:
        site.serve(number, b"", held=held)
    site.route_to(1)
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip)
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.UDP, vip).request()
        with site.client.inside(), pytest.raises(ConnectionRefusedError):
            socket.create_connection((str(vip), 22), timeout=DEADLINE)
    own.close()


def test_path_mtu_errors_reach_the_member_of_the_connection(site: Fabric) -> None:
    """A path MTU error that the router sends to a VIP reaches the member, whichever host receives it."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.router.ip("link set c0 mtu 1300")
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        flows = [site.flow(Transport.TCP, vip) for _ in range(6)]
        assert {flow.request_large() for flow in flows} == {100_000}


def test_path_mtu_errors_about_datagrams_reach_the_member(site: Fabric) -> None:
    """A path MTU error about a datagram reaches the member: its first reply is lost, and the next one is fragmented."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.router.ip("link set c0 mtu 1300")
    for entry, vip, member in product(HOSTS, VIPS, HOSTS):
        site.route_to(entry)
        _expect_full_packets(site, _flow_to(site, Transport.UDP, vip, f"m{member}"), f"m{member}")


def test_icmp_errors_reach_the_member_of_a_flow_after_slots_have_moved(site: Fabric) -> None:
    """ICMP errors reach the member of a flow, old or new, after the third host's slots have moved. They come from an
    outside router, and from the first host about a client behind it."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    places = site.client, site.members[1]
    each_way = [*product(HOSTS, BOTH, VIPS, places)]
    old = [_flow_to(site, transport, vip, "m3", where) for _, transport, vip, where in each_way]
    assert {flow.request() for flow in old} == {"m3"}
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    for number in HOSTS:
        mine = {slot: 3 for slot, place in enumerate(EVEN) if place == 2 and drained[slot] == number - 1}
        site.serve(number, drained, before=mine)
    new = [_flow_to(site, transport, vip, "m3", where) for _, transport, vip, where in each_way]
    begun = [flow.request() for flow in new]
    assert begun == [_expected(flow, drained) for flow in new]
    flows = [*zip(each_way, old, ["m3"] * len(old), strict=True), *zip(each_way, new, begun, strict=True)]
    for place, narrow, device in (site.client, site.router, "c0"), (site.members[1], site.hosts[1], "m0"):
        narrow.ip(f"link set {device} mtu 1300")
        for (entry, *_, where), flow, name in flows:
            # a member that reaches itself is on that link too
            if where is place and (name, where) != ("m1", site.members[1]):
                site.route_to(entry)
                _expect_full_packets(site, flow, name)


def _expect_full_packets(site: Fabric, flow: ClientFlow, name: str) -> None:
    """Expect that the member, unaware of the path MTU, receives the error and adapts."""
    site.members[int(name[1:])].run("ip", f"-{flow.vip.version}", "route", "flush", "cache")
    if flow.transport is Transport.TCP:
        assert flow.request_large() == 2 * LARGE_REPEATS
        return
    flow.socket.settimeout(NO_REPLY_TIMEOUT)
    with pytest.raises(TimeoutError):
        flow.request(b"long")
    wait_equal(lambda: flow.request(b"long"), name * LONG_REPEATS, retry=(TimeoutError,))


def test_full_size_client_packets_pass_through_tunnels(site: Fabric) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        for _ in range(6):
            flow = site.flow(Transport.TCP, vip)
            assert flow.request(b"x" * 60_000).startswith(_expected(flow, EVEN))


def test_agent_restart_changes_nothing_and_the_host_serves_without_an_agent(site: Fabric) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(2)
    flows = [site.flow(transport, vip) for vip in VIPS for transport in BOTH for _ in range(10)]
    names = [flow.request() for flow in flows]
    for number in HOSTS:
        site.run_on_host(number, site.drivers[number].close())
        assert [flow.request() for flow in flows] == names
        site.drivers[number] = Native()
        found = site.run_on_host(number, site.drivers[number].read_all())
        assert found == {owner: rows for (host, owner), rows in site.applied.items() if host == number}
    assert [flow.request() for flow in flows] == names


def _flow_to(
    site: Fabric, transport: Transport, vip: IPAddress, member: str, where: NetNamespace | None = None
) -> ClientFlow:
    """Return a flow from a port whose slot belonged to this member."""
    while True:
        flow = site.flow(transport, vip, where)
        if _expected(flow, EVEN) == member:
            return flow


def _replying_member(flow: ClientFlow, seconds: float = 0.1) -> set[str]:
    """Return the names in the reply: none if the packet was lost or is retransmitted later, two if replies of TCP
    arrive together."""
    flow.socket.settimeout(seconds)
    try:
        text = flow.request()
    except TimeoutError:
        return set()
    return {text[place : place + 2] for place in range(0, len(text), 2)}


def _expected(flow: ClientFlow, slots: bytes) -> str:
    return f"m{slots[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1}"
