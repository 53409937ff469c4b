"""When whom to probe, and what the answers mean. Pure: what time it is, and what became of a probe, are arguments.

* **A place in the delay.** Each member has one, by a hash of what is probed: ten thousand members are probed evenly, a
  restart changes nothing, and no two nodes have to agree. The first probe comes soon, even if the delay is a minute.
* **One at a time.** A member is not probed again while it is being probed. Who is late leaves out what was due
  meanwhile, and never catches up with a burst.
* **In a row.** `max_retries` answers in a row make a member UP, `max_retries_down` failures in a row DOWN. A probe that
  the node could not make, or could not look after (`Missed`), breaks no row and counts as nothing. If the node was
  too busy to look after it, the next one comes at once.
* **A share for each project.** Of the places for probes in flight, a project may have as many as are free: alone half
  of them, of two each a third. Its members beyond that wait for its own, so however many of them are silent, those of
  another project are probed when they are due.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import TypeAlias, assert_never

from fairlead.model.addresses import seeded
from fairlead.model.checks import Rhythm, Target, Verdict
from fairlead.model.health import Endpoint

SOON = 5.0
"""Seconds in which the first probe of a member comes at the latest."""
WOKEN = 2
"""Members that wait for their project's share, for each of its probes that ends: the share may have grown meanwhile."""
_WHOLE = 2**64


@dataclass(frozen=True, slots=True)
class Answered:
    """As the monitor wants it."""

    seconds: float | None
    """How long it took; None where silence is as good as an answer."""


@dataclass(frozen=True, slots=True)
class Failed:
    why: str
    """For people: "refused", "no answer in 3 s"."""


@dataclass(frozen=True, slots=True)
class Missed:
    """The node was too busy to probe, or to see what came of it, or cannot probe so. It says nothing of the member."""

    why: str
    at_once: bool = False
    """Whether to ask again without a rest: the member may be dead, and only the node's haste is in the way."""


