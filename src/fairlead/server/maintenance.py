"""Periodic maintenance of a server's model, independent of dataplanes."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from fairlead.changes.hosts import end_return
from fairlead.changes.probe_ports import make_delegate_ports
from fairlead.changes.refusal import Refused
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.hosts import is_return_over
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.probe_devices import subnets_without_delegate_port
from fairlead.model.queries.probes import find_monitored, list_monitored
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.draining import expire_removed_members, next_expiry
from fairlead.model.snapshot import Snapshot
from fairlead.store.interface import StoreError
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
FORGET_INTERVAL = 10.0
"""Seconds between checks for removed members with an expired drain timeout."""


async def allocate_probe_addresses(model: Model) -> None:
    """Allocate missing addresses for delegated probing, for monitors older than that feature; then sleep until
    cancelled."""
    for owner in list(list_monitored(model.snapshot)):
        probing = find_monitored(model.snapshot, owner)
        if probing is not None and subnets_without_delegate_port(model.snapshot, probing):
            try:
                await model.write(partial(_with_covers, owner=owner, now=datetime.now(UTC)))
            except (StoreError, Refused, Unsupported) as error:
                LOG.warning(
                    "cannot create delegate ports for %s, so no agent can take over its probes: %s", owner, error
                )
        await asyncio.sleep(0)
    await asyncio.Event().wait()


def _with_covers(snapshot: Snapshot, owner: Owner, now: datetime) -> Changes:
    probing = find_monitored(snapshot, owner)
    return Changes(puts=make_delegate_ports(snapshot, probing, now)) if probing is not None else Changes()


async def forget_removed_members(model: Model) -> None:
    """Delete drained members, and the members that replaced those of drained hosts, after the drain timeout. Runs until
    cancelled."""
    while True:
        await asyncio.sleep(FORGET_INTERVAL)
        for owner, forget in _forgotten(model.snapshot, datetime.now(UTC)):
            try:
                await model.write(forget)
            except (StoreError, Unsupported) as error:
                LOG.warning("cannot delete expired state of %s: %s", owner, error)


def _forgotten(snapshot: Snapshot, now: datetime) -> list[tuple[Owner, Callable[[Snapshot], Changes]]]:
    """Return owners with expired state, and the change that removes it."""
    late = [each for each in snapshot.parting if next_expiry(snapshot.load_balancers[each]) <= now]
    back = [host.name for host in snapshot.hosts.values() if is_return_over(host, now)]
    return [
        *(
            (Owner(Kind.LOAD_BALANCER, each), partial(expire_removed_members, balancer_id=each, now=now))
            for each in late
        ),
        *((Owner(Kind.HOST, each), partial(end_return, name=each, now=now)) for each in back),
    ]
