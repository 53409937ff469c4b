"""Agent process: entry point `fairlead` of octavia.driver_agent.provider_agents."""

import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from octavia_lib.api.drivers.driver_lib import DriverLibrary
from oslo_config import cfg
from oslo_log import log

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import Adoption
from fairlead.octavia_plugin.agent import AgentSettings, OctaviaAgent
from fairlead.octavia_plugin.api_client import ChangeNotice, PluginApi
from fairlead.octavia_plugin.handover import Handover, VipPorts
from fairlead.octavia_plugin.octavia import OctaviaDatabase
from fairlead.octavia_plugin.options import PROVIDER, make_plugin_api, read, sockets_of
from fairlead.octavia_plugin.probe_ports import NeutronProbePorts
from fairlead.octavia_plugin.provision import PortProvisioner, PortType
from fairlead.octavia_plugin.proxy_ports import ProxyPorts
from fairlead.octavia_plugin.supervisor import ExitEvent, IsOver, supervise

LOG = log.getLogger(__name__)
POLL_INTERVAL = 1.0
"""Seconds between queries for PENDING load balancers in Octavia."""
LONG_POLL_SECONDS = 20
"""Seconds that a server holds a request for changes."""


def run(exit_event: ExitEvent) -> None:
    """Run until the event is set."""
    supervise(_work, exit_event)


def _work(is_over: IsOver) -> None:
    section = read(cfg.CONF)
    door = make_plugin_api(section)
    library = _open_library(is_over)
    if library is None:
        return
    finish = Adoption(api=door, octavia=Handover(PROVIDER), ports=VipPorts()).finish
    conduct = AgentSettings(settle_seconds=section.patience, provisions=provisions(door))
    agent = OctaviaAgent(door, OctaviaDatabase(PROVIDER), library, conduct=conduct, finish=finish)
    ended, told = threading.Event(), SimpleQueue[ChangeNotice]()
    listening = threading.Thread(target=_listen, args=(door, told.put, ended), daemon=True, name="fairlead-news")
    listening.start()
    try:
        # if the thread ends, this process ends too, and both are restarted
        _run_checks(agent, told, lambda: is_over() or not listening.is_alive(), section)
    finally:
        ended.set()


def provisions(door: PluginApi) -> tuple[PortProvisioner[Any], ...]:
    probes = PortType(
        title="probe port", status_key="probed_networks", wanted=door.probe_subnets, ports=NeutronProbePorts()
    )
    proxies = PortType(
        title="proxy ports",
        status_key="proxied_networks",
        wanted=door.proxy_ports,
        ports=ProxyPorts(),
        on_failure=door.report_proxy_failure,
    )
    return PortProvisioner(probes), PortProvisioner(proxies)


def _open_library(is_over: IsOver) -> Any:
    """Return octavia-lib's library; None if the agent ends first. octavia-lib itself would block for minutes."""
    paths = sockets_of(cfg.CONF)
    while not all(map(os.path.exists, paths)):
        if is_over():
            return None
        time.sleep(POLL_INTERVAL)
    return DriverLibrary(*paths)


def _run_checks(agent: OctaviaAgent, told: "SimpleQueue[ChangeNotice]", is_over: IsOver, section: Any) -> None:
    everything = counted = time.monotonic()
    is_whole = True
    while not is_over():
        now = time.monotonic()
        if now - everything >= section.resync_interval or is_whole:
            is_whole = not _name_all(agent)
            everything = now
        if now - counted >= section.statistics_interval:
            agent.count()
            counted = now
        left = agent.step()
        is_whole = _take(agent, told, 0 if left else POLL_INTERVAL) or is_whole


def _name_all(agent: OctaviaAgent) -> bool:
    try:
        agent.enqueue_all()
    except ServerError as error:
        LOG.warning("%s; retrying", error)
        return False
    return True


def _take(agent: OctaviaAgent, told: "SimpleQueue[ChangeNotice]", seconds: float) -> bool:
    """Wait for changes. Returns whether anything may have changed."""
    try:
        news = told.get(timeout=seconds) if seconds else told.get_nowait()
    except Empty:
        return False
    agent.enqueue(news.ids)
    return news.is_whole


def _listen(door: PluginApi, tell: Callable[[ChangeNotice], None], ended: threading.Event) -> None:
    """Poll Fairlead for changed load balancers. If the server was restarted or is another one, its answer says that any
    of them may have changed."""
    cursor = ""
    while not ended.is_set():
        try:
            news = door.changes(cursor, LONG_POLL_SECONDS)
        except ServerError:
            ended.wait(POLL_INTERVAL)  # the agent logs the error
            continue
        if news.cursor != cursor or news.is_whole:
            tell(news)
        elif not news.ids:
            ended.wait(POLL_INTERVAL / 10)  # an overloaded server answers immediately
        cursor = news.cursor
