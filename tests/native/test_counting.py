"""Owners of a plain host's counters, by its slice."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.drivers.native.nftables.counters import Counters
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.queries.statistics import Announced, CountedService, parse_place
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.node.host_counters import HostCounting
from fairlead.node.server_requests import Told
from harness.given import Given
from harness.story import read_story

TCP = CountedService(place=Announced(), transport=Transport.TCP, address=parse_address("203.0.113.5"), port=443)
UDP = CountedService(place=Announced(), transport=Transport.UDP, address=parse_address("2001:db8:5::5"), port=53)


class Nobody:
    async def tell(self, chassis: str, interval: int, sums: Mapping[str, Figures]) -> Told:
        raise AssertionError(f"{chassis} tells of {[*sums]} every {interval} s")


def snapshot() -> Snapshot:
    story = read_story(Path(__file__).parent / "slots.txt", (NATIVE,))
    return story.states[0].snapshot()


async def test_the_slice_says_whose_it_is_until_the_listener_is_gone(tmp_path: Path):
    known = snapshot()
    given = Given("h2", tmp_path / "slice", slice_of(known, "h2"))
    counting = HostCounting(given, Counters("fairlead", "boot", 0), Nobody())
    listeners = {each.id for each in known.load_balancers["web"].listeners}

    async def ask() -> list[str | None]:
        others = replace(TCP, port=444), replace(TCP, transport=Transport.UDP), replace(TCP, address=UDP.address + 1)
        whose = await counting.ask_whose("h2", [TCP, UDP, *others])
        assert whose.proxied == set()
        assert whose.listeners[2:] == [None, None, None]
        return [*whose.listeners[:2]]

    assert set(await ask()) == listeners
    balancer = known.load_balancers["web"]
    left = replace(balancer, listeners=balancer.listeners[:1])
    given.become(replace(given.snapshot, load_balancers=given.snapshot.load_balancers.set("web", left)))
    assert [*filter(None, (await ask()))] == [balancer.listeners[0].id]
    given.become(replace(given.snapshot, load_balancers=given.snapshot.load_balancers.delete("web")))
    assert (await ask()) == [None, None]


@pytest.mark.parametrize("text", ["announced:", "datapath:7", "zone:a:b"])
def test_a_place_is_read_as_it_is_written(text: str):
    assert str(parse_place(text)) == text
