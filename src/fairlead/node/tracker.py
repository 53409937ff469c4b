"""Schedule of probes, and the evaluation of their outcomes. Pure: times and outcomes are arguments.

* **Phase.** Each member has a fixed phase within the delay, by a hash of its endpoint: ten thousand members are probed
  evenly, a restart changes nothing, and nodes need no coordination. The first probe is soon, even if the delay is a
  minute.
* **No overlap.** A member is not probed while a probe is in flight. Probes that were due during it are skipped, without
  a burst afterwards.
* **Consecutive outcomes.** `max_retries` successes in a row make a member UP, `max_retries_down` failures in a row
  DOWN. A probe that the node could not make or evaluate (`ProbeVoid`) neither counts nor interrupts a row. If the node
  was too busy to evaluate it, the next probe follows immediately.
* **Fair share per project.** A project may use as many slots for probes in flight as are free: half of all if it is
  alone, a third each for two projects. Further members wait for a slot of their own project, so silent members of one
  project do not delay probes of another.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import TypeAlias, assert_never

from fairlead.model.documents.addresses import hash_to_int
from fairlead.model.documents.checks import ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import Endpoint

MAX_FIRST_DELAY = 5.0
"""Maximum seconds until the first probe of a member."""
WAKEUPS_PER_PROBE = 2
"""Waiting members that are scheduled when a probe of their project ends, because the share may have grown."""
_HASH_RANGE = 2**64


@dataclass(frozen=True, slots=True)
class ProbeSucceeded:
    """Success of a probe."""

    seconds: float | None
    """Latency in seconds; None where a timeout is a success."""


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    reason: str
    """Reason for display: "refused", "no answer in 3 s"."""


@dataclass(frozen=True, slots=True)
class ProbeVoid:
    """Void probe: the node was too busy to make or evaluate it, or cannot make it. It does not affect the member's
    state."""

    reason: str
    is_retried_immediately: bool = False
    """True if the probe is repeated immediately, because the member may be dead and only the node's load prevents the
    detection."""


Outcome: TypeAlias = ProbeSucceeded | ProbeFailed | ProbeVoid


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """State of one member."""

    verdict: Verdict = Verdict.PENDING
    since: float | None = None
    """Time of the last change of the verdict."""
    successes: int = 0
    failures: int = 0
    """Consecutive successes and failures; one of the two is 0."""
    error: str = ""
    """Reason of the last failure; empty after a success."""
    void_reason: str = ""
    """Reason why the last probe was void; empty if it was not."""
    void_probes: int = 0
    """Consecutive void probes because of the node's load."""
    latency: float | None = None
    """Latency of the last answer, in seconds."""

    def after(self, outcome: Outcome, rhythm: ProbeSchedule, now: float) -> "MemberState":
        match outcome:
            case ProbeSucceeded(seconds):
                answers = min(self.successes + 1, rhythm.max_retries)
                found = replace(
                    self, successes=answers, failures=0, error="", void_reason="", void_probes=0, latency=seconds
                )
                return _with_verdict(found, Verdict.UP, now) if answers >= rhythm.max_retries else found
            case ProbeFailed(why):
                failures = min(self.failures + 1, rhythm.max_retries_down)
                found = replace(self, successes=0, failures=failures, error=why, void_reason="", void_probes=0)
                return _with_verdict(found, Verdict.DOWN, now) if failures >= rhythm.max_retries_down else found
            case ProbeVoid(why, at_once):
                return replace(self, void_reason=why, void_probes=self.void_probes + at_once)
            case unknown:
                assert_never(unknown)


def _with_verdict(standing: MemberState, verdict: Verdict, now: float) -> MemberState:
    return standing if verdict is standing.verdict else replace(standing, verdict=verdict, since=now)


PENDING = MemberState()


@dataclass(slots=True)
class _ScheduledTarget:
    target: Target
    phase: float
    """Phase of the endpoint, cached because it is a hash and needed for each probe."""
    number: int = -1
    """Number of the valid heap entry; entries with other numbers are stale."""
    began: float | None = None
    """Start of the probe in flight; None if there is none."""
    is_waiting: bool = False
    """True if the target was due while its project had used up its share."""


