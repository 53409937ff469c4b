"""The lab's agents: one for each chassis, as on real compute nodes. They end with the lab.

In a lab of OVN agents, like the server, run in the machine's own namespace, which has the loopback, and each connects
to the switch of its chassis. In a lab of plain hosts they run in their host's namespace and write its kernel tables.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.drivers.haproxy.secrets import is_in_memory
from fairlead.lab import processes, records
from fairlead.lab.errors import LabError
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LAB_VARIABLE
from fairlead.lab.records import LabDataplane

STOP_TIMEOUT = 10.0
HEARTBEAT_INTERVAL, SECRET_REFRESH_INTERVAL = 5, 60
"""Seconds, as the options' defaults."""
MEMORY_DIRECTORY = "/dev/shm"
NO_ENVIRONMENT: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class LabAgent:
    """A running agent, which `stop` or the end of the lab terminates."""

    layout: Layout
    chassis: str
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """End the agent and wait for its exit."""
        _stop_agent(self.layout, self.chassis)
        self.process.wait(timeout=STOP_TIMEOUT)


def start(layout: Layout, url: str, more: Mapping[str, str] = NO_ENVIRONMENT) -> list[LabAgent]:
    """Start agents for this server's URL on every chassis. Earlier agents are ended first; their counters are kept."""
    return [start_one(layout, url, name, more) for name in records.read_chassis(layout)]


def settings(
    *, interval: int = 1, heartbeat: int = HEARTBEAT_INTERVAL, renewal: int = SECRET_REFRESH_INTERVAL
) -> dict[str, str]:
    """Return an agent's environment; arguments are in seconds."""
    return {
        "FAIRLEAD_AGENT_INTERVAL": str(interval),
        "FAIRLEAD_AGENT_HEARTBEAT": str(heartbeat),
        "FAIRLEAD_AGENT_SECRET_REFRESH_INTERVAL": str(renewal),
    }


def start_one(
    layout: Layout,
    url: str,
    chassis: str,
    more: Mapping[str, str] = NO_ENVIRONMENT,
    *,
    program: str = processes.COMMAND_MODULE,
) -> LabAgent:
    """Start the agent of one chassis, with `more` in its environment."""
    if not layout.node_directory(chassis).exists():
        raise LabError(f"chassis {chassis} is not in this lab")
    _stop_agent(layout, chassis)
    log = _file(layout, chassis, "log")
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        LAB_VARIABLE: str(layout.directory),
        "PATH": layout.search_path,
        "FAIRLEAD_AGENT_SERVERS": url,
        "FAIRLEAD_AGENT_STATE_FILE": str(_file(layout, chassis, "json")),
        "FAIRLEAD_AGENT_RUN_DIR": str(layout.node_directory(chassis)),
        "FAIRLEAD_AGENT_PROBE_NAMESPACE": layout.namespace(f"probes-{chassis}"),
        "FAIRLEAD_AGENT_PROXY_NAMESPACE_PREFIX": layout.namespace(f"proxy-{chassis}"),
        "FAIRLEAD_AGENT_PROXY_DIRECTORY": str(_proxy_directory(layout, chassis)),
        **settings(),
        **more,
    }
    within = ""
    if records.find_dataplane(layout) is LabDataplane.NATIVE:
        environment |= {"FAIRLEAD_AGENT_HOST": chassis}
        within = layout.namespace(chassis)
    process = processes.launch("agent", environment, log, program, within=within)
    _file(layout, chassis, "pid").write_text(str(process.pid))
    return LabAgent(layout, chassis, process)


def _proxy_directory(layout: Layout, chassis: str) -> Path:
    """Return the directory of proxies and their keys: if the lab's own directory is on a disk, a link into memory."""
    folder = _file(layout, chassis, "proxies")
    if not folder.exists() and not is_in_memory(folder.parent):
        there = Path(tempfile.mkdtemp(prefix=f"{layout.name}-{chassis}-", dir=MEMORY_DIRECTORY))
        there.chmod(0o755)
        folder.symlink_to(there)
    return folder


def remove_memory_directories(layout: Layout) -> None:
    """Remove the in-memory directories that links in the lab's directory point to."""
    for link in (layout.directory / "fairlead").glob("*.proxies"):
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)


def list_running(layout: Layout) -> list[str]:
    """Return the chassis with a running agent."""
    return [
        name
        for name in records.read_chassis(layout)
        if _is_running(layout, processes.read_pidfile(_file(layout, name, "pid")))
    ]


def _is_running(layout: Layout, pid: int | None) -> bool:
    return pid is not None and processes.is_marked(pid, layout.directory)


def _stop_agent(layout: Layout, chassis: str) -> None:
    pid = processes.read_pidfile(_file(layout, chassis, "pid"))
    if pid is not None:
        processes.end([pid], lambda each: processes.is_marked(each, layout.directory))
    with suppress(FileNotFoundError):
        _file(layout, chassis, "pid").unlink()


def _file(layout: Layout, chassis: str, kind: str) -> Path:
    return layout.directory / "fairlead" / f"agent-{chassis}.{kind}"
