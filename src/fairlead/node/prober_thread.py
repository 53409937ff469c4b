"""The one prober of a node, in a thread of its own with an event loop of its own, inside the network namespace that has
the devices. So nothing else that an agent does keeps a probe waiting."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path

from fairlead.drivers.ovn.offloads import disable_checksums, enter_namespace
from fairlead.drivers.ovn.probe_ports import device_name
from fairlead.logs import RateLimit
from fairlead.model.checks import Target, Verdict
from fairlead.model.health import Endpoint, Health
from fairlead.model.probe_devices import device_key
from fairlead.model.sighting import LONGEST_ERROR, Sighting
from fairlead.node.prober import Prober
from fairlead.node.tracker import PENDING, Standing

LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))
HEALTH = {Verdict.PENDING: Health.UNPROBED, Verdict.UP: Health.ONLINE, Verdict.DOWN: Health.ERROR}
SETTLING = 5.0
"""Seconds that a switch may take until packets of a new device flow."""
ELSEWHERE = 2.0
"""Seconds that other nodes may take until they know where an ordinary port is that is plugged in here."""
News = Mapping[Endpoint, Sighting]


class ProberThread:
    """`start`, `change`, `stop`. `told` is called in the thread that made it, with whoever changed, and `overslept`
    when nothing is known of anybody any more."""

    def __init__(
        self,
        chassis: str,
        namespace: Path | None,
        told: Callable[[News], None],
        overslept: Callable[[], None] = lambda: None,
    ) -> None:
        """In `namespace` each network has a device, by which alone its members are reached. Without one they are
        reached as the host reaches them."""
        self._overslept = overslept
        self._chassis = chassis
        self._namespace = namespace
        self._told = told
        self._there = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._there.create_future()
        """Bears the mistake of ours by which the prober has ended."""
        self._started: Future[tuple[asyncio.AbstractEventLoop, Prober]] = Future()
        self._thread = threading.Thread(target=self._work, name="prober", daemon=True)

    async def start(self) -> None:
        """Raises OSError when there is no such namespace."""
        self._thread.start()
        self._loop, self._prober = await asyncio.wrap_future(self._started)

    def settle(self, devices: Collection[str]) -> None:
        """The switch knows them from now on."""
        self._loop.call_soon_threadsafe(self._settle, devices)

    def change(self, gone: Collection[Endpoint], targets: Collection[Target], devices: Collection[str]) -> None:
        """`devices` are those that have just been made. Of one that covers it is not known when the switch knows it
        before somebody says so (`settle`)."""
        self._loop.call_soon_threadsafe(self._change, gone, targets, devices)

    async def look(self) -> News:
        """Of all that is probed, what is known of it now."""
        found: Future[News] = Future()
        self._loop.call_soon_threadsafe(lambda: found.set_result(self._sightings(self._prober.tracker.standings)))
        return await asyncio.wrap_future(found)

    def stop(self) -> None:
        if self._started.done() and self._started.exception() is None:
            with contextlib.suppress(RuntimeError):  # its loop is closed: it has ended by itself
                self._loop.call_soon_threadsafe(self._running.cancel)
            self._thread.join()

    def _work(self) -> None:
        try:
            if self._namespace is not None:
                enter_namespace(self._namespace)
        except OSError as error:
            self._started.set_exception(error)
            return
        asyncio.run(self._run())

    async def _run(self) -> None:
        prober = Prober(
            device=_any_device if self._namespace is None else _device,
            told=self._tell,
            overslept=self._wake,
            starved=_log_starved,
        )
        self._running = asyncio.ensure_future(prober.run())
        self._started.set_result((asyncio.get_running_loop(), prober))
        await asyncio.wait([self._running])
        if not self._running.cancelled() and (mistake := self._running.exception()) is not None:
            self._there.call_soon_threadsafe(self.ended.set_exception, mistake)

    def _change(self, gone: Collection[Endpoint], targets: Collection[Target], devices: Collection[str]) -> None:
        for each in devices:
            disable_checksums(each)
        until, covering = (
            asyncio.get_running_loop().time() + SETTLING,
            {_device(each) for each in targets if each.covers},
        )
        self._prober.new_devices.update({each: inf if each in covering else until for each in devices})
        self._prober.change(gone, targets)

    def _settle(self, devices: Collection[str]) -> None:
        """If somebody has answered already they are not new any more."""
        until = asyncio.get_running_loop().time() + ELSEWHERE
        self._prober.new_devices.update({each: until for each in devices if each in self._prober.new_devices})

    def _wake(self) -> None:
        self._there.call_soon_threadsafe(self._overslept)

    def _tell(self, changed: Collection[Endpoint]) -> None:
        news = self._sightings(changed)
        self._there.call_soon_threadsafe(self._told, news)

    def _sightings(self, endpoints: Collection[Endpoint]) -> News:
        standings, now, wall = self._prober.tracker.standings, asyncio.get_running_loop().time(), datetime.now(UTC)
        found = {endpoint: standings.get(endpoint, PENDING) for endpoint in endpoints}
        return {
            endpoint: sighting(standing, self._chassis, wall, now)
            for endpoint, standing in found.items()
            if standing.verdict is not Verdict.PENDING or standing.missed
        }


def _log_starved(is_starved: bool) -> None:
    """The report says it of each member whose probes are void."""
    if is_starved:
        LOG.warning(
            "this agent is starved: it was not given the processor in time for its probes, so members keep their last"
            " status; give its unit more processor time (CPUWeight=), or this node fewer machines"
        )
    else:
        LOG.warning("this agent is not starved any more: its probes count again")


def _device(target: Target) -> str:
    return device_name(device_key(target.endpoint.network_id, covers=target.covers))


def _any_device(target: Target) -> str:
    """As the host's routes say: an empty name binds to none (socket(7), SO_BINDTODEVICE)."""
    return ""


def sighting(standing: Standing, chassis: str, wall: datetime, now: float) -> Sighting:
    """`wall` is the time of day, `now` the time by the clock that standings know."""
    seen = Sighting(
        health=HEALTH[standing.verdict],
        chassis=chassis,
        since=wall - timedelta(seconds=0.0 if standing.since is None else now - standing.since),
        latency=standing.latency,
    )
    return replace(seen, error=(standing.error or standing.missed)[:LONGEST_ERROR])
