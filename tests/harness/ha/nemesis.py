"""Who kills, freezes, cuts off, deafens and resets: one thing of three at a time, each second time the one that leads.

A host that is cut off hears nobody and is heard by nobody. A deaf one is heard. One whose connections are reset is told
at once, whenever it says something to another member or server, that nobody is there. Each tenth time what is away is
away for long: until somebody else has been chosen to lead, and connections have been given up.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from harness.ha.load import now
from harness.ha.place import HOSTS, KINDS, Place
from harness.waiting import pause, wait_until

PARTED = ("cut", "deafen", "reset")
"""Of a host, by its cable or by its packet filter."""
HOWS = (*((how, kind) for kind in KINDS for how in ("kill", "freeze")), *((how, "host") for how in PARTED))
LONG, SELDOM = 8.0, 10
"""Seconds at most of what is away for long, and of how many times it is once. etcd chooses another leader after one."""


@dataclass(frozen=True)
class Step:
    how: str
    what: str
    host: int
    led: bool
    """Whether it was the one that leads."""
    began: float
    ended: float
    """When all was well again."""

    @property
    def title(self) -> str:
        return f"{self.how} {self.what}{', the leader' if self.led else ''}"


def disturb(
    place: Place, random: Random, steps: int, longest: float, only: str, wrote_since: Callable[[float], bool]
) -> Iterator[Step]:
    """Each way once before any comes again. `longest` is for how many seconds something is away, `only` is one way, or
    all of them. A step ends when all servers are ready and a write that was begun then has been acknowledged.
    """
    ways = [way for way in HOWS if only in ("", " ".join(way))]
    order: list[tuple[str, str]] = []
    for _ in range(steps):
        order = order or random.sample(ways, len(ways))
        how, what = order.pop()
        host, leads = _choose(place, random, what)
        began = now()
        _disturb_once(place, (how, what, host), random.uniform(0.1, _longest(random, longest)))
        _wait_for_agreement(place, wrote_since)
        yield Step(how, what, host, host == leads, began, now())


def _choose(place: Place, random: Random, what: str) -> tuple[int, int]:
    """A host, and the one that leads: as often as not that one."""
    leads = place.leader(random.choice(KINDS) if what == "host" else what)
    return random.choice((leads, random.choice(HOSTS))), leads


def _longest(random: Random, longest: float) -> float:
    return longest if random.randrange(SELDOM) else max(LONG, longest)


def _disturb_once(place: Place, step: tuple[str, str, int], seconds: float) -> None:
    how, what, host = step
    if what == "host":
        place.part(how, host)
        pause(seconds)
        place.mend(how, host)
        for kind in KINDS:
            place.wait(kind, host)
    else:
        (place.kill if how == "kill" else place.freeze)(what, host)
        pause(seconds)
        (place.start if how == "kill" else place.thaw)(what, host)
        place.wait(what, host)


def _wait_for_agreement(place: Place, wrote_since: Callable[[float], bool]) -> None:
    for host in HOSTS:
        place.wait("server", host)
    mended = now()
    wait_until(lambda: wrote_since(mended), "a write that is acknowledged")
