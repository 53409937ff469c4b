"""Whether a change stays within the quotas of the projects that will have more by it.

They hold in every door and for every caller. (Octavia itself ignores quotas where callers do not have to log in; here a
limit that is set is a limit.)
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import UNLIMITED, Counted, Limits, Quota, count, limits_of, without_own
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


class QuotaExceeded(Exception):
    """`over` are the resources of which a project would have more than it may; a door says so in its own words."""

    def __init__(self, over: tuple[Counted, ...]) -> None:
        super().__init__(f"quota of {', '.join(over)} exceeded")
        self.over = over


def within_quota(defaults: Limits, snapshot: Snapshot, changes: Changes) -> Changes:
    """The changes, if they may be made; `defaults` hold where a project has no limit of its own. Raises QuotaExceeded.

    A change within a limit rests on nothing else having come meanwhile: two servers cannot both give away the last one.
    A project that has too many already may have fewer, and change what it has.
    """
    over, limited = set[Counted](), False
    for (project, what), more in growth(snapshot, changes).items():
        limit: int = getattr(limits_of(snapshot.quotas.get(project), defaults), what)
        if limit == UNLIMITED:
            continue
        limited = True
        if snapshot.usage.get((project, what), 0) + more > limit:
            over.add(what)
    if over:
        raise QuotaExceeded(tuple(what for what in Counted if what in over))
    return replace(changes, rests_on_absence=True) if limited else changes


def set_limits(snapshot: Snapshot, project: str, limits: Mapping[str, Any]) -> Changes:
    """A project's own limits by the names of resources, beside those that it has; None is everybody's again."""
    old = snapshot.quotas.get(project)
    new = replace(old or Quota(project_id=project), **limits)
    return Changes() if new == old else Changes(puts=(new,))


def take_limits_away(quota: Quota, resources: Iterable[Counted]) -> Changes:
    """The limits of everybody again for these resources."""
    rest = without_own(quota, resources)
    return Changes(puts=(rest,)) if rest else Changes(deletes=(Owner(Kind.QUOTA, quota.project_id),))


def growth(snapshot: Snapshot, changes: Changes) -> dict[tuple[str, Counted], int]:
    """(project, resource) of which there will be more by these changes -> how many more."""
    more: Counter[tuple[str, Counted]] = Counter()
    for owner in changes.owners:
        more.subtract(count(snapshot.find(owner)))
    for aggregate in changes.puts:
        more.update(count(aggregate))
    return {key: number for key, number in more.items() if number > 0}
