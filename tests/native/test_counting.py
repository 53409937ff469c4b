"""Owners of a plain host's counters, by its slice."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.drivers.native.nftables.counters import KernelCounters
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.statistics import AnnouncedPlace, CountedService, parse_place
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.host_counters import HostCounterSource
from fairlead.node.server_requests import ReportResult
from harness.case import read_case
from harness.fixed_slice import FixedSlice

TCP = CountedService(place=AnnouncedPlace(), transport=Transport.TCP, address=parse_address("203.0.113.5"), port=443)
UDP = CountedService(place=AnnouncedPlace(), transport=Transport.UDP, address=parse_address("2001:db8:5::5"), port=53)


class SilentReporter:
    async def report(self, chassis: str, interval: int, sums: Mapping[str, TrafficCounters]) -> ReportResult:
        raise AssertionError(f"{chassis} tells of {[*sums]} every {interval} s")


def snapshot() -> Snapshot:
    story = read_case(Path(__file__).parent / "slots.txt", (NATIVE,))
    return story.states[0].snapshot()


async def test_slice_maps_counters_to_listeners_until_the_listener_is_deleted(tmp_path: Path):
    known = snapshot()
    given = FixedSlice("h2", tmp_path / "slice", slice_of(known, "h2"))
    counting = HostCounterSource(given, KernelCounters("fairlead", "boot", 0), SilentReporter())
    listeners = {each.id for each in known.load_balancers["web"].listeners}

    async def ask() -> list[str | None]:
        others = replace(TCP, port=444), replace(TCP, transport=Transport.UDP), replace(TCP, address=UDP.address + 1)
        whose = await counting.find_listeners("h2", [TCP, UDP, *others])
        assert whose.proxied == set()
        assert whose.listeners[2:] == [None, None, None]
        return [*whose.listeners[:2]]

    assert set(await ask()) == listeners
    balancer = known.load_balancers["web"]
    left = replace(balancer, listeners=balancer.listeners[:1])
    given.replace(replace(given.snapshot, load_balancers=given.snapshot.load_balancers.set("web", left)))
    assert [*filter(None, (await ask()))] == [balancer.listeners[0].id]
    given.replace(replace(given.snapshot, load_balancers=given.snapshot.load_balancers.delete("web")))
    assert (await ask()) == [None, None]


@pytest.mark.parametrize("text", ["announced:", "datapath:7", "zone:a:b"])
def test_place_text_is_unchanged_by_parsing_and_formatting(text: str):
    assert str(parse_place(text)) == text
