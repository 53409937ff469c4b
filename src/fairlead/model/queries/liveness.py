"""Detection of dead chassis from their confirmations. Pure: the time is an argument.

A server increments `NB_Global.nb_cfg` periodically, and each chassis confirms the value with a timestamp of its own
clock. A chassis that has not confirmed a value for long, while others have, is dead, so the last results for its
machines are void. If most chassis seem dead, the counter or the database is stuck, so no chassis is reported as dead.
"""

from collections.abc import Collection
from dataclasses import dataclass

from fairlead.model.documents.health import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Last confirmation of a chassis."""

    name: str
    nb_cfg: int
    confirmed_at: float
    """Time of the confirmation in seconds, by the clock of the chassis."""
    seen_at: float | None = None
    """Time when the reader last saw a confirmation, in seconds of the reader's clock; None if never."""


def find_dead(heartbeats: Collection[Heartbeat], now: float, patience: float) -> frozenset[str]:
    """Return the chassis that lag behind the others by more than `patience` seconds.

    A wrong clock does not make a chassis dead: a chassis that has confirmed the newest value is alive, and so is one
    with a confirmation seen within `patience`. The clock of a chassis counts only if no confirmation of it was seen,
    because a new process must not treat a dead chassis as alive.
    """
    newest = max((heartbeat.nb_cfg for heartbeat in heartbeats), default=0)
    last = max((heartbeat.confirmed_at for heartbeat in heartbeats), default=0.0)
    dead = frozenset(
        heartbeat.name
        for heartbeat in heartbeats
        if heartbeat.nb_cfg < newest
        and last - heartbeat.confirmed_at > patience
        and (heartbeat.seen_at is None or now - heartbeat.seen_at > patience)
    )
    return dead if 2 * len(dead) <= len(heartbeats) else frozenset()


def explain_unavailability(*, works: bool, alive: bool) -> Health | None:
    """Return the reason why no answer from a port is possible, whatever the last probe result; None if one is possible.

    `works`: a chassis has the port and its packets flow there. `alive`: that chassis is alive.
    """
    if not works:
        return Health.UNPLUGGED
    return None if alive else Health.STRANDED
