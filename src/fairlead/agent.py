"""The agent, one on each compute node: it counts what the node's switch does for virtual addresses, and tells servers.

No load balancer needs it: without an agent nobody knows figures of its node, and nothing else is missing.

* The switch counts by address and port, and forgets its counts when OVN makes a flow anew. The agent adds up what comes
  and keeps the sums in a file, so they outlive the switch's memory and the agent's own.
* Which listener an address and a port are, only the server knows: it is asked about those that have grown, and what has
  grown is that listener's from then on. While it does not answer nothing is taken, and nothing is lost: the switch
  goes on counting.
* The sums are told whole each time. A report that is lost or comes twice does no harm.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from fairlead.client import Server, ServerError
from fairlead.config import AgentOptions
from fairlead.drivers.ovn_counters import Count, Readings, Switch, SwitchError, SwitchSettings
from fairlead.model.addresses import parse_address
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import MOST_SIGHTINGS, Figures, Sighting

LOG = logging.getLogger(__name__)
SAME_FLOW = 1.0
"""Seconds by which two looks may differ about when a flow was made."""


@dataclass(slots=True)
class Tally:
    """What was read last, and what has come together. A value that only its own methods change."""

    last: dict[Sighting, Mapping[str, Count]] = field(default_factory=dict)
    sums: dict[str, Figures] = field(default_factory=dict)
    """By listener."""

    def grown(self, readings: Readings) -> list[Sighting]:
        """Where something was counted since the last look, or something is open."""
        return [
            one
            for one, reading in readings.items()
            if reading.active or any(self._growth(one, reading.counts).values())
        ]

    def take(self, readings: Readings, listeners: Mapping[Sighting, str | None]) -> None:
        """Add what has grown to its listener; what is nobody's is dropped."""
        self.sums = {listener: replace(sums, active=0) for listener, sums in self.sums.items()}
        for sighting, listener in listeners.items():
            reading = readings[sighting]
            if listener is not None:
                grown = Figures(**self._growth(sighting, reading.counts), active=reading.active)
                self.sums[listener] = self.sums.get(listener, Figures()) + grown
        self.last = {sighting: reading.counts for sighting, reading in readings.items()}

    def forget(self, listeners: Iterable[str]) -> None:
        for listener in listeners:
            self.sums.pop(listener, None)

    def _growth(self, sighting: Sighting, counts: Mapping[str, Count]) -> dict[str, int]:
        last = self.last.get(sighting, {})
        return {name: _growth(last.get(name), count) for name, count in counts.items()}


def _growth(before: Count | None, now: Count) -> int:
    """A flow that was made anew has counted from nothing."""
    same = before is not None and before.cookie == now.cookie and abs(before.created - now.created) < SAME_FLOW
    return now.value - before.value if before is not None and same and now.value >= before.value else now.value


class _State(msgspec.Struct):
    """The file: `boot` says which boot of the machine the times belong to."""

    boot: str
    last: list[tuple[str, str, str, int, dict[str, tuple[int, int, float]]]]
    sums: dict[str, dict[str, int]]


def read_state(path: Path, boot: str) -> Tally:
    """What an earlier agent left; nothing when there is no file, or none that can be read."""
    last: dict[Sighting, Mapping[str, Count]] = {}
    try:
        state = msgspec.json.decode(path.read_bytes(), type=_State)
        sums = {listener: Figures(**figures) for listener, figures in state.sums.items()}
        last = {
            Sighting(place=place, transport=Transport(transport), address=parse_address(address), port=port): {
                name: Count(value=value, cookie=cookie, created=created)
                for name, (value, cookie, created) in counts.items()
            }
            for place, transport, address, port, counts in state.last
        }
    except FileNotFoundError:
        return Tally()
    except (OSError, ValueError, TypeError) as error:
        LOG.warning("%s cannot be read (%s); counting begins anew", path, error)
        return Tally()
    return Tally(last=last if state.boot == boot else {}, sums=sums)


