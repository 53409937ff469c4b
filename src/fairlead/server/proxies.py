"""Gives load balancers the proxies that they need, and takes those that nobody needs: from time to time, by what is
observed.

Any server may: what is written is the same, whoever does it, and the store refuses the second.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime

from fairlead.changes.proxy_places import Bounds, find_placement, place_proxies
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.proxy_homes import home_of
from fairlead.model.proxy_place import ProxyPlace
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.resting import in_steps
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
INTERVAL = 0.5
"""Seconds between two looks for what has changed."""
AGAIN = 5.0
"""Seconds until it is looked again though nothing has: who reaches a network is known later than its ports, and an
address may be free by then."""


async def keep_proxies(model: Model, near: Callable[[str], Collection[str]], bounds: Bounds) -> None:
    """Until it is cancelled. `near`: the chassis with an agent that reach a network."""
    last, due = Snapshot(), 0.0
    while True:
        await asyncio.sleep(INTERVAL)
        snapshot, now = model.snapshot, time.monotonic()
        if _is_same(last, snapshot) and now < due:
            continue
        for place in await in_steps(_wrong(snapshot, near, bounds)):
            await _place(model, place, near, bounds)
        last, due = snapshot, now + AGAIN


def _is_same(last: Snapshot, snapshot: Snapshot) -> bool:
    """Whether nothing has changed on which places depend."""
    return all(
        getattr(last, name) is getattr(snapshot, name)
        for name in ("proxied", "place_proxies", "chassis", "agents", "router_interfaces")
    )


def _wrong(snapshot: Snapshot, near: Callable[[str], Collection[str]], bounds: Bounds) -> Steps[list[ProxyPlace]]:
    found = list[ProxyPlace]()
    for place in _places(snapshot):
        if find_placement(snapshot, place, _near(snapshot, place, near), bounds.of(snapshot, place)):
            found.append(place)
        yield
    return found


def _places(snapshot: Snapshot) -> Iterator[ProxyPlace]:
    yield from snapshot.proxied
    yield from (each for each in snapshot.place_proxies if each not in snapshot.proxied)


def _near(snapshot: Snapshot, place: ProxyPlace, near: Callable[[str], Collection[str]]) -> Collection[str]:
    """The chassis that reach the network on which its proxies are."""
    home = home_of(snapshot, place)
    return () if home is None else near(home.id)


async def _place(model: Model, place: ProxyPlace, near: Callable[[str], Collection[str]], bounds: Bounds) -> None:
    try:
        await model.write(
            lambda snapshot: place_proxies(
                snapshot, place, _near(snapshot, place, near), datetime.now(UTC), bounds.of(snapshot, place)
            )
        )
    except (StoreError, Unsupported, Refused) as error:
        LOG.warning("proxies of %s for project %s are not placed yet: %s", place.at, place.project_id, error)
