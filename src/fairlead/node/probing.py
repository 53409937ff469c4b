"""Probes what lives on this node: finds out what that is by the slice, sees that there are devices for it, lets the
prober work, and reports what it sees.

What is to be probed is made anew for each owner that changes, and compared. Of what is seen, a verdict is reported at
once; latencies and the last errors only now and then.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fairlead.drivers.ovn.probe_ports import device_name
from fairlead.drivers.ovn.vswitch import SwitchError
from fairlead.model.checks import Target
from fairlead.model.covering import probes_here
from fairlead.model.health import Endpoint
from fairlead.model.owner import Kind, Owner
from fairlead.model.probe_devices import ProbeDevice, cover_device, probe_device
from fairlead.model.probes import all_probing, find_probing, targets
from fairlead.model.resetting import reset_networks
from fairlead.model.sighting import Sighting
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.node.complaints import Complaints
from fairlead.node.given import Given
from fairlead.node.prober_thread import News, ProberThread
from fairlead.resting import in_steps

LOG = logging.getLogger(__name__)
AGAIN = 2.0
"""Seconds until what has failed is tried again."""
SETTLING_LOOK = 0.2
"""Seconds from look to look whether the switch knows a new port, while there is one."""
LOOK = 10.0
"""Seconds between two reports of latencies and errors."""
_PROBING = frozenset({Kind.LOAD_BALANCER, Kind.LOCAL_IP})


class Telling(Protocol):
    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None: ...

    def probes_only(self, endpoints: Collection[Endpoint]) -> None:
        """When a server has said so for the first time: of others nothing is known any more."""

    def doubt(self) -> None: ...


class Resetting(Protocol):
    async def apply(self, devices: Collection[ProbeDevice], made: Collection[str]) -> None:
        """Reset what comes by these; `made` are the names of devices that are new. Raises OSError."""


class Ports(Protocol):
    async def apply(self, wanted: Collection[ProbeDevice]) -> frozenset[str]:
        """Answers the names of devices that were made. Raises SwitchError."""

    async def installed(self) -> frozenset[str]:
        """The devices of ordinary ports whose packets flow. Raises SwitchError."""


@dataclass(frozen=True, slots=True)
class Change:
    gone: frozenset[Endpoint]
    targets: tuple[Target, ...]


class Wanted:
    """What is to be probed here, by owner. A value that only its own methods change."""

    def __init__(self) -> None:
        self._of: dict[Owner, Mapping[Endpoint, Target]] = {}
        self._resetting: dict[Owner, frozenset[str]] = {}
        """The networks from which connections may have to be reset, whoever is probed here."""

    def look(self, snapshot: Snapshot, chassis: str, owners: Iterable[Owner]) -> Steps[Change]:
        """At these owners again: a plain host is given all load balancers that there are."""
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
    """What a node has, and what it covers."""
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
        """`namespace` is the file that stands for the one in which `ports` are made; `resetting` answers by them.
        Without them members are reached as the host reaches them."""
        self._resetting = resetting
        self._given = given
        self._reports = reports
        self._ports = ports
        self._namespace = namespace
        self._wanted = Wanted()
        self._dirty: set[Owner] = set()
        self._looked_at = frozenset[Owner]()
        """At which a look is under way."""
        self._news = asyncio.Event()
        self._devices: list[ProbeDevice] | None = None
        """Those that there are; None when that has to be looked at."""
        self._gone: set[Endpoint] = set()
        self._fresh: dict[Endpoint, Target] = {}
        """What the prober was not told yet."""
        self._complaints = Complaints("probing")
        self._thread: ProberThread | None = None
        self._told: dict[Endpoint, Sighting] = {}
        self._unsettled = frozenset[str]()
        """Devices of ordinary ports of which the switch has not said yet that it knows them."""
        self._made = asyncio.Event()
        self._is_told = False
        """Whether a server has said what is to be probed here. The file of an earlier life may be older than what that
        saw."""

    async def run(self) -> None:
        """Until it is cancelled."""
        self._given.subscribe(self._mark)
        await self._given.ready.wait()
        self._dirty.update(all_probing(self._given.snapshot))
        beside = [asyncio.ensure_future(each()) for each in (self._refresh, self._settle, self._hear)]
        try:
            await self._step()
            while True:
                await self._rest()
                if self._thread is not None and self._thread.ended.done():
                    self._thread.ended.result()  # raises: who lives and probes nobody would be believed for ever
                await self._step()
        finally:
            for each in beside:
                each.cancel()
            if self._thread is not None:
                self._thread.stop()

    def _mark(self, owners: tuple[Owner, ...]) -> None:
        """A network or port of which something was said may be one from which others are probed."""
        if not all(owner.kind in _PROBING for owner in owners):
            self._dirty.update(self._wanted.owners | self._looked_at)
        self._dirty.update(owner for owner in owners if owner.kind in _PROBING)
        self._news.set()

    async def _rest(self) -> None:
        """Until there is news, or it is time to try again."""
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
        """The names of those that were made. Raises SwitchError, OSError."""
        made = frozenset[str]()
        if self._ports is None:
            self._devices = []
        elif devices != self._devices:
            made = await self._ports.apply(devices)
            self._devices = devices
            covering = {device_name(each.key) for each in devices if each.covers}
            if self._thread is None:  # what is left from before may be plugged in nowhere
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
        """Looks when the switch knows new ordinary ports."""
        while True:
            await self._made.wait()
            self._made.clear()
            while self._unsettled and self._ports is not None:
                await asyncio.sleep(SETTLING_LOOK)
                with contextlib.suppress(SwitchError):  # it is asked again
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
    """By more than the moment from which it is counted back."""
    return told is None or (told.health, told.error, told.latency) != (seen.health, seen.error, seen.latency)
