"""OVN in a server: the driver of the Northbound database, and what is observed in the Southbound one."""

import asyncio
import contextlib
import logging
import time
from typing import Self

from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import DriverError
from fairlead.drivers.ovn.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.southbound import SouthboundReader, SouthboundSettings
from fairlead.drivers.ovsdb.client import Tls
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.model.facts import ports_on
from fairlead.model.plugged import waits_for_a_node
from fairlead.options import Configuration, OvnOptions
from fairlead.reconciler.dataplanes import Central, Condition
from fairlead.server.central import CentralDataplane
from fairlead.server.tasks import at_work
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
SOUTHBOUND_PATIENCE = 2.0
"""Seconds that the first look at everything waits for what probes say, and for which ports are plugged in: without it
the dead would serve for a moment, and every port would be DOWN."""
PROBES_UNHEARD, PORTS_UNHEARD = "what health monitors see", "which ports are plugged in"


class OvnControl:
    """An asynchronous context: a central dataplane, the reader of what OVN observes, and who asks the chassis whether
    they live."""

    def __init__(self, dataplane: Dataplane, model: Model, configuration: Configuration) -> None:
        options = configuration.ovn
        self._model = model
        self.driver = OvnDriver(
            _northbound(options),
            on_foreign_change=lambda owner, what: self.central.reconciler.note_foreign_change(owner, what),  # noqa: PLW0108 - made after
            on_abilities=model.equip,
            on_connected=lambda: self.central.look_again(),  # noqa: PLW0108
            on_ready=lambda: self.central.look_again(),  # noqa: PLW0108
        )
        self.southbound = SouthboundReader(_southbound(options), model.observe)
        self.central = CentralDataplane(
            dataplane, model, self.driver, first_hear=self._first_hear, hears=self._hears_probes
        )
        self.locate = self.southbound.locate
        self._probe_interval = float(options.chassis_probe_interval)
        self._tasks = contextlib.AsyncExitStack()

    def connect(self) -> None:
        self._tasks.push_async_exit(self.central)
        self.central.connect()

    async def __aenter__(self) -> Self:
        self.southbound.start()
        self._tasks.push_async_callback(self.southbound.close)
        await self._tasks.enter_async_context(self.central)
        await self._tasks.enter_async_context(at_work(self._ask_chassis))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def for_doors(self) -> Central:
        return Central(
            reconciler=self.central.reconciler, condition=self.condition, connected=lambda: self.driver.connected
        )

    def ports_on(self, chassis: str) -> frozenset[str] | None:
        """Those that the chassis has; None for no such one. Raises Unreachable while OVN cannot be asked."""
        self.southbound.check_connected()
        return ports_on(self._model.snapshot, chassis)

    def condition(self) -> Condition:
        unheard, unheard_of = self._unheard()
        return Condition(
            connected=self.driver.connected,
            writes=self.driver.has_lock,
            southbound=self.southbound.connected,
            unheard=unheard,
            unheard_of=unheard_of,
            probing=self.southbound.figures(),
            foreign=self.driver.foreign_changes,
            takeovers=self.central.takeover.takeovers,
        )

    def _unheard(self) -> tuple[float, str]:
        """For how many seconds it was not heard what somebody waits for, and what that is."""
        silence, snapshot = self.southbound.silence, self._model.snapshot
        if silence and snapshot.watched:
            return silence, PROBES_UNHEARD
        if silence and waits_for_a_node(snapshot):
            return silence, PORTS_UNHEARD
        return 0.0, ""

    async def _ask_chassis(self) -> None:
        """Whether they live, while somebody wants to know: the one server that writes asks, unless others do."""
        while self._probe_interval:
            await asyncio.sleep(self._probe_interval)
            asked = time.monotonic() - self.southbound.counted_at < self._probe_interval / 2
            if self._model.snapshot.watched and self.driver.ready and self.southbound.connected and not asked:
                try:
                    await self.driver.count_up()
                except DriverError as error:
                    LOG.info("the chassis cannot be asked whether they live: %s", error)
        await asyncio.Event().wait()  # a task of the server never ends

    async def _hears_probes(self) -> bool:
        """Where rows depend on it: anybody asks for probes, or for members near the client."""
        snapshot = self._model.snapshot
        return self.southbound.connected or not (snapshot.watched or snapshot.near)

    async def _first_hear(self) -> None:
        """What probes say, and which ports are plugged in.

        Only at the start: later, what was heard last holds while nothing can be heard.
        """
        if self._model.snapshot.watched or waits_for_a_node(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                await self.southbound.wait_connected(SOUTHBOUND_PATIENCE)


def _northbound(options: OvnOptions) -> OvnSettings:
    return OvnSettings(remotes=parse_remotes(options.northbound), tls=_tls(options), mark=options.mark)


def _southbound(options: OvnOptions) -> SouthboundSettings:
    patience = float(options.chassis_timeout) if options.chassis_probe_interval else 0.0
    return SouthboundSettings(remotes=parse_remotes(options.southbound), tls=_tls(options), patience=patience)


def _tls(options: OvnOptions) -> Tls | None:
    if not options.private_key:
        return None
    return Tls(private_key=options.private_key, certificate=options.certificate, ca=options.ca)
