"""One run of the agent's checks for all or some load balancers, until each is settled; and a check for orphan ports."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from octavia_lib.api.drivers.driver_lib import DriverLibrary
from octavia_lib.api.drivers.exceptions import DriverAgentNotFound
from oslo_config import cfg
from oslo_db.exception import DBError

from fairlead.octavia_plugin.adoption import ServiceFailed
from fairlead.octavia_plugin.agent import AgentSettings, Library, OctaviaAgent
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.octavia_plugin.octavia import OctaviaDatabase
from fairlead.octavia_plugin.octavia_ports import OctaviaPorts
from fairlead.octavia_plugin.options import PROVIDER, make_plugin_api, sockets_of
from fairlead.octavia_plugin.orphans import Orphans, TooManyDeletions

BESIDE = 120.0
"""Seconds allowed in addition to the wait for requests in progress."""


class SyncFailed(Exception):
    """The run failed; the message gives the reason."""


class _SelectedBalancers:
    """Octavia's database, limited to the chosen load balancers."""

    def __init__(self, database: OctaviaDatabase) -> None:
        self.look = database.look

    def pending(self) -> Sequence[str]:
        return ()

    def ids(self) -> Sequence[str]:
        return ()


class _NoUpdates:
    """Sends no updates to Octavia."""

    def update_loadbalancer_status(self, _: Any) -> None: ...

    def update_listener_statistics(self, _: Any) -> None: ...


def sync(section: Any, names: Sequence[str], conduct: AgentSettings, *, deletes_ports: bool) -> int:
    """Run the checks and return the number of load balancers. Without names, also find orphan ports.

    Raises Failed and ServerError.
    """
    door, database = make_plugin_api(section), OctaviaDatabase(PROVIDER)
    try:
        ids = _ids(door, database, names)
        orphans = Orphans(ports=OctaviaPorts(), octavia=database, in_fairlead=lambda each: _has(door, each))
        began, suspects = time.monotonic(), frozenset[str]() if names else orphans.suspects()
        agent = OctaviaAgent(
            door, _SelectedBalancers(database), _NoUpdates() if conduct.is_dry else _library(), conduct=conduct
        )
        agent.enqueue(ids)
        _run_until_settled(agent, 2 * conduct.settle_seconds + BESIDE)
        if suspects:
            time.sleep(max(0.0, began + conduct.settle_seconds - time.monotonic()))
            _settle_ports(orphans, suspects, conduct, deletes=deletes_ports)
    except DBError as error:
        raise SyncFailed(f"Octavia's database: {error}") from None
    except (ServiceFailed, TooManyDeletions) as error:
        raise SyncFailed(str(error)) from None
    return len(ids)


def _settle_ports(orphans: Orphans, suspects: frozenset[str], conduct: AgentSettings, *, deletes: bool) -> None:
    """Report or delete orphan ports. Raises NotAnswered, and TooMany before any deletion."""
    found = orphans.find(suspects)
    if deletes and not conduct.deletes_old:
        orphans.check_share(found)
    orphans.settle(found, conduct.on_finding, deletes=deletes, is_dry=conduct.is_dry)


def _has(door: PluginApi, balancer_id: str) -> bool:
    return door.statuses(balancer_id) is not None


def _ids(door: PluginApi, database: OctaviaDatabase, names: Iterable[str]) -> Sequence[str]:
    """Resolve names to ids. Raises Failed for an unknown or ambiguous name."""
    if not names:
        return list(dict.fromkeys((*database.ids(), *door.ids())))
    found = list[str]()
    for name in names:
        ids = database.named(name)
        if not ids and door.statuses(name) is not None:
            ids = [name]  # only Fairlead still has it
        if len(ids) != 1:
            many = f"{len(ids)} load balancers have the name {name}; give the id"
            raise SyncFailed(many if ids else f"no load balancer {name} of provider {PROVIDER}")
        found += ids
    return found


def _library() -> Library:
    """Connect to octavia-driver-agent. Raises Failed."""
    sockets = sockets_of(cfg.CONF)
    for path in sockets:
        if not os.path.exists(path):
            raise SyncFailed(
                f"octavia-driver-agent, which updates statuses in Octavia, does not run here: {path}: no such file"
            )
    try:
        made: Library = DriverLibrary(*sockets)
    except DriverAgentNotFound as error:
        raise SyncFailed(str(error)) from None
    return made


def _run_until_settled(agent: OctaviaAgent, seconds: float) -> None:
    """Run until no check is due. Raises Failed after a timeout; the log has the errors."""
    deadline = time.monotonic() + seconds
    while (pause := agent.seconds_until_due()) is not None:
        if time.monotonic() > deadline:
            raise SyncFailed(
                f"timed out after {seconds:.0f} s: requests are in flight, or a service does not answer; see the log"
            )
        time.sleep(min(pause, 1.0))
        agent.step()
