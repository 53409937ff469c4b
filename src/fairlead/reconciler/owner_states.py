"""State that a reconciler keeps for each owner, and its counters. None of it outlives the process."""

from dataclasses import dataclass, field

from fairlead.dataplane.rows import Diff, Rows
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import AppliedState
from fairlead.model.snapshot import Snapshot


@dataclass(slots=True, kw_only=True)
class Statistics:
    applied: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    resyncs: int = 0
    resync_changes: int = 0
    """Owners that a resync found different. It must stay 0 in production; other values mean a missing dependency."""
    meddled: int = 0
    """Drift: changes of managed rows by other writers. It should stay 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRecord:
    """One pass over one owner. Times are seconds; `change` is empty if no write was needed."""

    owner: Owner
    compiling: float
    applying: float
    change: Diff


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """Desired rows of an owner, compiled from the snapshot that `applied` names by its generation."""

    owner: Owner
    desired: Rows
    applied: AppliedState
    compiling: float
    """Seconds spent compiling."""
    awaited_since: float
    """Time since which the leader should have applied it; the current time if it was not waiting."""


@dataclass(slots=True, kw_only=True)
class OwnerStates:
    last_applied: dict[Owner, Rows] = field(default_factory=dict)
    stale: set[Owner] = field(default_factory=set)
    """Owners that drifted while they were being applied. The rows written by that apply are stale."""
    applied: dict[Owner, AppliedState] = field(default_factory=dict)
    leader_due_since: dict[Owner, float] = field(default_factory=dict)
    """Owners that the leader should apply -> waiting since. Owners that failed on this server are left out."""
    failed: set[Owner] = field(default_factory=set)
    """Owners that this server last failed to apply although the dataplane was reachable."""
    applied_alone: set[Owner] = field(default_factory=set)
    """Owners that are applied alone because they failed, alone or in a batch."""
    causes: dict[Owner, list[str]] = field(default_factory=dict)
    """Owner -> ids of the newest requests that made it dirty and are not applied yet."""
    postponed: set[Owner] = field(default_factory=set)
    """Owners with a last change that the driver may have applied in part."""
    changed_since_read: set[Owner] = field(default_factory=set)
    """Owners queued or marked since the running resync has read the dataplane."""
    compiled: dict[Owner, Rows] = field(default_factory=dict)
    """Rows compiled by a resync for the owners that it found different."""
    compiled_by: Snapshot | None = None
    """Snapshot that `compiled` belongs to; with any other snapshot the rows are discarded."""

    def remember_compiled(self, snapshot: Snapshot, owner: Owner, rows: Rows) -> None:
        if snapshot is self.compiled_by:
            self.compiled[owner] = rows

    def take_compiled(self, snapshot: Snapshot, owner: Owner) -> Rows | None:
        if snapshot is self.compiled_by:
            return self.compiled.pop(owner, None)
        self.compiled, self.compiled_by = {}, None
        return None
