"""Thread of the node's prober, with its own event loop and in the network namespace of the probe devices. Other work of
the agent does not delay probes."""

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

from fairlead.drivers.ovn.vswitch.offloads import disable_checksums, enter_namespace
from fairlead.drivers.ovn.vswitch.probe_ports import device_name
from fairlead.model.documents.agent_counters import DISCARDED_BUSY, DISCARDED_STARVED, STARVED, Counts
from fairlead.model.documents.checks import Target, Verdict
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.probe_result import MAX_ERROR_LENGTH, ProbeResult
from fairlead.model.queries.probe_devices import device_key
from fairlead.node.prober import BUSY_REASON, Prober
from fairlead.node.prober import STARVED_REASON as STARVED_WORDS
from fairlead.node.tracker import PENDING, MemberState
from fairlead.runtime.logging import RateLimit

LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))
HEALTH = {Verdict.PENDING: Health.UNPROBED, Verdict.UP: Health.ONLINE, Verdict.DOWN: Health.ERROR}
DEVICE_TIMEOUT = 5.0
"""Maximum seconds until the switch forwards packets of a new device."""
LOCATION_TIMEOUT = 2.0
"""Maximum seconds until other nodes know the location of an ordinary port that was plugged in here."""
ResultsByEndpoint = Mapping[Endpoint, ProbeResult]


class ProberThread:
    """Prober in a thread, with `start`, `change` and `stop`. `told` is called in the creating thread with changed
    results. `overslept` is called when all results are void, because the process had no CPU time for seconds or the
    machine was suspended."""

    def __init__(
        self,
        chassis: str,
        namespace: Path | None,
        told: Callable[[ResultsByEndpoint], None],
        overslept: Callable[[], None] = lambda: None,
    ) -> None:
        """In `namespace` each network has a device for its members. None means that members are reached by the host's
        routes."""
        self._on_cpu_stall = overslept
        self._chassis = chassis
        self._namespace = namespace
        self._on_results = told
        self._caller_loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._caller_loop.create_future()
        """Future with the exception that ended the prober."""
        self._started: Future[tuple[asyncio.AbstractEventLoop, Prober]] = Future()
        self._thread = threading.Thread(target=self._work, name="prober", daemon=True)

    async def start(self) -> None:
        """Start the thread. Raises OSError if the namespace does not exist."""
        self._thread.start()
        self._loop, self._prober = await asyncio.wrap_future(self._started)

    def mark_forwarding(self, devices: Collection[str]) -> None:
        """Mark new devices as forwarding from now on."""
        self._loop.call_soon_threadsafe(self._mark_forwarding, devices)

    def change(self, gone: Collection[Endpoint], targets: Collection[Target], devices: Collection[str]) -> None:
        """Change the probes. `devices` have just been created. When a device for delegated probing starts to forward is
        unknown until `settle`."""
        self._loop.call_soon_threadsafe(self._change, gone, targets, devices)

    def counts(self) -> Counts:
        """Read in another thread than the prober's: each number is one value, which Python reads as a whole."""
        prober = self._prober
        discarded = {DISCARDED_STARVED: prober.discarded[STARVED_WORDS], DISCARDED_BUSY: prober.discarded[BUSY_REASON]}
        return {**discarded, STARVED: int(prober.is_starved)}

    async def read_results(self) -> ResultsByEndpoint:
        """Return the current results of all probes."""
        found: Future[ResultsByEndpoint] = Future()
        self._loop.call_soon_threadsafe(lambda: found.set_result(self._results_of(self._prober.tracker.states)))
        return await asyncio.wrap_future(found)

    def stop(self) -> None:
        if self._started.done() and self._started.exception() is None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
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
            on_change=self._report_changes,
            on_cpu_stall=self._report_cpu_stall,
            on_starved=_log_starved,
        )
        self._running = asyncio.ensure_future(prober.run())
        self._started.set_result((asyncio.get_running_loop(), prober))
        await asyncio.wait([self._running])
        if not self._running.cancelled() and (mistake := self._running.exception()) is not None:
            self._caller_loop.call_soon_threadsafe(self.ended.set_exception, mistake)

    def _change(self, gone: Collection[Endpoint], targets: Collection[Target], devices: Collection[str]) -> None:
        for each in devices:
            disable_checksums(each)
        until, covering = (
            asyncio.get_running_loop().time() + DEVICE_TIMEOUT,
            {_device(each) for each in targets if each.is_delegated},
        )
        self._prober.new_devices.update({each: inf if each in covering else until for each in devices})
        self._prober.change(gone, targets)

    def _mark_forwarding(self, devices: Collection[str]) -> None:
        """Set the deadline for devices of ordinary ports, unless a member has answered already."""
        until = asyncio.get_running_loop().time() + LOCATION_TIMEOUT
        self._prober.new_devices.update({each: until for each in devices if each in self._prober.new_devices})

    def _report_cpu_stall(self) -> None:
        self._caller_loop.call_soon_threadsafe(self._on_cpu_stall)

    def _report_changes(self, changed: Collection[Endpoint]) -> None:
        news = self._results_of(changed)
        self._caller_loop.call_soon_threadsafe(self._on_results, news)

    def _results_of(self, endpoints: Collection[Endpoint]) -> ResultsByEndpoint:
        standings, now, wall = self._prober.tracker.states, asyncio.get_running_loop().time(), datetime.now(UTC)
        found = {endpoint: standings.get(endpoint, PENDING) for endpoint in endpoints}
        return {
            endpoint: make_probe_result(standing, self._chassis, wall, now)
            for endpoint, standing in found.items()
            if standing.verdict is not Verdict.PENDING or standing.void_reason
        }


def _log_starved(is_starved: bool) -> None:
    """Log the start and end of starvation; reports show it for each member with void probes."""
    if is_starved:
        LOG.warning(
            "agent is starved: it gets too little CPU time for its probes, so members keep their last status;"
            " increase CPUWeight= of its systemd unit, or move machines to other nodes"
        )
    else:
        LOG.warning("agent is no longer starved: its probes count again")


def _device(target: Target) -> str:
    return device_name(device_key(target.endpoint.network_id, covers=target.is_delegated))


def _any_device(target: Target) -> str:
    """Return an empty device name, which binds to none (socket(7), SO_BINDTODEVICE), so the host's routes apply."""
    return ""


def make_probe_result(standing: MemberState, chassis: str, wall: datetime, now: float) -> ProbeResult:
    """Convert a standing to a probe result. `wall` is the time of day, `now` the time by the clock of standings."""
    seen = ProbeResult(
        health=HEALTH[standing.verdict],
        chassis=chassis,
        since=wall - timedelta(seconds=0.0 if standing.since is None else now - standing.since),
        latency=standing.latency,
    )
    return replace(seen, error=(standing.error or standing.void_reason)[:MAX_ERROR_LENGTH])
