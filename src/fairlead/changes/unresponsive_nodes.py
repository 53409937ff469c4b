"""Stored reports of unresponsive nodes.

They are the newest reports of any server, bounded, and kept while they concern a load balancer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.documents.traffic_counters import Figures
from fairlead.model.documents.unresponsive_nodes import MOST_COUNTED, MOST_KEPT, MOST_SEEN, SilentNode
from fairlead.model.queries.delegated_probing import is_wanted
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, in_order

TOGETHER = timedelta(seconds=1)
"""Tolerance between servers: agents report to all servers together, so reports within this interval are equal."""
MEMORY = timedelta(days=1)
"""Time after which the reports of an unresponsive node are deleted."""


def keep_silent(snapshot: Snapshot, node: SilentNode) -> Steps[Changes]:
    """Store the last reports of a node. No change if another server has stored them, if they concern no object, or if
    the store's limit is reached."""
    kept = snapshot.silent_nodes.get(node.name)
    if kept is not None and kept.since + TOGETHER >= node.since:
        return Changes()
    wanted = yield from _bounded(snapshot, node)
    return Changes(puts=(wanted,)) if wanted.size and has_room(snapshot, wanted) else Changes()


def has_room(snapshot: Snapshot, node: SilentNode) -> bool:
    others = sum(each.size for each in snapshot.silent_nodes.values() if each.name != node.name)
    return others + node.size <= MOST_KEPT


def forget_silent(snapshot: Snapshot, node: SilentNode) -> Changes:
    """Delete the reports of a node that is responsive again, or has obsolete reports. Newer reports, stored in the
    interim, are kept."""
    if snapshot.silent_nodes.get(node.name) != node:
        return Changes()
    return Changes(deletes=(Owner(Kind.SILENT_NODE, node.name),))


def is_over(snapshot: Snapshot, node: SilentNode, now: datetime) -> bool:
    """Return whether the reports are too old, or concern no existing object."""
    said = any(listener in snapshot.listener_owner for listener, _ in node.counted)
    return now - node.since > MEMORY or not (said or any(is_wanted(snapshot, each) for each, _ in node.seen))


def _bounded(snapshot: Snapshot, node: SilentNode) -> Steps[SilentNode]:
    """Return the reports that concern existing objects, within the limits and in canonical order."""
    there = {}
    for name, each in node.counted:
        if name in snapshot.listener_owner and each != Figures():
            there[name] = each
        yield
    most = frozenset((yield from in_order([*there], lambda name: -there[name].connections))[:MOST_COUNTED])
    anew = {name: each for name, each in node.told if name in most}
    seen = yield from _down_first(snapshot, node)
    return replace(node, counted=_in_order(there, most), told=_in_order(anew, anew), seen=tuple(seen[:MOST_SEEN]))


def _down_first(snapshot: Snapshot, node: SilentNode) -> Steps[list[tuple[Endpoint, Sighting]]]:
    """Return the probe results of endpoints that are still probed, those that are down first."""
    seen = []
    for endpoint, each in node.seen:
        if is_wanted(snapshot, endpoint):
            seen.append((endpoint, each))
        yield
    return (yield from in_order(seen, lambda pair: (not pair[1].health.is_down, str(pair[0]))))


def _in_order(values: Mapping[str, Figures], names: Iterable[str]) -> tuple[tuple[str, Figures], ...]:
    return tuple((name, values[name]) for name in sorted(names))
