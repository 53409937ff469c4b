"""What the model of a server needs from time to time, whatever the dataplanes are."""

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial

from fairlead.changes.probe_ports import make_cover_ports
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.owner import Owner
from fairlead.model.parting import forget_removed
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
    """Let go of removed members whose time is over, until cancelled."""
    while True:
        await asyncio.sleep(FORGET_INTERVAL)
        snapshot, now = model.snapshot, datetime.now(UTC)
        late = [each for each in snapshot.parting if snapshot.load_balancers[each].parted[0].until <= now]
        for balancer_id in late:
            try:
                await model.write(partial(forget_removed, balancer_id=balancer_id, now=now))
            except (StoreError, Unsupported) as error:
                LOG.warning("members of %s that were removed are not forgotten yet: %s", balancer_id, error)
