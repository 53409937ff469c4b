"""Rate limits of process replacements, of checked commands, and of restarts after a crash. Pure: time is an argument.

A replacement costs CPU time, and memory until the connections of the old process have ended, and a tenant can request a
hundred per second. After a quiet time a replacement runs immediately, then at growing intervals; changes in between
wait and share the next replacement. Commands that change L7 policies or certificates cost a check by HAProxy, so they
have a limit of their own. A process that has ended is restarted immediately, then after growing pauses.
"""

from dataclasses import dataclass

MIN_INTERVAL, MAX_INTERVAL = 0.25, 4.0
"""Seconds between two replacements: the first interval and the maximum. Each interval is twice the last one. A change
is served at most `LONGEST` plus the start time of a process after the request; continuous changes cause at most 15
replacements a minute."""
QUIET_INTERVALS = 4.0
"""Number of intervals without a replacement after which the next one runs immediately and the interval is `FIRST`
again."""


@dataclass(slots=True)
class ReplacementBackoff:
    """Rate limit of the replacements of one proxy."""

    last: float | None = None
    interval: float = MIN_INTERVAL

    def wait(self, now: float) -> float:
        """Return the seconds until the next replacement is allowed."""
        return 0.0 if self.last is None else max(0.0, self.last + self.interval - now)

    def record_start(self, now: float) -> None:
        """Record the start of a replacement."""
        if self.last is not None:
            is_quiet = now - self.last > QUIET_INTERVALS * self.interval
            self.interval = MIN_INTERVAL if is_quiet else min(2 * self.interval, MAX_INTERVAL)
        self.last = now

    def record_serving(self, now: float) -> None:
        """Record that the new process serves. The interval counts from this time, because a start may be slow."""
        self.last = now


BURST, INTERVAL = 10, 0.5
"""Number of changes by checked commands that are applied immediately after a quiet time, and seconds between further
ones. A client that creates a policy with its rules is not delayed; continuous changes cause two checks a second. A
load balancer that waits is then applied with all its changes."""


@dataclass(slots=True)
class CommandPace:
    """Rate limit of the changes of one proxy that HAProxy checks before commands apply them."""

    quiet_from: float = 0.0
    """Time at which `BURST` changes are allowed again."""

    def wait(self, now: float) -> float:
        """Return the seconds until the next change is allowed."""
        return max(0.0, self.quiet_from - (BURST - 1) * INTERVAL - now)

    def spend(self, now: float) -> None:
        """Record a change."""
        self.quiet_from = max(self.quiet_from, now) + INTERVAL


MIN_RESTART_DELAY, MAX_RESTART_DELAY = 0.05, 10.0
"""Seconds before a process that has ended or failed to start is started again. Each pause is twice the last one."""
STABLE_SECONDS = 30.0
"""Seconds without an end or a failed start after which the next pause is `FIRST_PAUSE` again, even if the process was
replaced during that time."""
CRASH_LOOP_ENDS = 3
"""Number of consecutive ends that counts as a crash loop."""


@dataclass(slots=True)
class RestartBackoff:
    """Backoff of the restarts of one proxy."""

    last: float | None = None
    delay: float = MIN_RESTART_DELAY
    ends: int = 0
    """Number of consecutive ends."""

    def record_end(self, now: float) -> float:
        """Record an end; return the seconds until the restart."""
        wait = self.record_failure(now)
        self.ends += 1
        return wait

    def record_failure(self, now: float) -> float:
        """Record a failed start; return the seconds until the next attempt."""
        if self.last is None or now - self.last > STABLE_SECONDS:
            self.delay, self.ends = MIN_RESTART_DELAY, 0
        else:
            self.delay = min(2 * self.delay, MAX_RESTART_DELAY)
        self.last = now
        return self.delay
