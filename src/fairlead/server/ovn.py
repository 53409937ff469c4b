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
from fairlead.model.queries.delegated_probing import nodes_without_full_report
from fairlead.model.queries.port_bindings import has_pluggable_ports
from fairlead.model.queries.probes import has_monitors
from fairlead.model.queries.proxies import depends_on_agents, unreported_proxies
from fairlead.model.queries.unmanaged_updates import has_unmanaged_vips, is_on_unmanaged
from fairlead.model.registry.facts import ports_on
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Central, DataplaneState
from fairlead.server.central import CentralDataplane
from fairlead.server.tasks import background_tasks
from fairlead.store.model import Model

LOG = logging.getLogger(__name__)
SOUTHBOUND_TIMEOUT = 2.0
"""Seconds that the first resync waits for probe results and port bindings. Without them, members that are down would be
used for a moment, and every port would be DOWN."""
TOPOLOGY_TIMEOUT = 120.0
"""Seconds that the first resync waits for unmanaged networks, if load balancers use any: many times the duration for a
hundred thousand ports. After that, it covers only owners that do not depend on them."""
AGENTS_TIMEOUT, AGENTS_POLL_INTERVAL = 10.0, 0.05
"""Seconds that the start waits for agents, and between polls. Agents may start at the same time as the servers."""
MISSING_PROBES, MISSING_PORTS = "health monitor results", "port bindings"
MISSING_NETWORKS = "unmanaged networks"
NETWORKS_NOT_READ = "its rows stay unchanged until the unmanaged networks are read"
ANSWERS_FOR_UNPLUGGED = (
    "clients on a VIP's own network cannot reach it, because OVN answers ARP and ND for the VIP ports that Neutron"
    " created: set options:ignore_lsp_down=false in NB_Global, as Neutron's maintenance worker does"
)
BLOCKER_CHECK_INTERVAL = 60.0
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
            on_foreign_change=lambda owner, what: self.central.reconciler.note_drift(owner, what),  # noqa: PLW0108 - assigned later
            on_abilities=model.set_abilities,
            on_connected=lambda: self.central.request_resync(),  # noqa: PLW0108
            on_ready=lambda: self.central.request_resync(),  # noqa: PLW0108
        )
        self.southbound = SouthboundReader(_southbound(options), model.observe)
        self.topology = TopologyReader(_topology(options), model.observe) if options.import_networks else None
        self.central = CentralDataplane(
            dataplane,
            model,
            self.driver,
            first_hear=self._wait_for_initial_facts,
            hears=self._receives_facts,
            unheard=self._missing_facts_of,
        )
        self.resolve_counting_place = self.southbound.locate
        self.placements_at_other_provider = self.driver.find_stock_rows
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
        await self._tasks.enter_async_context(background_tasks(self._check_chassis, self._log_blockers))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.aclose()

    def for_front_ends(self) -> Central:
        return Central(
            reconciler=self.central.reconciler, condition=self.condition, connected=lambda: self.driver.connected
        )

    def ports_of_chassis(self, chassis: str) -> frozenset[str] | None:
        """Return the ports bound to a chassis; None if it does not exist. Raises Unreachable while disconnected."""
        self.southbound.check_connected()
        return ports_on(self._model.snapshot, chassis)

    def check_synced(self) -> None:
        """Raise Unreachable until all observed state was received once: a partial state would be taken as complete.

        Later states may be outdated, and are still used.
        """
        if not self.southbound.has_reported_all:
            raise Unreachable("the Southbound database is not read yet")
        if (
            self.topology is not None
            and not self.topology.has_reported_all
            and has_unmanaged_vips(self._model.snapshot)
        ):
            raise Unreachable("the unmanaged networks are not read yet")

    async def wait_for_facts(self) -> None:
        """Wait, with a limit, until the state of nodes is known."""
        with contextlib.suppress(TimeoutError):
            await self.southbound.wait_connected(SOUTHBOUND_TIMEOUT)

    def condition(self) -> DataplaneState:
        unheard, unheard_of = self._missing_facts()
        return DataplaneState(
            connected=self.driver.connected,
            is_leader=self.driver.has_lock,
            receives_probe_results=self.southbound.connected,
            facts_missing_seconds=unheard,
            missing_facts=unheard_of,
            probe_counts=self.southbound.counts(),
            imports_networks=self.topology is not None and self.topology.connected,
            imported=self.topology.document_counts if self.topology is not None else {},
            unreadable=self.topology.unreadable if self.topology is not None else 0,
            blockers=self._blockers(),
            drift=self.driver.drift_counts,
            takeovers=self.central.failover.takeovers,
        )

    def _blockers(self) -> tuple[str, ...]:
        if (
            self.topology is None
            or not self.topology.answers_for_unplugged
            or not has_unmanaged_vips(self._model.snapshot)
        ):
            return ()
        return (ANSWERS_FOR_UNPLUGGED,)

    def _missing_facts(self) -> tuple[float, str]:
        """Return the seconds since needed facts were last received, and which facts those are."""
        silence, snapshot = self.southbound.disconnected_seconds, self._model.snapshot
        if silence and has_monitors(snapshot):
            return silence, MISSING_PROBES
        if silence and has_pluggable_ports(snapshot):
            return silence, MISSING_PORTS
        if self.topology is not None and self.topology.disconnected_seconds and has_unmanaged_vips(snapshot):
            return self.topology.disconnected_seconds, MISSING_NETWORKS
        return 0.0, ""

    async def _check_chassis(self) -> None:
        """Check the liveness of chassis while any monitor needs it. Only the leader does, unless another client has."""
        while self._probe_interval:
            await asyncio.sleep(self._probe_interval)
            asked = time.monotonic() - self.southbound.max_nb_cfg_time < self._probe_interval / 2
            if has_monitors(self._model.snapshot) and self.driver.ready and self.southbound.connected and not asked:
                try:
                    await self.driver.bump_nb_cfg()
                except DriverError as error:
                    LOG.info("cannot check the liveness of chassis: %s", error)
        await asyncio.Event().wait()  # tasks of the server must not end

    async def _log_blockers(self) -> None:
        """Log each setting that makes load balancers unreachable once, when it appears."""
        told: set[str] = set()
        while True:
            now = set(self._blockers())
            for hindrance in now - told:
                LOG.warning("%s", hindrance)
            told = now
            await asyncio.sleep(BLOCKER_CHECK_INTERVAL)

    async def _receives_facts(self) -> bool:
        """Whether all facts are received that rows depend on: unmanaged networks, probes, localities and Local IPs."""
        snapshot = self._model.snapshot
        if self.topology is not None and not self.topology.connected and has_unmanaged_vips(snapshot):
            return False
        return self.southbound.connected or not (has_monitors(snapshot) or snapshot.near or snapshot.local_ips)

    def _missing_facts_of(self, owner: Owner) -> str:
        """Return why the owner must not be compiled yet: with only some of a router's networks known, its load
        balancers would be removed from the others."""
        if self.topology is None or self.topology.has_reported_all or not is_on_unmanaged(self._model.snapshot, owner):
            return ""
        return NETWORKS_NOT_READ

    async def _wait_for_initial_facts(self) -> None:
        """Wait for unmanaged networks, probe results and port bindings.

        Only at the start. Later the last known state is used while nothing can be received.
        """
        if self.topology is not None and has_unmanaged_vips(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                await self.topology.wait_connected(TOPOLOGY_TIMEOUT)
        if has_monitors(self._model.snapshot) or has_pluggable_ports(self._model.snapshot):
            await self.wait_for_facts()
        if depends_on_agents(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGENTS_TIMEOUT):
                    await self._wait_for_agents()

    async def _wait_for_agents(self) -> None:
        """Wait until each node with probed members has reported them, and its proxies.

        Without the reports members that are down would be used, and proxies would not be used.
        """
        while not self.southbound.has_reported_all or _has_unreported_nodes(self._model.snapshot):  # noqa: ASYNC110 - only at the start
            await asyncio.sleep(AGENTS_POLL_INTERVAL)
        await asyncio.sleep(AGENTS_POLL_INTERVAL)  # time for the rest of the last agent's first report


def _has_unreported_nodes(snapshot: Snapshot) -> bool:
    return any(nodes_without_full_report(snapshot)) or any(unreported_proxies(snapshot))


def _northbound(options: OvnOptions) -> OvnSettings:
    return OvnSettings(
        remotes=parse_remotes(options.northbound), tls=_tls(options), mark=options.owner_tag, timing=_timing(options)
    )


def _southbound(options: OvnOptions) -> SouthboundSettings:
    patience = float(options.chassis_timeout) if options.chassis_probe_interval else 0.0
    return SouthboundSettings(
        remotes=parse_remotes(options.southbound), tls=_tls(options), timing=_timing(options), max_lag=patience
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
