"""How often another process may take the place of one: at once after a quiet time, then less and less often.

Each is work for the node and memory while the one before it has connections, and a tenant can ask for a hundred a
second. What is asked meanwhile waits, and comes with the next one. One that has ended is another matter: it is started
again at once, and then after longer and longer pauses. Pure: the time is an argument.
"""

from dataclasses import dataclass

FIRST, LONGEST = 0.25, 4.0
"""Seconds between two, after the first and at most. Each distance is twice the last one. So a change is served
`LONGEST` and the start of a process after it was made at the latest; of changes without an end 15 a minute are one."""
QUIET = 4.0
"""Distances without any, after which one may come at once again and the next distance is the first."""


@dataclass(slots=True)
class Pace:
    """Of one proxy."""

    last: float | None = None
    distance: float = FIRST

    def wait(self, now: float) -> float:
        """Seconds until another may come."""
        return 0.0 if self.last is None else max(0.0, self.last + self.distance - now)

    def spend(self, now: float) -> None:
        """One comes now."""
        if self.last is not None:
            is_quiet = now - self.last > QUIET * self.distance
            self.distance = FIRST if is_quiet else min(2 * self.distance, LONGEST)
        self.last = now

    def came(self, now: float) -> None:
        """One serves: distances are from there, for a start may take long."""
        self.last = now


FIRST_PAUSE, LONGEST_PAUSE = 0.05, 10.0
"""Seconds until a process that has ended, or did not start, is started again; each pause is twice the last."""
STEADY = 30.0
"""Seconds without an end and without a failure after which the next pause is the first one again, whoever of several
that followed each other has served meanwhile."""
MANY = 3
"""Ends in a row, after which it is no accident."""


@dataclass(slots=True)
class Restarts:
    """Of one proxy."""

    last: float | None = None
    pause: float = FIRST_PAUSE
    ends: int = 0
    """In a row."""

    def after_end(self, now: float) -> float:
        """Seconds until another one is started."""
        wait = self.after_failure(now)
        self.ends += 1
        return wait

    def after_failure(self, now: float) -> float:
        """Of a start: seconds until the next one."""
        if self.last is None or now - self.last > STEADY:
            self.pause, self.ends = FIRST_PAUSE, 0
        else:
            self.pause = min(2 * self.pause, LONGEST_PAUSE)
        self.last = now
        return self.pause
