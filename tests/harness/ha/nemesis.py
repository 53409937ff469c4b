"""Who kills, freezes, cuts off, deafens and resets: one thing of three at a time, each second time the one that leads.

A host that is cut off hears nobody and is heard by nobody. A deaf one is heard. One whose connections are reset is told
at once, whenever it says something to another member or server, that nobody is there. Each tenth time what is away is
away for long: until somebody else has been chosen to lead, and connections have been given up.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter, sleep

from harness.ha.place import HOSTS, KINDS, Place

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


def disturb(place: Place, random: Random, steps: int, longest: float, only: str) -> Iterator[Step]:
    """Each way once before any comes again. `longest` is for how many seconds something is away, `only` is one way, or
    all of them."""
    ways = [way for way in HOWS if only in ("", " ".join(way))]
    order: list[tuple[str, str]] = []
    for _ in range(steps):
        order = order or random.sample(ways, len(ways))
        yield _disturb_once(place, random, order.pop(), longest)


def _disturb_once(place: Place, random: Random, way: tuple[str, str], longest: float) -> Step:
    how, what = way
    leads = place.leader(random.choice(KINDS) if what == "host" else what)
    host = random.choice((leads, random.choice(HOSTS)))
    began = perf_counter()
    length = random.uniform(0.1, longest if random.randrange(SELDOM) else max(LONG, longest))
    if what == "host":
        place.part(how, host)
        sleep(length)
        place.mend(how, host)
        for kind in KINDS:
            place.wait(kind, host)
    else:
        (place.kill if how == "kill" else place.freeze)(what, host)
        sleep(length)
        (place.start if how == "kill" else place.thaw)(what, host)
        place.wait(what, host)
    return Step(how, what, host, host == leads, began, perf_counter())
