"""A real Octavia with a Fairlead server and a real ovsdb-server, as processes of this test alone.

Octavia consists of its API, octavia-driver-agent with Fairlead's provider agent, and SQLite. Its Neutron is Fairlead's
network front end.
"""

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from harness.fuzz.machine import SCHEMA, SERVER
from harness.lab.servers import FairleadProcess, HasNorthbound, serving
from harness.ports import free_port
from harness.waiting import wait_equal, wait_until

OCTAVIA = Path(__file__).parents[3] / ".venv-octavia" / "bin" / "python"
LAUNCH = Path(__file__).with_name("launch.py")
PROJECT = "a" * 32
USER, PASSWORD = "octavia", "secret"
REQUEST_TIMEOUT = 4
"""Seconds after which the agent treats a request as lost.

Each test lets Octavia become idle first, so no request of a slow machine takes that long.
"""
DATABASE_TIMEOUT = 300  # seconds for which a commit waits for a reader of SQLite, while no reader can begin
AGENT_CONF = """
[database]
connection = sqlite:///{folder}/octavia.db?timeout=5
"""
"""Configuration of the agent: its commit may be the first, and all others wait until it gives up."""
SETTLE_TIMEOUT = 300.0  # seconds; a loaded machine takes a minute to start an agent
CONF = """
[DEFAULT]
transport_url = fake://
[api_settings]
bind_host = 127.0.0.1
bind_port = {port}
auth_strategy = noauth
enabled_provider_drivers = {providers}
default_provider_driver = fairlead
[database]
connection = sqlite:///{folder}/octavia.db?timeout={database_timeout}
[driver_agent]
status_socket_path = {folder}/status.sock
stats_socket_path = {folder}/stats.sock
get_socket_path = {folder}/get.sock
enabled_provider_agents = fairlead
[controller_worker]
network_driver = fairlead_network_driver
compute_driver = compute_noop_driver
[networking]
allow_invisible_resource_usage = True
[service_auth]
auth_type = http_basic
username = {user}
password = {password}
endpoint = {url}/network
[neutron]
auth_section = service_auth
endpoint_override = {url}/network
[fairlead]
servers = http://127.0.0.1:1,{url}
user = {user}
password = {password}
patience = {patience}
statistics_interval = 5
"""
PROVIDERS = "fairlead:Fairlead"
STOCK_PROVIDERS = "fairlead:Fairlead,ovn:OVN"
STOCK_CONF = """
[ovn]
ovn_nb_connection = unix:{folder}/nb.sock
ovn_sb_connection = unix:{folder}/sb.sock
"""
"""Configuration of Octavia's stock OVN provider, which writes to the same Northbound database."""
CLOUDS = """
clouds:
  fairlead:
    auth_type: http_basic
    auth: {{username: {user}, password: {password}, endpoint: {url}}}
    network_endpoint_override: {url}/network
    load_balancer_endpoint_override: http://127.0.0.1:{port}
"""


