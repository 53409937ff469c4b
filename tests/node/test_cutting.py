"""When a node cuts which connections: after OVN has changed its flows here, in the zones of its own tenants' ports, and
again when a member goes down again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

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
from fairlead.node.cutting import AGAIN, DATAPLANE, PAUSE, Cutting
from harness.story import parse_model
from harness.waiting import INTERVAL, eventually, turns

pytestmark = pytest.mark.virtual_clock

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
LONG = 60.0
"""Seconds after which nothing is left to be cut again, or to be tried again."""


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
    looks_at: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def looks(self) -> int:
        return len(self.looks_at)

    async def zones(self) -> Mapping[str, int]:
        return self.zones_

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]:
        self.looks_at.append(asyncio.get_running_loop().time())
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

    @property
    def cuts(self) -> list[tuple[int, Cut]]:
        return [each for each in self.switch.done if not isinstance(each, str)]


@asynccontextmanager
async def cutting_at(snapshot: Snapshot, **owned: str) -> AsyncIterator[Place]:
    """A node with this slice. `owned` are zones, and the load balancers for which servers name them."""
    place = Place(Given(snapshot), owned={Zone(name): owner for name, owner in owned.items()})
    work = asyncio.ensure_future(Cutting(place.given, place.switch, place.whose, place.failed).run())
    place.given.ready.set()
    try:
        yield place
        assert not work.done()
    finally:
        work.cancel()


def cuts(snapshot: Snapshot) -> set[Cut]:
    return set(cuts_of(snapshot, "web"))


async def test_connections_are_cut_in_the_zones_of_the_clients_that_this_node_has_twice_and_nowhere_else():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.switch.done) == 5)
        wanted = [(zone, each) for each in cuts(place.given.snapshot) for zone in (1, 3)]
        assert place.switch.done == [*wanted, "settled", *wanted]
        await asyncio.sleep(LONG)
        assert len(place.switch.done) == 5, "once is enough"


async def test_nothing_is_cut_while_nobody_is_down_or_no_client_is_here():
    async with cutting_at(snapshot_of()) as place:
        await asyncio.sleep(LONG)
        assert (place.switch.done, place.switch.looks) == ([], 0)

    async with cutting_at(snapshot_of("a", ports=("c2",))) as place:
        await eventually(lambda: place.switch.looks > 0)
        await asyncio.sleep(LONG)
        assert place.switch.done == []


async def test_it_waits_for_the_flows_of_this_tenant_and_not_of_another_with_the_same_addresses():
    def led_by(key: int) -> Leading:
        (one,) = cuts(snapshot_of("a"))
        service = CountedService(place=Datapath(key), transport=Transport.TCP, address=one.address, port=80)
        return Leading(service, frozenset({"10.0.0.11:80", "10.0.0.12:80"}))

    async with cutting_at(snapshot_of()) as place:
        place.owned[Datapath(1)], place.owned[Datapath(2)] = "web", "api"
        place.switch.leads = [led_by(1), led_by(2)]
        place.given.say(with_down(place.given.snapshot, "a"))
        await eventually(lambda: len(place.switch.looks_at) > 7)
        assert place.switch.done == []
        assert pauses(place.switch.looks_at)[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
        place.switch.leads = [led_by(2)]
        await eventually(lambda: len(place.cuts) == 4)


def pauses(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


async def test_clients_outside_are_cut_in_the_zone_of_the_router_that_is_this_load_balancers():
    with_gateway = snapshot_of("a", ports=("c1",))
    gateway = with_gateway.routers["r1"].gateway
    assert gateway is not None
    node = Chassis(name="node1", ports=Map({"c1": True, gateway.port_id: True}))
    here = replace(with_gateway, chassis=Map(node1=node))
    async with cutting_at(here, **{"r1-uuid_dnat": "web", "r2-uuid_dnat": "api"}) as place:
        await eventually(lambda: "settled" in place.switch.done)
        assert {zone for zone, _ in place.cuts} == {1, 4}


async def test_a_member_that_goes_down_again_is_cut_again():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.cuts) == 4)
        place.given.say(with_down(place.given.snapshot))
        await asyncio.sleep(LONG)
        place.given.say(with_down(place.given.snapshot, "a"))
        await eventually(lambda: len(place.cuts) == 8)
        place.given.say(with_down(place.given.snapshot, "a", "b"))
        await eventually(lambda: len(place.cuts) == 12)
        assert {str(each.member) for _, each in place.cuts[8:]} == {"10.0.0.12"}, "what was cut stays cut"


async def test_a_member_that_flaps_is_cut_no_more_often_than_once_in_a_while():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.cuts) == 4)
        loop = asyncio.get_running_loop()
        again = loop.time() + PAUSE
        for _ in range(20):
            place.given.say(with_down(place.given.snapshot))
            place.given.say(with_down(place.given.snapshot, "a"))
            await asyncio.sleep(PAUSE / 100)
        assert len(place.cuts) == 4
        place.given.say(with_down(place.given.snapshot, "a", "c"))
        await turns()
        assert [zone for zone, _ in place.cuts[4:]] == [2, 2], "others have their turn"
        place.given.say(with_down(place.given.snapshot, "a", "b", "c"))
        await turns()
        assert {str(each.member) for _, each in place.cuts[6:]} == {"10.0.0.12"}, "and so has another member"
        assert len(place.cuts) == 10
        await eventually(lambda: len(place.cuts) == 14)
        assert again - INTERVAL <= loop.time() <= again + INTERVAL


async def test_what_cannot_be_done_is_said_and_tried_again():
    loop = asyncio.get_running_loop()
    async with cutting_at(snapshot_of()) as place:
        place.switch.error = "no such command"
        place.given.say(with_down(place.given.snapshot, "a"))
        await eventually(lambda: ("web", "no such command") in place.failures)
        failed = loop.time()
        place.switch.error = ""
        await eventually(lambda: len(place.cuts) == 4)
        assert place.failures[-1] == ("web", None)
        assert loop.time() - failed == pytest.approx(AGAIN, abs=2 * INTERVAL)

    async with cutting_at(snapshot_of()) as place:
        place.away = True
        (one,) = cuts(with_down(place.given.snapshot, "a"))
        service = CountedService(place=Datapath(2), transport=Transport.TCP, address=one.address, port=80)
        place.switch.leads = [Leading(service, frozenset({"10.0.0.11:80"}))]
        place.given.say(with_down(place.given.snapshot, "a"))
        await eventually(lambda: ("web", "nobody answers") in place.failures)
        place.away = False
        await eventually(lambda: len(place.cuts) == 4)


async def test_much_is_cut_in_rounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cutting, "MOST_CUTS", 1)
    async with cutting_at(snapshot_of("a", "b")) as place:
        await eventually(lambda: len(place.cuts) == 8)
        assert [str(each.member) for _, each in place.cuts] == ["10.0.0.11"] * 4 + ["10.0.0.12"] * 4


async def test_what_comes_back_and_goes_down_again_while_it_is_cut_is_cut_again():
    async with cutting_at(snapshot_of()) as place:
        settled = asyncio.Event()

        async def settle() -> None:
            place.switch.done.append("settled")
            await settled.wait()

        place.switch.settled = settle  # type: ignore[method-assign]
        place.given.say(with_down(place.given.snapshot, "a"))
        await eventually(lambda: "settled" in place.switch.done)
        place.given.say(with_down(place.given.snapshot))
        place.given.say(with_down(place.given.snapshot, "a"))
        settled.set()
        await eventually(lambda: len(place.cuts) == 8)