def write_state(path: Path, boot: str, tally: Tally) -> None:
    """Whole or not at all. Raises OSError."""
    last = [
        (
            one.place,
            one.transport.value,
            str(one.address),
            one.port,
            {name: (c.value, c.cookie, c.created) for name, c in counts.items()},
        )
        for one, counts in tally.last.items()
    ]
    sums = {listener: asdict(figures) for listener, figures in tally.sums.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_bytes(msgspec.json.encode(_State(boot=boot, last=last, sums=sums)))
    new.replace(path)


def _named(sighting: Sighting) -> dict[str, object]:
    """As the server's door reads it."""
    return {
        "place": sighting.place,
        "transport": sighting.transport.value,
        "address": str(sighting.address),
        "port": sighting.port,
    }


class Agent:
    def __init__(self, options: AgentOptions, servers: Sequence[Server], switch: Switch, boot: str) -> None:
        self._path = Path(options.state)
        self._interval = options.interval
        self._servers = servers
        self._switch = switch
        self._boot = boot
        self._chassis = ""
        self._tally = read_state(self._path, boot)
        self._complaint = ""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, self._interval - (time.monotonic() - began)))

    async def look(self) -> None:
        try:
            await self.step()
        except (SwitchError, ServerError, OSError) as error:
            if str(error) != self._complaint:  # said once, not at every look
                LOG.warning("%s; trying again every %d s", error, self._interval)
            self._complaint = str(error)
        else:
            if self._complaint:
                LOG.info("counting and telling again")
            self._complaint = ""

    async def step(self) -> None:
        """One look: read, ask whose it is, keep, tell. Raises SwitchError, ServerError, OSError."""
        self._chassis = self._chassis or await self._switch.chassis()
        readings = await self._switch.read()
        grown = self._tally.grown(readings)
        self._tally.take(readings, dict(zip(grown, await self._ask_whose(grown), strict=True)))
        write_state(self._path, self._boot, self._tally)
        await self._tell()

    async def _ask_whose(self, sightings: Sequence[Sighting]) -> list[str | None]:
        found: list[str | None] = []
        for some in (sightings[i : i + MOST_SIGHTINGS] for i in range(0, len(sightings), MOST_SIGHTINGS)):
            answer = await self._ask_one("POST", "/agent/sightings", self._question(some))
            found += answer["listeners"]
        return found

    def _question(self, sightings: Sequence[Sighting]) -> dict[str, object]:
        return {"chassis": self._chassis, "sightings": list(map(_named, sightings))}

    async def _ask_one(self, method: str, path: str, body: object) -> Any:
        """The first server that answers knows. Raises ServerError."""
        complaints = []
        for server in self._servers:
            try:
                return await asyncio.to_thread(server.ask, method, path, body)
            except ServerError as error:
                complaints.append(error)
        raise complaints[0]

    async def _tell(self) -> None:
        """All servers: each answers for itself what clients ask. What none of them knows is gone."""
        body = {
            "interval": self._interval,
            "listeners": {listener: asdict(figures) for listener, figures in self._tally.sums.items()},
        }
        path = f"/agent/chassis/{quote(self._chassis, safe='')}"
        found = await asyncio.gather(
            *(asyncio.to_thread(server.ask, "PUT", path, body) for server in self._servers), return_exceptions=True
        )
        unknown = [set(answer["unknown"]) for answer in found if not isinstance(answer, BaseException)]
        if unknown:
            self._tally.forget(set.intersection(*unknown))
        for answer in found:
            if isinstance(answer, BaseException):
                raise answer


async def serve(options: AgentOptions, servers: Sequence[Server]) -> None:
    """Until SIGINT or SIGTERM."""
    agent = Agent(options, servers, make_switch(options), read_boot())
    running = asyncio.create_task(agent.run())
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, running.cancel)
    LOG.info("counting on %s every %d s", options.bridge, options.interval)
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def read_once(options: AgentOptions) -> list[dict[str, object]]:
    """What the switch says now, for people: each service with its figures. Raises SwitchError."""
    readings = await make_switch(options).read()
    return [
        {
            **_named(one),
            **{name: count.value for name, count in reading.counts.items()},
            "active": reading.active,
        }
        for one, reading in sorted(readings.items(), key=lambda item: str(item[0]))
    ]


def make_switch(options: AgentOptions) -> Switch:
    settings = SwitchSettings(
        bridge=options.bridge, run_dir=Path(options.run_dir), most_connections=options.most_connections
    )
    return Switch(settings, time.monotonic)


def read_boot() -> str:
    """Names this boot of the machine (random(4)): the clock begins anew with each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_servers(options: AgentOptions) -> list[Server]:
    """Raises OSError when the password cannot be read."""
    password = Path(options.password_file).read_text().strip() if options.password_file else ""
    timeout = max(5.0, float(options.interval))
    return [
        Server(url=url, user=options.user, password=password, ca=options.ca, timeout=timeout)
        for url in options.server_urls
    ]
