"""What a reconciler remembers of owners, and what it has counted. Nothing of it has to outlive the process."""

from dataclasses import dataclass, field

from fairlead.dataplane.rows import Diff, Rows
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import Applied


@dataclass(slots=True, kw_only=True)
class Statistics:
    applied: int = 0
    compiled: int = 0
    failed: int = 0
    refused: int = 0
    resyncs: int = 0
    resync_changes: int = 0
    """Owners that a resync found different. It must stay 0 in production: it is the alarm for a missed dependency."""
    meddled: int = 0
    """How often somebody else changed rows of ours. It too should stay 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One owner, worked on once. Seconds; `change` says what was written, and is empty when nothing had to be."""

    owner: Owner
    compiling: float
    applying: float
    change: Diff


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an owner should have, by a snapshot that is the one of `applied`."""

    owner: Owner
    desired: Rows
    applied: Applied
    compiling: float
    """Seconds that it took."""
    awaited_since: float
    """Since when another server should have put it right, or now."""


@dataclass(slots=True, kw_only=True)
class Memory:
    believed: dict[Owner, Rows] = field(default_factory=dict)
    doubted: set[Owner] = field(default_factory=set)
    """Owners that somebody else changed while they were worked on: what was written then is not believed."""
    applied: dict[Owner, Applied] = field(default_factory=dict)
    awaiting: dict[Owner, float] = field(default_factory=dict)
    """Owners that another server should put right, and since when. Not those that this server has failed with."""
    failed: set[Owner] = field(default_factory=set)
    """Owners that this server could not apply although it could reach the dataplane, and nobody has since."""
    apart: set[Owner] = field(default_factory=set)
    """Owners that are applied each by itself: those that failed, or did together with others."""
    causes: dict[Owner, list[str]] = field(default_factory=dict)
    """The newest requests that made an owner dirty and are not applied yet."""
    postponed: set[Owner] = field(default_factory=set)
    """Owners of which a driver may have kept what it had no time for."""
    touched: set[Owner] = field(default_factory=set)
    """Owners for which there was or came something to do since the resync that is running has read the dataplane."""
    compiled: dict[Owner, Rows] = field(default_factory=dict)
    """What a look at everything has compiled of owners that it found wrong."""
    compiled_by: Snapshot | None = None
    """The snapshot by which; with another one it is worth nothing."""

    def remember_compiled(self, snapshot: Snapshot, owner: Owner, rows: Rows) -> None:
        if snapshot is self.compiled_by:
            self.compiled[owner] = rows

    def take_compiled(self, snapshot: Snapshot, owner: Owner) -> Rows | None:
        if snapshot is self.compiled_by:
            return self.compiled.pop(owner, None)
        self.compiled, self.compiled_by = {}, None
        return None
