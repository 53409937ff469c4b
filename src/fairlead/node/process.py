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
from fairlead.drivers.haproxy import HAProxy, HostNamespace, Namespaces
from fairlead.drivers.haproxy.counters import ProxyCounters
from fairlead.drivers.haproxy.process import Program
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.driver import TABLE, Native
from fairlead.drivers.native.nftables.counters import KernelCounters as HostCounters
from fairlead.drivers.ovn.vswitch.announcer import Announcer
from fairlead.drivers.ovn.vswitch.conntrack import ConntrackTable
from fairlead.drivers.ovn.vswitch.counters import SwitchCounters, SwitchSettings
from fairlead.drivers.ovn.vswitch.database import OvsTools, SwitchError
from fairlead.drivers.ovn.vswitch.probe_ports import OvsProbePorts
from fairlead.drivers.ovn.vswitch.proxy_ports import ProxyNamespaces
from fairlead.http.server_client import ApiClient, ServerError
from fairlead.model.documents.agent import Agent as SeenAgent
from fairlead.model.queries.counter_samples import CounterSamples
from fairlead.model.queries.statistics import CountedService
from fairlead.node.announcer import LONG_POLL_TIMEOUT, RETRY_INTERVAL, NeighbourAnnouncer
from fairlead.node.channel import NodeSlice, SliceReceiver, slice_path
from fairlead.node.connection import Remote
from fairlead.node.connection_resets import Resetter
from fairlead.node.conntrack_flush import ConntrackFlusher
from fairlead.node.host_conntrack_flush import HostConntrackFlusher
from fairlead.node.host_counters import CounterSink, HostCounterSource
from fairlead.node.host_proxies import HostProxyReconciler
from fairlead.node.identity import NodeIdentity, keep_renewed, read_identity
from fairlead.node.key_fetcher import make_key_fetcher
from fairlead.node.listener_counters import CounterSums
from fairlead.node.log_once import LogOnce
from fairlead.node.own_addresses import OwnAddresses
from fairlead.node.plain_host import PlainHost
from fairlead.node.presence import find_running_agents, mark_running
from fairlead.node.probe_results import PersistentReports, probe_results_path
from fairlead.node.probing import ProbeReconciler
from fairlead.node.proxies import ProxyIntervals, ProxyReconciler
from fairlead.node.server_requests import ListenerLookup, Servers
from fairlead.node.state import neighbours_path, read_boot, read_state, write_state
from fairlead.runtime.gc_tuning import frozen
from fairlead.runtime.systemd import READY, STOPPING, run_watchdog, sd_notify

LOG = logging.getLogger(__name__)
RESPONSE_TIMEOUT = 10.0
"""Timeout of a response in seconds, in addition to a long poll's."""


class CounterSource(Protocol):
    async def read(self) -> CounterSamples:
        """Read the counters of this node. Raises SwitchError, DriverError, OSError."""


class CountingServers(CounterSink, Protocol):
    """Interface for listener lookup and for sending sums."""

    async def find_listeners(self, chassis: str, services: Sequence[CountedService]) -> ListenerLookup:
        """Find the listeners of services. Raises ServerError."""


class CounterReporter:
    """Collector of counters."""

    def __init__(
        self,
        options: AgentOptions,
        servers: CountingServers,
        switch: CounterSource,
        chassis: Callable[[], Awaitable[str]],
        boot: str,
    ) -> None:
        """`chassis` returns the node's name and raises SwitchError."""
        self._path = Path(options.state_file)
        self._interval = options.interval
        self._servers = servers
        self._source = switch
        self._ask_chassis = chassis
        self._boot = boot
        self._chassis = ""
        self.sums = read_state(self._path, boot)
        self._failure_log = LogOnce("collecting and reporting counters")

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            began = time.monotonic()
            await self.try_once()
            await asyncio.sleep(max(0.0, self._interval - (time.monotonic() - began)))

    async def try_once(self) -> None:
        try:
            await self.collect()
        except (SwitchError, DriverError, ServerError, OSError) as error:
            self._failure_log.report(error, self._interval)
        else:
            self._failure_log.report_recovery()

    async def collect(self) -> None:
        """Read, look up, store and report counters once, and forget listeners that no server knows. Raises SwitchError,
        DriverError, ServerError, OSError."""
        self._chassis = self._chassis or await self._ask_chassis()
        readings = await self._source.read()
        grown = self.sums.changed_services(readings)
        whose = await self._servers.find_listeners(self._chassis, grown)
        self.sums.add(readings, dict(zip(grown, whose.listeners, strict=True)), whose.proxied)
        write_state(self._path, self._boot, self.sums)
        told = await self._servers.report(self._chassis, self._interval, self.sums.reported_sums)
        self.sums.forget(told.unknown)
        if told.failure is not None:
            raise told.failure


