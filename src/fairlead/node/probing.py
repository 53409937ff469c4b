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
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.connection_resets import reset_networks
from fairlead.model.queries.delegated_probing import probes_here
from fairlead.model.queries.probe_devices import ProbeDevice, delegate_device, probe_device
from fairlead.model.queries.probes import find_monitored, list_monitored, targets
from fairlead.model.snapshot import Snapshot
from fairlead.node.log_once import LogOnce
from fairlead.node.prober_thread import ProberThread, ResultsByEndpoint
from fairlead.node.slice_view import SliceView
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps

LOG = logging.getLogger(__name__)
RETRY_INTERVAL = 2.0
"""Retry interval in seconds."""
DEVICE_POLL_INTERVAL = 0.2
"""Poll interval in seconds while the switch does not yet forward packets of a new port."""
REFRESH_INTERVAL = 10.0
"""Seconds between two reports of latencies and errors."""
_PROBED_KINDS = frozenset({Kind.LOAD_BALANCER, Kind.LOCAL_IP})


class ResultSink(Protocol):
    def observe(self, news: Mapping[Endpoint, ProbeResult | None]) -> None: ...

    def retain_only(self, endpoints: Collection[Endpoint]) -> None:
        """Drop results of other endpoints, once a server has sent the slice."""

    def mark_stale(self) -> None: ...


class ConnectionResetter(Protocol):
    async def apply(self, devices: Collection[ProbeDevice], made: Collection[str]) -> None:
        """Reset connections that arrive on these devices; `made` are the names of new devices. Raises OSError."""


class ProbeDevices(Protocol):
    async def apply(self, wanted: Collection[ProbeDevice]) -> frozenset[str]:
        """Create the devices, and return the names of new ones. Raises SwitchError."""

    async def installed(self) -> frozenset[str]:
        """Return the devices of ordinary ports that forward packets. Raises SwitchError."""


@dataclass(frozen=True, slots=True)
class TargetChanges:
    gone: frozenset[Endpoint]
    targets: tuple[Target, ...]


class DesiredProbes:
    """Desired probes and resets by owner. Only its methods change it."""

    def __init__(self) -> None:
        self._targets: dict[Owner, Mapping[Endpoint, Target]] = {}
        self._resetting: dict[Owner, frozenset[str]] = {}
        """Networks whose connections may have to be reset on this node, independent of probes."""

    def recompute(self, snapshot: Snapshot, chassis: str, owners: Iterable[Owner]) -> Steps[TargetChanges]:
        """Recompute these owners with cooperative yields, because a plain host has all load balancers."""
        gone, fresh = set[Endpoint](), dict[Endpoint, Target]()
        for owner in owners:
            before, after = self._targets.get(owner, {}), _targets_of(snapshot, chassis, owner)
            gone |= before.keys() - after.keys()
            fresh |= {endpoint: target for endpoint, target in after.items() if before.get(endpoint) != target}
            self._targets[owner] = after
            if not after:
                del self._targets[owner]
            self._resetting.pop(owner, None)
            balancer = snapshot.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
            if balancer is not None and (networks := reset_networks(snapshot, balancer)):
                self._resetting[owner] = networks
            yield
        return TargetChanges(frozenset(gone - fresh.keys()), tuple(fresh.values()))

    def devices(self, snapshot: Snapshot) -> list[ProbeDevice]:
        needed = {
            (endpoint.network_id, each.is_delegated)
            for targets in self._targets.values()
            for endpoint, each in targets.items()
        } | {(network_id, False) for network_id in self.resetting}
        found = ((snapshot.networks.get(network_id), covers) for network_id, covers in sorted(needed))
        devices = (
            (delegate_device if covers else probe_device)(snapshot, network)
            for network, covers in found
            if network is not None and not network.announced
        )
        return [device for device in devices if device is not None]

    @property
    def endpoints(self) -> frozenset[Endpoint]:
        return frozenset(endpoint for each in self._targets.values() for endpoint in each)

    @property
    def owners(self) -> frozenset[Owner]:
        return frozenset(self._targets) | frozenset(self._resetting)

    @property
    def resetting(self) -> frozenset[str]:
        return frozenset[str]().union(*self._resetting.values())


def _targets_of(snapshot: Snapshot, chassis: str, owner: Owner) -> Mapping[Endpoint, Target]:
    """Return the targets on the node, and those probed for other nodes."""
    probing, node = find_monitored(snapshot, owner), snapshot.chassis.get(chassis)
    if probing is None or node is None:
        return {}
    found = (each for each in targets(snapshot, probing) if probes_here(snapshot, chassis, each.endpoint))
    announced = snapshot.announced
    return {
        each.endpoint: replace(
            each, is_delegated=each.endpoint.network_id not in announced and each.endpoint.port_id not in node.ports
        )
        for each in found
    }


