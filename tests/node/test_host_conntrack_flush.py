"""UDP flows of a plain host: flushed if no row leads to their member any more, except those of members elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from fairlead.drivers.interface import DriverError
from fairlead.model.documents.agent_counters import FLUSHED_MEMBERS
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.conntrack_flush import TrackedConnection
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot, with_health
from fairlead.node import host_conntrack_flush
from fairlead.node.host_conntrack_flush import MAX_ROUNDS, HostConntrackFlusher
from harness.case import parse_model
from harness.in_memory_slice import InMemorySlice
from harness.waiting import eventually, run_ready_tasks

pytestmark = pytest.mark.virtual_clock

HOSTS = """
network pool announced 203.0.113.0/24 2001:db8:5::/64
network net1 10.0.0.0/24
host node1 1 10.20.0.21 10.1.0.0/24 fd00:1::/64
host node2 2 10.20.0.22 10.2.0.0/24
"""
DNS = (
    "dns vip=203.0.113.10,2001:db8:5::10 on=pool "
    "udp:53{monitor=UDP-CONNECT}=a/10.1.0.11:53,b/10.2.0.12:53,c/[fd00:1::11]:53"
)
OTHER = "ntp vip=10.0.0.10 on=net1 udp:53=d/10.1.0.11:53"
LONG = 300.0
A, C = ("203.0.113.10", "10.1.0.11"), ("2001:db8:5::10", "fd00:1::11")


def snapshot_of(*balancers: str) -> Snapshot:
    documents, _ = parse_model("\n".join((HOSTS.strip(), *balancers)), {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


def with_down(snapshot: Snapshot, *names: str) -> Snapshot:
    members = snapshot.load_balancers["dns"].pools[0].members
    return with_health(snapshot, "dns", frozenset(each.id for each in members if each.id.rpartition("-")[2] in names))


@dataclass
class Driver:
    leads: bool = False
    error: str = ""
    asked: list[frozenset[TrackedConnection]] = field(default_factory=list)

    async def flush_connections(self, cuts: Collection[TrackedConnection]) -> tuple[int, frozenset[TrackedConnection]]:
        self.asked.append(frozenset(cuts))
        if self.error:
            raise DriverError(self.error)
        return (0, frozenset(cuts)) if self.leads else (len(cuts), frozenset())

    @property
    def ends(self) -> list[set[tuple[str, str]]]:
        return [{(str(each.address), str(each.member)) for each in asked} for asked in self.asked]


@dataclass
class HostFlushSite:
    given: InMemorySlice
    driver: Driver = field(default_factory=Driver)
    cutting: HostConntrackFlusher = field(init=False)

    def replace_slice(self, snapshot: Snapshot) -> None:
        known = {*self.given.snapshot.load_balancers, *snapshot.load_balancers}
        self.given.snapshot = snapshot
        self.given.call(tuple(Owner(Kind.LOAD_BALANCER, each) for each in known))


@asynccontextmanager
async def cutting_at(snapshot: Snapshot) -> AsyncIterator[HostFlushSite]:
    place = HostFlushSite(InMemorySlice(snapshot))
    place.cutting = HostConntrackFlusher(place.given, place.driver)
    work = asyncio.ensure_future(place.cutting.run())
    place.given.ready.set()
    await run_ready_tasks()
    try:
        yield place
        assert not work.done()
    finally:
        work.cancel()


@pytest.mark.parametrize(
    ("then", "wanted"),
    [
        (snapshot_of(OTHER), [{A, C}]),
        (snapshot_of(DNS), []),
        (snapshot_of(DNS.replace("udp:53{", "tcp:53{").replace("UDP-CONNECT", "TCP"), OTHER), [{A, C}]),
        (snapshot_of(DNS.replace("a/10.1.0.11:53,", ""), OTHER), [{A}]),
        (snapshot_of(DNS.replace("a/10.1.0.11:53,", "a/10.1.0.11:53!,"), OTHER), [{A}]),
        (snapshot_of(DNS.replace("a/10.1.0.11:53,", "a/10.1.0.11:53*0,"), OTHER), []),
        (with_down(snapshot_of(DNS, OTHER), "b", "c"), [{C}]),
    ],
)
async def test_udp_flows_of_members_behind_this_host_are_flushed_once(
    then: Snapshot, wanted: list[set[tuple[str, str]]]
):
    async with cutting_at(snapshot_of(DNS, OTHER)) as place:
        place.replace_slice(then)
        await asyncio.sleep(LONG)
        assert place.driver.ends == wanted
        assert place.cutting.counts() == {FLUSHED_MEMBERS: sum(map(len, wanted))}


async def test_flush_is_retried_while_rows_remain_and_limited_for_removed_members():
    async with cutting_at(snapshot_of(DNS)) as place:
        place.driver.leads = True
        place.replace_slice(with_down(snapshot_of(DNS), "a"))
        await eventually(lambda: len(place.driver.asked) > 3)
        place.driver.leads = False
        tried = len(place.driver.asked)
        await asyncio.sleep(LONG)
        assert len(place.driver.asked) == tried + 1
        place.driver.leads = True
        place.replace_slice(snapshot_of())
        await asyncio.sleep(LONG)
        assert len(place.driver.asked) == tried + 1 + MAX_ROUNDS


async def test_pending_flush_limit_applies_per_load_balancer(monkeypatch: pytest.MonkeyPatch):
    """The limit is per load balancer, because they may belong to different tenants."""
    monkeypatch.setattr(host_conntrack_flush, "MAX_REMOVED_MEMBERS", 1)
    log = "log vip=203.0.113.20 on=pool udp:514=e/10.1.0.11:514"
    async with cutting_at(snapshot_of(DNS, log)) as place:
        place.driver.leads = True
        place.replace_slice(snapshot_of(DNS))
        await eventually(lambda: place.driver.asked)
        place.replace_slice(snapshot_of())
        await eventually(lambda: len(place.driver.ends[-1]) > 1)
        assert ("203.0.113.20", "10.1.0.11") in place.driver.ends[-1]
        assert len(place.driver.ends[-1]) == 2


async def test_member_that_goes_down_a_second_time_is_flushed_again():
    whole = snapshot_of(DNS)
    async with cutting_at(with_down(whole, "a")) as place:
        await eventually(lambda: place.driver.ends == [{A}])
        place.replace_slice(whole)
        place.replace_slice(with_down(whole, "a"))
        await eventually(lambda: place.driver.ends == [{A}, {A}])


async def test_flush_rejected_by_the_kernel_is_retried():
    async with cutting_at(snapshot_of(DNS)) as place:
        place.driver.error = "no room"
        place.replace_slice(snapshot_of())
        await eventually(lambda: len(place.driver.asked) > 2)
        place.driver.error = ""
        tried = len(place.driver.asked)
        await asyncio.sleep(LONG)
        assert len(place.driver.asked) == tried + 1


async def test_many_flushes_are_split_into_batches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_conntrack_flush, "MAX_FLUSHES_PER_LISTING", 1)
    async with cutting_at(snapshot_of(DNS)) as place:
        place.replace_slice(snapshot_of())
        await asyncio.sleep(LONG)
        assert len(place.driver.asked) == 2
        assert set[tuple[str, str]]().union(*place.driver.ends) == {A, C}
