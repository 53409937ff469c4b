"""Quotas: whether a change stays within those of the projects that will have more by it, and who sets which.

They hold in every door and for every caller. (Octavia itself ignores quotas where callers do not have to log in; here a
limit that is set is a limit.) One document has all limits of a project; each door shows, sets and takes away its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.changes.identity import LONGEST_PROJECT, Identity, check_administers
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import rewrite
from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import (
    BALANCING,
    UNLIMITED,
    Counted,
    Limits,
    Quota,
    count,
    has_own,
    limit_of,
    limits_of,
    without_own,
)
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaExceeded(Refusal):
    """`over` are the resources of which a project would have more than it may."""

    over: tuple[Counted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitBelowUsage(Refusal):
    what: Counted
    limit: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoQuota(Refusal):
    """The project has no limits of its own."""

    project_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAProject(Refusal):
    """No project's id is so long, or has such characters."""

    most: int


def within_quota(defaults: Limits, snapshot: Snapshot, changes: Changes) -> Changes:
    """The changes, if they may be made; `defaults` hold where a project has no limit of its own. Raises Refused.

    A change within a limit rests on nothing else having come meanwhile: two servers cannot both give away the last one.
    A project that has too many already may have fewer, and change what it has.
    """
    over, limited = set[Counted](), False
    for (project, what), more in growth(snapshot, changes).items():
        limit = limit_in(defaults, snapshot, project, what)
        if limit == UNLIMITED:
            continue
        limited = True
        if snapshot.usage.get((project, what), 0) + more > limit:
            over.add(what)
    if over:
        raise Refused(QuotaExceeded(over=tuple(what for what in Counted if what in over)))
    return replace(changes, rests_on_absence=True) if limited else changes


def limit_in(defaults: Limits, snapshot: Snapshot, project_id: str, what: Counted) -> int:
    """How many of these the project may have: by its quota, and by what else an administrator says of the project."""
    limit = limit_of(limits_of(snapshot.quotas.get(project_id), defaults), what)
    project = snapshot.projects.get(project_id) if what is Counted.NETWORK else None
    most = None if project is None else project.restrictions.most_networks
    return limit if most is None or 0 <= limit < most else most


def growth(snapshot: Snapshot, changes: Changes) -> dict[tuple[str, Counted], int]:
    """(project, resource) of which there will be more by these changes -> how many more."""
    more: Counter[tuple[str, Counted]] = Counter()
    for owner in changes.owners:
        more.subtract(count(snapshot.find(owner)))
    for aggregate in changes.puts:
        more.update(count(aggregate))
    return {key: number for key, number in more.items() if number > 0}


def set_limits(snapshot: Snapshot, asker: Identity, project: str, limits: Mapping[Counted, int | None]) -> Changes:
    """A project's own limits, beside those that it has; None is everybody's again. Raises Refused."""
    check_administers(asker.may_limit)
    old = snapshot.quotas.get(project) or Quota(project_id=project)
    fields: Mapping[str, Any] = {what.value: limit for what, limit in limits.items()}
    return rewrite(snapshot, replace(old, **fields))


def check_used(snapshot: Snapshot, project: str, limits: Mapping[Counted, int | None]) -> None:
    """Raises Refused for a limit below what the project has."""
    for what, limit in limits.items():
        used = snapshot.usage.get((project, what), 0)
        if limit not in (None, UNLIMITED) and used > limit:
            raise Refused(LimitBelowUsage(what=what, limit=limit, used=used))


def take_limits_away(snapshot: Snapshot, asker: Identity, project: str, resources: Iterable[Counted]) -> Changes:
    """The limits of everybody again for these resources. Raises Refused, where there are no others too."""
    check_administers(asker.may_limit)
    quota = snapshot.quotas.get(project)
    if quota is None or not has_quota(quota, resources):
        raise Refused(NoQuota(project_id=project))
    rest = without_own(quota, resources)
    return Changes(puts=(rest,)) if rest else Changes(deletes=(Owner(Kind.QUOTA, project),))


def has_quota(quota: Quota, resources: Iterable[Counted]) -> bool:
    """Whether the project has a quota of its own for these resources. One that limits nothing is of load balancers:
    Octavia's API makes such."""
    return has_own(quota, resources) or (resources is BALANCING and not has_own(quota, Counted))


def check_project(project: str) -> None:
    """What has a quota can be a project. Raises Refused."""
    if not project.isprintable() or len(project) > LONGEST_PROJECT:
        raise Refused(NotAProject(most=LONGEST_PROJECT))
