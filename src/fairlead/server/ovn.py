"""OVN in a server: the Northbound driver, and readers of the Southbound database and of unmanaged networks."""

import asyncio
import contextlib
import logging
import time
from typing import Self

from fairlead.config.options import Configuration, OvnOptions
from fairlead.dataplane.interface import Dataplane
from fairlead.drivers.interface import DriverError, Unreachable
from fairlead.drivers.ovn.northbound.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovn.southbound.driver import SouthboundReader, SouthboundSettings
from fairlead.drivers.ovn.unmanaged.reader import TopologyReader, TopologySettings
from fairlead.drivers.ovsdb.client import Timing, Tls
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.delegated_probing import untold_nodes
from fairlead.model.queries.port_bindings import waits_for_a_node
from fairlead.model.queries.probes import asks_for_probes
from fairlead.model.queries.proxies import rests_on_agents, untold_proxies
from fairlead.model.queries.unmanaged_updates import is_on_others, rests_on_others
from fairlead.model.registry.facts import ports_on
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Central, Condition
from fairlead.server.central import CentralDataplane
from fairlead.server.tasks import at_work
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
SOUTHBOUND_PATIENCE = 2.0
"""Seconds that the first resync waits for probe results and port bindings. Without them, members that are down would be
used for a moment, and every port would be DOWN."""
TOPOLOGY_PATIENCE = 120.0
"""Seconds that the first resync waits for unmanaged networks, if load balancers use any: many times the duration for a
hundred thousand ports. After that, it covers only owners that do not depend on them."""
AGENTS_PATIENCE, AGENTS_LOOK = 10.0, 0.05
"""Seconds that the start waits for agents, and between polls. Agents may start at the same time as the servers."""
PROBES_UNHEARD, PORTS_UNHEARD = "what health monitors see", "which ports are plugged in"
NETWORKS_UNHEARD = "what networks others have"
NETWORKS_UNTOLD = "the networks of others have not been read yet: it stays as it is until then"
ANSWERS_FOR_UNPLUGGED = (
    "OVN answers for the ports of VIPs that Neutron made, so clients on a VIP's own network do not reach it: Neutron's"
    " maintenance worker sets options:ignore_lsp_down=false in NB_Global, and here it is not set"
)
HINDRANCE_INTERVAL = 60.0
"""Seconds between checks for settings that make load balancers unreachable."""