class ProbeReconciler:
    def __init__(
        self,
        given: SliceView,
        reports: ResultSink,
        ports: ProbeDevices | None = None,
        namespace: Path | None = None,
        resetting: ConnectionResetter | None = None,
    ) -> None:
        """`namespace` is the file of the network namespace of `ports`; `resetting` uses the same devices. None means
        that members are reached by the host's routes."""
        self._resetter = resetting
        self._slice = given
        self._reports = reports
        self._ports = ports
        self._namespace = namespace
        self._desired = DesiredProbes()
        self._dirty: set[Owner] = set()
        self._recomputing = frozenset[Owner]()
        """Owners that are being recomputed."""
        self._wakeup = asyncio.Event()
        self._devices: list[ProbeDevice] | None = None
        """Existing devices; None if they must be read again."""
        self._removed: set[Endpoint] = set()
        self._unsent_targets: dict[Endpoint, Target] = {}
        """Targets that the prober has not received yet."""
        self._failure_log = LogOnce("probing")
        self._thread: ProberThread | None = None
        self._reported: dict[Endpoint, ProbeResult] = {}
        self._pending_devices = frozenset[str]()
        """Devices of ordinary ports that may not forward packets yet."""
        self._devices_created = asyncio.Event()
        self._is_synced = False
        """True if a server has sent the slice. The file of an earlier process may be older than that process'
        results."""

    async def run(self) -> None:
        """Probe until cancelled."""
        self._slice.subscribe(self._mark)
        await self._slice.ready.wait()
        self._dirty.update(list_monitored(self._slice.snapshot))
        beside = [asyncio.ensure_future(each()) for each in (self._refresh, self._poll_new_devices, self._wait_synced)]
        try:
            await self._reconcile()
            while True:
                await self._wait()
                if self._thread is not None and self._thread.ended.done():
                    self._thread.ended.result()  # raises: otherwise stale results would stay valid
                await self._reconcile()
        finally:
            for each in beside:
                each.cancel()
            if self._thread is not None:
                self._thread.stop()

    def counts(self) -> Counts:
        return {} if self._thread is None else self._thread.counts()

    def _mark(self, owners: tuple[Owner, ...]) -> None:
        """Mark owners for a new computation. A changed network or port may affect the devices of all owners."""
        if not all(owner.kind in _PROBED_KINDS for owner in owners):
            self._dirty.update(self._desired.owners | self._recomputing)
        self._dirty.update(owner for owner in owners if owner.kind in _PROBED_KINDS)
        self._wakeup.set()

    async def _wait(self) -> None:
        """Wait for changes, or for the retry interval."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETRY_INTERVAL if self._devices is None else None):
                await self._wakeup.wait()
        self._wakeup.clear()

    async def _reconcile(self) -> None:
        snapshot, owners, was_told = self._slice.snapshot, frozenset(self._dirty), self._is_synced
        self._is_synced = self._slice.synced.is_set()
        self._dirty.clear()
        self._recomputing = owners
        change = await run_in_steps(self._desired.recompute(snapshot, self._slice.name, owners))
        self._recomputing = frozenset()
        if self._is_synced and not was_told:
            self._reports.retain_only(self._desired.endpoints)
        self._removed = (self._removed - {each.endpoint for each in change.targets}) | change.gone
        self._unsent_targets = {
            endpoint: each for endpoint, each in self._unsent_targets.items() if endpoint not in change.gone
        }
        self._unsent_targets |= {each.endpoint: each for each in change.targets}
        self._forget(change.gone)
        try:
            made = await self._apply_devices(self._desired.devices(snapshot))
            if self._thread is not None:
                self._thread.change(self._removed, tuple(self._unsent_targets.values()), made)
                self._removed, self._unsent_targets = set(), {}
            if self._resetter is not None:
                found = (each for each in self._devices or () if not each.is_delegate)
                by = [each for each in found if each.network_id in self._desired.resetting]
                await self._resetter.apply(by, made)
        except (SwitchError, OSError) as error:
            self._failure_log.report(error, RETRY_INTERVAL)
            self._devices = None
            return
        self._failure_log.report_recovery()

    async def _apply_devices(self, devices: list[ProbeDevice]) -> Collection[str]:
        """Create devices and start the prober; return the names of new devices. Raises SwitchError, OSError."""
        made = frozenset[str]()
        if self._ports is None:
            self._devices = []
        elif devices != self._devices:
            made = await self._ports.apply(devices)
            self._devices = devices
            covering = {device_name(each.key) for each in devices if each.is_delegate}
            if self._thread is None:  # devices of an earlier process may be unplugged
                made |= covering
            self._pending_devices |= made & covering
            self._devices_created.set()
        if self._thread is None and (devices or (self._ports is None and self._unsent_targets)):
            thread = ProberThread(self._slice.name, self._namespace, self._report, self._handle_cpu_stall)
            thread.ended.add_done_callback(lambda _: self._wakeup.set())
            await thread.start()
            self._thread = thread
        return made

    def _forget(self, gone: Collection[Endpoint]) -> None:
        for endpoint in gone:
            self._reported.pop(endpoint, None)
        if gone:
            self._reports.observe(dict.fromkeys(gone))

    def _report(self, news: ResultsByEndpoint) -> None:
        self._reported.update(news)
        self._reports.observe(news)

    def _handle_cpu_stall(self) -> None:
        self._reported.clear()
        self._reports.mark_stale()

    async def _wait_synced(self) -> None:
        await self._slice.synced.wait()
        self._wakeup.set()

    async def _poll_new_devices(self) -> None:
        """Poll until the switch forwards packets of new ordinary ports."""
        while True:
            await self._devices_created.wait()
            self._devices_created.clear()
            while self._pending_devices and self._ports is not None:
                await asyncio.sleep(DEVICE_POLL_INTERVAL)
                with contextlib.suppress(SwitchError):  # retried
                    found = self._pending_devices & await self._ports.installed()
                    self._pending_devices -= found
                    if self._devices is not None:
                        self._pending_devices &= {device_name(each.key) for each in self._devices}
                    if found and self._thread is not None:
                        self._thread.mark_forwarding(found)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_INTERVAL)
            if self._thread is not None:
                found = await self._thread.read_results()
                self._report(
                    {endpoint: seen for endpoint, seen in found.items() if _differs(self._reported.get(endpoint), seen)}
                )


def _differs(told: ProbeResult | None, seen: ProbeResult) -> bool:
    """Return whether results differ in more than their time."""
    return told is None or (told.health, told.error, told.latency) != (seen.health, seen.error, seen.latency)
