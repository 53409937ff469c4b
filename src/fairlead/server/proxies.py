"""Gives networks the proxies that they need, and takes those that nobody needs: from time to time, by what is observed.

Any server may: what is written is the same, whoever does it, and the store refuses the second.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime

from fairlead.changes.proxy_places import find_placement, place_proxies
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
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


async def keep_proxies(model: Model, near: Callable[[str], Collection[str]], most: int) -> None:
    """Until it is cancelled. `near`: the chassis with an agent that reach a network; `most` proxies of a network."""
    last, due = Snapshot(), 0.0
    while True:
        await asyncio.sleep(INTERVAL)
        snapshot, now = model.snapshot, time.monotonic()
        if _is_same(last, snapshot) and now < due:
            continue
        for network_id in await in_steps(_wrong(snapshot, near, most)):
            await _place(model, network_id, near, most)
        last, due = snapshot, now + AGAIN


def _is_same(last: Snapshot, snapshot: Snapshot) -> bool:
    """Whether nothing has changed on which places depend."""
    return all(
        getattr(last, name) is getattr(snapshot, name)
        for name in ("network_proxied", "network_proxies", "chassis", "agents", "router_interfaces")
    )


def _wrong(snapshot: Snapshot, near: Callable[[str], Collection[str]], most: int) -> Steps[list[str]]:
    found = list[str]()
    for network_id in _networks(snapshot):
        if find_placement(snapshot, network_id, near(network_id), most):
            found.append(network_id)
        yield
    return found


def _networks(snapshot: Snapshot) -> Iterator[str]:
    yield from snapshot.network_proxied
    yield from (each for each in snapshot.network_proxies if each not in snapshot.network_proxied)


async def _place(model: Model, network_id: str, near: Callable[[str], Collection[str]], most: int) -> None:
    try:
        await model.write(
            lambda snapshot: place_proxies(snapshot, network_id, near(network_id), datetime.now(UTC), most)
        )
    except (StoreError, Unsupported, Refused) as error:
        LOG.warning("proxies of network %s are not placed yet: %s", network_id, error)
