"""Process of the node agent. It ends on SIGINT or SIGTERM."""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from fairlead import __version__
from fairlead.agent_protocol.messages import render_service
from fairlead.config.options import AgentOptions
from fairlead.drivers.haproxy import HAProxy, Nowhere, Places
from fairlead.drivers.haproxy.counters import Counters
from fairlead.drivers.haproxy.process import Program
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import TABLE, Native
from fairlead.drivers.native.nftables.counters import Counters as HostCounters
from fairlead.drivers.ovn.vswitch.announcer import Announcer
from fairlead.drivers.ovn.vswitch.conntrack import Tracked
from fairlead.drivers.ovn.vswitch.counters import Switch, SwitchSettings
from fairlead.drivers.ovn.vswitch.database import SwitchError, Tools
from fairlead.drivers.ovn.vswitch.probe_ports import ProbePorts
from fairlead.drivers.ovn.vswitch.proxy_ports import ProxyPlaces
from fairlead.http.server_client import Server, ServerError
from fairlead.model.documents.agent import Agent as SeenAgent
from fairlead.model.queries.counter_samples import Readings
from fairlead.model.queries.statistics import CountedService
from fairlead.node.announcer import AGAIN, WAIT, Announcing
from fairlead.node.channel import Channel, Slice, slice_path
from fairlead.node.connection import Remote
from fairlead.node.connection_resets import Resetter
from fairlead.node.conntrack_flush import Cutting
from fairlead.node.host_conntrack_flush import HostCutting
from fairlead.node.host_counters import HostCounting, Tells
from fairlead.node.host_proxies import HostProxying
from fairlead.node.identity import NodeIdentity, keep_renewed, read_identity
from fairlead.node.key_fetcher import borrow_from
from fairlead.node.listener_counters import Tally
from fairlead.node.log_once import Complaints
from fairlead.node.own_addresses import OwnAddresses
from fairlead.node.plain_host import PlainHost
from fairlead.node.presence import be_present, present_agents
from fairlead.node.probe_results import KeptReports, sightings_path
from fairlead.node.probing import Probing
from fairlead.node.proxies import Looks, Proxying
from fairlead.node.server_requests import Servers, Whose
from fairlead.node.state import neighbours_path, read_boot, read_state, write_state
from fairlead.runtime.gc_tuning import frozen
from fairlead.runtime.systemd import READY, STOPPING, keep_alive, tell_supervisor

LOG = logging.getLogger(__name__)
ANSWER_PATIENCE = 10.0
"""Timeout of a response in seconds, in addition to a long poll's."""


class Counting(Protocol):
    async def read(self) -> Readings:
        """Read the counters of this node. Raises SwitchError, DriverError, OSError."""


class Knowing(Tells, Protocol):
    """Interface for listener lookup and for sending sums."""

    async def ask_whose(self, chassis: str, services: Sequence[CountedService]) -> Whose:
        """Find the listeners of services. Raises ServerError."""


class Agent:
    """Collector of counters."""

    def __init__(
        self,
        options: AgentOptions,
        servers: Knowing,
        switch: Counting,
        chassis: Callable[[], Awaitable[str]],
        boot: str,
    ) -> None:
        """`chassis` returns the node's name and raises SwitchError."""
        self._path = Path(options.state_file)
        self._interval = options.interval
        self._servers = servers
        self._switch = switch
        self._ask_chassis = chassis
        self._boot = boot
        self._chassis = ""
        self.tally = read_state(self._path, boot)
        self._complaints = Complaints("counting and telling")

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(max(0.0, self._interval - (time.monotonic() - began)))

    async def look(self) -> None:
        try:
            await self.step()
        except (SwitchError, DriverError, ServerError, OSError) as error:
            self._complaints.say(error, self._interval)
        else:
            self._complaints.end()

    async def step(self) -> None:
        """Read, look up, store and report counters once, and forget listeners that no server knows. Raises SwitchError,
        DriverError, ServerError, OSError."""
        self._chassis = self._chassis or await self._ask_chassis()
        readings = await self._switch.read()
        grown = self.tally.grown(readings)
        whose = await self._servers.ask_whose(self._chassis, grown)
        self.tally.take(readings, dict(zip(grown, whose.listeners, strict=True)), whose.proxied)
        write_state(self._path, self._boot, self.tally)
        told = await self._servers.tell(self._chassis, self._interval, self.tally.told)
        self.tally.forget(told.unknown)
        if told.failure is not None:
            raise told.failure


