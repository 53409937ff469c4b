"""How often another process may take the place of one: at once after a quiet time, then less and less often.

Each is work for the node and memory while the one before it has connections, and a tenant can ask for a hundred a
second. What is asked meanwhile waits, and comes with the next one. Pure: the time is an argument.
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
