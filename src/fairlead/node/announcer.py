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
from fairlead.node.log_once import Complaints
from fairlead.node.neighbours import Announcement, Key
from fairlead.node.packets import announcement
from fairlead.node.server_requests import Servers
from fairlead.node.state import read_memory, write_memory

WAIT = 20
"""Timeout of the long poll to a server, in seconds."""
QUESTION_PAUSE = 0.1
"""Seconds between two requests."""
AGAIN = 2.0
"""Retry interval in seconds."""
MOST_AT_ONCE = 100
"""Maximum announcements in one message to the switch."""
MOST_FRAMES = 1_000
"""Maximum frames per second, and in one message with several announcements, so that many announcements on one network
do not delay others. An announcement has one frame for each receiving machine."""
FIRST_PATIENCE, LONGEST_PATIENCE = 0.1, 5.0
"""Initial and maximum interval, in seconds, between two checks whether OVN already answers for an address; it doubles
each time."""


class Switch(Protocol):
    """Interface to the node's switch. Each method raises SwitchError."""

    async def ports(self) -> Ports: ...

    async def send(self, frames: Collection[Frame]) -> None: ...

    async def answers(self, addresses: Collection[IPAddress]) -> frozenset[Answer]: ...


class Announcing:
    def __init__(self, path: Path, chassis: Callable[[], Awaitable[str]], servers: Servers, switch: Switch) -> None:
        """`chassis` returns the node's name in OVN and raises SwitchError."""
        self._path = path
        self._ask_chassis = chassis
        self._chassis = ""
        self._servers = servers
        self._switch = switch
        self._memory = read_memory(path)
        self._written: Mapping[Key, str] = self._memory.macs
        self._planned: Mapping[Key, str] = {}
        """Announcements in progress, by key."""
        self._digest = ""
        self._news = asyncio.Event()
        self._patience = FIRST_PATIENCE

    async def run(self) -> None:
        """Receive and announce until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self.hear, Complaints("hearing of neighbours")))
            tasks.create_task(self._repeat(self.say, Complaints("announcing neighbours")))

    async def _repeat(self, step: Callable[[], Awaitable[None]], complaints: Complaints) -> None:
        while True:
            try:
                await step()
            except (SwitchError, ServerError, OSError) as error:
                complaints.say(error, AGAIN)
                await asyncio.sleep(AGAIN)
            else:
                complaints.end()

    async def hear(self) -> None:
        """Send one long poll and take its answer. Raises SwitchError, ServerError, OSError."""
        self._chassis = self._chassis or await self._ask_chassis()
        before = frozenset(self._memory.said)
        heard = await self._servers.hear(self._chassis, self._digest, self._memory.remembered(), WAIT)
        if heard.networks is not None:
            self._memory.hear(heard.networks, before)
            self._digest = heard.digest
            self._write()
            self._patience = FIRST_PATIENCE
            self._news.set()
        await asyncio.sleep(QUESTION_PAUSE)

    async def say(self) -> None:
        """Send the announcements that are due, or wait until there are any. Raises SwitchError, OSError."""
        self._news.clear()
        due = list(self._memory.due())
        if not due:
            await self._news.wait()
            return
        found = await self._ready(due)
        self._planned = {each.key: each.mac for each in found}
        self._write()  # before sending: a process killed midway may have announced them
        for batch in _batches(found):
            await self._announce(batch)
            if self._news.is_set():  # not before the batch: constant updates must not starve announcements
                break
        self._planned = {}
        self._write()  # entries forgotten during the announcements
        if not found:
            await self._rest(self._patience)
            self._patience = min(2 * self._patience, LONGEST_PATIENCE)

    async def _ready(self, due: Collection[Announcement]) -> list[Announcement]:
        """Return the announcements that may be sent, given OVN's current answers (address and MAC) on this node."""
        doubtful = {each.key[1] for each in due if each.lasting or each.again}
        answers = await self._switch.answers(doubtful) if doubtful else frozenset()
        return [each for each in due if each.is_ready(answers)]

    async def _announce(self, batch: Collection[Announcement]) -> None:
        numbers = await self._switch.ports() if any(each.ports for each in batch) else {}
        frames = [
            Frame(octets=announcement(each.key[1], each.mac), ports=ports)
            for each in batch
            if (ports := [numbers[port] for port in each.ports if port in numbers])  # ports may have left since
        ]
        if frames:
            await self._switch.send(frames)
        self._memory.note(batch)
        await asyncio.sleep(sum(len(frame.ports) for frame in frames) / MOST_FRAMES)

    async def _rest(self, seconds: float) -> None:
        """Sleep, or until new neighbours are received."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _write(self) -> None:
        macs = {**self._memory.macs, **self._planned}
        if macs != self._written:
            write_memory(self._path, macs)
            self._written = macs


def _batches(announcements: Iterable[Announcement]) -> Iterator[list[Announcement]]:
    """Split announcements into messages, in order."""
    batch, frames = list[Announcement](), 0
    for each in announcements:
        frames += len(each.ports)
        if batch and (len(batch) == MOST_AT_ONCE or frames > MOST_FRAMES):
            yield batch
            batch, frames = [], len(each.ports)
        batch.append(each)
    if batch:
        yield batch