async def serve(options: AgentOptions) -> None:
    """Run the agent until SIGINT or SIGTERM. Raises OSError if the password cannot be read."""
    with frozen():
        await (_serve_host(options) if options.host else _serve_node(options))


async def _serve_host(options: AgentOptions) -> None:
    """Run on a plain Linux host, whose name is configured rather than read from a switch."""
    with mark_running():
        await _run_host(options)


async def _run_host(options: AgentOptions) -> None:
    heard = NodeChannel(options, options.host)
    native = Native()
    probing, host = ProbeReconciler(heard.slice, heard.reports), PlainHost(heard.slice, heard.reports, native)
    cutting = HostConntrackFlusher(heard.slice, native)
    servers = read_servers(options, max(5.0, float(options.interval)))
    heard.reports.add_counters(probing.counts, cutting.counts)
    counted = HostCounterSource(heard.slice, make_host_counters(options), servers)
    counting = CounterReporter(options, counted, counted, counted.name, read_boot())
    proxying = _make_proxy_reconciler(options, heard, HostNamespace(), counting.sums)
    proxies = HostProxyReconciler(heard.slice, heard.reports, proxying, options.haproxy_binary)
    LOG.info("serving load balancers as host %s", options.host)
    own = OwnAddresses(heard.slice, heard.reports)
    parts = (*heard.tasks, own.run, proxies.run_reports, probing.run, host.run, cutting.run, proxies.run, counting.run)
    await _run_until_signal(*parts, run_watchdog)


async def remove(options: AgentOptions) -> None:
    """Remove the state of a plain host's agent. Proxies of a node with a switch remain. Raises DriverError, also while
    an agent runs, because it would restore the state."""
    if agents := find_running_agents():
        raise DriverError(f"an agent runs on this host (process {', '.join(map(str, agents))}): stop it first")
    driver = Native()
    await driver.remove()
    await driver.close()
    if not options.host:
        return
    proxies = HAProxy(Path(options.proxy_directory), HostNamespace(), lambda *_: None)
    await proxies.remove()
    await proxies.close()


async def _serve_node(options: AgentOptions) -> None:
    tools = OvsTools(Path(options.run_dir))
    servers = read_servers(options, max(5.0, float(options.interval)))
    counting = CounterReporter(options, servers, make_switch(options, tools), tools.chassis, read_boot())
    announcing = NeighbourAnnouncer(
        neighbours_path(Path(options.state_file)),
        tools.chassis,
        read_servers(options, LONG_POLL_TIMEOUT + RESPONSE_TIMEOUT),
        Announcer(options.bridge, tools),
    )
    LOG.info("collecting counters of %s every %d s", options.bridge, options.interval)
    channel = partial(keep_channel, options, tools.chassis, counting.sums)
    await _run_until_signal(counting.run, announcing.run, channel, run_watchdog)


async def _run_until_signal(*parts: Callable[[], Coroutine[None, None, None]]) -> None:
    running = asyncio.ensure_future(asyncio.gather(*(part() for part in parts)))
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, running.cancel)
    sd_notify(READY)  # without waiting for servers, because the last slice suffices
    with contextlib.suppress(asyncio.CancelledError):
        await running
    sd_notify(STOPPING)


