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
from fairlead.drivers.native.nftables.counters import Counters
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.counter_samples import Count, Readings
from fairlead.model.queries.statistics import Announced, CountedService
from fairlead.node.state import read_state, write_state
from harness.apart import require_root
from harness.fabric import HOSTS, LARGE, PORT, VIPS, Fabric, Flow, fabric
from harness.fabric_counters import BOOT, active, everybody, read, total, values
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
BOTH = Transport.TCP, Transport.UDP
SERVICES = [
    CountedService(place=Announced(), transport=transport, address=vip, port=PORT)
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


def service_of(flow: Flow) -> CountedService:
    return CountedService(place=Announced(), transport=flow.transport, address=flow.vip, port=PORT)


def test_each_connection_and_byte_is_counted_once_where_the_member_is(site: Fabric) -> None:
    """Traffic is counted once, on the member's host, wherever it enters, with clients outside, on hosts and behind
    hosts."""
    site.open()
    serve(site)
    opened: dict[int, Counter[CountedService]] = {number: Counter() for number in HOSTS}
    for entry, vip, transport, where in product(HOSTS, VIPS, BOTH, (site.client, site.hosts[2], site.members[2])):
        site.lead(entry)
        for _ in range(6):
            flow = site.flow(transport, vip, where)
            if transport is Transport.TCP:
                assert flow.ask_much() == 2 * LARGE
            else:
                assert len(flow.ask(bytes(1000))) == NAME
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
                assert came < count * 0.2 * LARGE
                assert count * 2 * LARGE < went < count * 2.2 * LARGE


def test_what_members_receive_is_counted_through_tunnels_too(site: Fabric) -> None:
    site.open()
    serve(site)
    opened = Counter[CountedService]()
    for entry, vip in product(HOSTS, VIPS):
        site.lead(entry)
        for _ in range(6):
            flow = site.flow(Transport.TCP, vip)
            flow.ask(bytes(60_000))
            opened[service_of(flow)] += 1

    for service, count in opened.items():  # the last bytes may be in flight while the reply is already read
        least = count * 60_000
        wait_until(
            lambda service=service: total(site, "bytes_in")[service],  # type: ignore[misc]
            f"more than {least} bytes",
            is_enough=lambda received, least=least: received > least,  # type: ignore[misc]
        )
        assert total(site, "bytes_in")[service] < count * 66_000


def test_flows_whose_slots_have_moved_go_on_where_they_were_and_strays_are_nobodys(site: Fabric) -> None:
    """New UDP flows go to the previous owner of the slot, which returns them; the current owner counts them."""
    site.open()
    serve(site)
    site.lead(1)
    places = site.client, site.hosts[1], site.members[1]
    old = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    for flow in old:
        flow.ask(bytes(1000))
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    for number in HOSTS:
        mine = {slot: 3 for slot, place in enumerate(EVEN) if place == 2 and drained[slot] == number - 1}
        site.serve(number, drained, before=mine)
    new = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(8)]
    for entry in HOSTS:
        site.lead(entry)
        for flow in (*old, *new):
            flow.ask(bytes(1000))
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


def test_who_is_refused_because_nobody_serves_is_counted_where_that_was_said(site: Fabric) -> None:
    site.open()
    serve(site, b"")
    for entry in (1, 2):
        site.lead(entry)
        for vip, _ in product(VIPS, range(entry)):
            with pytest.raises(ConnectionRefusedError):
                site.flow(Transport.TCP, vip)
            with pytest.raises(ConnectionRefusedError):
                site.flow(Transport.UDP, vip).ask()
    for vip in VIPS:
        with pytest.raises(ConnectionRefusedError):
            site.flow(Transport.TCP, vip, site.members[3])
    tcp = [each for each in SERVICES if each.transport is Transport.TCP]
    wanted = {1: dict.fromkeys(SERVICES, 1), 2: dict.fromkeys(SERVICES, 2), 3: dict.fromkeys(tcp, 1)}
    assert {number: values(read(site, number), "errors") for number in HOSTS} == wanted
    assert [values(read(site, number), name) for number in HOSTS for name in ("connections", "bytes_in")] == [{}] * 6


def test_agents_and_changes_come_and_go_and_counting_goes_on(site: Fabric, tmp_path: Path) -> None:
    """Totals survive changes, agents and an upgrade that replaces the rules, because they are those of the one state
    file."""
    site.open()
    site.lead(2)
    cookies = set[int]()
    changes = bytes(256), EVEN, bytes(255) + b"\1", EVEN
    for slots in changes:
        serve(site, slots)
        for transport, vip, _ in product(BOTH, VIPS, range(6)):
            site.flow(transport, vip).ask(bytes(1000))
        for number in HOSTS:
            _look(site, number, tmp_path / str(number))
        site.do(2, site.drivers[2].close())
        older = f"{'0' * 16} {ruleset.layout_of(ruleset.about())}"
        site.hosts[2].nft(f'flush set inet fairlead about\nadd element inet fairlead about {{ 0 comment "{older}" }}')
        site.drivers[2] = Native()
        cookies |= {each.cookie for each in _counts(read(site, 2))}
    assert len(cookies) == 1
    sums = [read_state(tmp_path / str(number), BOOT).sums for number in HOSTS]
    for service in SERVICES:
        whole = sum((each.get(str(service), Figures()) for each in sums), Figures())
        assert whole.connections == len(changes) * 6
        if service.transport is Transport.UDP:
            assert whole.bytes_in == whole.connections * (1000 + HEADERS[service.address.version])


