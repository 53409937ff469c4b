"""Owners whose rows somebody else changes back, again and again. Pure: the time is an argument.

What others change is put right at once. Somebody who changes it back at once would keep the dataplane busy without an
end: a write of ours, a write of theirs. So after a few repairs in a row each further one waits, twice as long as the
one before. An owner that is left alone for a while is one like all others again.
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
class _Strife:
    repairs: int = 0
    last: float = 0.0
    """When others changed it, or it was put right, last."""
    noticed: bool = False
    """Whether others changed it since it was put right."""
    wrong_at: int | None = None
    """The generation that it was not right for while another server writes."""


class Contention:
    """All times are seconds of one clock that only moves forward. An owner is in here while somebody disturbs it."""

    def __init__(self) -> None:
        self._known: dict[Owner, _Strife] = {}

    def notice(self, owner: Owner, now: float) -> float:
        """Others changed rows of this owner. Answers the seconds that its repair should wait."""
        strife = self._touch(owner, now)
        strife.noticed = True
        return self._pause(strife)

    def differs(self, owner: Owner, generation: int) -> None:
        """It was looked at, and is not ours to put right: another server writes. That it differs says something only
        after others have changed it: news of health reach this server before the other one has written them."""
        strife = self._known.get(owner)
        if strife is not None and strife.noticed:
            strife.wrong_at = generation

    def settle(self, owner: Owner, generation: int, now: float, *, repaired: bool) -> None:
        """It was looked at, and was put right, or was right. If it was not, of the same generation, another server has
        put it right meanwhile; of an older one, others have changed nothing: the other server was faster with news.
        """
        if owner not in self._known or not self._known[owner].noticed:
            return
        strife = self._touch(owner, now)
        strife.repairs += repaired or strife.wrong_at == generation
        strife.noticed, strife.wrong_at = False, None

    def repairs(self, owner: Owner) -> int:
        strife = self._known.get(owner)
        return strife.repairs if strife else 0

    def contended(self, now: float) -> int:
        """How many owners have to wait for repairs."""
        self._forget(now)
        return sum(self._pause(strife) > 0 for strife in self._known.values())

    def _pause(self, strife: _Strife) -> float:
        beyond = strife.repairs - FREE_REPAIRS
        return 0.0 if beyond < 0 else min(FIRST_PAUSE * 2 ** min(beyond, DOUBLINGS), LONGEST_PAUSE)

    def _touch(self, owner: Owner, now: float) -> _Strife:
        """What was touched last is last: so what is forgotten is found without a look at all."""
        self._forget(now)
        strife = self._known.pop(owner, None) or _Strife()
        strife.last = now
        self._known[owner] = strife
        return strife

    def _forget(self, now: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if now - self._known[oldest].last <= QUIET:
                return
            del self._known[oldest]