async def serve(options: AgentOptions) -> None:
    """Run the agent until SIGINT or SIGTERM. Raises OSError if the password cannot be read."""
    with frozen():
        await (_serve_host(options) if options.host else _serve_node(options))


async def _serve_host(options: AgentOptions) -> None:
    """Run on a plain Linux host, whose name is configured rather than read from a switch."""
    with be_present():
        await _serve_present(options)


async def _serve_present(options: AgentOptions) -> None:
    heard = Heard(options, options.host)
    native = Native()
    probing, host = Probing(heard.slice, heard.reports), PlainHost(heard.slice, heard.reports, native)
    cutting = HostCutting(heard.slice, native)
    servers = read_servers(options, max(5.0, float(options.interval)))
    heard.reports.count(probing.counts, cutting.counts)
    counted = HostCounting(heard.slice, make_host_counters(options), servers)
    counting = Agent(options, counted, counted, counted.name, read_boot())
    proxying = _proxying(options, heard, Nowhere(), counting.tally)
    proxies = HostProxying(heard.slice, heard.reports, proxying, options.haproxy_binary)
    LOG.info("serving what hosts announce, as host %s", options.host)
    own = OwnAddresses(heard.slice, heard.reports)
    parts = (*heard.listening, own.run, proxies.tell, probing.run, host.run, cutting.run, proxies.run, counting.run)
    await _until_told(*parts, keep_alive)


async def remove(options: AgentOptions) -> None:
    """Remove the state of a plain host's agent. Proxies of a node with a switch remain. Raises DriverError, also while
    an agent runs, because it would restore the state."""
    if agents := present_agents():
        raise DriverError(f"an agent runs on this host, process {', '.join(map(str, agents))}: end it first")
    driver = Native()
    await driver.remove()
    await driver.close()
    if not options.host:
        return
    proxies = HAProxy(Path(options.proxy_directory), Nowhere(), lambda *_: None)
    await proxies.remove()
    await proxies.close()


async def _serve_node(options: AgentOptions) -> None:
    tools = Tools(Path(options.run_dir))
    servers = read_servers(options, max(5.0, float(options.interval)))
    counting = Agent(options, servers, make_switch(options, tools), tools.chassis, read_boot())
    announcing = Announcing(
        neighbours_path(Path(options.state_file)),
        tools.chassis,
        read_servers(options, WAIT + ANSWER_PATIENCE),
        Announcer(options.bridge, tools),
    )
    LOG.info("counting on %s every %d s", options.bridge, options.interval)
    channel = partial(keep_channel, options, tools.chassis, counting.tally)
    await _until_told(counting.run, announcing.run, channel, keep_alive)


async def _until_told(*parts: Callable[[], Coroutine[None, None, None]]) -> None:
    running = asyncio.ensure_future(asyncio.gather(*(part() for part in parts)))
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, running.cancel)
    tell_supervisor(READY)  # without waiting for servers, because the last slice suffices
    with contextlib.suppress(asyncio.CancelledError):
        await running
    tell_supervisor(STOPPING)


async def keep_channel(options: AgentOptions, chassis: Callable[[], Awaitable[str]], tally: Tally) -> None:
    """Receive the slice and report until cancelled, and run the parts that depend on the slice."""
    name, complaints = "", Complaints("listening and reporting")
    while not name:
        try:
            name = await chassis()
        except SwitchError as error:
            complaints.say(error, AGAIN)
            await asyncio.sleep(AGAIN)
    complaints.end()
    heard = Heard(options, name)
    slice_, reports = heard.slice, heard.reports
    run_dir = Path(options.run_dir)
    ports = ProbePorts(options.bridge, options.probe_namespace, Tools(run_dir))
    namespace = Path("/run/netns") / options.probe_namespace
    probing = Probing(slice_, reports, ports, namespace, Resetter(namespace))
    asked = read_servers(options, ANSWER_PATIENCE)
    tracked = Tracked(options.bridge, Tools(run_dir), run_dir, options.max_tracked_connections)
    cutting = Cutting(slice_, tracked, partial(asked.ask_whose, name), reports.failed)
    proxying = _proxying(
        options, heard, ProxyPlaces(options.bridge, options.proxy_namespace_prefix, Tools(run_dir)), tally
    )
    reports.count(probing.counts, cutting.counts)
    parts = (*heard.listening, reports.run, probing.run, cutting.run, proxying.run)
    await asyncio.gather(*(part() for part in parts))


