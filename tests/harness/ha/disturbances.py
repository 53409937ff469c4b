"""Disturbances: kills, freezes, cuts off, deafens or resets one of three instances at a time, half the time the leader.

* `cut`: the host can neither send nor receive.
* `deafen`: the host can send, and receives nothing.
* `reset`: the host's connections to other members and servers are reset immediately.

One disturbance in ten is long enough for a new leader to be elected and for connections to time out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from harness.ha.load import now
from harness.ha.three_hosts import HOSTS, KINDS, ThreeHosts
from harness.waiting import pause, wait_until

NETWORK_DISTURBANCES = ("cut", "deafen", "reset")
"""Disturbances of a host, by its link or by its packet filter."""
DISTURBANCES = (
    *((how, kind) for kind in KINDS for how in ("kill", "freeze")),
    *((how, "host") for how in NETWORK_DISTURBANCES),
)
LONG_SECONDS, LONG_EVERY = 8.0, 10
"""Duration in seconds of a long disturbance, and the number of disturbances of which one is long.

etcd elects a leader after one second.
"""


@dataclass(frozen=True)
class Disturbance:
    action: str
    component: str
    host: int
    was_leader: bool
    """Whether the instance was the leader."""
    started_at: float
    ended_at: float
    """Time at which everything worked again."""

    @property
    def title(self) -> str:
        return f"{self.action} {self.component}{', the leader' if self.was_leader else ''}"


def run_disturbances(
    place: ThreeHosts, random: Random, steps: int, longest: float, only: str, wrote_since: Callable[[float], bool]
) -> Iterator[Disturbance]:
    """Disturb by each way once before one repeats.

    `longest` is the duration in seconds, `only` selects one way. A step ends when all servers are ready and a write
    begun after that is acknowledged.
    """
    ways = [way for way in DISTURBANCES if only in ("", " ".join(way))]
    order: list[tuple[str, str]] = []
    for _ in range(steps):
        order = order or random.sample(ways, len(ways))
        how, what = order.pop()
        host, leads = _choose(place, random, what)
        began = now()
        _disturb_once(place, (how, what, host), random.uniform(0.1, _longest(random, longest)))
        _wait_for_agreement(place, wrote_since)
        yield Disturbance(how, what, host, host == leads, began, now())


def _choose(place: ThreeHosts, random: Random, what: str) -> tuple[int, int]:
    """A host and the leader's host; the former is the leader's at least half of the time."""
    leads = place.leader(random.choice(KINDS) if what == "host" else what)
    return random.choice((leads, random.choice(HOSTS))), leads


def _longest(random: Random, longest: float) -> float:
    return longest if random.randrange(LONG_EVERY) else max(LONG_SECONDS, longest)


def _disturb_once(place: ThreeHosts, step: tuple[str, str, int], seconds: float) -> None:
    how, what, host = step
    if what == "host":
        place.disturb_network(how, host)
        pause(seconds)
        place.restore_network(how, host)
        for kind in KINDS:
            place.wait(kind, host)
    else:
        (place.kill if how == "kill" else place.freeze)(what, host)
        pause(seconds)
        (place.start if how == "kill" else place.thaw)(what, host)
        place.wait(what, host)


def _wait_for_agreement(place: ThreeHosts, wrote_since: Callable[[float], bool]) -> None:
    for host in HOSTS:
        place.wait("server", host)
    mended = now()
    wait_until(lambda: wrote_since(mended), "a write that is acknowledged")
