"""An OpenStack with all its networking on the lab: Keystone, Neutron (ML2/OVN), Octavia, and Fairlead behind Octavia.

Users find all services in Keystone's catalogue. The lab replaces Nova: a machine is a port bound to a chassis, as Nova
binds it, and a workload with that port's name there.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import openstack
import openstack.config
import openstack.connection

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult, Workload
from harness.keystone.cloud import KeystoneServer as Keystone
from harness.keystone.cloud import keystone
from harness.lab.servers import FairleadProcess
from harness.neutron_lab.services import OpenStackService, neutron, octavia
from harness.octavia_plugin.cloud import PASSWORD, fairlead
from harness.ports import free_port

OPENSTACK = Path(sys.executable).with_name("openstack")
PORT = 8080
"""Port at which machines answer with their names, over TCP and UDP."""
GATEWAY_OPTION = "ovn-cms-options=enable-chassis-as-gw"
"""Option of a chassis that Neutron requires before it schedules a router's gateway there."""

PING_ALL_OPTION = "ignore_lsp_down=false"
"""Makes OVN answer ARP and ND only for bound ports.

Neutron's maintenance process sets it too, but only in its first second and if it has its lock by then; otherwise it
retries after a day.
"""


def discard_progress(_: str) -> None:
    """Discard progress messages."""


@dataclass
class OpenStackOnLab:
    lab: Lab
    folder: Path
    keystone: Keystone
    neutron: OpenStackService
    octavia: OpenStackService
    server: FairleadProcess
    clouds: str
    running: ExitStack
    """Ends all services."""
    connections: dict[str, openstack.connection.Connection] = field(default_factory=dict)

    # clients

    def connection_of(self, user: str) -> openstack.connection.Connection:
        """openstacksdk as this user, with all endpoints from the catalogue."""
        if user not in self.connections:
            configuration = openstack.config.OpenStackConfig(config_files=[self.clouds]).get_one(user)
            self.connections[user] = openstack.connection.Connection(config=configuration)
        return self.connections[user]

    def openstack(self, user: str, line: str) -> Any:
        """Output of a stock `openstack` command as this user, parsed if it is JSON."""
        environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": self.clouds, "OS_CLOUD": user, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(
            [OPENSTACK, *shlex.split(line)], env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"openstack {line}: {done.stderr}"
        return json.loads(done.stdout) if done.stdout.lstrip().startswith(("{", "[")) else done.stdout

    def restart_server(self, **options: str) -> None:
        """Kill Fairlead's server, and start another one at the same address with the same store."""
        self.server.kill()
        port, southbound = int(self.server.url.rpartition(":")[2]), {"FAIRLEAD_OVN_SOUTHBOUND": self.lab.southbound}
        self.server = self.running.enter_context(fairlead(self.lab, self.folder, port, **southbound, **options))

    # machines

    def machine(self, name: str, network: str, chassis: str) -> None:
        """A port of the user Alice, bound to a chassis, and a workload there that answers with its name."""
        administrator = self.connection_of("admin").network
        where = self.connection_of("alice").network.find_network(network, ignore_missing=False)
        port = self.connection_of("alice").network.create_port(name=name, network_id=where.id)
        administrator.update_port(
            port.id, binding_host_id=chassis, device_owner="compute:nova", device_id=f"machine-{name}"
        )
        subnets = {fixed["subnet_id"]: administrator.get_subnet(fixed["subnet_id"]) for fixed in port.fixed_ips}
        workload = Workload(
            name=name,
            chassis=chassis,
            port_id=port.id,
            mac=port.mac_address,
            addresses=tuple(
                f"{fixed['ip_address']}/{ip_network(subnets[fixed['subnet_id']].cidr).prefixlen}"
                for fixed in port.fixed_ips
            ),
            gateways=tuple(subnet.gateway_ip for subnet in subnets.values() if subnet.gateway_ip),
            mtu=where.mtu,
            serve=(PORT,),
        )
        self.lab.add_workload(workload)

    def machines(self, places: Mapping[str, tuple[str, str]]) -> None:
        """Create machines, given their network and chassis by name."""
        for name, (network, chassis) in places.items():
            self.machine(name, network, chassis)
        self.lab.wait_bound(*places)
        self.lab.wait_synced()

    def address(self, machine: str, version: int = 4) -> str:
        return next(str(each.ip) for each in self.lab.workload(machine).interfaces if each.version == version)

    # observations

    def answers(
        self, place: str, to: str, port: int = 80, protocol: Protocol = Protocol.TCP, count: int = 24
    ) -> set[str]:
        """Names that answered a number of connections, and "" if some had no answer."""
        result = self.traffic(place, to, port, protocol, count)
        return {*result.answers, *([""] if result.errors else [])}

    def traffic(self, place: str, to: str, port: int, protocol: Protocol, count: int) -> TrafficResult:
        wanted = Traffic(to=to, port=port, protocol=protocol, count=count, timeout=10, concurrency=8)
        return self.lab.traffic(place, wanted)


@contextmanager
def cloud(folder: Path, lab: Lab, say: Callable[[str], None] = discard_progress) -> Iterator[OpenStackOnLab]:
    """Run all services in the context."""
    for node in lab.record.chassis:
        lab.exec(node.name, ["ovs-vsctl", "set", "Open_vSwitch", ".", f"external_ids:{GATEWAY_OPTION}"])
    lab.exec("central", ["ovn-nbctl", "set", "NB_Global", ".", f"options:{PING_ALL_OPTION}"])
    with ExitStack() as stack:
        identity = stack.enter_context(keystone(folder))
        for service in ("neutron", "octavia"):
            identity.create_service_user(service)
        say(f"Keystone answers on {identity.url}")
        network = stack.enter_context(neutron(folder / "neutron", lab, identity))
        server = stack.enter_context(fairlead(lab, folder, free_port(), FAIRLEAD_OVN_SOUTHBOUND=lab.southbound))
        say(f"Fairlead listens on {server.url}")
        balancing = stack.enter_context(octavia(folder / "octavia", lab, identity, network.url, server.url, PASSWORD))
        with ThreadPoolExecutor() as pool:
            list(pool.map(OpenStackService.await_answer, (network, balancing)))
        say(f"Neutron answers on {network.url}, Octavia on {balancing.url}")
        made = OpenStackOnLab(lab, folder, identity, network, balancing, server, identity.clouds(), stack)
        stack.callback(lambda: [connection.close() for connection in made.connections.values()])
        _default_rules(made.connection_of("admin"))
        yield made


def _default_rules(administrator: openstack.connection.Connection) -> None:
    """Default security group rules of Neutron's migrations: all egress, and ingress from the same group."""
    for version in ("IPv4", "IPv6"):
        everywhere = {"ethertype": version, "used_in_default_sg": True}
        made = administrator.network.create_default_security_group_rule
        made(direction="egress", used_in_non_default_sg=True, **everywhere)
        made(direction="ingress", used_in_non_default_sg=False, remote_group_id="PARENT", **everywhere)
