"""A Fairlead server beside the lab: it is for the lab's nodes, writes the Northbound database of those of OVN, and goes
with the lab.

It runs on the machine itself, outside the namespaces, so that any client of the machine reaches it on loopback. Its
store, log and client configuration lie in the lab's directory.
"""

import contextlib
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep

from fairlead.lab import agents, processes, records
from fairlead.lab.errors import LabError
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LAB_VARIABLE
from fairlead.lab.records import LabDataplane
from fairlead.lab.timeouts import scale_timeout

NO_ENVIRONMENT: Mapping[str, str] = {}
DEFAULT_LISTEN = "127.0.0.1:9876"
START_TIMEOUT = scale_timeout(60.0)
POLL_INTERVAL = 0.05
NATIVE_ENVIRONMENT = {
    "FAIRLEAD_PROVIDERS_NAMES": "native=native",
    "FAIRLEAD_PROVIDERS_DEFAULT": "native",
    "FAIRLEAD_HEALTH_PROBER": "agents",
}
"""A server of plain hosts alone: it knows of no OVN."""

CLOUDS_YAML = """clouds:
  fairlead:
    auth_type: none
    auth:
      endpoint: {url}
    network_endpoint_override: {url}/network
    load_balancer_endpoint_override: {url}/load-balancer
"""
OPENRC_TEMPLATE = """export OS_CLIENT_CONFIG_FILE={folder}/clouds.yaml
export OS_CLOUD=fairlead
export INCUS_SOCKET={socket} INCUS_CONF={folder}/incus
export LXD_SOCKET={socket} LXD_CONF={folder}/lxc
export FAIRLEAD_URL={url}
export FAIRLEAD_LAB={lab}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """Where a server is. Who started it has its process, and ends it with `stop` or with the lab."""

    url: str
    folder: Path
    process: "subprocess.Popen[bytes] | None" = field(default=None, compare=False)

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def pidfile(self) -> Path:
        return self.folder / "server.pid"

    @property
    def socket(self) -> Path:
        """Where LXD's and Incus's clients come in."""
        return self.folder / "lxd.socket"

    @property
    def openrc(self) -> Path:
        """A file to source in a shell: then `openstack`, `incus` and `lxc` speak to this server."""
        return self.folder / "openrc"

    def client_environment(self) -> dict[str, str]:
        """Of the stock clients: what they keep lies beside the server, and not in anybody's home."""
        return {
            "OS_CLIENT_CONFIG_FILE": str(self.folder / "clouds.yaml"),
            "OS_CLOUD": "fairlead",
            "INCUS_SOCKET": str(self.socket),
            "INCUS_CONF": str(self.folder / "incus"),
            "LXD_SOCKET": str(self.socket),
            "LXD_CONF": str(self.folder / "lxc"),
        }


def start(layout: Layout, listen: str = DEFAULT_LISTEN, more: Mapping[str, str] = NO_ENVIRONMENT) -> ServerProcess:
    """With `more` in its environment. Returns when it answers.

    A server that this lab has already is ended first; its store stays.
    """
    service = ServerProcess(url=f"http://{listen}", folder=layout.directory / "fairlead")
    running = _find_listen_address(layout, service)
    if running != listen and _is_answering(service):
        raise LabError(f"{listen} is in use by another server, possibly of another lab; choose another address")
    stop(layout, service)
    service.folder.mkdir(parents=True, exist_ok=True)
    (service.folder / "clouds.yaml").write_text(CLOUDS_YAML.format(url=service.url))
    service.openrc.write_text(
        OPENRC_TEMPLATE.format(url=service.url, folder=service.folder, lab=layout.name, socket=service.socket)
        + "".join(f"export {name}={value}\n" for name, value in _database_environment(layout).items())
    )
    server = processes.launch("server", {**_server_environment(layout, service, listen), **more}, service.log)
    service.pidfile.write_text(str(server.pid))
    _await_answer(server, service)
    return replace(service, process=server)


