"""What the model of a server needs from time to time, whatever the dataplanes are."""

import asyncio
import logging
from datetime import UTC, datetime
from functools import partial

from fairlead.compilers.unsupported import Unsupported
from fairlead.model.parting import forget_removed
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
FORGET_INTERVAL = 10.0
"""Seconds, between two looks at who was removed long enough ago."""


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
