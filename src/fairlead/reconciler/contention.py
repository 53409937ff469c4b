"""Contention: owners with rows that another writer keeps changing back. Pure: the time is an argument.

Drift is repaired immediately. If the other writer reverts each repair, both would write without end. So after
`FREE_REPAIRS` consecutive repairs, the pause before each further repair doubles. An owner without drift for `QUIET`
seconds is repaired without a pause again.
"""

from dataclasses import dataclass

from fairlead.model.documents.owner import Owner

FREE_REPAIRS = 3
"""Consecutive repairs of one owner without a pause: a single accidental change is repaired immediately, even twice."""
MIN_PAUSE = 0.1
MAX_PAUSE = 60.0
"""Seconds. One write a minute is no load, and it still appears in the log regularly."""
MAX_DOUBLINGS = 16
FORGET_AFTER_SECONDS = 2 * MAX_PAUSE
"""Seconds without drift after which the repairs of an owner are forgotten."""


@dataclass(slots=True)
class _ContendedOwner:
    repairs: int = 0
    last: float = 0.0
    """Time of the last drift or repair."""
    has_drifted: bool = False
    """Whether the rows have drifted since the last repair."""
    differing_generation: int | None = None
    """Generation of the rows that differed while another server held the lock."""


class Contention:
    """Owners with contended rows. All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._known: dict[Owner, _ContendedOwner] = {}

    def record_drift(self, owner: Owner, now: float) -> float:
        """Record drift of this owner's rows, and return the seconds to wait before the repair."""
        dispute = self._touch(owner, now)
        dispute.has_drifted = True
        return self._pause(dispute)

    def record_difference(self, owner: Owner, generation: int) -> None:
        """Record that the owner's rows differ and that another server (the leader) has to repair them.

        The difference counts only after drift: this server may receive health changes before the leader has written
        them.
        """
        dispute = self._known.get(owner)
        if dispute is not None and dispute.has_drifted:
            dispute.differing_generation = generation

    def record_settled(self, owner: Owner, generation: int, now: float, *, repaired: bool) -> None:
        """Record that the owner's rows are right, or were repaired by this server.

        If they were wrong before at the same generation, the leader has repaired them, which counts as a repair. A
        newer generation means a change of the model, which is no contention.
        """
        if owner not in self._known or not self._known[owner].has_drifted:
            return
        dispute = self._touch(owner, now)
        dispute.repairs += repaired or dispute.differing_generation == generation
        dispute.has_drifted, dispute.differing_generation = False, None

    def repairs(self, owner: Owner) -> int:
        dispute = self._known.get(owner)
        return dispute.repairs if dispute else 0

    def contended(self, now: float) -> int:
        """Return the number of owners with delayed repairs."""
        self._forget(now)
        return sum(self._pause(dispute) > 0 for dispute in self._known.values())

    def _pause(self, dispute: _ContendedOwner) -> float:
        beyond = dispute.repairs - FREE_REPAIRS
        return 0.0 if beyond < 0 else min(MIN_PAUSE * 2 ** min(beyond, MAX_DOUBLINGS), MAX_PAUSE)

    def _touch(self, owner: Owner, now: float) -> _ContendedOwner:
        """Move the owner to the end of `_known`, which is so ordered by time and can be expired from its front."""
        self._forget(now)
        dispute = self._known.pop(owner, None) or _ContendedOwner()
        dispute.last = now
        self._known[owner] = dispute
        return dispute

    def _forget(self, now: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if now - self._known[oldest].last <= FORGET_AFTER_SECONDS:
                return
            del self._known[oldest]