def stop(layout: Layout, service: ServerProcess) -> None:
    """End it; returns when it is gone."""
    pid = processes.read_pidfile(service.pidfile)
    if pid is not None:
        processes.end([pid], lambda each: processes.is_marked(each, layout.directory))
    if service.process is not None:
        service.process.wait(timeout=START_TIMEOUT)


def describe(layout: Layout) -> tuple[str, ...]:
    """For people: whether this lab's server lives, and how to come to it. Nothing when it never had one."""
    service = ServerProcess(url="", folder=layout.directory / "fairlead")
    if not service.folder.exists():
        return ()
    listen = _find_listen_address(layout, service)
    if listen is None:
        where = "" if (last := _read_last_listen_address(service)) in ("", DEFAULT_LISTEN) else f" {last}"
        return (f"NOT running; start it with: fairlead lab up --name {layout.name} --serve{where}; log: {service.log}",)
    counting = ", ".join(agents.list_running(layout)) or "no chassis"
    return (
        f"listens on {listen}; log: {service.log}",
        f"agents on {counting}",
        f"to use openstack, incus and lxc: source {service.openrc}",
    )


def find_server_url(layout: Layout) -> str | None:
    """Of this lab's server, if it runs."""
    listen = _find_listen_address(layout, ServerProcess(url="", folder=layout.directory / "fairlead"))
    return None if listen is None else f"http://{listen}"


def _read_last_listen_address(service: ServerProcess) -> str:
    """Where the last server listened, as its clients were told."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search("endpoint: http://(.*)", (service.folder / "clouds.yaml").read_text())
        return found[1] if found else ""
    return ""


def _find_listen_address(layout: Layout, service: ServerProcess) -> str | None:
    """Where this lab's own server listens, if it lives."""
    pid = processes.read_pidfile(service.pidfile)
    if pid is None or not processes.is_marked(pid, layout.directory):
        return None
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    found = [line.partition(b"=")[2].decode() for line in environment if line.startswith(b"FAIRLEAD_SERVER_LISTEN=")]
    return found[0] if found else None


def _server_environment(layout: Layout, service: ServerProcess, listen: str) -> dict[str, str]:
    return {
        LAB_VARIABLE: str(layout.directory),
        "PATH": layout.search_path,
        "FAIRLEAD_SERVER_LISTEN": listen,
        "FAIRLEAD_STORE_PATH": str(service.folder / "fairlead.db"),
        **_dataplane_environment(layout, service),
    }


def _dataplane_environment(layout: Layout, service: ServerProcess) -> dict[str, str]:
    if records.find_dataplane(layout) is LabDataplane.NATIVE:
        return NATIVE_ENVIRONMENT
    return {
        "FAIRLEAD_LXD_SOCKET": f"unix:{service.socket}",
        **_database_environment(layout),
        "FAIRLEAD_OVN_GATEWAY_CHASSIS": ",".join(records.read_chassis(layout)),
    }


def _database_environment(layout: Layout) -> dict[str, str]:
    """Where OVN's are, for the server and for who asks them by `fairlead trace`; plain hosts have none."""
    if records.find_dataplane(layout) is LabDataplane.NATIVE:
        return {}
    return {"FAIRLEAD_OVN_NORTHBOUND": layout.northbound, "FAIRLEAD_OVN_SOUTHBOUND": layout.southbound}


def _await_answer(server: "subprocess.Popen[bytes]", service: ServerProcess) -> None:
    """A process that has just begun can only be asked again and again."""
    deadline = monotonic() + START_TIMEOUT
    while monotonic() < deadline:
        if _is_answering(service):
            return
        if server.poll() is not None:
            break
        sleep(POLL_INTERVAL)
    tail = "\n".join(service.log.read_text(errors="replace").splitlines()[-10:])
    raise LabError(f"the Fairlead server does not answer on {service.url}; its log ends:\n{tail}")


def _is_answering(service: ServerProcess) -> bool:
    try:
        with urllib.request.urlopen(service.url, timeout=2) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
