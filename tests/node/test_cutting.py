"""When a node cuts which connections: after OVN has changed its flows here, in the zones of its own tenants' ports, and
again when a member goes down again."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from immutables import Map

from fairlead.client import ServerError
from fairlead.drivers.ovn.tracked import Leading
from fairlead.drivers.ovn.vswitch import SwitchError
from fairlead.model.addresses import IPAddress
from fairlead.model.chassis import Chassis
from fairlead.model.cutting import Cut, cuts_of
from fairlead.model.loadbalancer import Transport
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot, with_health
from fairlead.model.statistics import CountedService, Datapath, Zone
from fairlead.model.writing import Changes, apply_changes
from fairlead.node import cutting
from fairlead.node.cutting import DATAPLANE, Cutting
from harness.story import parse_model

MODEL = """
network net1 10.0.0.0/24
network net2 10.0.0.0/24 project=other
network public external wire=physnet 203.0.113.0/24
router r1 net1=10.0.0.1 gateway:public=203.0.113.10
port c1 net1 10.0.0.21
port vm1 net1 10.0.0.11
port vm2 net1 10.0.0.12
port c2 net2 10.0.0.21 project=other
port vm3 net2 10.0.0.11 project=other
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP,reset}=a/10.0.0.11:80,b/10.0.0.12:80
api vip=10.0.0.10 on=net2 project=other tcp:80{monitor=TCP,reset}=c/10.0.0.11:80
"""
WEB = Owner(Kind.LOAD_BALANCER, "web")
ZONES = {"c1": 1, "c2": 2, "vm2": 3, "r1-uuid_dnat": 4, "r2-uuid_dnat": 5, "r1-uuid_snat": 6}
FAST = 0.01


def snapshot_of(*down: str, ports: Sequence[str] = ("c1", "c2", "vm2")) -> Snapshot:
    documents, _ = parse_model(MODEL.strip(), {})
    here = Chassis(name="node1", ports=Map(dict.fromkeys(ports, True)))
    whole = apply_changes(Snapshot(chassis=Map(node1=here)), Changes(puts=tuple(documents.values())), 1)
    return with_down(whole, *down)


def with_down(snapshot: Snapshot, *down: str) -> Snapshot:
    for balancer in snapshot.load_balancers.values():
        found = (each.id for pool in balancer.pools for each in pool.members if each.id.rpartition("-")[2] in down)
        snapshot = with_health(snapshot, balancer.id, frozenset(found))
    return snapshot


@dataclass
class Given:
    snapshot: Snapshot
    name: str = "node1"
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    call: Callable[[tuple[Owner, ...]], None] = lambda _: None

    def subscribe(self, call: Callable[[tuple[Owner, ...]], None]) -> None:
        self.call = call

    def say(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.call(tuple(Owner(Kind.LOAD_BALANCER, each) for each in snapshot.load_balancers))


@dataclass
class Switch:
    """It writes down what it is told."""

    leads: list[Leading] = field(default_factory=list)
    zones_: Mapping[str, int] = field(default_factory=lambda: ZONES)
    done: list[tuple[int, Cut] | str] = field(default_factory=list)
    looks: int = 0
    error: str = ""

    async def zones(self) -> Mapping[str, int]:
        return self.zones_

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]:
        self.looks += 1
        return self.leads

    async def cut(self, due: Iterable[tuple[int, Cut]]) -> None:
        if self.error:
            raise SwitchError(self.error)
        self.done += due

    async def settled(self) -> None:
        self.done.append("settled")


@dataclass
class Place:
    given: Given
    switch: Switch = field(default_factory=Switch)
    owned: dict[object, str] = field(default_factory=dict)
    """Place -> the load balancer whose listener servers say is there."""
    away: bool = False
    failures: list[tuple[str, str | None]] = field(default_factory=list)

    async def whose(self, services: Sequence[CountedService]) -> list[str | None]:
        if self.away:
            raise ServerError("nobody answers")
        owners = (self.owned.get(each.place) for each in services)
        balancers = self.given.snapshot.load_balancers
        return [None if each is None else balancers[each].listeners[0].id for each in owners]

    def failed(self, dataplane: str, owner: Owner, error: str | None) -> None:
        assert dataplane == DATAPLANE
        self.failures.append((owner.id, error))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not is_so():  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    @property
    def cuts(self) -> list[tuple[int, Cut]]:
        return [each for each in self.switch.done if not isinstance(each, str)]


def play(snapshot: Snapshot, story: Callable[[Place], Awaitable[None]], **owned: str) -> None:
    async def main() -> None:
        place = Place(Given(snapshot), owned={Zone(name): owner for name, owner in owned.items()})
        running = asyncio.ensure_future(Cutting(place.given, place.switch, place.whose, place.failed).run())
        place.given.ready.set()
        try:
            await story(place)
            assert not running.done()
        finally:
            running.cancel()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_PATIENCE", "LONGEST_PATIENCE", "AGAIN", "PAUSE"):
        monkeypatch.setattr(cutting, name, FAST)


def cuts(snapshot: Snapshot) -> set[Cut]:
    return set(cuts_of(snapshot, "web"))


def test_connections_are_cut_in_the_zones_of_the_clients_that_this_node_has_twice_and_nowhere_else():
    async def story(place: Place) -> None:
        await place.until(lambda: len(place.switch.done) == 5)
        wanted = [(zone, each) for each in cuts(place.given.snapshot) for zone in (1, 3)]
        assert place.switch.done == [*wanted, "settled", *wanted]
        await asyncio.sleep(5 * FAST)
        assert len(place.switch.done) == 5, "once is enough"

    play(snapshot_of("a"), story)


def test_nothing_is_cut_while_nobody_is_down_or_no_client_is_here():
    async def quiet(place: Place) -> None:
        await asyncio.sleep(5 * FAST)
        assert (place.switch.done, place.switch.looks) == ([], 0)

    async def nobody(place: Place) -> None:
        await place.until(lambda: place.switch.looks > 0)
        await asyncio.sleep(5 * FAST)
        assert place.switch.done == []

    play(snapshot_of(), quiet)
    play(snapshot_of("a", ports=("c2",)), nobody)


def test_it_waits_for_the_flows_of_this_tenant_and_not_of_another_with_the_same_addresses():
    def led_by(key: int) -> Leading:
        (one,) = cuts(snapshot_of("a"))
        service = CountedService(place=Datapath(key), transport=Transport.TCP, address=one.address, port=80)
        return Leading(service, frozenset({"10.0.0.11:80", "10.0.0.12:80"}))

    async def story(place: Place) -> None:
        place.owned[Datapath(1)], place.owned[Datapath(2)] = "web", "api"
        place.switch.leads = [led_by(1), led_by(2)]
        place.given.say(with_down(place.given.snapshot, "a"))
        await place.until(lambda: place.switch.looks > 3)
        assert place.switch.done == []
        place.switch.leads = [led_by(2)]
        await place.until(lambda: len(place.cuts) == 4)

    play(snapshot_of(), story)


def test_clients_outside_are_cut_in_the_zone_of_the_router_that_is_this_load_balancers():
    async def story(place: Place) -> None:
        await place.until(lambda: "settled" in place.switch.done)
        assert {zone for zone, _ in place.cuts} == {1, 4}

    with_gateway = snapshot_of("a", ports=("c1",))
    gateway = with_gateway.routers["r1"].gateway
    assert gateway is not None
    node = Chassis(name="node1", ports=Map({"c1": True, gateway.port_id: True}))
    play(replace(with_gateway, chassis=Map(node1=node)), story, **{"r1-uuid_dnat": "web", "r2-uuid_dnat": "api"})


def test_a_member_that_goes_down_again_is_cut_again():
    async def story(place: Place) -> None:
        await place.until(lambda: len(place.cuts) == 4)
        place.given.say(with_down(place.given.snapshot))
        await asyncio.sleep(3 * FAST)
        place.given.say(with_down(place.given.snapshot, "a"))
        await place.until(lambda: len(place.cuts) == 8)
        place.given.say(with_down(place.given.snapshot, "a", "b"))
        await place.until(lambda: len(place.cuts) == 12)
        assert {str(each.member) for _, each in place.cuts[8:]} == {"10.0.0.12"}, "what was cut stays cut"

    play(snapshot_of("a"), story)


def test_a_member_that_flaps_is_cut_no_more_often_than_once_in_a_while(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cutting, "PAUSE", 60.0)

    async def story(place: Place) -> None:
        await place.until(lambda: len(place.cuts) == 4)
        for _ in range(20):
            place.given.say(with_down(place.given.snapshot))
            place.given.say(with_down(place.given.snapshot, "a"))
            await asyncio.sleep(0.001)
        assert len(place.cuts) == 4
        place.given.say(with_down(place.given.snapshot, "a", "c"))
        await place.until(lambda: len(place.cuts) == 6)  # others have their turn
        assert [zone for zone, _ in place.cuts[4:]] == [2, 2]
        place.given.say(with_down(place.given.snapshot, "a", "b", "c"))
        await place.until(lambda: len(place.cuts) == 10)  # and so has another member
        assert {str(each.member) for _, each in place.cuts[6:]} == {"10.0.0.12"}

    play(snapshot_of("a"), story)


def test_what_cannot_be_done_is_said_and_tried_again():
    async def switch(place: Place) -> None:
        place.switch.error = "no such command"
        place.given.say(with_down(place.given.snapshot, "a"))
        await place.until(lambda: ("web", "no such command") in place.failures)
        place.switch.error = ""
        await place.until(lambda: len(place.cuts) == 4)
        assert place.failures[-1] == ("web", None)

    async def server(place: Place) -> None:
        await place.until(lambda: ("web", "nobody answers") in place.failures)
        place.away = False
        await place.until(lambda: len(place.cuts) == 4)

    async def away(place: Place) -> None:
        place.away = True
        (one,) = cuts(with_down(place.given.snapshot, "a"))
        service = CountedService(place=Datapath(2), transport=Transport.TCP, address=one.address, port=80)
        place.switch.leads = [Leading(service, frozenset({"10.0.0.11:80"}))]
        place.given.say(with_down(place.given.snapshot, "a"))
        await server(place)

    play(snapshot_of(), switch)
    play(snapshot_of(), away)


def test_much_is_cut_in_rounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cutting, "MOST_CUTS", 1)

    async def story(place: Place) -> None:
        await place.until(lambda: len(place.cuts) == 8)
        assert [str(each.member) for _, each in place.cuts] == ["10.0.0.11"] * 4 + ["10.0.0.12"] * 4

    play(snapshot_of("a", "b"), story)


def test_what_comes_back_and_goes_down_again_while_it_is_cut_is_cut_again():
    async def story(place: Place) -> None:
        settled = asyncio.Event()

        async def settle() -> None:
            place.switch.done.append("settled")
            await settled.wait()

        place.switch.settled = settle  # type: ignore[method-assign]
        place.given.say(with_down(place.given.snapshot, "a"))
        await place.until(lambda: "settled" in place.switch.done)
        place.given.say(with_down(place.given.snapshot))
        place.given.say(with_down(place.given.snapshot, "a"))
        settled.set()
        await place.until(lambda: len(place.cuts) == 8)

    play(snapshot_of(), story)
