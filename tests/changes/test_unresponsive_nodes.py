"""Stored counters of unresponsive nodes: the newest, at the requested times, within bounds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from fairlead.changes import unresponsive_nodes
from fairlead.changes.unresponsive_nodes import MEMORY, TOGETHER, forget_silent, is_over, keep_silent
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.documents.probe_result import LONGEST_ERROR, Sighting
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.documents.unresponsive_nodes import MOST_COUNTED, MOST_SEEN, SilentNode
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.steps import at_once
from fairlead.store.codec import encode
from harness.probes import FIRST, SECOND
from harness.sightings import DOCUMENTS, DOWN, UP, WEB

(LISTENER,) = (each.id for each in WEB.listeners)
SINCE = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = SilentNode(name="one", since=SINCE, counted=((LISTENER, Figures(connections=3)),), seen=((FIRST, DOWN),))


def snapshot(*more: Aggregate) -> Snapshot:
    return apply_changes(Snapshot(), Changes(puts=(*DOCUMENTS, *more)), 1)


def keep(there: Snapshot, node: SilentNode) -> Changes:
    return at_once(keep_silent(there, node))


def kept(found: Changes) -> SilentNode:
    (node,) = found.puts
    assert isinstance(node, SilentNode)
    return node


def test_of_one_silence_the_newest_is_kept_and_once():
    assert keep(snapshot(), ONE) == Changes(puts=(ONE,))
    later = replace(ONE, since=SINCE + 2 * TOGETHER)
    assert keep(snapshot(ONE), replace(later, since=SINCE + TOGETHER)) == Changes()
    assert keep(snapshot(ONE), later) == Changes(puts=(later,))
    assert keep(snapshot(later), ONE) == Changes()


def test_what_nobody_can_ask_for_is_not_kept():
    nobodys = Endpoint("gone", ip_address("192.0.2.1"), 80, Transport.TCP)
    more = replace(
        ONE,
        counted=(("gone", Figures(connections=1)), *ONE.counted),
        told=(("gone", Figures()),),
        seen=((nobodys, UP), *ONE.seen),
    )
    assert kept(keep(snapshot(), more)) == ONE
    assert keep(snapshot(), SilentNode(name="one", since=SINCE, counted=(("gone", Figures(errors=1)),))) == Changes()
    assert keep(snapshot(), replace(ONE, counted=((LISTENER, Figures()),), seen=())) == Changes()


def test_it_is_forgotten_unless_it_is_of_another_silence():
    later = replace(ONE, since=SINCE + 2 * TOGETHER)
    assert forget_silent(snapshot(ONE), ONE) == Changes(deletes=(Owner(Kind.SILENT_NODE, "one"),))
    assert forget_silent(snapshot(later), ONE) == Changes()
    assert forget_silent(snapshot(), ONE) == Changes()


def test_it_is_over_after_a_day_and_when_its_load_balancers_are_gone():
    soon = SINCE + timedelta(hours=1)
    assert not is_over(snapshot(ONE), ONE, soon)
    assert is_over(snapshot(ONE), ONE, SINCE + MEMORY + TOGETHER)
    assert is_over(Snapshot(), ONE, soon)
    assert not is_over(snapshot(ONE), replace(ONE, counted=()), soon)


def test_a_node_with_more_than_is_kept_keeps_what_matters_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unresponsive_nodes, "MOST_COUNTED", 1)
    monkeypatch.setattr(unresponsive_nodes, "MOST_SEEN", 1)
    second = replace(WEB.listeners[0], id="web-second", ports=(PortRange(81, 81),))
    there = snapshot(replace(WEB, listeners=(*WEB.listeners, second)))
    few, many = Figures(connections=1), Figures(connections=2)
    node = replace(ONE, counted=((LISTENER, few), ("web-second", many)), seen=((FIRST, UP), (SECOND, DOWN)))
    assert kept(keep(there, node)) == replace(ONE, counted=(("web-second", many),), seen=((SECOND, DOWN),))


def test_of_all_silent_nodes_no_more_is_kept_than_servers_have_room_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unresponsive_nodes, "MOST_KEPT", 4)
    other = replace(ONE, name="other")
    assert keep(snapshot(ONE), other) == Changes(puts=(other,))
    assert keep(snapshot(ONE, other), replace(ONE, name="third")) == Changes()
    newer = replace(ONE, since=SINCE + 2 * TOGETHER)
    assert keep(snapshot(ONE, other), newer) == Changes(puts=(newer,))


def test_the_largest_fits_into_what_a_store_takes():
    identity, most = "0" * 36, 2**63 - 1
    figures = Figures(connections=most, errors=most, bytes_in=most, bytes_out=most)
    address = ip_address("2001:db8:1111:2222:3333:4444:5555:6666")
    endpoint = Endpoint(identity, address, 65535, Transport.TCP, identity, identity)
    seen = Sighting(health=Health.ERROR, chassis="c" * 64, since=SINCE, error="e" * LONGEST_ERROR, latency=1 / 3)
    counted = ((identity, figures),) * MOST_COUNTED
    largest = SilentNode(
        name="c" * 64, since=SINCE, counted=counted, told=counted, seen=((endpoint, seen),) * MOST_SEEN
    )
    assert len(encode(largest)) < 1.25 * 2**20
