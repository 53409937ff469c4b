"""Counters of plain hosts with real packets: each connection and byte is counted once, on the member's host."""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from fairlead.dataplane.flow_slot import flow_slot
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.nftables import ruleset
from fairlead.drivers.native.nftables.counters import KernelCounters
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.counter_samples import CounterSamples, CounterValue
from fairlead.model.queries.statistics import AnnouncedPlace, CountedService
from fairlead.node.state import read_state, write_state
from harness.fabric import HOSTS, LARGE_REPEATS, PORT, VIPS, ClientFlow, Fabric, fabric
from harness.fabric_counters import BOOT_ID, accept_all, active, read, total, values
from harness.net_namespace import require_root
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
BOTH = Transport.TCP, Transport.UDP
SERVICES = [
    CountedService(place=AnnouncedPlace(), transport=transport, address=vip, port=PORT)
    for vip, transport in product(VIPS, BOTH)
]
HEADERS = {4: 20 + 8, 6: 40 + 8}
"""Header bytes of a datagram, by IP version."""
NAME = 2
"""Bytes of a member's name."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def serve(site: Fabric, slots: bytes = EVEN, **known: object) -> None:
    for number in HOSTS:
        site.serve(number, slots, **known)


def service_of(flow: ClientFlow) -> CountedService:
    return CountedService(place=AnnouncedPlace(), transport=flow.transport, address=flow.vip, port=PORT)


def test_connections_and_bytes_are_counted_once_on_the_host_of_the_member(site: Fabric) -> None:
    """Traffic is counted once, on the member's host, wherever it enters, with clients outside, on hosts and behind
    hosts."""
    site.open()
    serve(site)
    opened: dict[int, Counter[CountedService]] = {number: Counter() for number in HOSTS}
    for entry, vip, transport, where in product(HOSTS, VIPS, BOTH, (site.client, site.hosts[2], site.members[2])):
        site.route_to(entry)
        for _ in range(6):
            flow = site.flow(transport, vip, where)
            if transport is Transport.TCP:
                assert flow.request_large() == 2 * LARGE_REPEATS
            else:
                assert len(flow.request(bytes(1000))) == NAME
            opened[_member(flow)][service_of(flow)] += 1
    for number in HOSTS:
        found = read(site, number)
        assert values(found, "connections") == dict(opened[number])
        assert values(found, "errors") == {}
        for service, count in opened[number].items():
            came, went = (found[service].counts[name].value for name in ("bytes_in", "bytes_out"))
            if service.transport is Transport.UDP:
                headers = HEADERS[service.address.version]
                assert (came, went) == (count * (1000 + headers), count * (NAME + headers))
            else:
                assert came < count * 0.2 * LARGE_REPEATS
                assert count * 2 * LARGE_REPEATS < went < count * 2.2 * LARGE_REPEATS


def test_bytes_received_through_tunnels_are_counted(site: Fabric) -> None:
    site.open()
    serve(site)
    opened = Counter[CountedService]()
    for entry, vip in product(HOSTS, VIPS):
        site.route_to(entry)
        for _ in range(6):
            flow = site.flow(Transport.TCP, vip)
            flow.request(bytes(60_000))
            opened[service_of(flow)] += 1

    for service, count in opened.items():  # the last bytes may be in flight while the reply is already read
        least = count * 60_000
        wait_until(
            lambda service=service: total(site, "bytes_in")[service],  # type: ignore[misc]
            f"more than {least} bytes",
            is_enough=lambda received, least=least: received > least,  # type: ignore[misc]
        )
        assert total(site, "bytes_in")[service] < count * 66_000


def test_flows_keep_their_counting_host_after_slots_have_moved(site: Fabric) -> None:
    """New UDP flows go to the previous owner of the slot, which returns them; the current owner counts them."""
    site.open()
    serve(site)
    site.route_to(1)
    places = site.client, site.hosts[1], site.members[1]
    old = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    for flow in old:
        flow.request(bytes(1000))
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    for number in HOSTS:
        mine = {slot: 3 for slot, place in enumerate(EVEN) if place == 2 and drained[slot] == number - 1}
        site.serve(number, drained, before=mine)
    new = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    for entry in HOSTS:
        site.route_to(entry)
        for flow in (*old, *new):
            flow.request(bytes(1000))
    for number in HOSTS:
        kept = [flow for flow in old if _member(flow) == number]
        begun = [flow for flow in new if _member(flow, drained) == number]
        found = read(site, number)
        assert values(found, "connections") == dict(Counter(map(service_of, (*kept, *begun)))), number
        packets = Counter[CountedService]()
        for flow, count in [(flow, 4) for flow in kept] + [(flow, 3) for flow in begun]:
            packets[service_of(flow)] += count
        for service in SERVICES:
            if service.transport is Transport.UDP:
                headers = HEADERS[service.address.version]
                assert values(found, "bytes_in").get(service, 0) == packets[service] * (1000 + headers)
                assert values(found, "bytes_out").get(service, 0) == packets[service] * (NAME + headers)


def test_rejected_connections_count_as_errors_on_the_rejecting_host(site: Fabric) -> None:
    site.open()
    serve(site, b"")
    for entry in (1, 2):
        site.route_to(entry)
        for vip, _ in product(VIPS, range(entry)):
            with pytest.raises(ConnectionRefusedError):
                site.flow(Transport.TCP, vip)
            with pytest.raises(ConnectionRefusedError):
                site.flow(Transport.UDP, vip).request()
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, site.members[3])
    tcp = [each for each in SERVICES if each.transport is Transport.TCP]
    wanted = {1: dict.fromkeys(SERVICES, 1), 2: dict.fromkeys(SERVICES, 2), 3: dict.fromkeys(tcp, 1)}
    assert {number: values(read(site, number), "errors") for number in HOSTS} == wanted
    assert [values(read(site, number), name) for number in HOSTS for name in ("connections", "bytes_in")] == [{}] * 6


def test_counters_survive_changes_agent_restarts_and_upgrades(site: Fabric, tmp_path: Path) -> None:
    """Totals survive changes, agents and an upgrade that replaces the rules, because they are those of the one state
    file."""
    site.open()
    site.route_to(2)
    cookies = set[int]()
    changes = bytes(256), EVEN, bytes(255) + b"\1", EVEN
    for slots in changes:
        serve(site, slots)
        for transport, vip, _ in product(BOTH, VIPS, range(6)):
            site.flow(transport, vip).request(bytes(1000))
        for number in HOSTS:
            _look(site, number, tmp_path / str(number))
        site.run_on_host(2, site.drivers[2].close())
        older = f"{'0' * 16} {ruleset.layout_of(ruleset.compute_digests())}"
        site.hosts[2].nft(f'flush set inet fairlead about\nadd element inet fairlead about {{ 0 comment "{older}" }}')
        site.drivers[2] = Native()
        cookies |= {each.cookie for each in _counts(read(site, 2))}
    assert len(cookies) == 1
    sums = [read_state(tmp_path / str(number), BOOT_ID).sums for number in HOSTS]
    for service in SERVICES:
        whole = sum((each.get(str(service), TrafficCounters()) for each in sums), TrafficCounters())
        assert whole.connections == len(changes) * 6
        if service.transport is Transport.UDP:
            assert whole.bytes_in == whole.connections * (1000 + HEADERS[service.address.version])


def _look(site: Fabric, number: int, path: Path) -> None:
    """Read the counters as an agent that starts and stops."""
    tally, found = read_state(path, BOOT_ID), read(site, number)
    tally.add(found, {each: str(each) for each in tally.changed_services(found)})
    write_state(path, BOOT_ID, tally)


def _counts(readings: CounterSamples) -> list[CounterValue]:
    return [count for reading in readings.values() for count in reading.counts.values()]


def test_restored_ruleset_counts_from_zero(site: Fabric) -> None:
    """A restored ruleset counts from zero, because its counters would be added twice: in this boot or in the next
    one."""
    site.open()
    serve(site)
    site.route_to(1)

    def ask() -> None:
        for transport, vip in product(BOTH, VIPS):
            for _ in range(20):
                site.flow(transport, vip).request()

    ask()
    first = read(site, 1)
    saved = site.hosts[1].run("nft", "list", "ruleset")
    site.hosts[1].nft(f"flush ruleset\n{saved}")
    assert values(read(site, 1), "connections") == {}
    ask()
    again = read(site, 1)
    assert {each.cookie for each in _counts(again)}.isdisjoint(each.cookie for each in _counts(first))
    assert set(values(again, "connections")) == set(SERVICES)
    assert all(value < 20 for value in values(again, "connections").values())
    assert values(read(site, 1, boot="another"), "connections") == {}
    ask()
    site.hosts[1].run("nft", "flush", "ruleset")
    assert read(site, 1) == {}


def test_unmanaged_services_are_not_counted_and_removed_ones_are_deleted(site: Fabric) -> None:
    site.open()
    serve(site)
    site.route_to(1)
    site.hosts[1].nft(
        "table ip theirs { chain nat { type nat hook prerouting priority dstnat; "
        f"ip daddr 203.0.113.77 tcp dport {PORT} dnat to 10.30.1.2:8080; }}; }}\n"
    )
    site.router.ip("route add 203.0.113.77 via 10.20.0.11")
    assert site.client.run("python3", "-c", _ASK.format("203.0.113.77", PORT)).strip() == "m1"
    assert _counts(read(site, 1)) == []
    for transport, vip in product(BOTH, VIPS):
        for _ in range(20):
            site.flow(transport, vip).request()
    gone = CountedService(place=AnnouncedPlace(), transport=Transport.UDP, address=VIPS[0], port=PORT)
    assert set(read(site, 1)) == set(SERVICES)
    assert set(read(site, 1, lambda each: each != gone)) == set(SERVICES) - {gone}
    assert read(site, 1)[gone].counts == {}, "what is open is open still"


_ASK = """
import socket
with socket.create_connection(("{0}", {1}), timeout=60) as asked:
    asked.sendall(b"who")
    print(asked.recv(100).decode())
