"""Flushes of tracked connections of members that are down, disabled or removed.

A node flushes after OVN's flows on it changed, in the zones of the tenant's own ports, and again when a member goes
down again.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from immutables import Map

from fairlead.drivers.ovn.vswitch.conntrack import ConnectionAttempt, ServiceBackends
from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.agent_counters import FLUSHED_ATTEMPTS, FLUSHED_MEMBERS
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import one_port
from fairlead.model.queries.conntrack_flush import TrackedConnection, find_lost_connections, list_connections_to_flush
from fairlead.model.queries.statistics import ConntrackZone, CountedService, Datapath
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot, with_health
from fairlead.node import conntrack_flush
from fairlead.node.conntrack_flush import DATAPLANE, MIN_FLUSH_INTERVAL, RETRY_INTERVAL, ConntrackFlusher
from fairlead.node.server_requests import ListenerLookup
from harness.case import parse_model
from harness.in_memory_slice import InMemorySlice
from harness.waiting import INTERVAL, eventually, run_ready_tasks

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
"""Seconds after which no flush or retry is pending."""


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
class RecordingSwitch:
    """Switch that records its calls."""

    leads: list[ServiceBackends] = field(default_factory=list)
    zones_: Mapping[str, int] = field(default_factory=lambda: ZONES)
    done: list[tuple[int, TrackedConnection] | str] = field(default_factory=list)
    looks_at: list[float] = field(default_factory=list)
    error: str = ""
    attempts: list[ConnectionAttempt] = field(default_factory=list)
    listings: int = 0

    @property
    def looks(self) -> int:
        return len(self.looks_at)

    async def zones(self) -> Mapping[str, int]:
        return self.zones_

    async def read_backends(self, addresses: Collection[IPAddress]) -> list[ServiceBackends]:
        self.looks_at.append(asyncio.get_running_loop().time())
        return self.leads

    async def flush(self, due: Iterable[tuple[int, TrackedConnection]]) -> None:
        if self.error:
            raise SwitchError(self.error)
        self.done += due

    async def list_unanswered(self) -> list[ConnectionAttempt]:
        self.listings += 1
        return list(self.attempts)

    async def flush_attempts(self, attempts: Iterable[ConnectionAttempt]) -> None:
        for each in attempts:
            self.attempts.remove(each)

    async def wait_for_revalidation(self) -> None:
        self.done.append("settled")


@dataclass
class FlushSite:
    given: InMemorySlice
    switch: RecordingSwitch = field(default_factory=RecordingSwitch)
    owned: dict[object, str] = field(default_factory=dict)
    """Load balancer with a listener at each place, according to servers."""
    places: dict[object, str] = field(default_factory=dict)
    """Network or router of each place, according to servers."""
    away: bool = False
    failures: list[tuple[str, str | None]] = field(default_factory=list)
    cutting: ConntrackFlusher = field(init=False)

    async def owner_of(self, services: Sequence[CountedService]) -> ListenerLookup:
        if self.away:
            raise ServerError("nobody answers")
        owners = (self.owned.get(each.place) for each in services)
        balancers = self.given.snapshot.load_balancers
        listeners = [
            balancers[each].listeners[0].id if each is not None and each in balancers else None for each in owners
        ]
        return ListenerLookup(
            listeners=listeners, proxied=set(), places=[self.places.get(each.place) for each in services]
        )

    def failed(self, dataplane: str, owner: Owner, error: str | None) -> None:
        assert dataplane == DATAPLANE
        self.failures.append((owner.id, error))

    @property
    def cuts(self) -> list[tuple[int, TrackedConnection]]:
        return [each for each in self.switch.done if not isinstance(each, str)]


@asynccontextmanager
async def cutting_at(snapshot: Snapshot, **owned: str) -> AsyncIterator[FlushSite]:
    """Run a node with this slice. `owned` are the load balancers of zones, according to servers."""
    place = FlushSite(InMemorySlice(snapshot), owned={ConntrackZone(name): owner for name, owner in owned.items()})
    place.cutting = ConntrackFlusher(place.given, place.switch, place.owner_of, place.failed)
    work = asyncio.ensure_future(place.cutting.run())
    place.given.ready.set()
    await run_ready_tasks()
    try:
        yield place
        assert not work.done()
    finally:
        work.cancel()


def cuts(snapshot: Snapshot) -> set[TrackedConnection]:
    return {
        cut
        for lost in find_lost_connections(snapshot, "web")
        for cut in list_connections_to_flush(snapshot, "web", lost)
    }


async def test_connections_are_flushed_twice_and_only_in_zones_of_local_clients():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.switch.done) == 5)
        wanted = [(zone, each) for each in cuts(place.given.snapshot) for zone in (1, 3)]
        assert place.switch.done == [*wanted, "settled", *wanted]
        assert place.cutting.counts() == {FLUSHED_MEMBERS: len(wanted), FLUSHED_ATTEMPTS: 0}
        await asyncio.sleep(LONG)
        assert len(place.switch.done) == 5, "once is enough"


async def test_nothing_is_flushed_without_a_down_member_or_a_local_client():
    async with cutting_at(snapshot_of()) as place:
        await asyncio.sleep(LONG)
        assert (place.switch.done, place.switch.looks) == ([], 0)

    async with cutting_at(snapshot_of("a", ports=("c2",))) as place:
        await eventually(lambda: place.switch.looks > 0)
        await asyncio.sleep(LONG)
        assert place.switch.done == []


async def test_flush_waits_only_for_the_flows_of_the_members_tenant():
    def led_by(key: int) -> ServiceBackends:
        (one,) = cuts(snapshot_of("a"))
        service = CountedService(place=Datapath(key), transport=Transport.TCP, address=one.address, port=80)
        return ServiceBackends(service, frozenset({"10.0.0.11:80", "10.0.0.12:80"}))

    async with cutting_at(snapshot_of()) as place:
        place.owned[Datapath(1)], place.owned[Datapath(2)] = "web", "api"
        place.switch.leads = [led_by(1), led_by(2)]
        place.given.replace(with_down(place.given.snapshot, "a"))
        await eventually(lambda: len(place.switch.looks_at) > 7)
        assert place.switch.done == []
        assert pauses(place.switch.looks_at)[:7] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
        place.switch.leads = [led_by(2)]
        await eventually(lambda: len(place.cuts) == 4)


def pauses(times: Sequence[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


async def test_external_connections_are_flushed_in_the_zone_of_the_gateway_router():
    with_gateway = snapshot_of("a", ports=("c1",))
    gateway = with_gateway.routers["r1"].gateway
    assert gateway is not None
    node = Chassis(name="node1", ports=Map({"c1": True, gateway.port_id: True}))
    here = replace(with_gateway, chassis=Map(node1=node))
    async with cutting_at(here, **{"r1-uuid_dnat": "web", "r2-uuid_dnat": "api"}) as place:
        await eventually(lambda: "settled" in place.switch.done)
        assert {zone for zone, _ in place.cuts} == {1, 4}


async def test_member_that_goes_down_a_second_time_is_flushed_again():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.cuts) == 4)
        place.given.replace(with_down(place.given.snapshot))
        await asyncio.sleep(LONG)
        place.given.replace(with_down(place.given.snapshot, "a"))
        await eventually(lambda: len(place.cuts) == 8)
        place.given.replace(with_down(place.given.snapshot, "a", "b"))
        await eventually(lambda: len(place.cuts) == 12)
        assert {str(each.member) for _, each in place.cuts[8:]} == {"10.0.0.12"}, "what was cut stays cut"


async def test_flushes_of_a_flapping_member_are_rate_limited():
    async with cutting_at(snapshot_of("a")) as place:
        await eventually(lambda: len(place.cuts) == 4)
        loop = asyncio.get_running_loop()
        again = loop.time() + MIN_FLUSH_INTERVAL
        for _ in range(20):
            place.given.replace(with_down(place.given.snapshot))
            place.given.replace(with_down(place.given.snapshot, "a"))
            await asyncio.sleep(MIN_FLUSH_INTERVAL / 100)
        assert len(place.cuts) == 4
        place.given.replace(with_down(place.given.snapshot, "a", "c"))
        await run_ready_tasks()
        assert [zone for zone, _ in place.cuts[4:]] == [2, 2], "others have their turn"
        place.given.replace(with_down(place.given.snapshot, "a", "b", "c"))
        await run_ready_tasks()
        assert {str(each.member) for _, each in place.cuts[6:]} == {"10.0.0.12"}, "and so has another member"
        assert len(place.cuts) == 10
        await eventually(lambda: len(place.cuts) == 14)
        assert again - INTERVAL <= loop.time() <= again + INTERVAL


async def test_failed_flush_is_reported_and_retried():
    loop = asyncio.get_running_loop()
    async with cutting_at(snapshot_of()) as place:
        place.switch.error = "no such command"
        place.given.replace(with_down(place.given.snapshot, "a"))
        await eventually(lambda: ("web", "no such command") in place.failures)
        failed = loop.time()
        place.switch.error = ""
        await eventually(lambda: len(place.cuts) == 4)
        assert place.failures[-1] == ("web", None)
        assert loop.time() - failed == pytest.approx(RETRY_INTERVAL, abs=2 * INTERVAL)

    async with cutting_at(snapshot_of()) as place:
        place.away = True
        (one,) = cuts(with_down(place.given.snapshot, "a"))
        service = CountedService(place=Datapath(2), transport=Transport.TCP, address=one.address, port=80)
        place.switch.leads = [ServiceBackends(service, frozenset({"10.0.0.11:80"}))]
        place.given.replace(with_down(place.given.snapshot, "a"))
        await eventually(lambda: ("web", "nobody answers") in place.failures)
        place.away = False
        await eventually(lambda: len(place.cuts) == 4)


async def test_many_flushes_are_split_into_rounds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conntrack_flush, "MAX_FLUSHES_PER_ROUND", 1)
    async with cutting_at(snapshot_of("a", "b")) as place:
        await eventually(lambda: len(place.cuts) == 8)
        assert [str(each.member) for _, each in place.cuts] == ["10.0.0.11"] * 4 + ["10.0.0.12"] * 4


async def test_member_that_flaps_during_its_flush_is_flushed_again():
    async with cutting_at(snapshot_of()) as place:
        settled = asyncio.Event()

        async def settle() -> None:
            place.switch.done.append("settled")
            await settled.wait()

        place.switch.wait_for_revalidation = settle  # type: ignore[method-assign]
        place.given.replace(with_down(place.given.snapshot, "a"))
        await eventually(lambda: "settled" in place.switch.done)
        place.given.replace(with_down(place.given.snapshot))
        place.given.replace(with_down(place.given.snapshot, "a"))
        settled.set()
        await eventually(lambda: len(place.cuts) == 8)


DATAGRAMS = """
dns vip=10.0.0.10 on=net1 udp:53{monitor=UDP-CONNECT}=d/10.0.0.11:53,e/10.0.0.12:53
ntp vip=10.0.0.10 on=net2 project=other udp:53=f/10.0.0.11:53
"""


def datagrams_of(text: str = DATAGRAMS, ports: Sequence[str] = ("c1", "c2", "vm2")) -> Snapshot:
    """Two tenants with the same addresses."""
    networks = MODEL.split("web vip", maxsplit=1)[0]
    documents, _ = parse_model((networks + text.strip()).strip(), {})
    here = Chassis(name="node1", ports=Map(dict.fromkeys(ports, True)))
    return apply_changes(Snapshot(chassis=Map(node1=here)), Changes(puts=tuple(documents.values())), 1)


def log_lines_of(place: FlushSite, snapshot: Snapshot) -> None:
    """Replace the slice, and notify of its load balancers and those of the previous slice."""
    known = {*place.given.snapshot.load_balancers, *snapshot.load_balancers}
    place.given.snapshot = snapshot
    place.given.call(tuple(Owner(Kind.LOAD_BALANCER, each) for each in known))


WITHOUT = DATAGRAMS.replace("d/10.0.0.11:53,", "")
NTP_ALONE = DATAGRAMS[DATAGRAMS.index("ntp") :]


@pytest.mark.parametrize(
    ("then", "members"),
    [
        (WITHOUT, {"10.0.0.11"}),
        (DATAGRAMS.replace("11:53,", "11:53!,"), {"10.0.0.11"}),
        (DATAGRAMS.replace("11:53,", "11:53*0,"), set()),
        (NTP_ALONE, {"10.0.0.11", "10.0.0.12"}),
    ],
)
async def test_udp_flows_of_removed_or_disabled_but_not_draining_members_are_flushed(then: str, members: set[str]):
    async with cutting_at(datagrams_of()) as place:
        log_lines_of(place, datagrams_of(then))
        await eventually(lambda: len(place.cuts) == 4 * len(members))
        await asyncio.sleep(LONG)
        assert len(place.cuts) == 4 * len(members)
        assert {str(each.member) for _, each in place.cuts} == members
        assert {zone for zone, _ in place.cuts} <= {1, 3}, "the other tenant's zone is left alone"


async def test_deleted_load_balancer_is_flushed_after_its_ovn_flows_are_removed():
    def led_by(key: int) -> ServiceBackends:
        service = CountedService(place=Datapath(key), transport=Transport.UDP, address=VIP, port=53)
        return ServiceBackends(service, frozenset({"10.0.0.11:53"}))

    async with cutting_at(datagrams_of()) as place:
        place.places = {Datapath(1): "net1", Datapath(2): "net2"}
        place.switch.leads = [led_by(1), led_by(2)]
        log_lines_of(place, datagrams_of(NTP_ALONE))
        await eventually(lambda: place.switch.looks > 3)
        assert place.cuts == []
        place.switch.leads = [led_by(2)]
        await eventually(lambda: len(place.cuts) == 8)


async def test_recreated_load_balancer_is_flushed_except_for_its_current_members():
    async with cutting_at(datagrams_of()) as place:
        place.switch.error = "not yet"
        log_lines_of(place, datagrams_of(NTP_ALONE))
        await run_ready_tasks()
        log_lines_of(place, datagrams_of(WITHOUT.replace("dns", "again")))
        place.switch.error = ""
        await eventually(lambda: len(place.cuts) == 4)
        await asyncio.sleep(LONG)
        assert {str(each.member) for _, each in place.cuts} == {"10.0.0.11"}


async def test_external_flows_of_a_deleted_load_balancer_are_flushed_at_the_router():
    snapshot = datagrams_of(ports=("c1",))
    gateway = snapshot.routers["r1"].gateway
    assert gateway is not None

    def here(text: str) -> Snapshot:
        return datagrams_of(text, ports=("c1", gateway.port_id))

    async with cutting_at(here(DATAGRAMS)) as place:
        place.places = {ConntrackZone("r1-uuid_dnat"): "r1", ConntrackZone("r2-uuid_dnat"): "r2"}
        log_lines_of(place, here(NTP_ALONE))
        await eventually(lambda: len(place.cuts) == 8)
        assert {zone for zone, _ in place.cuts} == {1, 4}


VIP = parse_address("10.0.0.10")
KEPT = MODEL.replace(",reset", "")


def tries(zone: int, port: int, member: str) -> ConnectionAttempt:
    return ConnectionAttempt(
        zone, parse_address("10.0.0.21"), port, TrackedConnection(Transport.TCP, VIP, 80, parse_address(member), 80)
    )


async def test_unanswered_attempts_to_down_members_are_flushed_with_one_listing():
    documents, _ = parse_model(KEPT.strip(), {})
    here = Chassis(name="node1", ports=Map(c1=True, c2=True, vm2=True))
    snapshot = apply_changes(Snapshot(chassis=Map(node1=here)), Changes(puts=tuple(documents.values())), 1)
    async with cutting_at(snapshot) as place:
        others = [tries(1, 2, "10.0.0.12"), tries(2, 3, "10.0.0.11"), tries(5, 4, "10.0.0.11")]
        place.switch.attempts = [tries(1, 1, "10.0.0.11"), *others]
        service = CountedService(place=Datapath(1), transport=Transport.TCP, address=VIP, port=80)
        place.owned[Datapath(1)] = "web"
        place.switch.leads = [ServiceBackends(service, frozenset({"10.0.0.11:80", "10.0.0.12:80"}))]
        place.given.replace(with_down(snapshot, "a"))
        await eventually(lambda: place.switch.looks > 3)
        assert (place.switch.listings, place.cuts) == (0, [])
        place.switch.leads = [ServiceBackends(service, frozenset({"10.0.0.12:80"}))]
        await eventually(lambda: place.switch.attempts == others)
        await asyncio.sleep(LONG)
        assert (place.switch.listings, place.cuts) == (1, [])
        assert place.cutting.counts() == {FLUSHED_MEMBERS: 0, FLUSHED_ATTEMPTS: 1}
        place.switch.leads = []
        place.given.replace(with_down(snapshot, "a", "b", "c"))
        await eventually(lambda: place.switch.attempts == others[2:])
        assert place.switch.listings <= 3, "of both tenants' at once, but for the first"
        await asyncio.sleep(LONG)
        assert place.switch.listings <= 3

    elsewhere = replace(snapshot, chassis=Map(node1=Chassis(name="node1", ports=Map(c2=True))))
    async with cutting_at(with_down(elsewhere, "a")) as place:
        await asyncio.sleep(LONG)
        assert place.switch.listings == 0, "no client of it is here"


MANY_LISTENERS, MANY_MEMBERS = 200, 64


@pytest.fixture
def large() -> Snapshot:
    """A large load balancer, made before an event loop counts its steps."""
    members = ",".join(f"m{each}/10.0.{1 + each // 250}.{1 + each % 250}:53" for each in range(MANY_MEMBERS))
    whole = datagrams_of(f"dns vip=10.0.0.10 on=net1 udp:53{{monitor=UDP-CONNECT}}={members}")
    one = whole.load_balancers["dns"]
    ports = range(1, MANY_LISTENERS + 1)
    listeners = tuple(replace(one.listeners[0], id=f"l{port}", ports=one_port(port)) for port in ports)
    return apply_changes(whole, Changes(puts=(replace(one, listeners=listeners),)), 2)


async def test_flush_of_many_members_and_listeners_does_not_block_the_event_loop(large: Snapshot):
    empty = replace(large, load_balancers=Map(), listener_owner=Map())
    down = with_health(large, "dns", frozenset(each.id for each in large.load_balancers["dns"].pools[0].members))
    async with cutting_at(large) as place:
        place.given.replace(down)
        await eventually(lambda: len(place.cuts) >= 4 * MANY_LISTENERS)
        log_lines_of(place, empty)
        await eventually(lambda: len(place.cuts) >= 12 * MANY_LISTENERS)


@pytest.fixture
def many() -> tuple[Snapshot, Snapshot]:
    """Two hundred load balancers, before and after the replacement of a member."""
    text = "\n".join(f"b{each} vip=10.0.0.{each} on=net1 udp:53=m/10.0.9.9:53" for each in range(30, 230))
    return datagrams_of(text), datagrams_of(text.replace("m/10.0.9.9", "n/10.0.9.8"))


async def test_many_load_balancers_are_processed_in_batches(
    many: tuple[Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conntrack_flush, "MAX_COMPARED_PER_STEP", 3)
    async with cutting_at(many[0]) as place:
        log_lines_of(place, many[1])
        await eventually(lambda: len({each.address for _, each in place.cuts}) == 200)