def _look(site: Fabric, number: int, path: Path) -> None:
    """Read the counters as an agent that starts and stops."""
    tally, found = read_state(path, BOOT), read(site, number)
    tally.take(found, {each: str(each) for each in tally.grown(found)})
    write_state(path, BOOT, tally)


def _counts(readings: Readings) -> list[Count]:
    return [count for reading in readings.values() for count in reading.counts.values()]


def test_table_that_was_loaded_again_as_it_was_saved_counts_from_nothing(site: Fabric) -> None:
    """A restored ruleset counts from zero, because its counters would be added twice: in this boot or in the next
    one."""
    site.open()
    serve(site)
    site.lead(1)

    def ask() -> None:
        for transport, vip in product(BOTH, VIPS):
            for _ in range(20):
                site.flow(transport, vip).ask()

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


def test_what_is_no_service_of_ours_is_not_counted_and_what_is_nobodys_any_more_is_removed(site: Fabric) -> None:
    site.open()
    serve(site)
    site.lead(1)
    site.hosts[1].nft(
        "table ip theirs { chain nat { type nat hook prerouting priority dstnat; "
        f"ip daddr 203.0.113.77 tcp dport {PORT} dnat to 10.30.1.2:8080; }}; }}\n"
    )
    site.router.ip("route add 203.0.113.77 via 10.20.0.11")
    assert site.client.run("python3", "-c", _ASK.format("203.0.113.77", PORT)).strip() == "m1"
    assert _counts(read(site, 1)) == []
    for transport, vip in product(BOTH, VIPS):
        for _ in range(20):
            site.flow(transport, vip).ask()
    gone = CountedService(place=Announced(), transport=Transport.UDP, address=VIPS[0], port=PORT)
    assert set(read(site, 1)) == set(SERVICES)
    assert set(read(site, 1, lambda each: each != gone)) == set(SERVICES) - {gone}
    assert read(site, 1)[gone].counts == {}, "what is open is open still"


_ASK = """
import socket
with socket.create_connection(("{0}", {1}), timeout=60) as asked:
    asked.sendall(b"who")
    print(asked.recv(100).decode())
"""


def test_what_somebody_writes_by_hand_among_what_is_counted_is_removed(site: Fabric) -> None:
    site.open()
    serve(site)
    site.lead(1)
    site.hosts[1].nft(
        f"add element inet fairlead counted4 {{ original . {VIPS[0]} . tcp . 81 }}\n"
        f"add element inet fairlead counted4 {{ original . {VIPS[0]} . 77 . 80 counter }}\n"
        f"add element inet fairlead opened6 {{ {VIPS[1]} . udp . 81 }}"
    )
    assert read(site, 1, lambda _: True) == {}
    left = site.hosts[1].run("nft", "list", "table", "inet", "fairlead")
    assert [each for each in (". 81", ". 77 .") if each in left] == []
    for _ in range(20):
        site.flow(Transport.TCP, VIPS[0]).ask()
    assert len(read(site, 1)) == 1


def test_who_finds_no_room_is_served_and_not_counted(site: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruleset, "MOST_COUNTED", 1)
    site.open()
    serve(site)
    site.lead(1)
    for transport, vip in product(BOTH, VIPS):
        for _ in range(12):
            flow = site.flow(transport, vip)
            assert flow.ask() == f"m{_member(flow)}"
    counted = values(read(site, 1), "connections")
    assert len(counted) == len(VIPS)


def test_what_is_open_is_counted_while_it_is(site: Fabric) -> None:
    """Open connections are counted on the member's host, although forwarding hosts track the clients too."""
    site.open()
    serve(site)
    site.lead(2)
    places = site.client, site.hosts[3], site.members[1]
    flows = [site.flow(*each, where) for each in product(BOTH, VIPS) for where in places for _ in range(5)]
    for flow in flows:
        flow.ask()
    each = len(VIPS) * len(places) * 5
    assert {transport: active(site, transport) for transport in BOTH} == dict.fromkeys(BOTH, each)
    with site.hosts[1].inside(), closing(Counters("fairlead", BOOT, 0)) as counters:
        assert not any(reading.active for reading in counters.read(everybody).values()), "so many are not looked at"
    for flow in flows[:5]:
        flow.socket.close()
    wait_equal(lambda: active(site, Transport.TCP), each - 5)
    assert active(site, Transport.UDP) == each, "the tracker remembers them"


def _member(flow: Flow, slots: bytes = EVEN) -> int:
    """Return the number of the member's host."""
    return slots[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1