async def keep_channel(options: AgentOptions, chassis: Callable[[], Awaitable[str]], tally: CounterSums) -> None:
    """Receive the slice and report until cancelled, and run the parts that depend on the slice."""
    name, complaints = "", LogOnce("receiving the slice and reporting")
    while not name:
        try:
            name = await chassis()
        except SwitchError as error:
            complaints.report(error, RETRY_INTERVAL)
            await asyncio.sleep(RETRY_INTERVAL)
    complaints.report_recovery()
    heard = NodeChannel(options, name)
    slice_, reports = heard.slice, heard.reports
    run_dir = Path(options.run_dir)
    ports = OvsProbePorts(options.bridge, options.probe_namespace, OvsTools(run_dir))
    namespace = Path("/run/netns") / options.probe_namespace
    probing = ProbeReconciler(slice_, reports, ports, namespace, Resetter(namespace))
    asked = read_servers(options, RESPONSE_TIMEOUT)
    tracked = ConntrackTable(options.bridge, OvsTools(run_dir), run_dir, options.max_tracked_connections)
    cutting = ConntrackFlusher(slice_, tracked, partial(asked.find_listeners, name), reports.set_apply_error)
    proxying = _make_proxy_reconciler(
        options, heard, ProxyNamespaces(options.bridge, options.proxy_namespace_prefix, OvsTools(run_dir)), tally
    )
    reports.add_counters(probing.counts, cutting.counts)
    parts = (*heard.tasks, reports.run, probing.run, cutting.run, proxying.run)
    await asyncio.gather(*(part() for part in parts))


def _make_proxy_reconciler(
    options: AgentOptions, heard: "NodeChannel", places: Namespaces, tally: CounterSums
) -> ProxyReconciler:
    """Make the reconciler of proxies. Raises OSError if the password cannot be read."""
    counters = ProxyCounters(lambda process, counted: tally.add_process(str(process), counted))
    borrow = make_key_fetcher(read_servers(options, RESPONSE_TIMEOUT), heard.slice.name)
    program = Program(path=options.haproxy_binary, memory=options.haproxy_memory_limit)
    driver = HAProxy(Path(options.proxy_directory), places, heard.reports.set_proxy_ports, program, borrow, counters)
    heard.reports.add_counters(driver.counts)
    return ProxyReconciler(
        heard.slice,
        heard.reports,
        driver,
        ProxyIntervals(tally, options.interval, float(options.secret_refresh_interval)),
    )


class NodeChannel:
    """Slice and reports of a node."""

    def __init__(self, options: AgentOptions, name: str) -> None:
        """`name` is the chassis' name. Raises NoIdentity, and OSError if the password cannot be read."""
        own = NodeCredentials(options)
        since, host = datetime.now(UTC), socket.gethostname()
        agent = SeenAgent(name=name, version=__version__, host=host, since=since, heartbeat=float(options.heartbeat))
        self.slice = NodeSlice(name, slice_path(Path(options.state_file)))
        seen = probe_results_path(Path(options.state_file))
        self.reports = PersistentReports(seen, lambda: agent, lambda: own.remotes, len(own.remotes))
        channel = SliceReceiver(self.slice, lambda: own.remotes)
        self.tasks = (channel.run, own.keep_renewed)


class NodeCredentials:
    """Identity of this node, and its servers."""

    def __init__(self, options: AgentOptions) -> None:
        """Read the identity. Raises NoIdentity, and OSError if the password cannot be read."""
        self._options = options
        self._identity = read_identity(Path(options.identity_file))
        self.remotes = read_remotes(options, self._identity)

    async def keep_renewed(self) -> None:
        """Renew the certificate until cancelled."""
        if self._identity is not None:
            await keep_renewed(self._identity, self._options.servers, self._replace)

    def _replace(self, identity: NodeIdentity) -> None:
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


async def _read_readings(options: AgentOptions) -> CounterSamples:
    if not options.host:
        return await make_switch(options, OvsTools(Path(options.run_dir))).read()
    counters = make_host_counters(options)
    try:
        return await asyncio.to_thread(counters.read, lambda _: True)
    finally:
        counters.close()


def make_host_counters(options: AgentOptions) -> HostCounters:
    return HostCounters(TABLE, read_boot(), options.max_tracked_connections)


def make_switch(options: AgentOptions, tools: OvsTools) -> SwitchCounters:
    settings = SwitchSettings(bridge=options.bridge, max_connections=options.max_tracked_connections)
    return SwitchCounters(settings, tools, time.monotonic)


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
            ApiClient(url=url, user=options.user, password=password, ca=options.ca, timeout=timeout, **own)
            for url in options.servers
        ]
    )
