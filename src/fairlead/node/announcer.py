"""Announcer of neighbour MACs to the machines of this node: receives the desired neighbours and sends announcements.

The two run concurrently, so new neighbours take effect during a long series of announcements.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from fairlead.drivers.ovn.vswitch.announcer import Answer, Frame, Ports
from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.http.server_client import ServerError
from fairlead.model.documents.addresses import IPAddress
from fairlead.node.announcement_log import Announcement, Key
from fairlead.node.log_once import LogOnce
from fairlead.node.packets import announcement
from fairlead.node.server_requests import Servers
from fairlead.node.state import read_announcements, write_announcements

LONG_POLL_TIMEOUT = 20
"""Timeout of the long poll to a server, in seconds."""
REQUEST_INTERVAL = 0.1
"""Seconds between two requests."""
RETRY_INTERVAL = 2.0
"""Retry interval in seconds."""
MAX_ANNOUNCEMENTS_PER_MESSAGE = 100
"""Maximum announcements in one message to the switch."""
MAX_FRAMES_PER_SECOND = 1_000
"""Maximum frames per second, and in one message with several announcements, so that many announcements on one network
do not delay others. An announcement has one frame for each receiving machine."""
MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL = 0.1, 5.0
"""Initial and maximum interval, in seconds, between two checks whether OVN already answers for an address; it doubles
each time."""


class AnnouncingSwitch(Protocol):
    """Interface to the node's switch. Each method raises SwitchError."""

    async def ports(self) -> Ports: ...

    async def send(self, frames: Collection[Frame]) -> None: ...

    async def read_answers(self, addresses: Collection[IPAddress]) -> frozenset[Answer]: ...


class NeighbourAnnouncer:
    def __init__(
        self, path: Path, chassis: Callable[[], Awaitable[str]], servers: Servers, switch: AnnouncingSwitch
    ) -> None:
        """`chassis` returns the node's name in OVN and raises SwitchError."""
        self._path = path
        self._ask_chassis = chassis
        self._chassis = ""
        self._servers = servers
        self._switch = switch
        self._announcements = read_announcements(path)
        self._written: Mapping[Key, str] = self._announcements.macs
        self._planned: Mapping[Key, str] = {}
        """Announcements in progress, by key."""
        self._digest = ""
        self._wakeup = asyncio.Event()
        self._check_interval = MIN_CHECK_INTERVAL

    async def run(self) -> None:
        """Receive and announce until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.receive, LogOnce("receiving neighbour announcements")))
            tasks.create_task(self._repeat(self.announce, LogOnce("announcing neighbours")))

    async def _repeat(self, step: Callable[[], Awaitable[None]], complaints: LogOnce) -> None:
        while True:
            try:
                await step()
            except (SwitchError, ServerError, OSError) as error:
                complaints.report(error, RETRY_INTERVAL)
                await asyncio.sleep(RETRY_INTERVAL)
            else:
                complaints.report_recovery()

    async def receive(self) -> None:
        """Send one long poll and take its answer. Raises SwitchError, ServerError, OSError."""
        self._chassis = self._chassis or await self._ask_chassis()
        before = frozenset(self._announcements.announced)
        heard = await self._servers.poll_neighbours(
            self._chassis, self._digest, self._announcements.pending_addresses(), LONG_POLL_TIMEOUT
        )
        if heard.networks is not None:
            self._announcements.set_desired(heard.networks, before)
            self._digest = heard.digest
            self._write()
            self._check_interval = MIN_CHECK_INTERVAL
            self._wakeup.set()
        await asyncio.sleep(REQUEST_INTERVAL)

    async def announce(self) -> None:
        """Send the announcements that are due, or wait until there are any. Raises SwitchError, OSError."""
        self._wakeup.clear()
        due = list(self._announcements.due())
        if not due:
            await self._wakeup.wait()
            return
        found = await self._sendable(due)
        self._planned = {each.key: each.mac for each in found}
        self._write()  # before sending: a process killed midway may have announced them
        for batch in _batches(found):
            await self._send_batch(batch)
            if self._wakeup.is_set():  # not before the batch: constant updates must not starve announcements
                break
        self._planned = {}
        self._write()  # entries forgotten during the announcements
        if not found:
            await self._wait(self._check_interval)
            self._check_interval = min(2 * self._check_interval, MAX_CHECK_INTERVAL)

    async def _sendable(self, due: Collection[Announcement]) -> list[Announcement]:
        """Return the announcements that may be sent, given OVN's current answers (address and MAC) on this node."""
        doubtful = {each.key[1] for each in due if each.lasting or each.is_repeat}
        answers = await self._switch.read_answers(doubtful) if doubtful else frozenset()
        return [each for each in due if each.is_ready(answers)]

    async def _send_batch(self, batch: Collection[Announcement]) -> None:
        numbers = await self._switch.ports() if any(each.ports for each in batch) else {}
        frames = [
            Frame(octets=announcement(each.key[1], each.mac), ports=ports)
            for each in batch
            if (ports := [numbers[port] for port in each.ports if port in numbers])  # ports may have left since
        ]
        if frames:
            await self._switch.send(frames)
        self._announcements.record(batch)
        await asyncio.sleep(sum(len(frame.ports) for frame in frames) / MAX_FRAMES_PER_SECOND)

    async def _wait(self, seconds: float) -> None:
        """Sleep, or until new neighbours are received."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()

    def _write(self) -> None:
        macs = {**self._announcements.macs, **self._planned}
        if macs != self._written:
            write_announcements(self._path, macs)
            self._written = macs


def _batches(announcements: Iterable[Announcement]) -> Iterator[list[Announcement]]:
    """Split announcements into messages, in order."""
    batch, frames = list[Announcement](), 0
    for each in announcements:
        frames += len(each.ports)
        if batch and (len(batch) == MAX_ANNOUNCEMENTS_PER_MESSAGE or frames > MAX_FRAMES_PER_SECOND):
            yield batch
            batch, frames = [], len(each.ports)
        batch.append(each)
    if batch:
        yield batch