def _proxying(options: AgentOptions, heard: "Heard", places: Places, tally: Tally) -> Proxying:
    """Make the reconciler of proxies. Raises OSError if the password cannot be read."""
    counters = Counters(lambda process, counted: tally.take_process(str(process), counted))
    borrow = borrow_from(read_servers(options, ANSWER_PATIENCE), heard.slice.name)
    program = Program(path=options.haproxy_binary, memory=options.haproxy_memory_limit)
    driver = HAProxy(Path(options.proxy_directory), places, heard.reports.serves, program, borrow, counters)
    heard.reports.count(driver.counts)
    return Proxying(
        heard.slice, heard.reports, driver, Looks(tally, options.interval, float(options.secret_refresh_interval))
    )


class Heard:
    """Slice and reports of a node."""

    def __init__(self, options: AgentOptions, name: str) -> None:
        """`name` is the chassis' name. Raises NoIdentity, and OSError if the password cannot be read."""
        own = Own(options)
        since, host = datetime.now(UTC), socket.gethostname()
        agent = SeenAgent(name=name, version=__version__, host=host, since=since, heartbeat=float(options.heartbeat))
        self.slice = Slice(name, slice_path(Path(options.state_file)))
        seen = sightings_path(Path(options.state_file))
        self.reports = KeptReports(seen, lambda: agent, lambda: own.remotes, len(own.remotes))
        channel = Channel(self.slice, lambda: own.remotes)
        self.listening = (channel.run, own.keep_renewed)


class Own:
    """Identity of this node, and its servers."""

    def __init__(self, options: AgentOptions) -> None:
        """Read the identity. Raises NoIdentity, and OSError if the password cannot be read."""
        self._options = options
        self._identity = read_identity(Path(options.identity_file))
        self.remotes = read_remotes(options, self._identity)

    async def keep_renewed(self) -> None:
        """Renew the certificate until cancelled."""
        if self._identity is not None:
            await keep_renewed(self._identity, self._options.servers, self._take)

    def _take(self, identity: NodeIdentity) -> None:
        self.remotes = read_remotes(self._options, identity)


async def read_once(options: AgentOptions) -> list[dict[str, object]]:
    """Return the counters of this node by service, for display. Raises SwitchError, DriverError, OSError."""
    readings = await _read_readings(options)
    return [
        {
            **render_service(service),
            **{name: count.value for name, count in reading.counts.items()},
            "active": reading.active,
        }
        for service, reading in sorted(readings.items(), key=lambda item: str(item[0]))
    ]


async def _read_readings(options: AgentOptions) -> Readings:
    if not options.host:
        return await make_switch(options, Tools(Path(options.run_dir))).read()
    counters = make_host_counters(options)
    try:
        return await asyncio.to_thread(counters.read, lambda _: True)
    finally:
        counters.close()


def make_host_counters(options: AgentOptions) -> HostCounters:
    return HostCounters(TABLE, read_boot(), options.max_tracked_connections)


def make_switch(options: AgentOptions, tools: Tools) -> Switch:
    settings = SwitchSettings(bridge=options.bridge, most_connections=options.max_tracked_connections)
    return Switch(settings, tools, time.monotonic)


def read_remotes(options: AgentOptions, identity: NodeIdentity | None = None) -> Sequence[Remote]:
    """Return the servers for persistent connections. Raises OSError if the password cannot be read."""
    password = Path(options.password_file).read_text().strip() if options.password_file else ""
    tls = identity.tls() if identity is not None else ssl.create_default_context(cafile=options.ca or None)
    return [Remote(url=url, tls=tls, user=options.user, password=password) for url in options.servers]


def read_servers(options: AgentOptions, timeout: float) -> Servers:
    """Return the servers for single requests; `timeout` of a response in seconds. Raises OSError if the password cannot
    be read."""
    password = Path(options.password_file).read_text().strip() if options.password_file else ""
    identity = read_identity(Path(options.identity_file))
    own = {} if identity is None else {"identity": str(identity.path), "authority": identity.authority}
    return Servers(
        [
            Server(url=url, user=options.user, password=password, ca=options.ca, timeout=timeout, **own)
            for url in options.servers
        ]
    )