class NorthboundDatabase:
    """A real ovsdb-server with OVN's Northbound database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.northbound = f"unix:{folder}/nb.sock"
        subprocess.run(["ovsdb-tool", "create", folder / "nb.db", SCHEMA], check=True)
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def restart(self) -> None:
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        folder = self._folder
        (folder / "nb.sock").unlink(missing_ok=True)
        listen, control = f"--remote=punix:{folder}/nb.sock", f"--unixctl={folder}/nb.ctl"
        process = subprocess.Popen([SERVER, listen, control, "-vconsole:off", folder / "nb.db"], cwd=folder)
        wait_until((folder / "nb.sock").exists)
        return process


class ObjectGone(AssertionError):
    """Raised if an object does not exist."""


def content_of(answer: httpx.Response) -> Any:
    """Body of a response. Raises Gone."""
    if answer.status_code == 404:
        raise ObjectGone(answer.text)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


@dataclass(frozen=True, kw_only=True)
class StatusPair:
    """Provisioning and operating status of each object, by id."""

    octavia: dict[str, tuple[str, str]] | None
    fairlead: dict[str, tuple[str, str]]

    def is_consistent(self) -> bool:
        """Whether both have the same statuses and none is pending."""
        return self.octavia == self.fairlead and not any(
            provisioning.startswith("PENDING") for provisioning, _ in self.fairlead.values()
        )


class StatusComparison:
    """Comparison of Octavia's statuses with Fairlead's."""

    fairlead: FairleadProcess

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Response of Octavia's API. Raises Gone."""
        raise NotImplementedError

    def log(self, name: str) -> str:
        raise NotImplementedError

    def octavia_statuses(self) -> dict[str, tuple[str, str]]:
        """Provisioning and operating status of all of Octavia's objects, by id."""
        balancers, listeners, pools, monitors = (
            self.request("GET", plural)[plural] for plural in ("loadbalancers", "listeners", "pools", "healthmonitors")
        )
        members = [each for pool in pools for each in self.request("GET", f"pools/{pool['id']}/members")["members"]]
        every = (*balancers, *listeners, *pools, *monitors, *members)
        return {each["id"]: (each["provisioning_status"], each["operating_status"]) for each in every}

    def _read_consistently(self) -> dict[str, tuple[str, str]] | None:
        """All statuses, or None if an object was deleted between two requests."""
        try:
            return self.octavia_statuses()
        except ObjectGone:
            return None

    def fairlead_statuses(self) -> dict[str, tuple[str, str]]:
        """Provisioning and operating status of all of Fairlead's objects, by id."""
        page = self.fairlead.client.get("/plugin/statuses").json()
        assert page["next"] is None
        kinds = ("listeners", "pools", "members", "healthmonitors")
        return {
            each["id"]: (each["provisioning_status"], each["operating_status"])
            for balancer in page["loadbalancers"]
            for each in (balancer, *(part for kind in kinds for part in balancer[kind]))
        }

    def _statuses(self) -> StatusPair:
        return StatusPair(octavia=self._read_consistently(), fairlead=self.fairlead_statuses())

    def settle(self, seconds: float = SETTLE_TIMEOUT) -> dict[str, tuple[str, str]]:
        """Wait until nothing is pending and Octavia's statuses equal Fairlead's, and return them."""
        try:
            return wait_until(
                self._statuses, "both to agree", is_enough=StatusPair.is_consistent, seconds=seconds
            ).fairlead
        except AssertionError as error:
            error.add_note(self.log("agent"))
            raise


