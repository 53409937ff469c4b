"""Stored counters of unresponsive nodes: the newest, at the requested times, within bounds."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest

from fairlead.changes import unresponsive_nodes
from fairlead.changes.unresponsive_nodes import (
    MAX_REPORT_AGE,
    REPORT_TOLERANCE,
    delete_unresponsive_node,
    is_obsolete,
    store_unresponsive_node,
)
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import PortRange
from fairlead.model.documents.probe_result import MAX_ERROR_LENGTH, ProbeResult
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.documents.unresponsive_nodes import MAX_STORED_ENDPOINTS, MAX_STORED_LISTENERS, UnresponsiveNode
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.store.codec import encode
from harness.probe_results import DOCUMENTS, DOWN, UP, WEB
from harness.probes import FIRST, SECOND

(LISTENER,) = (each.id for each in WEB.listeners)
SINCE = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = UnresponsiveNode(
    name="one", since=SINCE, counted=((LISTENER, TrafficCounters(connections=3)),), seen=((FIRST, DOWN),)
)


def snapshot(*more: Aggregate) -> Snapshot:
    return apply_changes(Snapshot(), Changes(puts=(*DOCUMENTS, *more)), 1)


def keep(there: Snapshot, node: UnresponsiveNode) -> Changes:
    return run_to_completion(store_unresponsive_node(there, node))


def kept(found: Changes) -> UnresponsiveNode:
    (node,) = found.puts
    assert isinstance(node, UnresponsiveNode)
    return node


def test_newest_record_of_an_outage_is_kept_once():
    assert keep(snapshot(), ONE) == Changes(puts=(ONE,))
    later = replace(ONE, since=SINCE + 2 * REPORT_TOLERANCE)
    assert keep(snapshot(ONE), replace(later, since=SINCE + REPORT_TOLERANCE)) == Changes()
    assert keep(snapshot(ONE), later) == Changes(puts=(later,))
    assert keep(snapshot(later), ONE) == Changes()


def test_counters_of_unknown_objects_are_not_kept():
    nobodys = Endpoint("gone", ip_address("192.0.2.1"), 80, Transport.TCP)
    more = replace(
        ONE,
        counted=(("gone", TrafficCounters(connections=1)), *ONE.counted),
        told=(("gone", TrafficCounters()),),
        seen=((nobodys, UP), *ONE.seen),
    )
    assert kept(keep(snapshot(), more)) == ONE
    assert (
        keep(snapshot(), UnresponsiveNode(name="one", since=SINCE, counted=(("gone", TrafficCounters(errors=1)),)))
        == Changes()
    )
    assert keep(snapshot(), replace(ONE, counted=((LISTENER, TrafficCounters()),), seen=())) == Changes()


def test_record_is_deleted_only_for_the_same_outage():
    later = replace(ONE, since=SINCE + 2 * REPORT_TOLERANCE)
    assert delete_unresponsive_node(snapshot(ONE), ONE) == Changes(deletes=(Owner(Kind.UNRESPONSIVE_NODE, "one"),))
    assert delete_unresponsive_node(snapshot(later), ONE) == Changes()
    assert delete_unresponsive_node(snapshot(), ONE) == Changes()


def test_record_expires_after_a_day_or_with_its_load_balancers():
    soon = SINCE + timedelta(hours=1)
    assert not is_obsolete(snapshot(ONE), ONE, soon)
    assert is_obsolete(snapshot(ONE), ONE, SINCE + MAX_REPORT_AGE + REPORT_TOLERANCE)
    assert is_obsolete(Snapshot(), ONE, soon)
    assert not is_obsolete(snapshot(ONE), replace(ONE, counted=()), soon)


def test_record_above_the_limit_keeps_largest_counters_and_down_results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unresponsive_nodes, "MAX_STORED_LISTENERS", 1)
    monkeypatch.setattr(unresponsive_nodes, "MAX_STORED_ENDPOINTS", 1)
    second = replace(WEB.listeners[0], id="web-second", ports=(PortRange(81, 81),))
    there = snapshot(replace(WEB, listeners=(*WEB.listeners, second)))
    few, many = TrafficCounters(connections=1), TrafficCounters(connections=2)
    node = replace(ONE, counted=((LISTENER, few), ("web-second", many)), seen=((FIRST, UP), (SECOND, DOWN)))
    assert kept(keep(there, node)) == replace(ONE, counted=(("web-second", many),), seen=((SECOND, DOWN),))


def test_total_size_of_records_is_limited(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(unresponsive_nodes, "MAX_STORED_TOTAL", 4)
    other = replace(ONE, name="other")
    assert keep(snapshot(ONE), other) == Changes(puts=(other,))
    assert keep(snapshot(ONE, other), replace(ONE, name="third")) == Changes()
    newer = replace(ONE, since=SINCE + 2 * REPORT_TOLERANCE)
    assert keep(snapshot(ONE, other), newer) == Changes(puts=(newer,))


def test_largest_record_fits_the_store_limit():
    identity, most = "0" * 36, 2**63 - 1
    figures = TrafficCounters(connections=most, errors=most, bytes_in=most, bytes_out=most)
    address = ip_address("2001:db8:1111:2222:3333:4444:5555:6666")
    endpoint = Endpoint(identity, address, 65535, Transport.TCP, identity, identity)
    seen = ProbeResult(health=Health.ERROR, chassis="c" * 64, since=SINCE, error="e" * MAX_ERROR_LENGTH, latency=1 / 3)
    counted = ((identity, figures),) * MAX_STORED_LISTENERS
    largest = UnresponsiveNode(
        name="c" * 64, since=SINCE, counted=counted, told=counted, seen=((endpoint, seen),) * MAX_STORED_ENDPOINTS
    )
    assert len(encode(largest)) < 1.25 * 2**20
