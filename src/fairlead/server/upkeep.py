"""What the model of a server needs from time to time, whatever the dataplanes are."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from fairlead.changes.hosts import forget_return
from fairlead.changes.probe_ports import make_cover_ports
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.hosts import is_returned
from fairlead.model.owner import Kind, Owner
from fairlead.model.parting import forget_removed, forgets_at
from fairlead.model.probe_devices import coverless_subnets
from fairlead.model.probes import all_probing, find_probing
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
FORGET_INTERVAL = 10.0
"""Seconds, between two looks at who was removed long enough ago."""


async def provide_covers(model: Model) -> None:
    """Who was monitored before agents probed, or before they covered each other's places, gets the addresses from which
    a silent node's members are probed; then it rests until it is cancelled."""
    for owner in list(all_probing(model.snapshot)):
        probing = find_probing(model.snapshot, owner)
        if probing is not None and coverless_subnets(model.snapshot, probing):
            try:
                await model.write(partial(_with_covers, owner=owner, now=datetime.now(UTC)))
            except (StoreError, Refused, Unsupported) as error:
                LOG.warning("what is monitored by %s cannot be probed while its node is silent: %s", owner, error)
        await asyncio.sleep(0)
    await asyncio.Event().wait()


def _with_covers(snapshot: Snapshot, owner: Owner, now: datetime) -> Changes:
    probing = find_probing(snapshot, owner)
    return Changes(puts=make_cover_ports(snapshot, probing, now)) if probing is not None else Changes()


async def forget_parted(model: Model) -> None:
    """Let go of removed members, and of who stood in for drained hosts, when their time is over, until cancelled."""
    while True:
        await asyncio.sleep(FORGET_INTERVAL)
        for owner, forget in _forgotten(model.snapshot, datetime.now(UTC)):
            try:
                await model.write(forget)
            except (StoreError, Unsupported) as error:
                LOG.warning("what %s was is not forgotten yet: %s", owner, error)


def _forgotten(snapshot: Snapshot, now: datetime) -> list[tuple[Owner, Callable[[Snapshot], Changes]]]:
    """What remembers something whose time is over, and the change that lets go of it."""
    late = [each for each in snapshot.parting if forgets_at(snapshot.load_balancers[each]) <= now]
    back = [host.name for host in snapshot.hosts.values() if is_returned(host, now)]
    return [
        *((Owner(Kind.LOAD_BALANCER, each), partial(forget_removed, balancer_id=each, now=now)) for each in late),
        *((Owner(Kind.HOST, each), partial(forget_return, name=each, now=now)) for each in back),
    ]
