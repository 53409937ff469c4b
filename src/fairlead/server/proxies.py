"""Placement of proxies: periodically creates the proxies that load balancers need, and deletes unneeded ones.

Every server may do so: each would write the same, and the store rejects the second write. On unmanaged networks nothing
is written; the desired ports are a fact, and another component (the Octavia plugin) creates the ports.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime

from fairlead.changes.proxy_placement import ProxyLimits, ProxyPlacement, find_placement, place_proxies
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.observed_proxy import ProxyPortChanges
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.unmanaged import UnmanagedNetwork
from fairlead.model.queries.proxy_homes import find_proxy_network
from fairlead.model.registry.facts import PROXY_PORT_CHANGES
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 0.5
"""Seconds between checks for changes."""
RETRY_INTERVAL = 5.0
"""Seconds after which the placement is repeated without a change: the reach of a network is known later than its ports,
and an address may be free by then."""


async def run_proxy_placement(model: Model, near: Callable[[str], Collection[str]], bounds: ProxyLimits) -> None:
    """Run until cancelled. `near` returns the chassis with an agent that reach a network."""
    last, due = Snapshot(), 0.0
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        snapshot, now = model.snapshot, time.monotonic()
        if _is_same(last, snapshot) and now < due:
            continue
        wrong = await run_in_steps(_wrong(snapshot, near, bounds))
        await run_in_steps(_want(model, {place: each for place, each in wrong.items() if _is_theirs(snapshot, place)}))
        for place in wrong:
            if not _is_theirs(snapshot, place):
                await _place(model, place, near, bounds)
        last, due = snapshot, now + RETRY_INTERVAL


def _is_same(last: Snapshot, snapshot: Snapshot) -> bool:
    """Whether nothing that placements depend on has changed."""
    return all(
        getattr(last, name) is getattr(snapshot, name)
        for name in ("proxied", "place_proxies", "chassis", "agents", "router_interfaces")
    )


def _wrong(
    snapshot: Snapshot, near: Callable[[str], Collection[str]], bounds: ProxyLimits
) -> Steps[dict[ProxyPlace, ProxyPlacement]]:
    found = dict[ProxyPlace, ProxyPlacement]()
    for place in _places(snapshot):
        placement = find_placement(snapshot, place, _near(snapshot, place, near), bounds.of(snapshot, place))
        if placement:
            found[place] = placement
        yield
    return found


def _is_theirs(snapshot: Snapshot, place: ProxyPlace) -> bool:
    return isinstance(snapshot.networks.get(place.at), UnmanagedNetwork)


def _want(model: Model, wrong: Mapping[ProxyPlace, ProxyPlacement]) -> Steps[None]:
    known = model.snapshot.wanted_proxies
    wanted = {
        place: ProxyPortChanges(create_on=each.create_on, delete=tuple(port.id for port in each.delete))
        for place, each in wrong.items()
    }
    news: dict[ProxyPlace, ProxyPortChanges | None] = {
        place: each for place, each in wanted.items() if known.get(place) != each
    }
    news.update({place: None for place in known if place not in wanted})
    if news:
        yield from model.observe(PROXY_PORT_CHANGES, news)


def _places(snapshot: Snapshot) -> Iterator[ProxyPlace]:
    yield from snapshot.proxied
    yield from (each for each in snapshot.place_proxies if each not in snapshot.proxied)


def _near(snapshot: Snapshot, place: ProxyPlace, near: Callable[[str], Collection[str]]) -> Collection[str]:
    """Return the chassis that reach the network of the place's proxies."""
    home = find_proxy_network(snapshot, place)
    return () if home is None else near(home.id)


async def _place(model: Model, place: ProxyPlace, near: Callable[[str], Collection[str]], bounds: ProxyLimits) -> None:
    try:
        await model.write(
            lambda snapshot: place_proxies(
                snapshot, place, _near(snapshot, place, near), datetime.now(UTC), bounds.of(snapshot, place)
            )
        )
    except (StoreError, Unsupported, Refused) as error:
        LOG.warning("cannot place proxies of %s for project %s: %s", place.at, place.project_id, error)
