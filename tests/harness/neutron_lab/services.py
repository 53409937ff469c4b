"""A real Neutron and a real Octavia with Keystone, configured as by an operator, as processes of this test alone."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from fairlead.lab import Lab
from fairlead.lab.layout import PHYSICAL_NETWORK
from harness.keystone.cloud import REGION, KeystoneServer, password_of
from harness.ports import free_port
from harness.waiting import wait_until

ROOT = Path(__file__).parents[3]
NEUTRON = ROOT / ".venv-neutron-server"
OCTAVIA = ROOT / ".venv-octavia"
KEYSTONE = ROOT / ".venv-keystone"
LAUNCH_OCTAVIA = Path(__file__).parents[1] / "octavia_plugin" / "launch.py"
START_TIMEOUT = 300.0  # seconds; a service reads some thousand files, on a possibly busy machine
NEUTRON_CONF = """
[DEFAULT]
core_plugin = ml2
service_plugins = ovn-router
auth_strategy = keystone
transport_url = fake://
api_paste_config = {environment}/etc/neutron/api-paste.ini
state_path = {folder}
notify_nova_on_port_status_changes = false
notify_nova_on_port_data_changes = false
[database]
connection = sqlite:///{folder}/neutron.db
sqlite_synchronous = false
[oslo_concurrency]
lock_path = {folder}
{trust}
[ml2]
mechanism_drivers = ovn
type_drivers = geneve,vlan,flat
project_network_types = geneve
extension_drivers = port_security
[ml2_type_geneve]
vni_ranges = 1:65536
max_header_size = 38
[ml2_type_flat]
flat_networks = {physical}
[ml2_type_vlan]
network_vlan_ranges = {physical}:100:199
[ovn]
ovn_nb_connection = {northbound}
ovn_sb_connection = {southbound}
ovn_metadata_enabled = true
"""
OCTAVIA_CONF = """
[DEFAULT]
transport_url = fake://
[api_settings]
bind_host = 127.0.0.1
bind_port = {port}
auth_strategy = keystone
enabled_provider_drivers = fairlead:Fairlead,ovn:OVN
default_provider_driver = fairlead
[database]
connection = sqlite:///{folder}/octavia.db?timeout=60
sqlite_synchronous = false
[driver_agent]
status_socket_path = {folder}/status.sock
stats_socket_path = {folder}/stats.sock
get_socket_path = {folder}/get.sock
enabled_provider_agents = fairlead
[controller_worker]
compute_driver = compute_noop_driver
[networking]
allow_invisible_resource_usage = True
{trust}
[service_auth]
{account}
[neutron]
auth_section = service_auth
endpoint_override = {neutron}
[fairlead]
servers = {fairlead}
user = octavia
password = {password}
statistics_interval = 5
[ovn]
ovn_nb_connection = {northbound}
ovn_sb_connection = {southbound}
"""
NETWORK_DRIVER = """
[controller_worker]
network_driver = fairlead_network_driver
"""
"""Part of octavia.conf that leaves VIPs to Fairlead's own network driver."""


