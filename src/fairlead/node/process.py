"""The agent's process: it looks at the switch again and again, and ends with a signal."""

import asyncio
import contextlib
import logging
import signal
import time
from pathlib import Path

from fairlead.api.agent_messages import render_service
from fairlead.client import Server, ServerError
from fairlead.drivers.ovn.counters import Switch, SwitchError, SwitchSettings
from fairlead.node.protocol import Servers
from fairlead.node.state import read_boot, read_state, write_state
from fairlead.options import AgentOptions

LOG = logging.getLogger(__name__)


class Agent:
    def __init__(self, options: AgentOptions, servers: Servers, switch: Switch, boot: str) -> None:
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
        """One look: read, ask whose it is, keep, tell; what no server knows is gone.

        Raises SwitchError, ServerError, OSError.
        """
        self._chassis = self._chassis or await self._switch.chassis()
        readings = await self._switch.read()
        grown = self._tally.grown(readings)
        listeners = await self._servers.ask_whose(self._chassis, grown)
        self._tally.take(readings, dict(zip(grown, listeners, strict=True)))
        write_state(self._path, self._boot, self._tally)
        told = await self._servers.tell(self._chassis, self._interval, self._tally.sums)
        self._tally.forget(told.unknown)
        if told.failure is not None:
            raise told.failure


async def serve(options: AgentOptions, servers: Servers) -> None:
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
            **render_service(service),
            **{name: count.value for name, count in reading.counts.items()},
            "active": reading.active,
        }
        for service, reading in sorted(readings.items(), key=lambda item: str(item[0]))
    ]


def make_switch(options: AgentOptions) -> Switch:
    settings = SwitchSettings(
        bridge=options.bridge, run_dir=Path(options.run_dir), most_connections=options.most_connections
    )
    return Switch(settings, time.monotonic)


def read_servers(options: AgentOptions) -> Servers:
    """Raises OSError when the password cannot be read."""
    password = Path(options.password_file).read_text().strip() if options.password_file else ""
    timeout = max(5.0, float(options.interval))
    return Servers(
        [
            Server(url=url, user=options.user, password=password, ca=options.ca, timeout=timeout)
            for url in options.server_urls
        ]
    )
