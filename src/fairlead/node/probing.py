"""Probing of the node's members: derives targets from the slice, provides devices, runs the prober and reports results.

The targets of each changed owner are recomputed and compared. A change of the verdict is reported immediately;
latencies and errors are reported periodically.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.drivers.ovn.vswitch.probe_ports import device_name
from fairlead.model.documents.agent_counters import Counts
from fairlead.model.documents.checks import Target
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.queries.connection_resets import reset_networks
from fairlead.model.queries.delegated_probing import probes_here
from fairlead.model.queries.probe_devices import ProbeDevice, cover_device, probe_device
from fairlead.model.queries.probes import all_probing, find_probing, targets
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import Complaints
from fairlead.node.prober_thread import News, ProberThread
from fairlead.node.slice_view import Given
from fairlead.runtime.cooperative import in_steps
from fairlead.runtime.steps import Steps

LOG = logging.getLogger(__name__)
AGAIN = 2.0
"""Retry interval in seconds."""
SETTLING_LOOK = 0.2
"""Poll interval in seconds while the switch does not yet forward packets of a new port."""
LOOK = 10.0
"""Seconds between two reports of latencies and errors."""
_PROBING = frozenset({Kind.LOAD_BALANCER, Kind.LOCAL_IP})


class Telling(Protocol):
    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None: ...

    def probes_only(self, endpoints: Collection[Endpoint]) -> None:
        """Drop results of other endpoints, once a server has sent the slice."""

    def doubt(self) -> None: ...


class Resetting(Protocol):
    async def apply(self, devices: Collection[ProbeDevice], made: Collection[str]) -> None:
        """Reset connections that arrive on these devices; `made` are the names of new devices. Raises OSError."""


class Ports(Protocol):
    async def apply(self, wanted: Collection[ProbeDevice]) -> frozenset[str]:
        """Create the devices, and return the names of new ones. Raises SwitchError."""

    async def installed(self) -> frozenset[str]:
        """Return the devices of ordinary ports that forward packets. Raises SwitchError."""


@dataclass(frozen=True, slots=True)
class Change:
    gone: frozenset[Endpoint]
    targets: tuple[Target, ...]


class Wanted:
    """Desired probes and resets by owner. Only its methods change it."""

    def __init__(self) -> None:
        self._of: dict[Owner, Mapping[Endpoint, Target]] = {}
        self._resetting: dict[Owner, frozenset[str]] = {}
        """Networks whose connections may have to be reset on this node, independent of probes."""

    def look(self, snapshot: Snapshot, chassis: str, owners: Iterable[Owner]) -> Steps[Change]:
        """Recompute these owners with cooperative yields, because a plain host has all load balancers."""
        gone, fresh = set[Endpoint](), dict[Endpoint, Target]()
        for owner in owners:
            before, after = self._of.get(owner, {}), _targets_of(snapshot, chassis, owner)
            gone |= before.keys() - after.keys()
            fresh |= {endpoint: target for endpoint, target in after.items() if before.get(endpoint) != target}
            self._of[owner] = after
            if not after:
                del self._of[owner]
            self._resetting.pop(owner, None)
            balancer = snapshot.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
            if balancer is not None and (networks := reset_networks(snapshot, balancer)):
                self._resetting[owner] = networks
            yield
        return Change(frozenset(gone - fresh.keys()), tuple(fresh.values()))

    def devices(self, snapshot: Snapshot) -> list[ProbeDevice]:
        needed = {
            (endpoint.network_id, each.covers) for targets in self._of.values() for endpoint, each in targets.items()
        } | {(network_id, False) for network_id in self.resetting}
        found = ((snapshot.networks.get(network_id), covers) for network_id, covers in sorted(needed))
        devices = (
            (cover_device if covers else probe_device)(snapshot, network)
            for network, covers in found
            if network is not None and not network.announced
        )
        return [device for device in devices if device is not None]

    @property
    def endpoints(self) -> frozenset[Endpoint]:
        return frozenset(endpoint for each in self._of.values() for endpoint in each)

    @property
    def owners(self) -> frozenset[Owner]:
        return frozenset(self._of) | frozenset(self._resetting)

    @property
    def resetting(self) -> frozenset[str]:
        return frozenset[str]().union(*self._resetting.values())


def _targets_of(snapshot: Snapshot, chassis: str, owner: Owner) -> Mapping[Endpoint, Target]:
    """Return the targets on the node, and those probed for other nodes."""
    probing, node = find_probing(snapshot, owner), snapshot.chassis.get(chassis)
    if probing is None or node is None:
        return {}
    found = (each for each in targets(snapshot, probing) if probes_here(snapshot, chassis, each.endpoint))
    announced = snapshot.announced
    return {
        each.endpoint: replace(
            each, covers=each.endpoint.network_id not in announced and each.endpoint.port_id not in node.ports
        )
        for each in found
    }


class Probing:
    def __init__(
        self,
        given: Given,
        reports: Telling,
        ports: Ports | None = None,
        namespace: Path | None = None,
        resetting: Resetting | None = None,
    ) -> None:
        """`namespace` is the file of the network namespace of `ports`; `resetting` uses the same devices. None means
        that members are reached by the host's routes."""
        self._resetting = resetting
        self._given = given
        self._reports = reports
        self._ports = ports
        self._namespace = namespace
        self._wanted = Wanted()
        self._dirty: set[Owner] = set()
        self._looked_at = frozenset[Owner]()
        """Owners that are being recomputed."""
        self._news = asyncio.Event()
        self._devices: list[ProbeDevice] | None = None
        """Existing devices; None if they must be read again."""
        self._gone: set[Endpoint] = set()
        self._fresh: dict[Endpoint, Target] = {}
        """Targets that the prober has not received yet."""
        self._complaints = Complaints("probing")
        self._thread: ProberThread | None = None
        self._told: dict[Endpoint, Sighting] = {}
        self._unsettled = frozenset[str]()
        """Devices of ordinary ports that may not forward packets yet."""
        self._made = asyncio.Event()
        self._is_told = False
        """True if a server has sent the slice. The file of an earlier process may be older than that process'
        results."""

    async def run(self) -> None:
        """Probe until cancelled."""
        self._given.subscribe(self._mark)
        await self._given.ready.wait()
        self._dirty.update(all_probing(self._given.snapshot))
        beside = [asyncio.ensure_future(each()) for each in (self._refresh, self._settle, self._hear)]
        try:
            await self._step()
            while True:
                await self._rest()
                if self._thread is not None and self._thread.ended.done():
                    self._thread.ended.result()  # raises: otherwise stale results would stay valid
                await self._step()
        finally:
            for each in beside:
                each.cancel()
            if self._thread is not None:
                self._thread.stop()

    def counts(self) -> Counts:
        return {} if self._thread is None else self._thread.counts()

    def _mark(self, owners: tuple[Owner, ...]) -> None:
        """Mark owners for a new computation. A changed network or port may affect the devices of all owners."""
        if not all(owner.kind in _PROBING for owner in owners):
            self._dirty.update(self._wanted.owners | self._looked_at)
        self._dirty.update(owner for owner in owners if owner.kind in _PROBING)
        self._news.set()

    async def _rest(self) -> None:
        """Wait for changes, or for the retry interval."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN if self._devices is None else None):
                await self._news.wait()
        self._news.clear()

    async def _step(self) -> None:
        snapshot, owners, was_told = self._given.snapshot, frozenset(self._dirty), self._is_told
        self._is_told = self._given.heard.is_set()
        self._dirty.clear()
        self._looked_at = owners
        change = await in_steps(self._wanted.look(snapshot, self._given.name, owners))
        self._looked_at = frozenset()
        if self._is_told and not was_told:
            self._reports.probes_only(self._wanted.endpoints)
        self._gone = (self._gone - {each.endpoint for each in change.targets}) | change.gone
        self._fresh = {endpoint: each for endpoint, each in self._fresh.items() if endpoint not in change.gone}
        self._fresh |= {each.endpoint: each for each in change.targets}
        self._forget(change.gone)
        try:
            made = await self._provide(self._wanted.devices(snapshot))
            if self._thread is not None:
                self._thread.change(self._gone, tuple(self._fresh.values()), made)
                self._gone, self._fresh = set(), {}
            if self._resetting is not None:
                found = (each for each in self._devices or () if not each.covers)
                by = [each for each in found if each.network_id in self._wanted.resetting]
                await self._resetting.apply(by, made)
        except (SwitchError, OSError) as error:
            self._complaints.say(error, AGAIN)
            self._devices = None
            return
        self._complaints.end()

    async def _provide(self, devices: list[ProbeDevice]) -> Collection[str]:
        """Create devices and start the prober; return the names of new devices. Raises SwitchError, OSError."""
        made = frozenset[str]()
        if self._ports is None:
            self._devices = []
        elif devices != self._devices:
            made = await self._ports.apply(devices)
            self._devices = devices
            covering = {device_name(each.key) for each in devices if each.covers}
            if self._thread is None:  # devices of an earlier process may be unplugged
                made |= covering
            self._unsettled |= made & covering
            self._made.set()
        if self._thread is None and (devices or (self._ports is None and self._fresh)):
            thread = ProberThread(self._given.name, self._namespace, self._tell, self._wake)
            thread.ended.add_done_callback(lambda _: self._news.set())
            await thread.start()
            self._thread = thread
        return made

    def _forget(self, gone: Collection[Endpoint]) -> None:
        for endpoint in gone:
            self._told.pop(endpoint, None)
        if gone:
            self._reports.observe(dict.fromkeys(gone))

    def _tell(self, news: News) -> None:
        self._told.update(news)
        self._reports.observe(news)

    def _wake(self) -> None:
        self._told.clear()
        self._reports.doubt()

    async def _hear(self) -> None:
        await self._given.heard.wait()
        self._news.set()

    async def _settle(self) -> None:
        """Poll until the switch forwards packets of new ordinary ports."""
        while True:
            await self._made.wait()
            self._made.clear()
            while self._unsettled and self._ports is not None:
                await asyncio.sleep(SETTLING_LOOK)
                with contextlib.suppress(SwitchError):  # retried
                    found = self._unsettled & await self._ports.installed()
                    self._unsettled -= found
                    if self._devices is not None:
                        self._unsettled &= {device_name(each.key) for each in self._devices}
                    if found and self._thread is not None:
                        self._thread.settle(found)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if self._thread is not None:
                found = await self._thread.look()
                self._tell(
                    {endpoint: seen for endpoint, seen in found.items() if _differs(self._told.get(endpoint), seen)}
                )


def _differs(told: Sighting | None, seen: Sighting) -> bool:
    """Return whether results differ in more than their time."""
    return told is None or (told.health, told.error, told.latency) != (seen.health, seen.error, seen.latency)
