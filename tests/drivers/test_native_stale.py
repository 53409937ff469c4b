"""Flows while the agent of one host is down: that host keeps old rows, and all others have new ones.

New connections to slots that moved to that host may fail. Established flows and ICMP errors about them continue,
whichever host their packets enter.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest

from fairlead.dataplane.flow_slot import flow_slot
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import HOSTS, LARGE_REPEATS, LONG_REPEATS, NO_REPLY_TIMEOUT, PORT, VIPS, ClientFlow, Fabric, fabric
from harness.net_namespace import require_root
from harness.waiting import DEADLINE, wait_equal

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
WITHOUT_THIRD = bytes(slot // 3 % 2 if place == 2 else place for slot, place in enumerate(EVEN))
HEAVIER = bytes(2 if slot % 5 == 0 else place for slot, place in enumerate(EVEN))
LIGHTER = bytes(slot // 3 % 2 if place == 2 and slot % 2 else place for slot, place in enumerate(EVEN))
CHANGES: Mapping[str, tuple[bytes, bytes]] = {
    "weight raised": (EVEN, HEAVIER),
    "weight lowered": (EVEN, LIGHTER),
    "member added": (WITHOUT_THIRD, EVEN),
    "member removed": (EVEN, WITHOUT_THIRD),
}
"""Slots before and after. Draining a member or host moves the same slots as its removal, and its return the same as its
addition."""
WAIT = 2.0  # seconds; a lost TCP segment is retransmitted by then
BOTH = Transport.TCP, Transport.UDP


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def change(site: Fabric, away: int, was: bytes, now: bytes) -> None:
    for number in HOSTS:
        if number != away:
            serve(site, number, was, now)


def serve(site: Fabric, number: int, was: bytes, now: bytes) -> None:
    moved = ((slot, before, after) for slot, (before, after) in enumerate(zip(was, now, strict=True)))
    before = {slot: host + 1 for slot, host, after in moved if host != after and after + 1 == number}
    site.serve(number, now, before=before)


def owner(flow: ClientFlow, slots: bytes) -> str:
    return f"m{slots[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1}"


def stalled(flows: Sequence[tuple[ClientFlow, str]]) -> list[tuple[str, str]]:
    """Return flows without a reply from their member. All flows send before the first reply is read."""
    found = []
    for flow, _ in flows:
        flow.socket.settimeout(WAIT)
        flow.socket.sendall(b"who")
    for flow, name in flows:
        try:
            answer = flow.socket.recv(2000).decode()
        except OSError as error:
            answer = type(error).__name__
        if answer != name:
            found.append((f"{flow.transport} to {flow.vip} of {name}", answer))
    return found


def keeps_flows(site: Fabric, away: int, was: bytes, now: bytes) -> None:
    site.open()
    places = site.client, *site.hosts.values(), *site.members.values()
    for number in HOSTS:
        site.serve(number, was)
    for entry in HOSTS:
        site.route_to(entry)
        flows = [
            (flow, flow.request())
            for transport, vip, where in product(BOTH, VIPS, places)
            for flow in (site.flow(transport, vip, where) for _ in range(6))
        ]
        assert [name for _, name in flows] == [owner(flow, was) for flow, _ in flows]
        change(site, away, was, now)
        for other in HOSTS:
            site.route_to(other)
            assert stalled(flows) == [], f"by host {other}, begun by host {entry}"
        serve(site, away, was, now)
        for other in HOSTS:
            site.route_to(other)
            assert stalled(flows) == [], f"by host {other}, begun by host {entry}, when all agree"
        for number in HOSTS:
            site.serve(number, was)


def test_flows_continue_while_the_agent_of_the_new_slot_owner_is_down(site: Fabric) -> None:
    keeps_flows(site, 3, EVEN, HEAVIER)


@pytest.mark.extended
@pytest.mark.parametrize(("kind", "away"), [*product(CHANGES, HOSTS)])
def test_flows_continue_for_any_change_while_any_agent_is_down(site: Fabric, kind: str, away: int) -> None:
    keeps_flows(site, away, *CHANGES[kind])


def test_path_mtu_errors_reach_the_member_while_an_agent_is_down(site: Fabric) -> None:
    """The router reports to a VIP that packets are too long for the link of the client."""
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    flows = [moving(site, transport, vip) for transport, vip in product(BOTH, VIPS)]
    assert {flow.request() for flow in flows} <= {"m1", "m2"}
    change(site, 3, EVEN, HEAVIER)
    site.router.ip("link set c0 mtu 1300")
    for entry, flow in product(HOSTS, flows):
        site.route_to(entry)
        expect_full_packets(site, flow, owner(flow, EVEN))


def moving(site: Fabric, transport: Transport, vip: IPAddress) -> ClientFlow:
    """Return a flow whose slot moves to the third host."""
    while True:
        flow = site.flow(transport, vip)
        if owner(flow, EVEN) != owner(flow, HEAVIER):
            return flow


def expect_full_packets(site: Fabric, flow: ClientFlow, name: str) -> None:
    """Expect replies in full packets from a member that does not know the path MTU yet."""
    site.members[int(name[1:])].run("ip", f"-{flow.vip.version}", "route", "flush", "cache")
    if flow.transport is Transport.TCP:
        flow.socket.settimeout(DEADLINE)
        assert flow.request_large() == 2 * LARGE_REPEATS
        return
    flow.socket.settimeout(NO_REPLY_TIMEOUT)
    with pytest.raises(TimeoutError):
        flow.request(b"long")
    wait_equal(lambda: flow.request(b"long"), name * LONG_REPEATS, retry=(TimeoutError,))