@dataclass(slots=True)
class Tracker:
    """Next probe and current state of each probed member. Only its methods change it."""

    states: dict[Endpoint, MemberState] = field(default_factory=dict)
    changed: set[Endpoint] = field(default_factory=set)
    """Endpoints with a changed verdict since the caller emptied this set."""
    _scheduled: dict[Endpoint, _ScheduledTarget] = field(default_factory=dict)
    _due: list[tuple[float, int, Endpoint]] = field(default_factory=list)
    _in_flight: Counter[str] = field(default_factory=Counter)
    """Probes in flight by project."""
    _waiting: defaultdict[str, deque[_ScheduledTarget]] = field(default_factory=lambda: defaultdict(deque))
    """Targets that wait for their project's share; some may have been removed since."""
    _numbers: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return len(self._scheduled)

    @property
    def targets(self) -> Iterator[Target]:
        return (aim.target for aim in self._scheduled.values())

    def set_targets(self, targets: Iterable[Target], now: float) -> None:
        """Replace all targets."""
        wanted = {target.endpoint: target for target in targets}
        self.change(self._scheduled.keys() - wanted.keys(), wanted.values(), now)

    def change(self, gone: Iterable[Endpoint], targets: Iterable[Target], now: float) -> None:
        """Remove and add targets, leaving others unchanged. A target whose check changes keeps its state until new
        outcomes change it."""
        for endpoint in list(gone):
            aim = self._scheduled.pop(endpoint, None)
            if aim is not None and aim.began is not None:
                self._end_probe(aim, now)
            self.states.pop(endpoint, None)
            self.changed.discard(endpoint)
        for target in targets:
            before = self._scheduled.get(target.endpoint)
            if before is None:
                self._scheduled[target.endpoint] = aim = _ScheduledTarget(target, phase_of(target.endpoint))
                self._schedule(aim, first_due(target, now))
            elif before.target != target:
                same = before.target.schedule == target.schedule
                before.target = target
                if not same:
                    self._restart(before, now)

    def clear_states(self) -> None:
        """Forget all states, after a long time without CPU (`Prober.on_cpu_stall`)."""
        self.states.clear()
        self.changed.clear()

    def _restart(self, aim: _ScheduledTarget, now: float) -> None:
        endpoint = aim.target.endpoint
        standing = self.states.get(endpoint, PENDING)
        self.states[endpoint] = replace(standing, successes=0, failures=0)
        if aim.began is None and not aim.is_waiting:
            self._schedule(aim, first_due(aim.target, now))

    def next_due(self) -> float | None:
        """Return the time of the next probe."""
        while self._due and not self._is_current(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now: float, most: int, free: int) -> list[Target]:
        """Return the targets to probe now, at most `most`, with `free` slots left. Each is in flight until
        `conclude`."""
        found = list[Target]()
        while len(found) < min(most, free) and (due := self.next_due()) is not None and due <= now:
            aim = self._scheduled[heapq.heappop(self._due)[2]]
            aim.number = -1
            if self._in_flight[aim.target.project_id] >= free - len(found):
                aim.is_waiting = True
                self._waiting[aim.target.project_id].append(aim)
                continue
            aim.began = now
            self._in_flight[aim.target.project_id] += 1
            found.append(aim.target)
        return found

    def _end_probe(self, aim: _ScheduledTarget, now: float) -> None:
        """End the probe in flight, and schedule waiting targets of the project."""
        project_id = aim.target.project_id
        aim.began = None
        self._in_flight[project_id] -= 1
        if not self._in_flight[project_id]:
            del self._in_flight[project_id]
        for other in islice(self._next_waiting(project_id), WAKEUPS_PER_PROBE):
            other.is_waiting = False
            self._schedule(other, now)

    def _next_waiting(self, project_id: str) -> Iterator[_ScheduledTarget]:
        """Yield the waiting targets that still exist, and remove them from the queue."""
        waiting = self._waiting.get(project_id)
        while waiting:
            aim = waiting.popleft()
            if self._scheduled.get(aim.target.endpoint) is aim:
                yield aim
        self._waiting.pop(project_id, None)

    def conclude(self, target: Target, outcome: Outcome, now: float) -> None:
        """Take the outcome of a probe; ignored if the target was changed or removed since."""
        endpoint = target.endpoint
        aim = self._scheduled.get(endpoint)
        if aim is None or aim.began is None:
            return
        again = isinstance(outcome, ProbeVoid) and outcome.is_retried_immediately
        due = now if again else next_due(aim.target.schedule.delay, aim.phase, aim.began)
        self._end_probe(aim, now)
        self._schedule(aim, max(now, due))
        if aim.target != target:
            return
        before = self.states.get(endpoint, PENDING)
        after = self.states[endpoint] = before.after(outcome, target.schedule, now)
        if after.verdict is not before.verdict:
            self.changed.add(endpoint)

    def _schedule(self, aim: _ScheduledTarget, due: float) -> None:
        aim.number = next(self._numbers)
        heapq.heappush(self._due, (due, aim.number, aim.target.endpoint))

    def _is_current(self, entry: tuple[float, int, Endpoint]) -> bool:
        aim = self._scheduled.get(entry[2])
        return aim is not None and aim.number == entry[1]


def phase_of(endpoint: Endpoint) -> float:
    """Return the phase of an endpoint within its delay, from 0 to 1; the same on every node."""
    return hash_to_int("/".join(map(str, endpoint))) / _HASH_RANGE


def first_due(target: Target, now: float) -> float:
    """Return the time of the first probe: at its phase, within `MAX_FIRST_DELAY`."""
    return now + phase_of(target.endpoint) * min(target.schedule.delay, MAX_FIRST_DELAY)


def next_due(delay: float, where: float, began: float) -> float:
    """Return the first time at this phase at least half a delay after the last probe began."""
    earliest = began + delay / 2
    return earliest + (where * delay - earliest) % delay