class OvnControl:
    """OVN as a central dataplane, with the reader of observed state and the liveness checks of chassis.

    An asynchronous context.
    """

    def __init__(self, dataplane: Dataplane, model: Model, configuration: Configuration) -> None:
        options = configuration.ovn
        self._model = model
        self.driver = OvnDriver(
            _northbound(options),
            on_foreign_change=lambda owner, what: self.central.reconciler.note_foreign_change(owner, what),  # noqa: PLW0108 - assigned later
            on_abilities=model.equip,
            on_connected=lambda: self.central.look_again(),  # noqa: PLW0108
            on_ready=lambda: self.central.look_again(),  # noqa: PLW0108
        )
        self.southbound = SouthboundReader(_southbound(options), model.observe)
        self.topology = TopologyReader(_topology(options), model.observe) if options.import_networks else None
        self.central = CentralDataplane(
            dataplane, model, self.driver, first_hear=self._first_hear, hears=self._hears, unheard=self._unheard_for
        )
        self.locate = self.southbound.locate
        self.served_by_others = self.driver.stock_places
        self._probe_interval = float(options.chassis_probe_interval)
        self._tasks = contextlib.AsyncExitStack()

    def connect(self) -> None:
        self._tasks.push_async_exit(self.central)
        self.central.connect()

    async def __aenter__(self) -> Self:
        self.southbound.start()
        self._tasks.push_async_callback(self.southbound.close)
        if self.topology is not None:
            self.topology.start()
            self._tasks.push_async_callback(self.topology.close)
        await self._tasks.enter_async_context(self.central)
        await self._tasks.enter_async_context(at_work(self._ask_chassis, self._tell_hindrances))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def for_doors(self) -> Central:
        return Central(
            reconciler=self.central.reconciler, condition=self.condition, connected=lambda: self.driver.connected
        )

    def ports_on(self, chassis: str) -> frozenset[str] | None:
        """Return the ports bound to a chassis; None if it does not exist. Raises Unreachable while disconnected."""
        self.southbound.check_connected()
        return ports_on(self._model.snapshot, chassis)

    def check_told(self) -> None:
        """Raise Unreachable until all observed state was received once: a partial state would be taken as complete.

        Later states may be outdated, and are still used.
        """
        if not self.southbound.has_told_all:
            raise Unreachable("the Southbound database has not been read yet")
        if self.topology is not None and not self.topology.has_told_all and rests_on_others(self._model.snapshot):
            raise Unreachable("the networks of others have not been read yet")

    async def wait_told(self) -> None:
        """Wait, with a limit, until the state of nodes is known."""
        with contextlib.suppress(TimeoutError):
            await self.southbound.wait_connected(SOUTHBOUND_PATIENCE)

    def condition(self) -> Condition:
        unheard, unheard_of = self._unheard()
        return Condition(
            connected=self.driver.connected,
            writes=self.driver.has_lock,
            southbound=self.southbound.connected,
            unheard=unheard,
            unheard_of=unheard_of,
            probing=self.southbound.figures(),
            follows=self.topology is not None and self.topology.connected,
            followed=self.topology.figures if self.topology is not None else {},
            unreadable=self.topology.unreadable if self.topology is not None else 0,
            hindrances=self._hindrances(),
            foreign=self.driver.foreign_changes,
            takeovers=self.central.takeover.takeovers,
        )

    def _hindrances(self) -> tuple[str, ...]:
        if (
            self.topology is None
            or not self.topology.answers_for_unplugged
            or not rests_on_others(self._model.snapshot)
        ):
            return ()
        return (ANSWERS_FOR_UNPLUGGED,)

    def _unheard(self) -> tuple[float, str]:
        """Return the seconds since needed facts were last received, and which facts those are."""
        silence, snapshot = self.southbound.silence, self._model.snapshot
        if silence and asks_for_probes(snapshot):
            return silence, PROBES_UNHEARD
        if silence and waits_for_a_node(snapshot):
            return silence, PORTS_UNHEARD
        if self.topology is not None and self.topology.silence and rests_on_others(snapshot):
            return self.topology.silence, NETWORKS_UNHEARD
        return 0.0, ""

    async def _ask_chassis(self) -> None:
        """Check the liveness of chassis while any monitor needs it. Only the leader does, unless another client has."""
        while self._probe_interval:
            await asyncio.sleep(self._probe_interval)
            asked = time.monotonic() - self.southbound.counted_at < self._probe_interval / 2
            if asks_for_probes(self._model.snapshot) and self.driver.ready and self.southbound.connected and not asked:
                try:
                    await self.driver.count_up()
                except DriverError as error:
                    LOG.info("the chassis cannot be asked whether they live: %s", error)
        await asyncio.Event().wait()  # tasks of the server must not end

    async def _tell_hindrances(self) -> None:
        """Log each setting that makes load balancers unreachable once, when it appears."""
        told: set[str] = set()
        while True:
            now = set(self._hindrances())
            for hindrance in now - told:
                LOG.warning("%s", hindrance)
            told = now
            await asyncio.sleep(HINDRANCE_INTERVAL)

    async def _hears(self) -> bool:
        """Whether all facts are received that rows depend on: unmanaged networks, probes, localities and Local IPs."""
        snapshot = self._model.snapshot
        if self.topology is not None and not self.topology.connected and rests_on_others(snapshot):
            return False
        return self.southbound.connected or not (asks_for_probes(snapshot) or snapshot.near or snapshot.local_ips)

    def _unheard_for(self, owner: Owner) -> str:
        """Return why the owner must not be compiled yet: with only some of a router's networks known, its load
        balancers would be removed from the others."""
        if self.topology is None or self.topology.has_told_all or not is_on_others(self._model.snapshot, owner):
            return ""
        return NETWORKS_UNTOLD

    async def _first_hear(self) -> None:
        """Wait for unmanaged networks, probe results and port bindings.

        Only at the start. Later the last known state is used while nothing can be received.
        """
        if self.topology is not None and rests_on_others(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                await self.topology.wait_connected(TOPOLOGY_PATIENCE)
        if asks_for_probes(self._model.snapshot) or waits_for_a_node(self._model.snapshot):
            await self.wait_told()
        if rests_on_agents(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGENTS_PATIENCE):
                    await self._hear_agents()

    async def _hear_agents(self) -> None:
        """Wait until each node with probed members has reported them, and its proxies.

        Without the reports members that are down would be used, and proxies would not be used.
        """
        while not self.southbound.has_told_all or _is_untold(self._model.snapshot):  # noqa: ASYNC110 - only at the start
            await asyncio.sleep(AGENTS_LOOK)
        await asyncio.sleep(AGENTS_LOOK)  # time for the rest of the last agent's first report


def _is_untold(snapshot: Snapshot) -> bool:
    return any(untold_nodes(snapshot)) or any(untold_proxies(snapshot))


def _northbound(options: OvnOptions) -> OvnSettings:
    return OvnSettings(
        remotes=parse_remotes(options.northbound), tls=_tls(options), mark=options.owner_tag, timing=_timing(options)
    )


def _southbound(options: OvnOptions) -> SouthboundSettings:
    patience = float(options.chassis_timeout) if options.chassis_probe_interval else 0.0
    return SouthboundSettings(
        remotes=parse_remotes(options.southbound), tls=_tls(options), timing=_timing(options), patience=patience
    )


def _topology(options: OvnOptions) -> TopologySettings:
    return TopologySettings(
        remotes=parse_remotes(options.northbound), tls=_tls(options), mark=options.owner_tag, timing=_timing(options)
    )


def _timing(options: OvnOptions) -> Timing:
    return Timing(probe=float(options.probe_interval))


def _tls(options: OvnOptions) -> Tls | None:
    if not options.private_key:
        return None
    return Tls(private_key=options.private_key, certificate=options.certificate, ca=options.ca)
