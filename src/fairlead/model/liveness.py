"""Which compute nodes are dead, by what each has confirmed and when. Pure: the time is an argument.

Somebody counts up from time to time, and each chassis confirms the count with the time of its own clock. One that has
confirmed nothing for long, while others have, is dead: what was seen of its machines last is worth nothing. If most of
them seem dead it is not they who are: whoever counts, or carries the news, stands still, and nothing is believed.
"""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """What a chassis has confirmed last."""

    name: str
    count: int
    confirmed: float
    """Seconds, by the chassis's own clock."""
    seen: float | None = None
    """When the one who watches saw it confirm something, by a clock of its own; None is never."""


def find_dead(signs: Collection[Sign], now: float, patience: float) -> frozenset[str]:
    """The chassis that lag behind the others by more than `patience` seconds.

    A clock that is wrong kills nobody: who has confirmed the newest count lives, and so does who was seen to confirm
    anything lately. Clocks alone are believed of one that never was: a fresh process must not take the dead for living.
    """
    newest = max((sign.count for sign in signs), default=0)
    last = max((sign.confirmed for sign in signs), default=0.0)
    dead = frozenset(
        sign.name
        for sign in signs
        if sign.count < newest
        and last - sign.confirmed > patience
        and (sign.seen is None or now - sign.seen > patience)
    )
    return dead if 2 * len(dead) <= len(signs) else frozenset()