@dataclass
class OpenStackService:
    """The processes of one service, each with its children in a process group."""

    folder: Path
    url: str
    environment: dict[str, str]
    commands: dict[str, list[str | Path]]
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, name: str) -> None:
        environment = {**os.environ, **self.environment, "PYTHONWARNINGS": "ignore"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.commands[name], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def await_answer(self) -> None:
        """Wait until its API answers."""
        wait_until(
            self._status, is_enough=lambda status: status < 500, retry=(httpx.TransportError,), seconds=START_TIMEOUT
        )

    def run(self, name: str, *more: str) -> str:
        """Run a command to its end, and return its output."""
        environment = {**os.environ, **self.environment, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [*self.commands[name], *more],
            env=environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def kill(self, name: str) -> None:
        """Kill a process and all its children."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop_all(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _status(self) -> int:
        assert self.processes["api"].poll() is None, self.log("api")[-4000:]
        return httpx.get(self.url, timeout=START_TIMEOUT).status_code


def missing() -> list[Path]:
    """Environments of these services that are not installed."""
    return [place for place in (KEYSTONE, NEUTRON, OCTAVIA) if not (place / ".installed").exists()]


@contextmanager
def neutron(folder: Path, lab: Lab, keystone: KeystoneServer) -> Iterator[OpenStackService]:
    """Start Neutron's API and maintenance process. `await_answer` waits for the API, and `sync` can be run."""
    folder.mkdir()
    shutil.copy(NEUTRON / "empty" / "neutron.db", folder)
    conf = NEUTRON_CONF.format(
        environment=NEUTRON,
        folder=folder,
        physical=PHYSICAL_NETWORK,
        northbound=lab.northbound,
        southbound=lab.southbound,
        trust=_keystone_options(keystone, "neutron"),
    )
    (folder / "neutron.conf").write_text(conf)
    port = free_port()
    launch: list[str | Path] = [NEUTRON / "bin" / "python", Path(__file__).with_name("launch.py")]
    configured = ["--config-file", folder / "neutron.conf"]
    commands = {
        "api": [*launch, "api", str(port)],
        "maintenance": [*launch, "maintenance", *configured],
        "sync": [*launch, "sync", *configured],
    }
    environment = {
        "ASGI_WORKERS": "1",  # number of API processes, among which Neutron distributes OVN events
        "TMPDIR": str(folder),
        "OS_NEUTRON_CONFIG_DIR": str(folder),
        "OS_NEUTRON_CONFIG_FILES": "neutron.conf",
    }
    keystone.add_to_catalogue("network", f"http://127.0.0.1:{port}")
    yield from _run_service(
        OpenStackService(folder, f"http://127.0.0.1:{port}", environment, commands), "api", "maintenance"
    )


class HasDatabases(Protocol):
    """The remotes of OVN's databases."""

    @property
    def northbound(self) -> str: ...
    @property
    def southbound(self) -> str: ...


@contextmanager
def octavia(
    folder: Path,
    ovn: HasDatabases,
    keystone: KeystoneServer,
    neutron: str,
    fairlead: str,
    password: str,
    more: str = "",
) -> Iterator[OpenStackService]:
    """Start Octavia's API and driver-agent, with the stock provider `ovn` too. `more` is appended to octavia.conf."""
    folder.mkdir()
    port = free_port()
    conf = OCTAVIA_CONF.format(
        port=port,
        folder=folder,
        trust=_keystone_options(keystone, "octavia"),
        account=_account_options(keystone, "octavia"),
        neutron=neutron,
        fairlead=fairlead,
        password=password,
        northbound=ovn.northbound,
        southbound=ovn.southbound,
    )
    (folder / "octavia.conf").write_text(conf + more)
    launch: list[str | Path] = [OCTAVIA / "bin" / "python", LAUNCH_OCTAVIA]
    configured = ["--config-file", folder / "octavia.conf"]
    commands = {what: [*launch, what, *configured] for what in ("database", "api", "agent")}
    commands["adopt"] = [*launch, "fairlead", "octavia", "adopt", *configured]
    keystone.add_to_catalogue("load-balancer", f"http://127.0.0.1:{port}")
    environment = {"OCTAVIA_SOCKETS": str(folder), "OCTAVIA_IS_BUSY": "1"}  # API and agent write concurrently
    service = OpenStackService(folder, f"http://127.0.0.1:{port}", environment, commands)
    service.run("database")
    yield from _run_service(service, "agent", "api")


def _run_service(service: OpenStackService, *names: str) -> Iterator[OpenStackService]:
    try:
        for name in names:
            service.start(name)
        yield service
    finally:
        service.stop_all()


def _account_options(keystone: KeystoneServer, user: str) -> str:
    return f"""auth_type = password
auth_url = {keystone.url}
username = {user}
password = {password_of(user)}
user_domain_id = default
project_name = service
project_domain_id = default
region_name = {REGION}"""


def _keystone_options(keystone: KeystoneServer, user: str) -> str:
    return f"""[keystone_authtoken]
www_authenticate_uri = {keystone.url}
service_token_roles_required = true
{_account_options(keystone, user)}"""
