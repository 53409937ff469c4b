"""Quotas: checks of changes against the quotas of their projects, and changes of quotas.

Quotas apply in every API front end and to every caller. (Octavia ignores them without authentication; Fairlead does
not.) One document has all limits of a project; each front end shows, sets and resets its own resources.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH, Identity, check_administers
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import put_if_changed
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import (
    BALANCING,
    UNLIMITED,
    Limits,
    Quota,
    QuotaResource,
    count_usage,
    has_own_limit,
    limit_of,
    limits_of,
    without_own_limits,
)
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaExceeded(Refusal):
    """The project would exceed its quota for the resources in `over`."""

    over: tuple[QuotaResource, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitBelowUsage(Refusal):
    what: QuotaResource
    limit: int
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoQuota(Refusal):
    """The project has no limits of its own."""

    project_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAProject(Refusal):
    """The project id is too long, or has unprintable characters."""

    most: int


def within_quota(defaults: Limits, snapshot: Snapshot, changes: Changes) -> Changes:
    """Return the changes if they are within the quotas; `defaults` apply to projects without own limits. Raises
    Refused.

    A limited change is rejected by the store if another one was committed after this check, so two servers cannot both
    use the last unit. A project above its quota can still change and delete resources.
    """
    over, limited = set[QuotaResource](), False
    for (project, what), more in growth(snapshot, changes).items():
        limit = limit_in(defaults, snapshot, project, what)
        if limit == UNLIMITED:
            continue
        limited = True
        if snapshot.usage.get((project, what), 0) + more > limit:
            over.add(what)
    if over:
        raise Refused(QuotaExceeded(over=tuple(what for what in QuotaResource if what in over)))
    return replace(changes, requires_unchanged_model=True) if limited else changes


def limit_in(defaults: Limits, snapshot: Snapshot, project_id: str, what: QuotaResource) -> int:
    """Return the effective limit of the project: its quota, or a lower restriction set by an administrator."""
    limit = limit_of(limits_of(snapshot.quotas.get(project_id), defaults), what)
    project = snapshot.projects.get(project_id) if what is QuotaResource.NETWORK else None
    most = None if project is None else project.restrictions.most_networks
    return limit if most is None or 0 <= limit < most else most


def growth(snapshot: Snapshot, changes: Changes) -> dict[tuple[str, QuotaResource], int]:
    """Return (project, resource) -> growth, for resources that grow by these changes."""
    more: Counter[tuple[str, QuotaResource]] = Counter()
    for owner in changes.owners:
        more.subtract(count_usage(snapshot.find(owner)))
    for aggregate in changes.puts:
        more.update(count_usage(aggregate))
    return {key: number for key, number in more.items() if number > 0}


def set_limits(
    snapshot: Snapshot, asker: Identity, project: str, limits: Mapping[QuotaResource, int | None]
) -> Changes:
    """Set own limits of a project; None resets a limit to the default. Raises Refused."""
    check_administers(asker.may_change_quotas)
    old = snapshot.quotas.get(project) or Quota(project_id=project)
    fields: Mapping[str, Any] = {what.value: limit for what, limit in limits.items()}
    return put_if_changed(snapshot, replace(old, **fields))


def check_used(snapshot: Snapshot, project: str, limits: Mapping[QuotaResource, int | None]) -> None:
    """Check that no limit is below the project's usage. Raises Refused."""
    for what, limit in limits.items():
        used = snapshot.usage.get((project, what), 0)
        if limit not in (None, UNLIMITED) and used > limit:
            raise Refused(LimitBelowUsage(what=what, limit=limit, used=used))


def reset_limits(snapshot: Snapshot, asker: Identity, project: str, resources: Iterable[QuotaResource]) -> Changes:
    """Reset the project's limits of these resources to the defaults. Raises Refused if it has no own limits."""
    check_administers(asker.may_change_quotas)
    quota = snapshot.quotas.get(project)
    if quota is None or not has_quota(quota, resources):
        raise Refused(NoQuota(project_id=project))
    rest = without_own_limits(quota, resources)
    return Changes(puts=(rest,)) if rest else Changes(deletes=(Owner(Kind.QUOTA, project),))


def has_quota(quota: Quota, resources: Iterable[QuotaResource]) -> bool:
    """Return whether the project has a quota for these resources. A quota without any limit counts as one of load
    balancers, because Octavia's API creates such quotas."""
    return has_own_limit(quota, resources) or (resources is BALANCING and not has_own_limit(quota, QuotaResource))


def check_project(project: str) -> None:
    """Check that the id of a quota is valid for a project. Raises Refused."""
    if not project.isprintable() or len(project) > MAX_PROJECT_ID_LENGTH:
        raise Refused(NotAProject(most=MAX_PROJECT_ID_LENGTH))
