"""All dataplanes of a server, addressed together: the applied state of an owner, and requests to resync it.

A central dataplane has a reconciler in this process. Failures on nodes are facts, which the node agents report.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.dataplane.interface import Dataplane
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import AppliedState, combine_applied
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.loop import Reconciler


@dataclass(frozen=True, slots=True, kw_only=True)
class DataplaneState:
    """State of a central dataplane at this moment."""

    connected: bool
    is_leader: bool
    """Whether this server is the leader, the only server that writes."""
    receives_probe_results: bool = False
    """Whether the reports of health monitors are received (OVN: connected to the Southbound database)."""
    facts_missing_seconds: float = 0.0
    """Seconds since awaited facts were last received."""
    missing_facts: str = "health monitor results"
    """Description of the missing facts, for log and status texts."""
    probe_counts: Mapping[str, int] = field(default_factory=dict)
    """Chassis that are `alive` and `dead`, and probes with `unreadable` reports."""
    imports_networks: bool = False
    """Whether unmanaged networks, routers and ports are imported."""
    imported: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(writer, kind) -> number of documents imported from that writer."""
    unreadable: int = 0
    """Number of rows of other writers that are skipped because they cannot be parsed."""
    blockers: tuple[str, ...] = ()
    """Settings of other writers that make load balancers unreachable; one sentence for operators each."""
    drift: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(table, column) -> number of times another writer changed it in managed rows."""
    takeovers: int = 0
    """Number of times this server has taken the lock from a leader that did not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Central:
    """A central dataplane and its reconciler."""

    reconciler: Reconciler
    condition: Callable[[], DataplaneState]
    connected: Callable[[], bool] = lambda: True

    @property
    def dataplane(self) -> Dataplane:
        return self.reconciler.dataplane

    def applied(self, owner: Owner) -> AppliedState:
        """Return the applied state of an owner; an error if it was never applied and the dataplane is disconnected."""
        known = self.reconciler.applied(owner)
        if known.generation == 0 and known.error is None and not self.connected():
            return AppliedState(error=f"{self.dataplane.title} is not reachable")
        return known


class Dataplanes:
    """Combined view of all dataplanes.

    With only one central dataplane and no node dataplane, `applied`, `wait_for_outcome` and `read_again` are the
    methods of that dataplane's reconciler, because a list request calls them up to ten thousand times.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], central: Sequence[Central], nodes: Sequence[Dataplane] = ()
    ) -> None:
        self.central = tuple(central)
        self.nodes = tuple(nodes)
        self._snapshot = snapshot
        self.applied: Callable[[Owner], AppliedState] = self._applied
        self.wait_for_outcome: Callable[[Owner, int], Awaitable[None]] = self._wait_for_outcome
        self.read_again: Callable[[Owner], None] = self._read_again
        if len(self.central) == 1 and not self.nodes:
            (alone,) = self.central
            self.applied, self.wait_for_outcome, self.read_again = (
                alone.applied,
                alone.reconciler.wait_for_outcome,
                alone.reconciler.read_again,
            )

    def subscribe(self, follower: Callable[[Owner], None]) -> None:
        """Register a callback that is called with the owner whenever its applied state changes."""
        for each in self.central:
            each.reconciler.subscribe(follower)

    def known(self, owner: Owner) -> Mapping[str, AppliedState]:
        """Return dataplane name -> applied state, for the dataplanes in which the owner should have rows.

        Failures in other dataplanes do not affect the owner's status.
        """
        return {each.dataplane.name: each.applied(owner) for each in self._concerned(owner)}

    def _applied(self, owner: Owner) -> AppliedState:
        snapshot = self._snapshot()
        return combine_applied(self.known(owner), snapshot.generations.get(owner, snapshot.revision))

    async def _wait_for_outcome(self, owner: Owner, generation: int) -> None:
        """Wait until this generation of the owner has an outcome in all dataplanes, or one of their attempts ended."""
        for each in self.central:
            await each.reconciler.wait_for_outcome(owner, generation)

    def outcome(self, owner: Owner, generation: int) -> AppliedState | None:
        """Return the outcome of this generation of the owner, combined over all central dataplanes.

        None while an attempt is due. Dataplanes that should have no rows of the owner are included, because they may
        still hold rows of it.
        """
        found = {each.dataplane.name: each.reconciler.outcome(owner, generation) for each in self.central}
        known = {name: outcome for name, outcome in found.items() if outcome is not None}
        return combine_applied(known, generation) if len(known) == len(found) else None

    def _read_again(self, owner: Owner) -> None:
        """Re-read the owner in every central dataplane, also in those that should have no rows of it."""
        for each in self.central:
            each.reconciler.read_again(owner)

    def _concerned(self, owner: Owner) -> list[Central]:
        snapshot = self._snapshot()
        return [each for each in self.central if each.dataplane.concerns(snapshot, owner)]
