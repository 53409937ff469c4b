"""Which compute nodes are dead, by what each has confirmed and when. Pure: the time is an argument.

A server counts up from time to time, and each chassis confirms the count with the time of its own clock. A chassis that
has confirmed nothing for long, while others have, is dead: what was last seen of its machines is worth nothing. If most
chassis seem dead, the counting or the database stands still, and none is taken for dead.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairlead.model.health import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a chassis has confirmed last."""

    name: str
    count: int
    confirmed: float
    """Seconds, by the chassis's own clock."""
    seen: float | None = None
    """When the reader saw it confirm something, by the reader's clock; None is never."""


def find_dead(heartbeats: Collection[Heartbeat], now: float, patience: float) -> frozenset[str]:
    """The chassis that lag behind the others by more than `patience` seconds.

    A wrong clock makes no chassis dead: one that has confirmed the newest count lives, and so does one that was seen to
    confirm anything lately. Of one that was never seen its clock is believed: a fresh process must not take a dead
    chassis for a living one.
    """
    newest = max((heartbeat.count for heartbeat in heartbeats), default=0)
    last = max((heartbeat.confirmed for heartbeat in heartbeats), default=0.0)
    dead = frozenset(
        heartbeat.name
        for heartbeat in heartbeats
        if heartbeat.count < newest
        and last - heartbeat.confirmed > patience
        and (heartbeat.seen is None or now - heartbeat.seen > patience)
    )
    return dead if 2 * len(dead) <= len(heartbeats) else frozenset()


def why_silent(*, works: bool, alive: bool) -> Health | None:
    """Why nothing at a port can answer, whatever a probe said last; None if it may answer.

    `works` is whether a chassis has the port and its packets flow there; `alive` whether that chassis lives.
    """
    if not works:
        return Health.UNPLUGGED
    return None if alive else Health.STRANDED
