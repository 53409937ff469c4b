"""The lab's agents: one for each chassis, as on real compute nodes. They go with the lab.

Like the server those of OVN run on the machine itself, where loopback is; each speaks with the switch of its chassis.
Those of plain hosts run on their hosts, whose kernel they write.
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
from fairlead.lab.processes import MARK
from fairlead.lab.records import Dataplane

END_SECONDS = 10.0
HEARTBEAT, RENEWAL = 5, 60
"""Seconds, as without an option."""
MEMORY = "/dev/shm"
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Agent:
    """Who starts one has its process, and ends it with `stop` or with the lab."""

    layout: Layout
    chassis: str
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """Returns when it is gone."""
        _end(self.layout, self.chassis)
        self.process.wait(timeout=END_SECONDS)


def start(layout: Layout, url: str, more: Mapping[str, str] = NOTHING) -> list[Agent]:
    """On every chassis, telling the server of this address. Those of before are ended; what they counted stays."""
    return [start_one(layout, url, name, more) for name in records.read_chassis(layout)]


def settings(*, interval: int = 1, heartbeat: int = HEARTBEAT, renewal: int = RENEWAL) -> dict[str, str]:
    """Seconds, as an agent's environment has them."""
    return {
        "FAIRLEAD_AGENT_INTERVAL": str(interval),
        "FAIRLEAD_AGENT_HEARTBEAT": str(heartbeat),
        "FAIRLEAD_AGENT_SECRET_REFRESH_INTERVAL": str(renewal),
    }


def start_one(
    layout: Layout, url: str, chassis: str, more: Mapping[str, str] = NOTHING, *, program: str = processes.PROGRAM
) -> Agent:
    """With `more` in its environment."""
    if not layout.node_directory(chassis).exists():
        raise LabError(f"there is no chassis {chassis}")
    _end(layout, chassis)
    log = _file(layout, chassis, "log")
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        MARK: str(layout.directory),
        "PATH": layout.search_path,
        "FAIRLEAD_AGENT_SERVERS": url,
        "FAIRLEAD_AGENT_STATE_FILE": str(_file(layout, chassis, "json")),
        "FAIRLEAD_AGENT_RUN_DIR": str(layout.node_directory(chassis)),
        "FAIRLEAD_AGENT_PROBE_NAMESPACE": layout.namespace(f"probes-{chassis}"),
        "FAIRLEAD_AGENT_PROXY_NAMESPACE_PREFIX": layout.namespace(f"proxy-{chassis}"),
        "FAIRLEAD_AGENT_PROXY_DIRECTORY": str(_proxies(layout, chassis)),
        **settings(),
        **more,
    }
    within = ""
    if records.find_dataplane(layout) is Dataplane.NATIVE:
        environment |= {"FAIRLEAD_AGENT_HOST": chassis}
        within = layout.namespace(chassis)
    process = processes.launch("agent", environment, log, program, within=within)
    _file(layout, chassis, "pid").write_text(str(process.pid))
    return Agent(layout, chassis, process)


def _proxies(layout: Layout, chassis: str) -> Path:
    """Keys will be there: where the lab's own folder is on a disk it is a link into memory."""
    folder = _file(layout, chassis, "proxies")
    if not folder.exists() and not is_in_memory(folder.parent):
        there = Path(tempfile.mkdtemp(prefix=f"{layout.name}-{chassis}-", dir=MEMORY))
        there.chmod(0o755)
        folder.symlink_to(there)
    return folder


def remove_memory(layout: Layout) -> None:
    """To which links in the lab's folder lead."""
    for link in (layout.directory / "fairlead").glob("*.proxies"):
        if link.is_symlink():
            shutil.rmtree(link.resolve(), ignore_errors=True)


def running(layout: Layout) -> list[str]:
    """The chassis that have one."""
    return [
        name
        for name in records.read_chassis(layout)
        if _lives(layout, processes.read_pidfile(_file(layout, name, "pid")))
    ]


def _lives(layout: Layout, pid: int | None) -> bool:
    return pid is not None and processes.is_marked(pid, layout.directory)


def _end(layout: Layout, chassis: str) -> None:
    pid = processes.read_pidfile(_file(layout, chassis, "pid"))
    if pid is not None:
        processes.end([pid], lambda each: processes.is_marked(each, layout.directory))
    with suppress(FileNotFoundError):
        _file(layout, chassis, "pid").unlink()


def _file(layout: Layout, chassis: str, kind: str) -> Path:
    return layout.directory / "fairlead" / f"agent-{chassis}.{kind}"
