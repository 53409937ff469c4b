"""Owners whose rows somebody else changes back, again and again. Pure: the time is an argument.

What others change is put right at once. If somebody changes it back at once, the dataplane would never be at rest: a
write of ours, a write of theirs. So after a few repairs in a row each further repair waits twice as long as the one
before. An owner that nobody disturbs for a while is treated like all others again.
"""

from dataclasses import dataclass

from fairlead.model.owner import Owner

FREE_REPAIRS = 3
"""Of one owner in a row, without a pause: mischief, and its repetition, are mended at once."""
FIRST_PAUSE = 0.1
LONGEST_PAUSE = 60.0
"""Seconds; one write a minute is no load, and one who reads the log sees it."""
DOUBLINGS = 16
QUIET = 2 * LONGEST_PAUSE
"""Seconds without a change by others after which an owner's repairs are forgotten."""


@dataclass(slots=True)
class _Dispute:
    repairs: int = 0
    last: float = 0.0
    """When others changed it, or it was put right, last."""
    noticed: bool = False
    """Whether others changed it since it was put right."""
    wrong_at: int | None = None
    """The generation that it was not right for while another server writes."""


class Contention:
    """The owners that somebody disturbs. All times are seconds of one clock that only moves forward."""

    def __init__(self) -> None:
        self._known: dict[Owner, _Dispute] = {}

    def notice(self, owner: Owner, now: float) -> float:
        """Others changed rows of this owner. Answers the seconds that its repair should wait."""
        dispute = self._touch(owner, now)
        dispute.noticed = True
        return self._pause(dispute)

    def differs(self, owner: Owner, generation: int) -> None:
        """It was looked at, and another server has to put it right. That it differs says something only after others
        have changed it: news of health reach this server before the other one has written them."""
        dispute = self._known.get(owner)
        if dispute is not None and dispute.noticed:
            dispute.wrong_at = generation

    def settle(self, owner: Owner, generation: int, now: float, *, repaired: bool) -> None:
        """It was looked at, and it was right or was put right.

        If it was wrong before and its generation is the same, another server has put it right meanwhile. If its
        generation is newer, nobody disturbed it: the other server was faster with news.
        """
        if owner not in self._known or not self._known[owner].noticed:
            return
        dispute = self._touch(owner, now)
        dispute.repairs += repaired or dispute.wrong_at == generation
        dispute.noticed, dispute.wrong_at = False, None

    def repairs(self, owner: Owner) -> int:
        dispute = self._known.get(owner)
        return dispute.repairs if dispute else 0

    def contended(self, now: float) -> int:
        """How many owners have to wait for repairs."""
        self._forget(now)
        return sum(self._pause(dispute) > 0 for dispute in self._known.values())

    def _pause(self, dispute: _Dispute) -> float:
        beyond = dispute.repairs - FREE_REPAIRS
        return 0.0 if beyond < 0 else min(FIRST_PAUSE * 2 ** min(beyond, DOUBLINGS), LONGEST_PAUSE)

    def _touch(self, owner: Owner, now: float) -> _Dispute:
        """What was touched last is last: so what is forgotten is found without a look at all."""
        self._forget(now)
        dispute = self._known.pop(owner, None) or _Dispute()
        dispute.last = now
        self._known[owner] = dispute
        return dispute

    def _forget(self, now: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if now - self._known[oldest].last <= QUIET:
                return
            del self._known[oldest]