@dataclass
class OctaviaCloud(StatusComparison):
    stack: ExitStack
    folder: Path
    database: NorthboundDatabase
    fairlead: FairleadProcess
    octavia: httpx.Client
    environment: dict[str, str]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str, *more: str) -> None:
        """Start `api` or `agent`, with its children in a process group. `more` are files of `override`."""
        own = ("agent.conf",) if name == "agent" else ()
        command = [OCTAVIA, LAUNCH, name, *self._files(*own, *more)]
        with (self.folder / f"octavia-{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )
        if name == "api":
            wait_equal(self._status, 200, retry=(httpx.TransportError,), seconds=SETTLE_TIMEOUT)

    def _files(self, *more: str) -> list[str]:
        return [word for name in ("octavia.conf", *more) for word in ("--config-file", str(self.folder / name))]

    def override(self, name: str, text: str) -> None:
        """Write a file that is read after octavia.conf."""
        (self.folder / name).write_text(text)

    def sync(self, *words: str) -> tuple[int, Any]:
        """Exit code and output of `fairlead octavia sync --json`."""
        command = [OCTAVIA, LAUNCH, "fairlead", "octavia", "sync", "--json", *self._files(), *words]
        ran = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)

    def kill(self, name: str) -> None:
        """Kill a process and all its children."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def agents(self) -> list[int]:
        """PIDs of Fairlead's provider agent, which octavia-driver-agent starts, and of its children."""
        group = self.processes["agent"].pid
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_agent(pid, group)]

    def restart_fairlead(self) -> None:
        self.fairlead.kill()
        port = httpx.URL(self.fairlead.url).port
        self.fairlead = self.stack.enter_context(fairlead(self.database, self.folder, port or 0))

    @contextmanager
    def block_commits(self) -> Iterator[None]:
        """Block Octavia's commits: SQLite delays a commit while a reader is in a transaction."""
        with closing(sqlite3.connect(self.folder / "octavia.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT id FROM load_balancer").fetchall()
            yield

    def request(self, method: str, path: str, body: object = None) -> Any:
        return content_of(self.octavia.request(method, f"/v2/lbaas/{path}", json=body))

    def log(self, name: str) -> str:
        return (self.folder / f"octavia-{name}.log").read_text()[-4000:]

    def _status(self) -> int:
        assert self.processes["api"].poll() is None, self.log("api")
        return self.octavia.get("/").status_code


def is_agent(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group and b"provider_agent" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def northbound(folder: Path) -> Iterator[NorthboundDatabase]:
    database = NorthboundDatabase(folder)
    try:
        yield database
    finally:
        database.kill()


@contextmanager
def fairlead(database: HasNorthbound, folder: Path, port: int, **options: str) -> Iterator[FairleadProcess]:
    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}:{PROJECT}:admin\n")
    users.chmod(0o600)
    authentication = {
        "FAIRLEAD_SERVER_AUTHENTICATION": "http_basic",
        "FAIRLEAD_SERVER_PASSWORD_FILE": str(users),
    }
    with serving(database, folder, port=port, **authentication, **options) as server:
        server.client.auth = httpx.BasicAuth(USER, PASSWORD)
        yield server


def missing() -> str:
    """Programs that are not installed, or an empty string."""
    paths = (OCTAVIA.parent.parent / ".installed", SERVER, SCHEMA)
    return " and ".join(str(each) for each in paths if not each.exists())


@contextmanager
def cloud(folder: Path, *, providers: str = PROVIDERS, more: str = "") -> Iterator[OctaviaCloud]:
    """Run everything. `more` is appended to Octavia's configuration."""
    with ExitStack() as stack:
        database = stack.enter_context(northbound(folder))
        server = stack.enter_context(fairlead(database, folder, free_port()))
        port = free_port()
        said = {"user": USER, "password": PASSWORD, "url": server.url, "port": port, "folder": folder}
        written = (CONF + more).format(
            patience=REQUEST_TIMEOUT, providers=providers, database_timeout=DATABASE_TIMEOUT, **said
        )
        (folder / "octavia.conf").write_text(written)
        (folder / "agent.conf").write_text(AGENT_CONF.format(folder=folder))
        (folder / "clouds.yaml").write_text(CLOUDS.format(**said))
        environment = {
            **os.environ,
            "OCTAVIA_PROJECT": PROJECT,
            "OCTAVIA_SOCKETS": str(folder),
            "PYTHONWARNINGS": "ignore",
        }
        command = [OCTAVIA, LAUNCH, "database", "--config-file", folder / "octavia.conf"]
        subprocess.run(command, check=True, env=environment, capture_output=True)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=SETTLE_TIMEOUT))
        made = OctaviaCloud(stack, folder, database, server, client, environment)
        stack.callback(lambda: [made.kill(name) for name in list(made.processes)])
        made.start("agent")
        made.start("api")
        yield made


@contextmanager
def cloud_or_skip(folders: pytest.TempPathFactory) -> Iterator[OctaviaCloud]:
    """Run everything, or skip the test if a program is missing."""
    if what := missing():
        reason = f"needs {what} (scripts/setup lab)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    with cloud(folders.mktemp("octavia")) as made:
        yield made
