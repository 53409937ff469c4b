"""Changes of the stored reports of unresponsive nodes: the last counters and probe results of a node, for servers that
never received them.

The newest report of any server is stored. Its size is bounded, and it is deleted when it concerns no load balancer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.documents.unresponsive_nodes import (
    MAX_STORED_ENDPOINTS,
    MAX_STORED_LISTENERS,
    MAX_STORED_TOTAL,
    UnresponsiveNode,
)
from fairlead.model.queries.delegated_probing import is_endpoint_monitored
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, sort_cooperatively

REPORT_TOLERANCE = timedelta(seconds=1)
"""Maximum difference between the times at which two servers receive the same report. An agent sends each report to all
servers, so reports that differ by less are one report."""
MAX_REPORT_AGE = timedelta(days=1)
"""Time after which the reports of an unresponsive node are deleted."""


def store_unresponsive_node(snapshot: Snapshot, node: UnresponsiveNode) -> Steps[Changes]:
    """Store the last reports of a node. No change if another server has stored them, if they concern no object, or if
    the store's limit is reached."""
    kept = snapshot.unresponsive_nodes.get(node.name)
    if kept is not None and kept.since + REPORT_TOLERANCE >= node.since:
        return Changes()
    wanted = yield from _bounded(snapshot, node)
    return Changes(puts=(wanted,)) if wanted.size and has_room(snapshot, wanted) else Changes()


def has_room(snapshot: Snapshot, node: UnresponsiveNode) -> bool:
    others = sum(each.size for each in snapshot.unresponsive_nodes.values() if each.name != node.name)
    return others + node.size <= MAX_STORED_TOTAL


def delete_unresponsive_node(snapshot: Snapshot, node: UnresponsiveNode) -> Changes:
    """Delete the reports of a node that is responsive again, or has obsolete reports. Newer reports, stored in the
    interim, are kept."""
    if snapshot.unresponsive_nodes.get(node.name) != node:
        return Changes()
    return Changes(deletes=(Owner(Kind.UNRESPONSIVE_NODE, node.name),))


def is_obsolete(snapshot: Snapshot, node: UnresponsiveNode, now: datetime) -> bool:
    """Return whether the reports are too old, or concern no existing object."""
    said = any(listener in snapshot.listener_owner for listener, _ in node.counted)
    return now - node.since > MAX_REPORT_AGE or not (
        said or any(is_endpoint_monitored(snapshot, each) for each, _ in node.seen)
    )


def _bounded(snapshot: Snapshot, node: UnresponsiveNode) -> Steps[UnresponsiveNode]:
    """Return the reports that concern existing objects, within the limits and in canonical order."""
    there = {}
    for name, each in node.counted:
        if name in snapshot.listener_owner and each != TrafficCounters():
            there[name] = each
        yield
    most = frozenset(
        (yield from sort_cooperatively([*there], lambda name: -there[name].connections))[:MAX_STORED_LISTENERS]
    )
    anew = {name: each for name, each in node.told if name in most}
    seen = yield from _down_first(snapshot, node)
    return replace(
        node,
        counted=_select_and_sort(there, most),
        told=_select_and_sort(anew, anew),
        seen=tuple(seen[:MAX_STORED_ENDPOINTS]),
    )


def _down_first(snapshot: Snapshot, node: UnresponsiveNode) -> Steps[list[tuple[Endpoint, ProbeResult]]]:
    """Return the probe results of endpoints that are still probed, those that are down first."""
    seen = []
    for endpoint, each in node.seen:
        if is_endpoint_monitored(snapshot, endpoint):
            seen.append((endpoint, each))
        yield
    return (yield from sort_cooperatively(seen, lambda pair: (not pair[1].health.is_down, str(pair[0]))))


def _select_and_sort(
    values: Mapping[str, TrafficCounters], names: Iterable[str]
) -> tuple[tuple[str, TrafficCounters], ...]:
    return tuple((name, values[name]) for name in sorted(names))