Outcome: TypeAlias = Answered | Failed | Missed


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of one member."""

    verdict: Verdict = Verdict.PENDING
    since: float | None = None
    """When it came to this."""
    answers: int = 0
    failures: int = 0
    """In a row: one of the two is 0."""
    error: str = ""
    """Of the last probe that failed, while the last one did."""
    missed: str = ""
    """Why the last probe said nothing, if it did not."""
    doubts: int = 0
    """How often in a row that was because the node was too busy."""
    latency: float | None = None
    """Seconds that the last answer took."""

    def after(self, outcome: Outcome, rhythm: Rhythm, now: float) -> "Standing":
        match outcome:
            case Answered(seconds):
                answers = min(self.answers + 1, rhythm.max_retries)
                found = replace(self, answers=answers, failures=0, error="", missed="", doubts=0, latency=seconds)
                return _judged(found, Verdict.UP, now) if answers >= rhythm.max_retries else found
            case Failed(why):
                failures = min(self.failures + 1, rhythm.max_retries_down)
                found = replace(self, answers=0, failures=failures, error=why, missed="", doubts=0)
                return _judged(found, Verdict.DOWN, now) if failures >= rhythm.max_retries_down else found
            case Missed(why, at_once):
                return replace(self, missed=why, doubts=self.doubts + at_once)
            case unknown:
                assert_never(unknown)


def _judged(standing: Standing, verdict: Verdict, now: float) -> Standing:
    return standing if verdict is standing.verdict else replace(standing, verdict=verdict, since=now)


PENDING = Standing()


@dataclass(slots=True)
class _Aim:
    target: Target
    place: float
    """Of its endpoint: it is a hash, and needed for each probe."""
    number: int = -1
    """Of the entry in the heap that counts; others are left from before."""
    began: float | None = None
    """When the probe began that is in flight; None while none is."""
    waits: bool = False
    """Whether it was due when its project had its share."""


@dataclass(slots=True)
class Tracker:
    """A value that only its own methods change."""

    standings: dict[Endpoint, Standing] = field(default_factory=dict)
    changed: set[Endpoint] = field(default_factory=set)
    """Whose verdict is another one since somebody took this set."""
    _aims: dict[Endpoint, _Aim] = field(default_factory=dict)
    _due: list[tuple[float, int, Endpoint]] = field(default_factory=list)
    _flying: Counter[str] = field(default_factory=Counter)
    """Probes that are in flight, by project."""
    _waiting: defaultdict[str, deque[_Aim]] = field(default_factory=lambda: defaultdict(deque))
    """Who was due when their project had its share; some may have gone since then."""
    _numbers: Iterator[int] = field(default_factory=count)

    def __len__(self) -> int:
        return len(self._aims)

    @property
    def targets(self) -> Iterator[Target]:
        return (aim.target for aim in self._aims.values())

    def aim(self, targets: Iterable[Target], now: float) -> None:
        """All that is to be probed from now on."""
        wanted = {target.endpoint: target for target in targets}
        self.change(self._aims.keys() - wanted.keys(), wanted.values(), now)

    def change(self, gone: Iterable[Endpoint], targets: Iterable[Target], now: float) -> None:
        """Who is not probed any more, and who is; the others stay. Who is probed otherwise than before keeps its
        standing: what was known of it last holds until the new probes say something else."""
        for endpoint in list(gone):
            aim = self._aims.pop(endpoint, None)
            if aim is not None and aim.began is not None:
                self._land(aim, now)
            self.standings.pop(endpoint, None)
            self.changed.discard(endpoint)
        for target in targets:
            before = self._aims.get(target.endpoint)
            if before is None:
                self._aims[target.endpoint] = aim = _Aim(target, place(target.endpoint))
                self._plan(aim, first_due(target, now))
            elif before.target != target:
                same = before.target.rhythm == target.rhythm
                before.target = target
                if not same:
                    self._restart(before, now)

    def forget(self) -> None:
        """What was known of anybody: much may have happened meanwhile."""
        self.standings.clear()
        self.changed.clear()

    def _restart(self, aim: _Aim, now: float) -> None:
        endpoint = aim.target.endpoint
        standing = self.standings.get(endpoint, PENDING)
        self.standings[endpoint] = replace(standing, answers=0, failures=0)
        if aim.began is None and not aim.waits:
            self._plan(aim, first_due(aim.target, now))

    def next_due(self) -> float | None:
        """When somebody has to be probed next."""
        while self._due and not self._counts(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now: float, most: int, free: int) -> list[Target]:
        """Who is to be probed now, `most` at once, `free` places being left. Each is in flight until concluded."""
        found = list[Target]()
        while len(found) < min(most, free) and (due := self.next_due()) is not None and due <= now:
            aim = self._aims[heapq.heappop(self._due)[2]]
            aim.number = -1
            if self._flying[aim.target.project_id] >= free - len(found):
                aim.waits = True
                self._waiting[aim.target.project_id].append(aim)
                continue
            aim.began = now
            self._flying[aim.target.project_id] += 1
            found.append(aim.target)
        return found

    def _land(self, aim: _Aim, now: float) -> None:
        """Its probe is in flight no more: others of its project may have their turn."""
        project_id = aim.target.project_id
        aim.began = None
        self._flying[project_id] -= 1
        if not self._flying[project_id]:
            del self._flying[project_id]
        for other in islice(self._next_waiting(project_id), WOKEN):
            other.waits = False
            self._plan(other, now)

    def _next_waiting(self, project_id: str) -> Iterator[_Aim]:
        """Those that are still there; they do not wait any more."""
        waiting = self._waiting.get(project_id)
        while waiting:
            aim = waiting.popleft()
            if self._aims.get(aim.target.endpoint) is aim:
                yield aim
        self._waiting.pop(project_id, None)

    def conclude(self, target: Target, outcome: Outcome, now: float) -> None:
        """What became of a probe. Of somebody who is probed otherwise by now, or not at all, it says nothing."""
        endpoint = target.endpoint
        aim = self._aims.get(endpoint)
        if aim is None or aim.began is None:
            return
        again = isinstance(outcome, Missed) and outcome.at_once
        due = now if again else next_due(aim.target.rhythm.delay, aim.place, aim.began)
        self._land(aim, now)
        self._plan(aim, max(now, due))
        if aim.target != target:
            return
        before = self.standings.get(endpoint, PENDING)
        after = self.standings[endpoint] = before.after(outcome, target.rhythm, now)
        if after.verdict is not before.verdict:
            self.changed.add(endpoint)

    def _plan(self, aim: _Aim, due: float) -> None:
        aim.number = next(self._numbers)
        heapq.heappush(self._due, (due, aim.number, aim.target.endpoint))

    def _counts(self, entry: tuple[float, int, Endpoint]) -> bool:
        aim = self._aims.get(entry[2])
        return aim is not None and aim.number == entry[1]


def place(endpoint: Endpoint) -> float:
    """From 0 to 1: where in its delay somebody is probed. The same everywhere and always."""
    return seeded("/".join(map(str, endpoint))) / _WHOLE


def first_due(target: Target, now: float) -> float:
    """At its place, but soon."""
    return now + place(target.endpoint) * min(target.rhythm.delay, SOON)


def next_due(delay: float, where: float, began: float) -> float:
    """The first time at this place that is not sooner than half a delay after the last probe began."""
    earliest = began + delay / 2
    return earliest + (where * delay - earliest) % delay