"""


def test_manually_added_counter_elements_are_removed(site: Fabric) -> None:
    site.open()
    serve(site)
    site.route_to(1)
    site.hosts[1].nft(
        f"add element inet fairlead counted4 {{ original . {VIPS[0]} . tcp . 81 }}\n"
        f"add element inet fairlead counted4 {{ original . {VIPS[0]} . 77 . 80 counter }}\n"
        f"add element inet fairlead opened6 {{ {VIPS[1]} . udp . 81 }}"
    )
    assert read(site, 1, lambda _: True) == {}
    left = site.hosts[1].run("nft", "list", "table", "inet", "fairlead")
    assert [each for each in (". 81", ". 77 .") if each in left] == []
    for _ in range(20):
        site.flow(Transport.TCP, VIPS[0]).request()
    assert len(read(site, 1)) == 1


def test_flows_beyond_the_counter_limit_are_served_uncounted(site: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "MAX_COUNTED", 1)
    site.open()
    serve(site)
    site.route_to(1)
    for transport, vip in product(BOTH, VIPS):
        for _ in range(12):
            flow = site.flow(transport, vip)
            assert flow.request() == f"m{_member(flow)}"
    counted = values(read(site, 1), "connections")
    assert len(counted) == len(VIPS)


def test_open_connections_are_counted_on_the_host_of_the_member(site: Fabric) -> None:
    """Open connections are counted on the member's host, although forwarding hosts track the clients too."""
    site.open()
    serve(site)
    site.route_to(2)
    places = site.client, site.hosts[3], site.members[1]
    flows = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(5)]
    for flow in flows:
        flow.request()
    each = len(VIPS) * len(places) * 5
    assert {transport: active(site, transport) for transport in BOTH} == dict.fromkeys(BOTH, each)
    with site.hosts[1].inside(), closing(KernelCounters("fairlead", BOOT_ID, 0)) as counters:
        assert not any(reading.active for reading in counters.read(accept_all).values()), "so many are not looked at"
    for flow in flows[:5]:
        flow.socket.close()
    wait_equal(lambda: active(site, Transport.TCP), each - 5)
    assert active(site, Transport.UDP) == each, "the tracker remembers them"


def _member(flow: ClientFlow, slots: bytes = EVEN) -> int:
    """Return the number of the member's host."""
    return slots[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1
